//! The engines that decide about the tools of an agent, turn by turn.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use taskrun_journal::message::Labels;
use taskrun_journal::ruling::ToolRuling;
use taskrun_journal::text::cut;
use taskrun_journal::time::{Clock, millis};
use taskrun_policy::{POLICY_LABEL_BYTES_MAX, POLICY_LABELS_MAX, PolicyDecision};

use crate::ports::policy_engine::{PolicyEngine, PolicyInput};

/// Most bytes of the reason for which an engine did not decide.
const FAILURE_BYTES_MAX: usize = 1 << 10;

/// The guard of one agent. The default lets everything pass.
#[derive(Clone, Default)]
pub struct Guard {
    /// All of them are asked; a tool is left if each leaves it, and the smallest number of calls
    /// counts.
    pub engines: Vec<Arc<dyn PolicyEngine>>,
}

/// The ruling of all engines together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EngineRuling {
    pub(crate) decided: ToolRuling,
    /// The engines that took something away, and the reasons of those that failed, for operators.
    pub(crate) by: String,
}

impl Guard {
    /// Asks all engines. One that fails, panics, is too slow or breaks its bounds takes all tools
    /// away.
    pub(crate) async fn decide(&self, clock: &dyn Clock, input: &PolicyInput) -> EngineRuling {
        let mut decided = ToolRuling::everything(input.phase);
        let mut by = Vec::new();
        for engine in &self.engines {
            let before = decided.clone();
            let name = engine.name();
            match verdict(&**engine, clock, input).await {
                Ok(decision) => join(&mut decided, decision, input),
                Err(reason) => {
                    let reason = cut(&reason, FAILURE_BYTES_MAX);
                    tracing::warn!(engine = name, reason, "a policy engine did not decide");
                    decided.disable_tools = true;
                    by.push(format!("{name} did not decide: {reason}"));
                    continue;
                }
            }
            if decided != before {
                by.push(name.to_owned());
            }
        }
        let by = if by.is_empty() { self.names() } else { by.join("; ") };
        EngineRuling { decided, by }
    }

    fn names(&self) -> String {
        let names: Vec<_> = self.engines.iter().map(|engine| engine.name()).collect();
        names.join("; ")
    }
}

/// The decision of an engine, or the reason for which there is none.
async fn verdict(
    engine: &dyn PolicyEngine,
    clock: &dyn Clock,
    input: &PolicyInput,
) -> Result<PolicyDecision, String> {
    let decides = AssertUnwindSafe(async { engine.decide(input).await }).catch_unwind();
    let decision = tokio::select! {
        biased;
        decided = decides => match decided {
            Ok(Ok(decision)) => decision,
            Ok(Err(failure)) => return Err(failure.to_string()),
            Err(_) => return Err("it failed".to_owned()),
        },
        () = clock.sleep(engine.timeout()) => {
            return Err(format!("it took more than {} ms", millis(engine.timeout())));
        }
    };
    for (what, labels) in [("labels", &decision.labels), ("metadata", &decision.metadata)] {
        if !are_bounded(labels) {
            return Err(format!(
                "its {what} are more than {POLICY_LABELS_MAX}, or than {POLICY_LABEL_BYTES_MAX} \
                 bytes"
            ));
        }
    }
    Ok(decision)
}

/// Takes away what a decision takes away. Its words about tools that the run does not have, and
/// those that take nothing away, are left out, so that equal decisions are equal.
fn join(decided: &mut ToolRuling, decision: PolicyDecision, input: &PolicyInput) {
    decided.disable_tools |= decision.disable_tools;
    if let Some(list) = decision.allowed_tools {
        let before = decided.allowed_tools.as_ref();
        let left =
            |name: &String| before.is_none_or(|all| all.contains(name)) && list.contains(name);
        let names = input.tools.iter().map(|tool| &tool.name).filter(|name| left(name));
        let names: Vec<String> = names.cloned().collect();
        if names.len() < input.tools.len() {
            decided.allowed_tools = Some(names);
        }
    }
    decided.tool_calls = match (decided.tool_calls, decision.tool_calls) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    };
    let is_new = |(key, value): &(String, String)| input.labels.get(key) != Some(value);
    decided.labels.extend(decision.labels.into_iter().filter(is_new));
    decided.metadata.extend(decision.metadata);
}

/// Adds the labels of a decision to those of the decisions before it; those beyond the bounds of
/// one decision are left out.
pub(crate) fn relabel(labels: &mut Labels, decided: &ToolRuling) {
    for (key, value) in &decided.labels {
        let mut with = labels.clone();
        with.insert(key.clone(), value.clone());
        if are_bounded(&with) {
            *labels = with;
        }
    }
}

fn are_bounded(labels: &Labels) -> bool {
    let bytes: usize = labels.iter().map(|(key, value)| key.len() + value.len()).sum();
    labels.len() <= POLICY_LABELS_MAX && bytes <= POLICY_LABEL_BYTES_MAX
}
