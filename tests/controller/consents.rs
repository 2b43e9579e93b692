//! Consents to tool calls that hold in more than one run (C-033, M-35).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use taskrun::controller::{ConsentExtent, ConsentRequest};
use taskrun::error::ControllerError;
use taskrun::gate::Guard;
use taskrun::ports::policy_engine::{PolicyEngine, PolicyFailure, PolicyInput};
use taskrun::spawn::SpawnRequest;
use taskrun_journal::consent::{ConsentRecord, ConsentSubject};
use taskrun_journal::event::Event;
use taskrun_journal::question::{Answer, Item};
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_journal::time::Clock;
use taskrun_journal::tool::ToolHints;
use taskrun_policy::{InterruptionPolicy, PolicyDecision};

use super::common::{check_journal, count, following, named, task_tools};
use super::consent::{asks, story};
use super::dying::{Point, die_at_each, survive};
use crate::native::{ClosureTool, Native, OWNER, Op, SESSION, Side, World, change_code, value};

const HOUR: Duration = Duration::from_secs(3_600);
const ALWAYS: ConsentRequest =
    ConsentRequest { approved: true, extent: ConsentExtent::Always, expires: None };
const SESSION_ONLY: ConsentRequest =
    ConsentRequest { approved: true, extent: ConsentExtent::Session, expires: None };

/// A world with agents that call `mail/f`, about which a person is asked: the code of that has this
/// digest.
fn world_with(digest: &'static str, agents: &[&str]) -> World {
    let mut world = World::new();
    add(&mut world, digest, agents);
    world
}

fn add(world: &mut World, digest: &'static str, agents: &[&str]) {
    let tool =
        ClosureTool::new("f", ToolHints::default(), |call, _| async move { value(&call.payload) });
    world.tool("mail", InterruptionPolicy::Fail, tool.with_digest(digest));
    for agent in agents {
        world.agent_with(agent, following(vec![vec![("c", "mail/f", "1")]]), asks);
    }
}

/// A request for a run in another session.
fn elsewhere(id: &str, agent: &str) -> SpawnRequest {
    SpawnRequest { parent_session_id: "elsewhere".into(), ..named(id, agent) }
}

async fn shown(host: &Native, id: &str) -> Item {
    host.reach(id, Status::Blocked).await;
    host.client().asks(id).await.expect("can be read").remove(0)
}

/// Lets a run ask, and answers it for further runs.
async fn consent(host: &Native, run: &SpawnRequest, request: ConsentRequest) -> ConsentRecord {
    let id = host.spawn(run).await;
    let item = shown(host, &id).await;
    let answered = host.client().named("mia").consent(&id, &item, request).await;
    let kept = answered.expect("taken").kept.expect("kept");
    assert_eq!(host.end(&id).await.status(), Status::Completed);
    kept
}

/// The decisions about the call of a run that asks nobody.
async fn unasked(host: &Native, run: &SpawnRequest) -> Vec<String> {
    let id = host.spawn(run).await;
    assert_eq!(host.end(&id).await.status(), Status::Completed);
    let journal = host.journal(&id).await;
    check_journal(&journal);
    story(&journal)
}

/// A run asks, and is canceled.
async fn is_asked(host: &Native, run: &SpawnRequest) {
    let id = host.spawn(run).await;
    shown(host, &id).await;
    host.client().cancel(&id, None).await.expect("can be canceled");
    host.end(&id).await;
}

fn begins(number: u64) -> Vec<String> {
    vec![format!("c true by mia in consent {number}"), "c begins".to_owned()]
}

#[tokio::test]
async fn c_033_a_consent_for_a_session_is_for_its_runs_and_for_no_others() {
    let mut world = world_with("one", &["a"]);
    let host = world.start().await;
    let kept = consent(&host, &named("1", "a"), SESSION_ONLY).await;
    let expected = (kept.number, kept.consent.session.as_deref(), kept.consent.by.as_str());
    assert_eq!(expected, (1, Some(SESSION), "mia"));
    let first = story(&host.journal("1").await);
    let expected = ["asked confirm:1:c", "blocked", "c true by mia for the run", "c begins"];
    assert_eq!(first, expected);
    assert_eq!(unasked(&host, &named("2", "a")).await, begins(1));
    is_asked(&host, &elsewhere("3", "a")).await;
}

#[tokio::test]
async fn c_033_a_consent_for_always_is_for_the_agent_the_owner_and_the_function() {
    let mut world = world_with("one", &["a", "b"]);
    let tool = ClosureTool::new("f", ToolHints::default(), |_, _| async { value("1") });
    world.tool("drop", InterruptionPolicy::Fail, tool.tagged(&["danger"]).with_digest("one"));
    let turns = vec![vec![("c", "mail/f", "1")], vec![("d", "drop/f", "2")]];
    world.agent_with("both", following(turns), asks);
    let host = world.start().await;
    let kept = consent(&host, &named("1", "a"), ALWAYS).await;
    let subject = ConsentSubject {
        tenant: "default".to_owned(),
        owner_user_id: OWNER.to_owned(),
        parent_app_name: None,
        policy: "policy".to_owned(),
        agent_name: "a".to_owned(),
        function: "mail/f".to_owned(),
    };
    assert_eq!((&kept.consent.subject, kept.consent.digest.as_str()), (&subject, "one"));
    assert_eq!(unasked(&host, &elsewhere("2", "a")).await, begins(1));
    is_asked(&host, &named("3", "b")).await;
    is_asked(&host, &SpawnRequest { owner_user_id: "bob".into(), ..named("4", "a") }).await;
    is_asked(&host, &SpawnRequest { parent_app_name: Some("app".into()), ..named("5", "a") }).await;
    // Another function of the same agent is asked about.
    let id = host.spawn(&named("6", "both")).await;
    let item = shown(&host, &id).await;
    host.client().named("mia").consent(&id, &item, ALWAYS).await.expect("taken");
    let asks_again = |run: &Run| run.state.awaits.iter().any(|one| one.id == "confirm:2:d");
    host.until(&id, "asks about the other one", asks_again).await;
    host.client().named("mia").answer(&id, None, Answer::Confirmed(true)).await.expect("taken");
    host.end(&id).await;
    let id = host.spawn(&named("7", "both")).await;
    assert_eq!(shown(&host, &id).await.id(), "confirm:2:d");
}

#[tokio::test]
async fn c_033_what_is_revoked_or_over_asks_again_and_stays_on_record() {
    let mut world = world_with("one", &["a"]);
    let host = world.start().await;
    let for_an_hour = ConsentRequest { expires: Some(HOUR), ..ALWAYS };
    let kept = consent(&host, &named("1", "a"), for_an_hour).await;
    assert_eq!(kept.consent.until, Some(kept.consent.at.plus(HOUR)));
    assert_eq!(unasked(&host, &named("2", "a")).await, begins(1));
    world.clock.advance(HOUR);
    is_asked(&host, &named("3", "a")).await;

    let second = consent(&host, &named("4", "a"), ALWAYS).await;
    assert_eq!((second.number, second.replaces), (2, Some(1)));
    assert_eq!(unasked(&host, &named("5", "a")).await, begins(2));
    let bob = host.client().named("bob");
    let revoked = bob.revoke_consent(2).await.expect("can be written").expect("it is there");
    assert_eq!(revoked.revocation.map(|revocation| revocation.by).as_deref(), Some("bob"));
    is_asked(&host, &named("6", "a")).await;
    let all = host.client().consents(0, 200).await.expect("can be read");
    assert_eq!(all.iter().map(|record| record.number).collect::<Vec<_>>(), [1, 2]);

    // `gc` removes them by the time at which they were over.
    let before = world.clock.now();
    assert_eq!(host.client().remove_consents(before, false).await.expect("removed"), 0);
    world.clock.advance(HOUR);
    let now = world.clock.now();
    assert_eq!(host.client().remove_consents(now, true).await.expect("counted"), 2);
    assert_eq!(host.client().remove_consents(now, false).await.expect("removed"), 2);
    assert!(host.client().consents(0, 200).await.expect("can be read").is_empty());
}

#[tokio::test]
async fn c_033_what_was_declined_for_always_is_refused_and_nobody_is_asked() {
    let mut world = world_with("one", &["a"]);
    let host = world.start().await;
    consent(&host, &named("1", "a"), ConsentRequest { approved: false, ..ALWAYS }).await;
    let declined = ["c false by mia in consent 1", "c Declined"];
    assert_eq!(unasked(&host, &elsewhere("2", "a")).await, declined);
    let said = host.get("2").await.state.reply.result();
    assert_eq!(said.as_deref(), Some("denied: denied: mail/f was declined by mia"));
    // It is about the function, whatever its code.
    let mut swapped = world_with("two", &["a"]);
    swapped.consents = Arc::clone(&world.consents);
    let host = swapped.start().await;
    assert_eq!(unasked(&host, &named("3", "a")).await, declined);
}

#[tokio::test]
async fn c_033_a_consent_is_for_the_code_that_was_shown() {
    let mut world = world_with("one", &["a"]);
    let host = world.start().await;
    consent(&host, &named("1", "a"), ALWAYS).await;
    let mut swapped = world_with("two", &["a"]);
    swapped.consents = Arc::clone(&world.consents);
    let other = swapped.start().await;
    is_asked(&other, &named("2", "a")).await;
    assert_eq!(unasked(&host, &named("3", "a")).await, begins(1));
}

/// Lets nobody call a tool.
struct Nothing;

#[async_trait]
impl PolicyEngine for Nothing {
    fn name(&self) -> &str {
        "nothing"
    }

    fn timeout(&self) -> Duration {
        HOUR
    }

    async fn decide(&self, _: &PolicyInput) -> Result<PolicyDecision, PolicyFailure> {
        Ok(PolicyDecision { disable_tools: true, ..PolicyDecision::default() })
    }
}

#[tokio::test]
async fn c_033_a_consent_lifts_no_other_refusal() {
    let mut world = world_with("one", &["a"]);
    let host = world.start().await;
    consent(&host, &named("1", "a"), ALWAYS).await;
    world.kill(host).await;
    world.agent_with("a", following(vec![vec![("c", "mail/f", "1")]]), |agent| {
        asks(agent);
        let guard = Guard { engines: vec![Arc::new(Nothing)] };
        change_code(agent, |code| code.guard = guard);
    });
    let host = world.start().await;
    assert_eq!(unasked(&host, &named("2", "a")).await, ["c Denied"]);
}

#[tokio::test]
async fn c_033_an_answer_that_cannot_be_kept_for_other_runs_is_not_taken() {
    let mut world = world_with("one", &["a"]);
    let host = world.start().await;
    let id = host.spawn(&named("1", "a")).await;
    let item = shown(&host, &id).await;
    let mia = host.client().named("mia");
    for expires in [Duration::ZERO, Duration::from_secs(3_651 * 24 * 3_600)] {
        let request = ConsentRequest { expires: Some(expires), ..ALWAYS };
        let refused = mia.consent(&id, &item, request).await;
        let invalid = matches!(refused, Err(ControllerError::Invalid { field: "expires", .. }));
        assert!(invalid, "{refused:?}");
    }
    // One who sees a session gives no consent for others.
    let bounded = host.controller.at(&host.scope.clone().session(SESSION)).named("mia");
    let refused = bounded.consent(&id, &item, ALWAYS).await;
    assert!(matches!(refused, Err(ControllerError::Forbidden { .. })), "{refused:?}");
    let other = Item { until: None, ..item.clone() };
    let refused = mia.consent(&id, &other, ALWAYS).await;
    assert!(matches!(refused, Err(ControllerError::NotAwaitable { .. })), "{refused:?}");
    assert_eq!(count(&host.journal(&id).await, "answered"), 0);
    let kept = bounded.consent(&id, &item, SESSION_ONLY).await.expect("taken").kept;
    assert_eq!(kept.expect("kept").consent.session.as_deref(), Some(SESSION));
    host.end(&id).await;
    assert_eq!(bounded.consents(0, 200).await.expect("can be read").len(), 1);
    // A run that belongs to no session asks for its own.
    let alone =
        SpawnRequest { parent_session_id: String::new(), one_shot: true, ..named("2", "a") };
    let id = host.spawn(&alone).await;
    let item = shown(&host, &id).await;
    let refused = mia.consent(&id, &item, SESSION_ONLY).await;
    let invalid = matches!(refused, Err(ControllerError::Invalid { field: "session", .. }));
    assert!(invalid, "{refused:?}");
    mia.answer(&id, None, Answer::Confirmed(true)).await.expect("taken");
    host.end(&id).await;
}

#[tokio::test]
async fn c_033_what_is_bound_to_a_session_goes_with_it() {
    let mut world = world_with("one", &["a"]);
    let host = world.start().await;
    consent(&host, &named("1", "a"), SESSION_ONLY).await;
    consent(&host, &elsewhere("2", "a"), ALWAYS).await;
    let deleted = host.client().delete_session(SESSION).await.expect("deleted");
    assert_eq!(deleted.consents, 1);
    let left = host.client().consents(0, 200).await.expect("can be read");
    assert_eq!(left.iter().map(|record| record.number).collect::<Vec<_>>(), [2]);
}

/// A call under a consent, by a host that dies at this point; gives how many died.
async fn play(point: Point) -> u32 {
    let mut world = World::new();
    let handle = task_tools(&mut world);
    add(&mut world, "one", &["a"]);
    let first = world.start().await;
    consent(&first, &named("1", "a"), ALWAYS).await;
    world.kill(first).await;
    let door = world.door().await;
    let outside = async {
        door.spawn(&named("2", "a")).await;
        door.end("2").await
    };
    let (run, deaths) = survive(&mut world, &[point], &handle, outside).await;
    assert_eq!(run.status(), Status::Completed, "{point:?}");
    let journal = door.journal("2").await;
    check_journal(&journal);
    let context = format!("{point:?}: {:?}", story(&journal));
    assert_eq!(count(&journal, "asked"), 0, "{context}");
    let named = journal.iter().filter(|one| {
        matches!(one.event, Event::ToolAuthorization { consent: Some(1), approved: true, .. })
    });
    assert_eq!((named.count(), count(&journal, "tool_authorization")), (1, 1), "{context}");
    assert!(count(&journal, "tool_call_scheduled") <= 1, "{context}");
    deaths
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c_033_whenever_the_host_dies_the_consent_is_on_record_once() {
    for side in [Side::Before, Side::After] {
        die_at_each(Op::Append, side, 2, play).await;
    }
}
