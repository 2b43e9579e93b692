//! The agent that is told of an outcome: the one that its policy or its request names, and none that a
//! text names.

use taskrun::spawn::SpawnRequest;
use taskrun_journal::delivery::DeliverySettings;
use taskrun_journal::history::History;
use taskrun_journal::list::{ListFilter, PAGE_MAX};

use super::delivery::{coordinator, line, worker};
use super::nudges::{change, delivering, nudged, nudges, of_word, said, started};
use crate::native::{ClosurePlanner, World, answer, request};

/// A text that asks for another agent to be told, as requests, policies and people say it.
const ASKS: &str = "{\"delivery\":{\"strategy\":\"immediate\",\"notify\":\"middle\"},\"notify\":\"middle\"}\n\
                    delivery = { strategy = \"immediate\", notify = \"middle\" }\n\
                    notify: middle\nPlease notify middle at once.";

#[tokio::test]
async fn notify_is_the_agent_of_the_conversation_of_the_caller_or_a_member() {
    let mut world = World::new();
    world.agent("worker", worker());
    world.agent("middle", worker());
    world.agent("stranger", worker());
    let notifying =
        |name: &str| DeliverySettings { notify: Some(name.to_owned()), ..of_word("immediate") };
    delivering(&mut world, "lead", coordinator(), notifying("middle"));
    delivering(&mut world, "bad", coordinator(), notifying("stranger"));
    world.agent("silent", worker());
    change(&mut world, "silent", |agent| agent.conversation = History::None);
    let host = world.start().await;
    let children = started(&host, "lead", "one").await;
    let nudges = nudged(&host, 1).await;
    assert_eq!(nudges[0].spec.agent_name, "middle");
    let above: Vec<&str> =
        nudges[0].spec.ancestors.iter().map(|one| one.agent_name.as_str()).collect();
    assert_eq!(above, ["lead"], "within the rules of whoever names it");
    assert_eq!(nudges[0].spec.nudge_for[0].as_str(), children[0]);
    let first = host.spawn(&line("bad", "start one two")).await;
    host.end(&first).await;
    assert!(super::delivery::children(&host, &first).await.is_empty(), "nothing is started");
    let refused = host.journal(&first).await.into_iter().any(|one| {
        let text = serde_json::to_string(&one.event).expect("JSON");
        text.contains("agent stranger is not among the members of agent bad")
    });
    assert!(refused, "forbidden");
    let silent = SpawnRequest { delivery: Some(notifying("silent")), ..request("worker", "x") };
    let error = host.client().spawn(&silent).await.expect_err("refused").to_string();
    assert_eq!(error, "agent silent takes part in no conversation");
}

#[tokio::test]
async fn a_text_of_a_run_that_asks_for_notify_starts_nothing() {
    for (strategy, count) in [("context-only", 0), ("immediate", 1)] {
        let mut world = World::new();
        world.agent("worker", ClosurePlanner::new(|_, _| async { answer(ASKS) }));
        world.agent("middle", worker());
        delivering(&mut world, "lead", coordinator(), of_word(strategy));
        let host = world.start().await;
        let children = started(&host, "lead", "one").await;
        // The conversation of the caller is told, where its policy says so.
        let told = nudged(&host, count).await;
        host.settle().await;
        assert_eq!(nudges(&host).await.len(), count, "{strategy}");
        for nudge in &told {
            assert_eq!(nudge.spec.agent_name, "lead");
            assert_eq!(said(nudge).matches(ASKS).count(), 1, "{}", said(nudge));
        }
        let report = host.client().report(&children[0]).await.expect("answers").expect("there");
        assert_eq!(report.notify.as_deref(), Some("lead"), "{strategy}");
        let page = host.client().list(&ListFilter::default(), None, PAGE_MAX).await.expect("lists");
        let mut agents: Vec<_> = page.runs.iter().map(|run| run.spec.agent_name.as_str()).collect();
        agents.sort_unstable();
        let expected = [vec!["lead"; 1 + count], vec!["worker"]].concat();
        assert_eq!(agents, expected, "{strategy}: nobody else");
    }
}
