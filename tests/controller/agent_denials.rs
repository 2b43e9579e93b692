//! Agents as tools under rules about starting runs: none has to allow a call, and one may deny it.

use taskrun::spawn::SpawnRequest;

use super::agent_tools::{PLAY, caller, calling, children};
use super::common::{Gates, beneath, count, named};
use super::narrow::{denying, under};
use crate::native::{ClosurePlanner, World, answer};

/// The result of a call of an agent, and the number of its runs and of refusals on record: the
/// caller has these rules and this request, beneath an agent with those.
async fn called(above: &str, own: &str, deny: &[&str]) -> (String, usize, usize) {
    let (mut world, gates) = (World::new(), Gates::new());
    world.agent("child", ClosurePlanner::new(|_, _| async { answer("played") }));
    world.agent_with("parent", caller(&[("c1", "agent/child", PLAY)]), |agent| {
        calling(&["child"])(agent);
        under(own)(agent);
    });
    world.agent_with("top", gates.planner(), under(above));
    let host = world.start().await;
    host.spawn(&named("top", "top")).await;
    let narrow = denying(deny);
    host.spawn(&SpawnRequest { narrow, ..beneath("top", "1", "parent") }).await;
    let said = host.end("1").await.state.reply.result().unwrap_or_default();
    let refusals = count(&host.journal("1").await, "policy_decision");
    (said, children(&host, "1").await.len(), refusals)
}

#[tokio::test]
async fn an_agent_as_a_tool_needs_no_rule() {
    for (above, own) in [
        ("", ""),
        ("", "allow = [\"controller: *\"]"),
        ("", "allow = [\"controller: *\"]\ndeny = [\"controller: cancel\"]"),
        ("allow = [\"controller: wait\"]", ""),
    ] {
        let expected = ("\"played\"".to_owned(), 1, 0);
        assert_eq!(called(above, own, &[]).await, expected, "{above:?}, {own:?}");
    }
}

#[tokio::test]
async fn an_agent_as_a_tool_is_held_by_a_rule_that_denies_starting_runs() {
    const NONE: &str = "deny = [\"controller: *\"]";
    const NO_SPAWN: &str = "allow = [\"controller: *\"]\ndeny = [\"controller: spawn\"]";
    for (above, own, deny, why) in [
        ("", NONE, None, "denied by \"controller: *\""),
        ("", NO_SPAWN, None, "denied by \"controller: spawn\""),
        (NONE, "", None, "denied by agent top: \"controller: *\""),
        ("", "", Some("controller: *"), "denied by the request for this run: \"controller: *\""),
    ] {
        let deny: Vec<&str> = deny.into_iter().collect();
        let expected = (format!("denied: agent/child: {why}"), 0, 1);
        assert_eq!(called(above, own, &deny).await, expected);
    }
}
