//! Hooks of the host, of which only the veto of a critical one counts (M-20).

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use taskrun::clock::SystemClock;
use taskrun::error::ControllerError;
use taskrun::ports::hook::{HOOK_TIMEOUT, Hook, HookEntry, HookError, Hooks, Moment, Verdict};
use taskrun::spawn::SpawnRequest;
use taskrun_journal::delivery::{DeliverySettings, ReportState};
use taskrun_journal::event::Event;
use taskrun_journal::list::{ListFilter, Scope};
use taskrun_journal::run::RunView;
use taskrun_journal::status::Status;
use taskrun_journal::tool::ToolHints;
use taskrun_policy::InterruptionPolicy;

use super::common::{Gates, beneath, check_journal, count, following, named, soon};
use super::delivery::{coordinator, leader, worker};
use super::nudge_bounds::quiet;
use super::nudges::{nudges, of_word};
use crate::native::{ClosureTool, Native, Op, Side, World, request, value};

type Decide = dyn Fn(&Moment<'_>) -> Result<Verdict, HookError> + Send + Sync;

/// A hook that is a closure, and what it was asked about.
pub(super) struct Asked {
    decide: Box<Decide>,
    about: Mutex<Vec<String>>,
}

#[async_trait]
impl Hook for Asked {
    async fn before(&self, moment: &Moment<'_>) -> Result<Verdict, HookError> {
        let about = match moment {
            Moment::Spawn { spec } => format!("spawn {}", spec.id),
            Moment::ToolCall { spec, turn, request } => {
                format!("call {} {turn} {}", spec.id, request.name)
            }
            Moment::Round { spec, round } => format!("round {} {round}", spec.id),
        };
        self.about.lock().expect("nobody panics with it").push(about);
        (self.decide)(moment)
    }
}

impl Asked {
    pub(super) fn about(&self) -> Vec<String> {
        self.about.lock().expect("nobody panics with it").clone()
    }
}

pub(super) fn hook(
    decide: impl Fn(&Moment<'_>) -> Result<Verdict, HookError> + Send + Sync + 'static,
) -> Arc<Asked> {
    Arc::new(Asked { decide: Box::new(decide), about: Mutex::default() })
}

pub(super) fn veto(reason: &str) -> Result<Verdict, HookError> {
    Ok(Verdict::Veto { reason: reason.to_owned() })
}

/// Never decides.
pub(super) struct Hangs;

#[async_trait]
impl Hook for Hangs {
    async fn before(&self, _: &Moment<'_>) -> Result<Verdict, HookError> {
        std::future::pending().await
    }
}

/// Against calls of `t/f`, for everything else.
fn no_calls() -> Arc<Asked> {
    hook(|moment| match moment {
        Moment::Spawn { .. } => Ok(Verdict::Go),
        Moment::ToolCall { request, .. } if request.name == "t/f" => veto("not today"),
        Moment::ToolCall { .. } | Moment::Round { .. } => Ok(Verdict::Go),
    })
}

/// A world with an agent that calls `t/f` and `u/f` in its first turn and `u/f` in its second,
/// and how often the tools were called.
fn world_with(hooks: Vec<HookEntry>) -> (World, Arc<AtomicU32>) {
    let (mut world, called) = (World::new(), Arc::new(AtomicU32::new(0)));
    world.hooks = Hooks::new(hooks);
    for name in ["t", "u"] {
        let called = Arc::clone(&called);
        let tool = ClosureTool::new("f", ToolHints::default(), move |_, _| {
            called.fetch_add(1, Ordering::SeqCst);
            async { value("1") }
        });
        world.tool(name, InterruptionPolicy::Fail, tool);
    }
    let turns = vec![vec![("a", "t/f", "1"), ("b", "u/f", "1")], vec![("c", "u/f", "1")]];
    world.agent("caller", following(turns));
    (world, called)
}

async fn refusal(host: &Native) -> String {
    match host.client().spawn(&named("r", "caller")).await {
        Err(ControllerError::Forbidden { reason }) => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn m_20_a_critical_hook_keeps_a_run_from_being_accepted() {
    let against = hook(|moment| match moment {
        Moment::Spawn { spec } if spec.task == "x" => veto("no x"),
        Moment::Spawn { .. } | Moment::ToolCall { .. } | Moment::Round { .. } => Ok(Verdict::Go),
    });
    let (mut world, _) = world_with(vec![HookEntry::critical("guard", against.clone())]);
    let host = world.start().await;
    assert_eq!(refusal(&host).await, "refused by hook guard: no x");
    let all = host.client().list(&ListFilter::default(), None, 9).await;
    assert!(all.expect("lists").runs.is_empty(), "nothing is kept");
    let id = host.spawn(&request("caller", "y")).await;
    assert_eq!(host.end(&id).await.status(), Status::Completed);
    assert_eq!(against.about()[..2], ["spawn r".to_owned(), format!("spawn {id}")]);
}

#[tokio::test]
async fn m_20_a_hook_is_asked_about_what_passed_the_checks_before_it_and_knows_who_asks() {
    let seen = hook(|moment| {
        if let Moment::Spawn { spec } = moment {
            assert_eq!(spec.tenant, "default");
            assert_eq!(spec.depth, u32::from(spec.parent_run_id.is_some()));
        }
        Ok(Verdict::Go)
    });
    let (mut world, gates) = (World::new(), Gates::new());
    world.hooks = Hooks::new(vec![HookEntry::critical("sees", seen.clone())]);
    world.agent("open", gates.planner());
    let host = world.start().await;
    let stranger = Scope { owner_user_id: Some("user-b".into()), ..host.scope.clone() };
    for (scope, wanted) in [
        (&host.scope, named("r", "nobody")),
        (&stranger, named("r", "open")),
        (&host.scope, beneath("none", "r", "open")),
    ] {
        host.controller.at(scope).spawn(&wanted).await.expect_err("refused");
    }
    assert!(seen.about().is_empty(), "{:?}", seen.about());
    host.spawn(&named("root", "open")).await;
    host.spawn(&beneath("root", "child", "open")).await;
    assert_eq!(seen.about(), ["spawn root", "spawn child"]);
}

#[tokio::test]
async fn m_20_a_critical_hook_denies_a_call_and_the_run_goes_on() {
    let guard = no_calls();
    let (mut world, called) = world_with(vec![HookEntry::critical("guard", guard.clone())]);
    let host = world.start().await;
    host.spawn(&named("r", "caller")).await;
    let view = RunView::from(&host.end("r").await);
    let said = "denied: t/f: refused by hook guard: not today; 1; 1";
    assert_eq!((view.status, view.result.as_deref()), (Status::Completed, Some(said)));
    assert_eq!(called.load(Ordering::SeqCst), 2);
    assert_eq!(guard.about(), ["spawn r", "call r 1 t/f", "call r 1 u/f", "call r 2 u/f"]);
    let journal = host.journal("r").await;
    check_journal(&journal);
    assert_eq!(count(&journal, "tool_call_scheduled"), 2);
    let decided = journal.iter().find_map(|recorded| {
        let Event::PolicyDecision { capability, subject, rule, .. } = &recorded.event else {
            return None;
        };
        Some(format!("{capability} {subject} {rule}"))
    });
    assert_eq!(decided.as_deref(), Some("tool t/f hook guard"));
}

#[tokio::test]
async fn m_20_a_denied_call_takes_none_of_those_that_are_left() {
    let (mut world, called) = world_with(vec![HookEntry::critical("guard", no_calls())]);
    let turns = vec![vec![("a", "t/f", "1"), ("b", "u/f", "1")]];
    world.agent_with("capped", following(turns), |agent| agent.limits.tool_calls = Some(1));
    let host = world.start().await;
    host.spawn(&named("r", "capped")).await;
    host.end("r").await;
    assert_eq!(called.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn m_20_a_critical_hook_that_fails_or_panics_refuses() {
    for (decide, text) in [
        (hook(|_| Err("no connection".into())), "it failed: no connection"),
        (hook(|_| panic!("a mistake")), "it failed"),
    ] {
        let (mut world, _) = world_with(vec![HookEntry::critical("guard", decide)]);
        let host = world.start().await;
        assert_eq!(refusal(&host).await, format!("refused by hook guard: {text}"));
    }
}

#[tokio::test]
async fn m_20_a_critical_hook_that_is_too_slow_refuses() {
    let (mut world, _) = world_with(vec![HookEntry::critical("slow", Arc::new(Hangs))]);
    let host = world.start().await;
    let (controller, scope) = (host.controller.clone(), host.scope.clone());
    let spawned =
        tokio::spawn(async move { controller.at(&scope).spawn(&named("r", "caller")).await });
    assert_eq!(world.next(Duration::from_secs(60)).await, HOOK_TIMEOUT);
    match spawned.await.expect("no panic") {
        Err(ControllerError::Forbidden { reason }) => {
            assert_eq!(reason, "refused by hook slow: it did not decide within 5000 ms");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn m_20_what_other_hooks_say_is_ignored() {
    let hooks = vec![
        HookEntry::advisory("against", hook(|_| veto("never"))),
        HookEntry::advisory("fails", hook(|_| Err("no connection".into()))),
        HookEntry::advisory("panics", hook(|_| panic!("a mistake"))),
    ];
    let (mut world, called) = world_with(hooks);
    let host = world.start().await;
    host.spawn(&named("r", "caller")).await;
    assert_eq!(host.end("r").await.status(), Status::Completed);
    assert_eq!(called.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn m_20_of_several_vetoes_the_first_registered_counts() {
    let hooks = vec![
        HookEntry::advisory("zero", hook(|_| veto("0"))),
        HookEntry::critical("one", hook(|_| Ok(Verdict::Go))),
        HookEntry::critical("two", hook(|_| veto("2"))),
        HookEntry::critical("three", hook(|_| veto("3"))),
    ];
    let (mut world, _) = world_with(hooks);
    let host = world.start().await;
    assert_eq!(refusal(&host).await, "refused by hook two: 2");
}

#[tokio::test]
async fn m_20_a_denial_is_recorded_once_though_the_host_dies_about_it() {
    for side in [Side::Before, Side::After] {
        let guard = no_calls();
        let (mut world, called) = world_with(vec![HookEntry::critical("guard", guard.clone())]);
        let host = world.start().await;
        let door = world.door().await;
        // The first write is the decision with the denied call and the one that begins.
        world.store.cut(Op::Append, 1, side);
        door.spawn(&named("r", "caller")).await;
        soon("it is cut", world.store.is_cut()).await;
        world.kill(host).await;
        world.part_stores();
        let next = world.take_over().await;
        let run = next.end("r").await;
        assert_eq!(run.status(), Status::Completed);
        let journal = next.journal("r").await;
        check_journal(&journal);
        assert_eq!(count(&journal, "policy_decision"), 1, "{side:?}");
        let asked = guard.about().iter().filter(|about| *about == "call r 1 t/f").count();
        assert_eq!(asked, if side == Side::Before { 2 } else { 1 }, "what is recorded is decided");
        assert!(called.load(Ordering::SeqCst) <= 2);
    }
}

#[tokio::test]
async fn m_20_a_run_that_is_canceled_while_a_hook_decides_calls_nothing() {
    let guard = Arc::new(OnlySpawns);
    let (mut world, called) = world_with(vec![HookEntry::critical("slow", guard)]);
    let host = world.start().await;
    let door = world.door().await;
    host.spawn(&named("r", "caller")).await;
    host.until("r", "runs", |run| run.status() == Status::Running).await;
    door.client().cancel("r", None).await.expect("can be canceled");
    // The hook's time comes last: whoever else sleeps wakes before, and more often than once.
    let (run, _) = world.run_until(10 * HOOK_TIMEOUT, host.end("r")).await;
    assert_eq!((run.status(), called.load(Ordering::SeqCst)), (Status::Canceled, 0));
}

/// Lets runs be accepted and never decides about calls.
struct OnlySpawns;

#[async_trait]
impl Hook for OnlySpawns {
    async fn before(&self, moment: &Moment<'_>) -> Result<Verdict, HookError> {
        match moment {
            Moment::Spawn { .. } | Moment::Round { .. } => Ok(Verdict::Go),
            Moment::ToolCall { .. } => std::future::pending().await,
        }
    }
}

/// Lets everything happen, each in its time.
struct Slow(Arc<Gates>);

#[async_trait]
impl Hook for Slow {
    async fn before(&self, moment: &Moment<'_>) -> Result<Verdict, HookError> {
        let gate = match moment {
            Moment::Spawn { .. } => "spawn",
            Moment::ToolCall { .. } | Moment::Round { .. } => "call",
        };
        self.0.pass(gate).await;
        Ok(Verdict::Go)
    }
}

#[tokio::test]
async fn m_20_a_hook_has_the_time_of_the_machine_however_fast_that_of_runs_passes() {
    let gates = Gates::new();
    let slow = HookEntry::critical("slow", Arc::new(Slow(Arc::clone(&gates))));
    let (mut world, called) = world_with(vec![slow]);
    world.machine = Arc::new(SystemClock::new());
    let host = world.start().await;
    let (client, wanted) = (host.client(), named("r", "caller"));
    let mut accepted = std::pin::pin!(client.spawn(&wanted));
    tokio::select! {
        biased;
        ended = &mut accepted => panic!("nobody decided: {ended:?}"),
        _ = gates.have_come(1) => {}
    }
    world.clock.advance(10 * HOOK_TIMEOUT);
    assert!(futures::poll!(&mut accepted).is_pending(), "it may still decide");
    gates.open("spawn");
    soon("it is accepted", accepted).await.expect("nobody is against it");
    // Both calls of the first turn are asked about at the same time.
    gates.have_come(3).await;
    world.clock.advance(10 * HOOK_TIMEOUT);
    gates.open("call");
    assert_eq!(host.end("r").await.status(), Status::Completed);
    assert_eq!(called.load(Ordering::SeqCst), 3, "none of them was refused");
}

/// A hook that never decides about nudges, and lets everything else happen.
struct NudgeStaller;

#[async_trait]
impl Hook for NudgeStaller {
    async fn before(&self, moment: &Moment<'_>) -> Result<Verdict, HookError> {
        match moment {
            Moment::Spawn { spec } if spec.is_nudge() => std::future::pending().await,
            Moment::Spawn { .. } | Moment::ToolCall { .. } | Moment::Round { .. } => {
                Ok(Verdict::Go)
            }
        }
    }
}

#[tokio::test]
async fn a_hook_that_is_silent_about_a_nudge_has_the_time_of_the_machine_too() {
    let silent = HookEntry::critical("silent", Arc::new(NudgeStaller));
    let silent = HookEntry { timeout: Duration::from_millis(1), ..silent };
    let mut world = World::new();
    world.hooks = Hooks::new(vec![silent]);
    world.machine = Arc::new(SystemClock::new());
    world.agent("worker", worker());
    leader(&mut world, "lead", coordinator());
    let host = world.start().await;
    let delivery = DeliverySettings { notify: Some("lead".into()), ..of_word("immediate") };
    let asked = SpawnRequest { delivery: Some(delivery), ..request("worker", "alone") };
    let id = host.spawn(&asked).await;
    host.end(&id).await;
    // The clock of the runs stands still.
    assert_eq!(quiet(&host, &id).await.state, ReportState::Pending);
    assert!(nudges(&host).await.is_empty(), "nobody decided that it may begin");
}
