//! Several engines decide together: each takes away, none gives back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use taskrun_journal::ruling::Phase;
use taskrun_journal::time::Timestamp;
use taskrun_journal::tool::ToolSpec;
use taskrun_policy::{POLICY_LABEL_BYTES_MAX, POLICY_LABELS_MAX, PolicyDecision};

use super::super::engines::relabel;
use super::{Guard, ToolRuling, tools};
use crate::clock::SimulatedClock;
use crate::ports::policy_engine::{PolicyEngine, PolicyFailure, PolicyInput};
use crate::scope::{Remaining, RunContext};

/// An engine that answers so.
struct Answering(&'static str, Result<PolicyDecision, String>);

#[async_trait]
impl PolicyEngine for Answering {
    fn name(&self) -> &str {
        self.0
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn decide(&self, _: &PolicyInput) -> Result<PolicyDecision, PolicyFailure> {
        self.1.clone().map_err(PolicyFailure)
    }
}

fn only(tools: &[&str]) -> PolicyDecision {
    let tools = tools.iter().map(|name| (*name).to_owned()).collect();
    PolicyDecision { allowed_tools: Some(tools), ..PolicyDecision::default() }
}

fn calls(most: u32) -> PolicyDecision {
    PolicyDecision { tool_calls: Some(most), ..PolicyDecision::default() }
}

/// The ruling of these engines about the functions `a/f`, `b/f` and `c/f`.
async fn ruling(
    engines: Vec<(&'static str, Result<PolicyDecision, String>)>,
) -> (ToolRuling, String) {
    let specs: Arc<Vec<ToolSpec>> = Arc::clone(tools(&["a", "b", "c"]).specs());
    let input = PolicyInput {
        phase: Phase::Calls,
        run: RunContext::default(),
        tools: specs,
        hints: Vec::new(),
        remaining: Remaining::default(),
        requested: Vec::new(),
        labels: BTreeMap::from([("known".to_owned(), "1".to_owned())]),
    };
    let engines = engines
        .into_iter()
        .map(|(name, answer)| Arc::new(Answering(name, answer)) as Arc<dyn PolicyEngine>);
    let guard = Guard { engines: engines.collect() };
    let ruling = guard.decide(&SimulatedClock::new(Timestamp(0)), &input).await;
    (ruling.decided, ruling.by)
}

#[tokio::test]
async fn each_engine_takes_away_and_those_that_did_are_named() {
    let everything = || Ok(PolicyDecision::default());
    let (decided, by) = ruling(vec![("one", everything()), ("two", everything())]).await;
    assert_eq!((decided, by.as_str()), (ToolRuling::everything(Phase::Calls), "one; two"));

    let all = ["a/f", "b/f", "c/f", "another/f"];
    let (decided, by) = ruling(vec![("one", Ok(only(&all))), ("two", everything())]).await;
    assert_eq!((decided.allowed_tools, by.as_str()), (None, "one; two"), "nothing is missing");

    let engines = vec![("one", everything()), ("two", Ok(only(&["a/f", "b/f"])))];
    let (decided, by) = ruling(engines).await;
    assert_eq!(decided.allowed_tools, Some(vec!["a/f".to_owned(), "b/f".to_owned()]));
    assert_eq!(by, "two");

    let engines = vec![("one", Ok(only(&["a/f", "b/f"]))), ("two", Ok(only(&["b/f", "c/f"])))];
    let (decided, by) = ruling(engines).await;
    assert_eq!(decided.allowed_tools, Some(vec!["b/f".to_owned()]));
    assert_eq!(by, "one; two");
    assert!(!decided.disable_tools);

    let (decided, _) = ruling(vec![("one", Ok(calls(3))), ("two", Ok(calls(2)))]).await;
    assert_eq!(decided.tool_calls, Some(2));
    let (decided, _) = ruling(vec![("one", everything()), ("two", Ok(calls(2)))]).await;
    assert_eq!(decided.tool_calls, Some(2));
}

#[tokio::test]
async fn an_engine_that_does_not_decide_takes_all_tools_and_says_why_briefly() {
    let failed = ("broken", Err("x".repeat(5_000)));
    let (decided, by) = ruling(vec![failed, ("two", Ok(only(&["a/f"])))]).await;
    assert!(decided.disable_tools);
    let expected = format!("broken did not decide: {}; two", "x".repeat(1 << 10));
    assert_eq!(by, expected);
}

#[tokio::test]
async fn more_labels_than_fit_are_no_decision() {
    let labeled = |count: usize, bytes: usize| {
        let label = |number: usize| (format!("{number:04}"), "v".repeat(bytes));
        PolicyDecision { labels: (0..count).map(label).collect(), ..PolicyDecision::default() }
    };
    for (decision, decides) in [
        (labeled(POLICY_LABELS_MAX, 1), true),
        (labeled(POLICY_LABELS_MAX + 1, 1), false),
        (labeled(1, POLICY_LABEL_BYTES_MAX - 4), true),
        (labeled(1, POLICY_LABEL_BYTES_MAX - 3), false),
    ] {
        let shown = format!("{} labels", decision.labels.len());
        let (decided, _) = ruling(vec![("one", Ok(decision))]).await;
        assert_eq!(!decided.disable_tools, decides, "{shown}");
    }
}

#[tokio::test]
async fn only_new_labels_are_told_and_they_never_outgrow_one_decision() {
    let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let said = labels(&[("known", "1"), ("more", "2")]);
    let decision = PolicyDecision { labels: said, ..PolicyDecision::default() };
    let (decided, _) = ruling(vec![("one", Ok(decision))]).await;
    assert_eq!(decided.labels, labels(&[("more", "2")]));

    let mut kept = labels(&[("known", "1")]);
    relabel(&mut kept, &decided);
    assert_eq!(kept, labels(&[("known", "1"), ("more", "2")]));
    let long = "v".repeat(POLICY_LABEL_BYTES_MAX);
    let too_much = ToolRuling {
        labels: labels(&[("a", &long), ("known", "3")]),
        ..ToolRuling::everything(Phase::Calls)
    };
    relabel(&mut kept, &too_much);
    assert_eq!(kept, labels(&[("known", "3"), ("more", "2")]), "what does not fit is left out");
}
