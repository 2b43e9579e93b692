//! A policy that leaves tools which may destroy something to runs with the label `approved=yes`,
//! one call a turn, and nothing but reading once such a call was let through.
//!
//! A run whose label `policy` is one of these words gets another kind of policy:
//!
//! | word | the policy |
//! | --- | --- |
//! | `trap` | panics |
//! | `spin` | computes for ever |
//! | `error` | returns an error |
//! | `flood` | labels the run with more than it may |

use std::hint::black_box;
use taskrun_guest::{
    policy::{Phase, Policy, PolicyDecision, PolicyInput, ToolError, ToolSpec},
    types::Label,
};

/// More than the contract allows.
const LABELS_TOO_MANY: u32 = 65;
/// Says that something may have been destroyed.
const DESTROYED: &str = "destroyed";

struct Cautious;

taskrun_guest::export_policy!(Cautious);

impl Policy for Cautious {
    fn decide(input: PolicyInput) -> Result<PolicyDecision, ToolError> {
        match value(&input.run.labels, "policy") {
            Some("trap") => panic!("the policy panics on request"),
            Some("spin") => loop {
                black_box(());
            },
            Some("error") => Err(ToolError::new("no decision, on request")),
            Some("flood") => {
                let all = 0..LABELS_TOO_MANY;
                Ok(all.fold(PolicyDecision::default(), |one, n| one.label(n.to_string(), "")))
            }
            Some(_) | None => Ok(decide(&input)),
        }
    }
}

fn decide(input: &PolicyInput) -> PolicyDecision {
    if value(&input.labels, DESTROYED).is_some() {
        return PolicyDecision::only(input.tools.iter().filter(|tool| tool.hints.read_only));
    }
    if value(&input.run.labels, "approved") != Some("yes") {
        return PolicyDecision::only(input.tools.iter().filter(|tool| !tool.hints.destructive));
    }
    let destroys = |tool: &ToolSpec| {
        tool.hints.destructive && input.requested.iter().any(|call| call.name == tool.name)
    };
    match input.phase {
        Phase::Calls if input.tools.iter().any(destroys) => {
            PolicyDecision::default().calls(1).label(DESTROYED, "perhaps")
        }
        Phase::Calls | Phase::Plan => PolicyDecision::default(),
    }
}

fn value<'l>(labels: &'l [Label], key: &str) -> Option<&'l str> {
    labels.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskrun_guest::{native, policy::RequestedCall};

    fn input(approved: bool, requested: &[&str], phase: Phase) -> PolicyInput {
        let mut run = native::host(|host| host.context.clone());
        run.labels = approved.then(|| ("approved".into(), "yes".into())).into_iter().collect();
        let call = |name: &&str| RequestedCall {
            name: (*name).into(),
            payload: "{}".into(),
            tool_call_id: "c".into(),
        };
        PolicyInput {
            phase,
            run,
            tools: vec![
                ToolSpec::new("t/drop", "", "{}").destructive(),
                ToolSpec::new("t/look", "", "{}").read_only(),
                ToolSpec::new("t/put", "", "{}"),
            ],
            retry_hints: Vec::new(),
            tool_calls_left: None,
            turns_left: None,
            requested: requested.iter().map(call).collect(),
            labels: Vec::new(),
        }
    }

    #[test]
    fn what_destroys_is_for_approved_runs_and_for_once() {
        let left = |input: PolicyInput| {
            let decision = Cautious::decide(input).expect("a decision");
            (decision.allowed_tools.map(|all| all.join(" ")), decision.tool_calls)
        };
        assert_eq!(left(input(false, &[], Phase::Plan)), (Some("t/look t/put".into()), None));
        assert_eq!(left(input(true, &[], Phase::Plan)), (None, None));
        assert_eq!(left(input(true, &["t/put"], Phase::Calls)), (None, None));
        assert_eq!(left(input(true, &["t/drop"], Phase::Calls)), (None, Some(1)));
        let mut after = input(true, &[], Phase::Plan);
        after.labels.push((DESTROYED.into(), "perhaps".into()));
        assert_eq!(left(after), (Some("t/look".into()), None));
    }
}
