//! M-49: notes of a planner for its own later turns are kept in the journal.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use taskrun_journal::event::Event;
use taskrun_journal::reminders::{Attachment, Reminder, ReminderChange, Tier};
use taskrun_journal::status::Status;
use taskrun_journal::tool::ToolHints;
use taskrun_policy::InterruptionPolicy;
use tokio::sync::Notify;

use crate::native::{ClosurePlanner, ClosureTool, World, answer, call_of, failed, request, value};

/// The messages that each step was shown, by its turn.
type Shown = Arc<Mutex<Vec<(u32, Vec<String>)>>>;

fn note(id: &str, tier: Tier) -> Reminder {
    Reminder {
        id: id.to_owned(),
        text: format!("text of {id}"),
        tier,
        attachment: Attachment::UserTurn,
        max_per_run: Some(1),
        min_turns_between: 0,
    }
}

fn world() -> World {
    let mut world = World::new();
    let tool = ClosureTool::new("f", ToolHints::default(), |_, _| async { value("1") });
    world.tool("t", InterruptionPolicy::Fail, tool);
    world
}

fn seen(shown: &Shown) -> Vec<(u32, Vec<String>)> {
    shown.lock().expect("no panic").clone()
}

#[tokio::test]
async fn m_49_a_step_that_runs_again_after_a_death_is_shown_the_same_notes() {
    let mut world = world();
    let shown = Shown::default();
    let (seen_by_steps, cut_off) = (Arc::clone(&shown), Arc::new(Notify::new()));
    let reached = Arc::clone(&cut_off);
    world.agent(
        "a",
        ClosurePlanner::new(move |input, scope| {
            let turn = input.run.turn;
            let ids: Vec<_> = input.reminders.iter().map(|note| note.id.clone()).collect();
            let again = {
                let mut shown = seen_by_steps.lock().expect("no panic");
                let again = shown.iter().any(|(before, _)| *before == turn);
                shown.push((turn, ids));
                again
            };
            let reached = Arc::clone(&reached);
            async move {
                match turn {
                    1 => {
                        scope
                            .add_reminder(note("guidance", Tier::Guidance))
                            .expect("within bounds");
                        scope.add_reminder(note("safety", Tier::Safety)).expect("within bounds");
                        scope.add_reminder(note("gone", Tier::Safety)).expect("within bounds");
                        scope.remove_reminder("gone");
                    }
                    2 => {
                        scope.add_reminder(note("late", Tier::Safety)).expect("within bounds");
                        if !again {
                            reached.notify_one();
                            std::future::pending::<()>().await;
                        }
                    }
                    _ => return answer("done"),
                }
                call_of(&[(&format!("c{turn}"), "t/f", "{}")])
            }
        }),
    );
    let first = world.start().await;
    let id = first.spawn(&request("a", "x")).await;
    cut_off.notified().await;
    world.kill(first).await;
    let second = world.start().await;
    world.clock.advance(Duration::from_secs(1));
    let run = second.end(&id).await;
    assert_eq!(run.status(), Status::Completed, "{:?}", second.kinds(&id).await);
    let names = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
    let both = names(&["safety", "guidance"]);
    let expected = [(1, names(&[])), (2, both.clone()), (2, both), (3, names(&["late", "safety"]))];
    assert_eq!(seen(&shown), expected);
    // Each decision says what its step changed, and the step that was cut off left nothing.
    let changes: Vec<_> = second
        .journal(&id)
        .await
        .into_iter()
        .filter_map(|recorded| {
            let Event::PlanDecided { reminders, .. } = recorded.event else { return None };
            Some(reminders)
        })
        .collect();
    let added = |id: &str, tier| ReminderChange::Added(note(id, tier));
    let first_turn = vec![
        ReminderChange::Removed("gone".to_owned()),
        added("guidance", Tier::Guidance),
        added("safety", Tier::Safety),
    ];
    assert_eq!(changes, [first_turn, vec![added("late", Tier::Safety)], Vec::new()]);
}

#[tokio::test]
async fn m_49_a_step_that_failed_and_is_tried_again_has_used_no_showing() {
    let mut world = world();
    let shown = Shown::default();
    let seen_by_steps = Arc::clone(&shown);
    world.agent(
        "a",
        ClosurePlanner::new(move |input, scope| {
            let (turn, attempt) = (input.run.turn, input.run.attempt);
            let ids = input.reminders.iter().map(|note| note.id.clone()).collect();
            seen_by_steps.lock().expect("no panic").push((turn, ids));
            async move {
                match (turn, attempt) {
                    (1, _) => {
                        scope.add_reminder(note("once", Tier::Guidance)).expect("within bounds");
                    }
                    (2, 1) => {
                        scope.add_reminder(note("void", Tier::Guidance)).expect("within bounds");
                        return failed(Some("transient"), "not now");
                    }
                    (2, _) => {}
                    (_, _) => return answer("done"),
                }
                call_of(&[(&format!("c{turn}"), "t/f", "{}")])
            }
        }),
    );
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    host.until(&id, "failed once", |run| run.state.failed_attempts == 1).await;
    world.next(Duration::from_secs(1)).await;
    let run = host.end(&id).await;
    assert_eq!(run.status(), Status::Completed, "{:?}", host.kinds(&id).await);
    let once = vec!["once".to_owned()];
    let expected = [(1, Vec::new()), (2, once.clone()), (2, once), (3, Vec::new())];
    assert_eq!(seen(&shown), expected);
}
