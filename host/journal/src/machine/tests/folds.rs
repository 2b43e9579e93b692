//! The parts of a run's record beside its status.

use super::places::word;
use super::*;
use crate::artifact::ArtifactRef;
use crate::checkpoint::{Checkpoint, FoldRef, Settled};
use crate::event::DecisionKind;
use crate::ids::RunId;
use crate::message::Usage;
use crate::reply::Reply;
use crate::run::{Crashes, Lifecycle, RunView};
use crate::spec::Continuation;

fn decided(turn: u32, ran_ms: u64) -> Event {
    Event::PlanDecided {
        turn,
        decision: DecisionKind::ToolCalls,
        state: Vec::new(),
        reminders: Vec::new(),
        expected_children: None,
        parents: std::collections::BTreeMap::new(),
        ran_ms,
    }
}

fn step_failed(attempt: u32) -> Event {
    Event::StepFailed { turn: 1, attempt, error: "e".into(), retry_after_ms: 1 }
}

#[test]
fn a_wait_says_who_has_the_run_meanwhile() {
    let at = Some(Timestamp(44));
    let table = [
        (Wait::Answers { at: None }, "nobody"),
        (Wait::Answers { at }, "Resume from 44"),
        (for_runs(), "after 1 runs"),
        (Wait::Word, "nobody"),
        (Wait::Time { at: Timestamp(45) }, "Resume from 45"),
    ];
    for (wait, hold) in table {
        let run = run([started(), asked("q"), blocked(wait.clone())]);
        assert_eq!(word(&run.state.hold), hold, "{wait:?}");
    }
}

#[test]
fn the_last_answer_makes_a_blocked_run_wanted() {
    let waiting = [started(), asked("a"), asked("b"), blocked(Wait::Answers { at: None })];
    let run = run(waiting);
    let one = after(&run, [answered("b")]).expect("asked");
    assert_eq!(word(&one.state.hold), "nobody");
    assert!(after(&one, [answered("b")]).is_err(), "it is answered");
    assert!(after(&one, [answered("c")]).is_err(), "it was never asked");
    let both = after(&one, [answered("a")]).expect("asked");
    assert_eq!(word(&both.state.hold), "Resume from 0");
    let open = |run: &Run| run.state.awaits.iter().filter(|one| !one.answered).count();
    assert_eq!([open(&run), open(&one), open(&both)], [2, 1, 0]);
    let shown = |run: &Run| RunView::from(run).awaits.len();
    assert_eq!([shown(&run), shown(&one), shown(&both)], [2, 1, 0]);
}

#[test]
fn answered_questions_are_forgotten_when_the_run_waits_again() {
    let asks = [started(), asked("a"), answered("a"), asked("b"), blocked(Wait::Word)];
    let ids: Vec<_> = run(asks).state.awaits.into_iter().map(|one| one.id).collect();
    assert_eq!(ids, ["b"]);
}

#[test]
fn a_name_that_is_asked_again_is_answered_again() {
    let run = run([started(), asked("a"), answered("a"), asked("a")]);
    let answered: Vec<_> = run.state.awaits.iter().map(|one| one.answered).collect();
    assert_eq!(answered, [true, false]);
    after(&run, [super::answered("a")]).expect("the second one is open");
}

#[test]
fn crashes_count_until_a_step_is_decided_and_in_all() {
    let gave_back = |epoch| Event::Lost {
        host: HostId::new("g"),
        epoch,
        not_before: Timestamp(0),
        crashed: false,
        ran_ms: 0,
    };
    let mut events = vec![started(), lost(2), resumed(3), lost(4), resumed(5), gave_back(6)];
    assert_eq!(run(events.clone()).state.crashes, Crashes { in_a_row: 2, total: 2 });
    events.extend([resumed(7), decided(1, 9)]);
    assert_eq!(run(events.clone()).state.crashes, Crashes { in_a_row: 0, total: 2 });
    events.push(lost(8));
    assert_eq!(run(events).state.crashes, Crashes { in_a_row: 1, total: 3 });
}

#[test]
fn the_end_of_a_round_begins_what_is_counted_in_it_anew_and_names_the_fold_where_it_stands() {
    let ended = |round, place: u64| {
        let artifact = ArtifactRef { hash: "h".to_owned(), size: 9 };
        let usage = Usage { total_tokens: 5, ..Usage::default() };
        let settled = Settled { runs: vec![RunId::new("c").expect("an id")], usage };
        let fold = Some(FoldRef { seq: place, artifact });
        Event::RoundEnded {
            round,
            prompt: "on".to_owned(),
            worked: true,
            wants_result: false,
            checkpoint: Box::new(Checkpoint { settled, fold, ..Checkpoint::default() }),
        }
    };
    let events = vec![started(), lost(2), resumed(3), decided(1, 9), ended(1, 6)];
    let state = run(events.clone()).state;
    assert_eq!((state.head, state.crashes), (6, Crashes::default()));
    assert_eq!(state.rounds.fold.as_ref().map(|fold| fold.seq), Some(6));
    // Somebody wrote in between.
    let more = [decided(2, 9), ended(2, 7)];
    let state = run(events.into_iter().chain(more)).state;
    assert_eq!(state.rounds.fold.map(|fold| fold.seq), Some(6), "the one before is of use still");
    assert_eq!(state.rounds.settled.total_tokens, 10);
}

#[test]
fn what_was_used_beneath_the_runs_that_it_continues_is_kept_once() {
    let used = |total_tokens| Some(Usage { total_tokens, ..Usage::default() });
    let ended = |round, continued| Event::RoundEnded {
        round,
        prompt: "on".to_owned(),
        worked: true,
        wants_result: false,
        checkpoint: Box::new(Checkpoint { continued, ..Checkpoint::default() }),
    };
    let mut events = vec![started(), decided(1, 9), ended(1, None)];
    assert_eq!(run(events.clone()).state.rounds.continued, None);
    events.extend([decided(2, 9), ended(2, used(7)), decided(3, 9), ended(3, None)]);
    assert_eq!(run(events).state.rounds.continued, used(7));
}

#[test]
fn where_all_had_ended_beneath_the_run_that_it_continues_nothing_is_added_to_what_was_carried() {
    let continued = |is_final| {
        let continued = Continuation {
            run: RunId::new("run-0").expect("a valid id"),
            turns: 3,
            rounds: 2,
            tool_calls: 1,
            ran_ms: 5,
            usage: Usage::default(),
            is_final,
            reply: Reply::default(),
            due: None,
        };
        let spec = RunSpec { continues: Some(Box::new(continued)), ..spec() };
        run_of(spec, [started()]).state.rounds.continued
    };
    assert_eq!((continued(true), continued(false)), (Some(Usage::default()), None));
}

#[test]
fn attempts_count_until_a_step_is_decided() {
    let events = [started(), step_failed(1), step_failed(2)];
    let failing = run(events);
    assert_eq!((failing.state.failed_attempts, RunView::from(&failing).attempt), (2, 3));
    let decided = after(&failing, [decided(1, 9)]).expect("legal");
    assert_eq!((decided.state.failed_attempts, decided.state.turns), (0, 1));
}

#[test]
fn a_skipped_turn_is_a_turn_and_skipped_ones_count_until_a_step_is_decided() {
    let skipped =
        |turn| Event::TurnSkipped { turn, attempts: 2, error: "e".into(), ran_ms: u64::from(turn) };
    let run = run([started(), step_failed(1), skipped(1), skipped(2)]);
    let state = &run.state;
    assert_eq!((state.turns, state.failed_attempts, state.skipped, state.ran_ms), (2, 0, 2, 2));
    let decided = after(&run, [decided(3, 9)]).expect("legal");
    assert_eq!((decided.state.turns, decided.state.skipped), (3, 0));
}

#[test]
fn waits_for_models_add_up_and_leave_the_attempts_as_they_are() {
    let pushed_back = |until: u64, tokens: u64| Event::PushedBack {
        turn: 1,
        model: "m".into(),
        until: Timestamp(until),
        reason: "busy".into(),
        said: None,
        usage: Some(Usage { total_tokens: tokens, ..Usage::default() }),
    };
    let waits = blocked(Wait::Time { at: Timestamp(2_000) });
    // Its events are recorded at 20, 30, 40 and so on.
    let events = [started(), step_failed(1), pushed_back(1_040, 3), waits, resumed(2)];
    let run = run(events);
    assert_eq!((run.state.pushed_back_ms, run.state.failed_attempts), (1_000, 1));
    let again = after(&run, [pushed_back(2_999, 4)]).expect("legal");
    assert_eq!(again.state.pushed_back_ms, 1_000 + 2_000);
    assert_eq!(again.state.progress.total_tokens, 7, "what was given up counts");
}

#[test]
fn a_blocked_run_says_until_when() {
    let at = Timestamp(6_000);
    let waiting = run([started(), blocked(Wait::Time { at })]);
    assert_eq!(RunView::from(&waiting).blocked_until, Some(at));
    let paused = after(&waiting, [pause_requested()]).expect("legal");
    assert_eq!(RunView::from(&paused).blocked_until, None);
    for wait in [Wait::Answers { at: None }, Wait::Word, for_runs()] {
        let run = run([started(), asked("q"), blocked(wait)]);
        assert_eq!(RunView::from(&run).blocked_until, None);
    }
}

#[test]
fn the_time_that_a_run_ran_never_shrinks() {
    let waits = Event::Blocked { on: BlockedOn::Input, wait: Wait::Word, ran_ms: 40 };
    let run = run([started(), decided(1, 30), decided(2, 20)]);
    assert_eq!(run.state.ran_ms, 30);
    assert_eq!(after(&run, [waits]).expect("legal").state.ran_ms, 40);
}

#[test]
fn only_changes_of_status_change_the_time_by_which_runs_are_listed() {
    let chunk = Event::AssistantChunk { text: "x".into() };
    let run = run([started(), chunk, lost(2), resumed(3)]);
    assert_eq!(run.state.updated_at, Timestamp(20));
    assert_eq!(run.state.progress.last_event_at, Some(Timestamp(30)));
}

#[test]
fn an_execution_moves_with_its_run_and_keeps_its_names() {
    let run = run([started(), lost(2), resumed(3)]);
    let Lifecycle::Running { execution } = &run.state.lifecycle else { panic!("running") };
    assert_eq!(execution.host, HostId::new("g"));
    assert_eq!((execution.request_id.as_str(), execution.started_at), ("r", Timestamp(20)));
}
