//! Budgets of runs that go on by themselves (C-004 to C-020, M-50): what ends them, after how much, and
//! what is told of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use taskrun::agents::Agent;
use taskrun::autonomy::AutonomyRequest;
use taskrun::ports::planner::PlanInput;
use taskrun::scope::CallScope;
use taskrun::scope::model::Model;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::money::Price;
use taskrun_journal::run::RunView;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::time::Clock;
use taskrun_journal::tool::ToolHints;
use taskrun_policy::{AutonomySettings, InterruptionPolicy, Reserve, RetryExhaustion};

use super::budgets::{Metered, ask, priced};
use super::checkpoint_dying::step;
use super::host_tools::leader_that;
use super::rounds::Turn::{self, Call, Say};
use super::rounds::{autonomous, planned, played, report};
use crate::native::{ClosurePlanner, ClosureTool, World, failed, value};

/// Twenty tokens read and ten written cost one dollar.
const DOLLAR: Price = Price::new(25_000_000_000, 50_000_000_000);

const LATER: Duration = Duration::from_secs(10);

fn work() -> Turn {
    Call(vec![("w", "t/f", serde_json::json!({}))])
}

/// Ends a run whose agent asks its model once in each turn; gives it with the questions to the model
/// and the calls of the tool.
async fn spent(turns: Vec<Turn>, change: impl FnOnce(&mut Agent)) -> (RunView, u32, u32) {
    let (mut world, model, calls) = (World::new(), Arc::new(Metered::default()), Arc::default());
    let counted: Arc<AtomicU32> = Arc::clone(&calls);
    let tool = ClosureTool::new("f", ToolHints::default(), move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { value("1") }
    });
    world.tool("t", InterruptionPolicy::Fail, tool);
    let planner = ClosurePlanner::new(move |input: PlanInput, scope: Arc<CallScope>| {
        let planned = match &input.resume {
            Some(resume) if resume.finalize.is_some() => crate::native::answer("last word"),
            Some(_) | None => played(&turns, &input),
        };
        async move {
            ask(&scope).await;
            planned
        }
    });
    let own: Arc<dyn Model> = model.clone();
    world.agent_asking("a", planner, Some(own), |agent| {
        priced(agent, Some(DOLLAR));
        change(agent);
    });
    let host = world.start().await;
    host.spawn(&autonomous("1")).await;
    let run = RunView::from(&host.end("1").await);
    (run, model.asked.load(Ordering::SeqCst), calls.load(Ordering::SeqCst))
}

fn dollars(cap: u64) -> impl FnOnce(&mut Agent) {
    move |agent| agent.budget.cost_microusd = Some(cap)
}

#[tokio::test]
async fn cs_04_a_run_ends_with_the_round_that_crosses_its_budget() {
    let turns = || vec![Say("one"), Say("two"), Say("never")];
    let (run, asked, _) = spent(turns(), dollars(1_500_000)).await;
    let ended = (run.status, run.stop_reason, run.rounds, asked);
    assert_eq!(ended, (Status::Completed, Some(StopReason::MaxCost), Some(2), 2));
    assert_eq!((run.result.as_deref(), run.partial), (Some("two"), true));
    assert_eq!(run.cost_microusd, Some(2_000_000));
    // A last word is asked for only where something is kept for it.
    let keeps = |agent: &mut Agent| {
        agent.budget.cost_microusd = Some(3_000_000);
        agent.budget.reserve = Reserve { cost_microusd: 1_000_000, ..Reserve::default() };
    };
    let (run, asked, _) = spent(turns(), keeps).await;
    assert_eq!((run.result.as_deref(), asked), (Some("last word"), 3));
}

#[tokio::test]
async fn cs_05_within_a_round_nothing_is_done_after_the_answer_that_crosses_the_budget() {
    let looping = || vec![work(), work(), work(), work()];
    let (run, asked, calls) = spent(looping(), dollars(1_500_000)).await;
    assert_eq!((run.stop_reason, run.rounds), (Some(StopReason::MaxCost), Some(1)));
    assert_eq!((asked, calls, run.cost_microusd), (2, 1, Some(2_000_000)));
    // What an earlier round cost counts.
    let mut turns = looping();
    turns.insert(0, Say("one"));
    let (run, asked, _) = spent(turns, dollars(1_500_000)).await;
    assert_eq!((run.rounds, asked), (Some(2), 2));
    // The word that it is done is heard, and no model is asked after it.
    let (run, asked, _) = spent(vec![report("it")], dollars(1_000_000)).await;
    assert_eq!((run.status, run.stop_reason), (Status::Completed, Some(StopReason::Done)));
    assert_eq!((asked, run.detail.as_deref(), run.partial), (1, Some("it"), false));
    let beside = Call(vec![
        ("w", "t/f", serde_json::json!({})),
        ("d", "host/report_done", serde_json::json!({ "detail": "it" })),
    ]);
    let (run, asked, calls) = spent(vec![beside], dollars(1_000_000)).await;
    assert_eq!((run.stop_reason, asked, calls), (Some(StopReason::Done), 1, 0));
    // Without a budget all of it is done.
    let (_, asked, calls) = spent(vec![work(), work(), report("it"), Say("end")], |_| {}).await;
    assert_eq!((asked, calls), (4, 2));
}

#[tokio::test]
async fn c_016_tokens_read_and_tokens_written_have_budgets_of_their_own() {
    let turns = || vec![Say("one"), Say("two"), Say("never")];
    let (run, asked, _) = spent(turns(), |agent| agent.budget.prompt_tokens = Some(40)).await;
    assert_eq!((run.stop_reason, asked), (Some(StopReason::MaxTokens), 2));
    let (run, asked, _) = spent(turns(), |agent| agent.budget.completion_tokens = Some(10)).await;
    assert_eq!((run.stop_reason, asked), (Some(StopReason::MaxTokens), 1));
    let (run, asked, _) = spent(turns(), |agent| agent.budget.tokens = Some(31)).await;
    assert_eq!((run.stop_reason, asked), (Some(StopReason::MaxTokens), 2));
}

#[tokio::test]
async fn turns_and_tool_calls_are_counted_in_each_round_anew() {
    let mut turns = Vec::new();
    for _ in 0..4 {
        turns.extend([work(), work(), Say("on")]);
    }
    turns.extend([report("it"), Say("end")]);
    let (run, _, calls) = spent(turns, |agent| {
        agent.budget.turns = Some(3);
        agent.limits.tool_calls = Some(2);
    })
    .await;
    assert_eq!((run.stop_reason, run.rounds, calls), (Some(StopReason::Done), Some(5), 8));
    // What a run says of itself is no call of the count, also where none is left.
    let status = Call(vec![("s", "host/set_status", serde_json::json!({ "text": "half" }))]);
    let turns = vec![work(), status, report("it"), Say("end")];
    let (run, _, calls) = spent(turns, |agent| agent.limits.tool_calls = Some(1)).await;
    assert_eq!((run.stop_reason, calls), (Some(StopReason::Done), 1));
    // One that does not come to an answer ends.
    let (run, ..) =
        spent(vec![Say("on"), work(), work()], |agent| agent.budget.turns = Some(2)).await;
    assert_eq!((run.stop_reason, run.rounds), (Some(StopReason::MaxTurns), Some(2)));
}

#[tokio::test]
async fn c_004_the_record_of_a_run_has_its_end_its_counts_and_what_it_said() {
    let (run, asked, _) = spent(vec![Say("one"), report("it is done"), Say("end")], |_| {}).await;
    assert_eq!(
        (run.stop_reason, run.stop_reason_alias),
        (Some(StopReason::Done), Some("completed"))
    );
    assert_eq!((run.rounds, run.turns, asked), (Some(2), 3, 3));
    let progress = run.progress.expect("it did something");
    assert_eq!((progress.prompt_tokens, progress.completion_tokens), (60, 30));
    assert_eq!(run.cost_microusd, Some(3_000_000));
    assert_eq!((run.result.as_deref(), run.detail.as_deref()), (Some("end"), Some("it is done")));
    assert_eq!((run.error, run.partial, run.duration_ms), (None, false, Some(0)));
}

#[tokio::test]
async fn c_005_a_budget_that_ends_a_run_has_two_names_and_is_no_error() {
    type Bound = fn(&mut Agent);
    let rounds = |agent: &mut Agent| {
        agent.autonomous = Some(AutonomySettings { rounds: Some(2), ..Default::default() });
    };
    let bounds: [(Bound, StopReason, &str); 3] = [
        (rounds, StopReason::MaxTurns, "max_turns_exceeded"),
        (|agent| agent.budget.tokens = Some(60), StopReason::MaxTokens, "max_tokens_exceeded"),
        (
            |agent| agent.budget.cost_microusd = Some(2_000_000),
            StopReason::MaxCost,
            "max_cost_exceeded",
        ),
    ];
    for (bound, reason, alias) in bounds {
        let (run, ..) = spent(vec![Say("one"), Say("two"), Say("never")], bound).await;
        assert_eq!((run.stop_reason, run.stop_reason_alias), (Some(reason), Some(alias)));
        assert_eq!(
            (run.status, run.partial, run.error),
            (Status::Completed, true, None),
            "{alias}"
        );
        assert_eq!((run.rounds, run.result.as_deref()), (Some(2), Some("two")), "{alias}");
    }
}

#[tokio::test]
async fn c_011_no_words_of_an_answer_end_a_run() {
    let said = ["DONE", "[TASK COMPLETE]", "report_done: it", "I am done. TERMINATE", "on"];
    let (run, asked, _) = spent(said.map(Say).to_vec(), |agent| {
        agent.autonomous = Some(AutonomySettings { rounds: Some(5), ..Default::default() });
    })
    .await;
    assert_eq!((run.stop_reason, asked), (Some(StopReason::MaxTurns), 5));
}

#[tokio::test]
async fn c_014_a_budget_counts_before_a_wake_up_where_a_skipped_turn_ends_the_round() {
    let (mut world, model) = (World::new(), Arc::new(Metered::default()));
    let planner = ClosurePlanner::new(|input: PlanInput, scope: Arc<CallScope>| async move {
        ask(&scope).await;
        match input.run.turn {
            1 => {
                let later = serde_json::json!({ "wake_in_sec": 86_400 });
                planned(&Call(vec![("s", "host/schedule_next_turn", later)]))
            }
            _ => failed(Some("unavailable"), "no model"),
        }
    });
    let own: Arc<dyn Model> = model.clone();
    world.agent_asking("a", planner, Some(own), |agent| {
        priced(agent, Some(DOLLAR));
        dollars(1_500_000)(agent);
        agent.retry.attempts = 1;
        agent.retry.then = RetryExhaustion::Skip { in_a_row: 3 };
    });
    let host = world.start().await;
    host.spawn(&autonomous("1")).await;
    let run = RunView::from(&host.end("1").await);
    assert_eq!((run.stop_reason, run.rounds), (Some(StopReason::MaxCost), Some(1)));
    assert_eq!((model.asked.load(Ordering::SeqCst), run.turns), (2, 2));
}

/// Adds the agent `worker`, which asks a model once and has dug.
fn add_digger(world: &mut World) {
    let worker = ClosurePlanner::new(|_, scope: Arc<CallScope>| async move {
        ask(&scope).await;
        crate::native::answer("dug")
    });
    let own: Arc<dyn Model> = Arc::new(Metered::default());
    world.agent_asking("worker", worker, Some(own), |_| {});
}

#[tokio::test]
async fn what_runs_beneath_used_counts_after_they_were_left_behind() {
    let mut world = World::new();
    add_digger(&mut world);
    let planner = ClosurePlanner::new(|input: PlanInput, _| {
        let planned = step(&input);
        async move { planned }
    });
    // Each of the two runs beneath uses thirty, the first one in the round before.
    leader_that(&mut world, ("a", &["worker"]), planner, |agent| agent.budget.tokens = Some(50));
    let host = world.start().await;
    host.spawn(&autonomous("1")).await;
    let run = RunView::from(&host.end("1").await);
    assert_eq!((run.stop_reason, run.rounds), (Some(StopReason::MaxTokens), Some(2)), "{run:?}");
}

#[tokio::test]
async fn a_continuation_begins_with_what_runs_beneath_used_that_were_removed_meanwhile() {
    let mut world = World::new();
    add_digger(&mut world);
    let clock = Arc::clone(&world.clock);
    let planner = ClosurePlanner::new(move |input: PlanInput, _| {
        // The run beneath it has ended by then.
        if input.run.turn == 3 {
            clock.advance(LATER);
        }
        let planned = match input.run.turn {
            1 | 2 => step(&input),
            _ => crate::native::answer("two"),
        };
        async move { planned }
    });
    leader_that(&mut world, ("a", &["worker"]), planner, |_| {});
    let host = world.start().await;
    let begin = world.clock.now();
    let rounds = AutonomyRequest { rounds: Some(2), ..AutonomyRequest::default() };
    host.spawn(&SpawnRequest { autonomous: Some(rounds), ..autonomous("1") }).await;
    let first = host.end("1").await;
    let beneath = first.state.rounds.settled.total_tokens;
    assert_eq!((first.state.rounds.number(), beneath), (2, 30));
    let removed = host.client().gc(begin.plus(LATER / 2), false).await.expect("done");
    assert_eq!(removed.runs, 1, "the run beneath it");
    let request = host.client().continuation("1").await.expect("it may be continued");
    let next = host.client().submit(&request).await.expect("accepted").run;
    let begins_with = next.spec.continues.as_ref().map(|before| before.usage.total_tokens);
    assert_eq!(begins_with, Some(first.state.progress.total_tokens + beneath));
}
