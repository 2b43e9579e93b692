//! The places of a run's life: status and hold, with everything that can happen there.

use super::*;
use crate::ending::EndStatus;
use crate::hold::Hold;
use crate::status::Status;

/// A place, the events that lead to it, who has the run there, and what can happen to it: the
/// kind of the event, the status it leads to and who has the run then.
pub(super) struct StateCase {
    pub(super) name: &'static str,
    pub(super) events: Vec<Event>,
    pub(super) hold: &'static str,
    pub(super) legal: Vec<(&'static str, Status, &'static str)>,
}

pub(super) const WORK: [&str; 35] = [
    "metrics_recorded",
    "memory_appended",
    "history_carried",
    "reported",
    "assistant_chunk",
    "assistant_message",
    "tool_call_args_delta",
    "thinking_block",
    "planner_note",
    "prompt_rendered",
    "usage",
    "marked",
    "tool_result",
    "tool_call_parked",
    "child_run_linked",
    "tool_call_updated",
    "host_answered",
    "outside_answered",
    "model_wait",
    "context_window_met",
    "clock_read",
    "rules_changed",
    "step_restarted",
    "replay_diverged",
    "step_failed",
    "pushed_back",
    "turn_skipped",
    "round_ended",
    "policy_decision",
    "tool_authorization",
    "log",
    "plan_decided",
    "inbox_shown",
    "final_tool_result",
    "finalize_requested",
];
const EFFECTS: [&str; 3] = ["tool_call_scheduled", "tool_call_repeated", "asked"];

/// The holder of a run, in a word.
pub(super) fn word(hold: &Hold) -> String {
    match hold {
        Hold::Nobody => "nobody".to_owned(),
        Hold::Beat => "the heartbeat".to_owned(),
        Hold::Wanted { lane, not_before } => format!("{lane:?} from {}", not_before.0),
        Hold::Runs { runs, .. } => format!("after {} runs", runs.len()),
        Hold::Host { host } => format!("host {host}"),
    }
}

fn ended(status: EndStatus) -> Vec<Event> {
    let ending = match status {
        EndStatus::Completed => Ending::completed(StopReason::FinalResponse),
        EndStatus::Failed => Ending::failed(StopReason::AgentError, "e"),
        EndStatus::Canceled => Ending::canceled(StopReason::CanceledByOwner),
    };
    vec![started(), finalizing(ending), finished()]
}

/// Every place. In what can happen, the host that resumes is `g`, the one that starts `h`, a loss
/// lasts until 7 and a wait is for one run.
pub(super) fn places() -> Vec<StateCase> {
    [
        queued_and_running(),
        blocked_ones(),
        paused_ones(),
        canceling(),
        finalizing_ones(),
        ended_ones(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn queued_and_running() -> Vec<StateCase> {
    use Status::{Blocked, Canceling, Finalizing, Running};
    let held = |hold: &'static str, answerable: bool| {
        let mut legal: Vec<_> =
            WORK.into_iter().chain(EFFECTS).map(|kind| (kind, Running, hold)).collect();
        legal.push(("blocked", Blocked, "after 1 runs"));
        legal.push(("lost", Running, "Resume from 7"));
        legal.push(("cancel_requested", Canceling, hold));
        legal.push(("finalizing", Finalizing, hold));
        legal.push(("pause_requested", Running, hold));
        legal.push(("injected", Running, hold));
        legal.push(("adopted", Running, hold));
        if answerable {
            legal.push(("answered", Running, hold));
        }
        legal
    };
    let wanted = |answerable: bool| {
        let mut legal = vec![
            ("resumed", Running, "host g"),
            ("cancel_requested", Canceling, "nobody"),
            ("finalizing", Finalizing, "Resume from 0"),
            ("pause_requested", Blocked, "nobody"),
            ("injected", Running, "Resume from 7"),
        ];
        if answerable {
            legal.push(("answered", Running, "Resume from 7"));
        }
        legal
    };
    vec![
        StateCase {
            name: "queued",
            events: vec![],
            hold: "Fresh from 0",
            legal: vec![
                ("started", Running, "host h"),
                ("cancel_requested", Canceling, "nobody"),
                ("pause_requested", Status::Queued, "nobody"),
                ("injected", Status::Queued, "Fresh from 0"),
                ("adopted", Status::Queued, "Fresh from 0"),
            ],
        },
        StateCase {
            name: "running, held",
            events: vec![started()],
            hold: "host h",
            legal: held("host h", false),
        },
        StateCase {
            name: "running, held, asking",
            events: vec![started(), asked("q")],
            hold: "host h",
            legal: held("host h", true),
        },
        StateCase {
            name: "running, taken up again",
            events: vec![started(), lost(2), resumed(3)],
            hold: "host g",
            legal: held("host g", false),
        },
        StateCase {
            name: "running, wanted",
            events: vec![started(), lost(2)],
            hold: "Resume from 7",
            legal: wanted(false),
        },
        StateCase {
            name: "running, wanted, asking",
            events: vec![started(), asked("q"), lost(2)],
            hold: "Resume from 7",
            legal: wanted(true),
        },
    ]
}

fn blocked_ones() -> Vec<StateCase> {
    use Status::{Blocked, Canceling, Running};
    let place = |name, wait: Wait, asks: bool, more: Vec<Event>, hold: &'static str| {
        let mut events = vec![started()];
        events.extend(asks.then(|| asked("q")));
        events.push(blocked(wait));
        let answerable = asks && more.is_empty();
        events.extend(more);
        let mut legal = vec![
            ("resumed", Running, "host g"),
            ("cancel_requested", Canceling, "nobody"),
            ("pause_requested", Blocked, "nobody"),
            ("injected", Blocked, hold),
            ("adopted", Blocked, hold),
        ];
        if answerable {
            legal.push(("answered", Blocked, "Resume from 0"));
        }
        StateCase { name, events, hold, legal }
    };
    let forever = || Wait::Answers { at: None };
    let timed = || Wait::Answers { at: Some(Timestamp(5)) };
    vec![
        place("blocked, nobody's", forever(), true, vec![], "nobody"),
        place("blocked, until a time", timed(), true, vec![], "Resume from 5"),
        place("blocked, on runs", for_runs(), false, vec![], "after 1 runs"),
        place(
            "blocked, for a time",
            Wait::Time { at: Timestamp(6) },
            false,
            vec![],
            "Resume from 6",
        ),
        place("blocked, until a word", Wait::Word, false, vec![], "nobody"),
        place("blocked, answered", forever(), true, vec![answered("q")], "Resume from 0"),
    ]
}

fn paused_ones() -> Vec<StateCase> {
    use Status::{Blocked, Queued, Running};
    let place = |name, events, hold, legal| StateCase { name, events, hold, legal };
    let until =
        || Event::PauseRequested { by: "b".into(), reason: None, until: Some(Timestamp(8)) };
    // Work goes on to its end, and no calls begin: that is up to the host.
    let held = |hold: &'static str, given_back: &'static str| {
        let mut legal: Vec<_> =
            WORK.into_iter().chain(EFFECTS).map(|kind| (kind, Running, hold)).collect();
        legal.push(("blocked", Blocked, given_back));
        legal.push(("lost", Blocked, given_back));
        legal.push(("pause_ended", Running, hold));
        legal.push(("injected", Running, hold));
        legal.push(("adopted", Running, hold));
        legal
    };
    let waiting = |resumed: &'static str| {
        vec![
            ("resumed", Running, "host g"),
            ("pause_ended", Blocked, resumed),
            ("injected", Blocked, "nobody"),
            ("adopted", Blocked, "nobody"),
        ]
    };
    let answers = Wait::Answers { at: None };
    let asking = || vec![started(), asked("q"), blocked(answers.clone()), pause_requested()];
    let mut answerable = waiting("nobody");
    answerable.push(("answered", Blocked, "nobody"));
    let queued = |hold| {
        vec![
            ("started", Running, "host h"),
            ("pause_ended", Queued, "Fresh from 0"),
            ("injected", Queued, hold),
            ("adopted", Queued, hold),
        ]
    };
    vec![
        place("queued, paused", vec![pause_requested()], "nobody", queued("nobody")),
        place("queued, paused for a time", vec![until()], "Fresh from 8", queued("Fresh from 8")),
        place(
            "held, pausing",
            vec![started(), pause_requested()],
            "host h",
            held("host h", "nobody"),
        ),
        place(
            "blocked, paused",
            vec![started(), pause_requested(), blocked_on_pause()],
            "nobody",
            waiting("Resume from 0"),
        ),
        place(
            "blocked, paused after its host",
            vec![started(), lost(2), pause_requested()],
            "nobody",
            waiting("Resume from 0"),
        ),
        place(
            "blocked, paused with its host",
            vec![started(), pause_requested(), lost(2)],
            "nobody",
            waiting("Resume from 0"),
        ),
        place("blocked, asking, paused", asking(), "nobody", answerable),
        place(
            "blocked, answered while paused",
            asking().into_iter().chain([answered("q")]).collect(),
            "nobody",
            waiting("Resume from 0"),
        ),
        place(
            "blocked, on runs, paused",
            vec![started(), blocked(for_runs()), pause_requested()],
            "nobody",
            waiting("Resume from 0"),
        ),
        place(
            "blocked, for a time, paused",
            vec![started(), blocked(Wait::Time { at: Timestamp(6) }), pause_requested()],
            "nobody",
            waiting("Resume from 6"),
        ),
        place(
            "held again, its pause over",
            vec![started(), until(), blocked_on_pause(), resumed(2)],
            "host g",
            held("host g", "Resume from 8"),
        ),
    ]
}

fn canceling() -> Vec<StateCase> {
    use Status::{Canceling, Finalizing};
    let held = |hold: &'static str| {
        let mut legal: Vec<_> = WORK.into_iter().map(|kind| (kind, Canceling, hold)).collect();
        legal.push(("lost", Canceling, "Resume from 7"));
        legal.push(("finalizing", Finalizing, hold));
        legal
    };
    let free =
        || vec![("resumed", Canceling, "host g"), ("finalizing", Finalizing, "Resume from 0")];
    let place = |name, events, hold, legal| StateCase { name, events, hold, legal };
    vec![
        place("canceling, held", vec![started(), cancel_requested()], "host h", held("host h")),
        place(
            "canceling, held, asking",
            vec![started(), asked("q"), cancel_requested()],
            "host h",
            held("host h"),
        ),
        place(
            "canceling, wanted",
            vec![started(), cancel_requested(), lost(2)],
            "Resume from 7",
            free(),
        ),
        place(
            "canceling, nobody's",
            vec![started(), blocked(for_runs()), cancel_requested()],
            "nobody",
            free(),
        ),
        place("canceling, never begun", vec![cancel_requested()], "nobody", free()),
        place(
            "canceling, never begun, held",
            vec![cancel_requested(), resumed(1)],
            "host g",
            held("host g"),
        ),
    ]
}

fn finalizing_ones() -> Vec<StateCase> {
    use Status::{Completed, Finalizing};
    let place = |name, events: Vec<Event>, hold: &'static str, began: bool| {
        let mut legal = vec![("finished", Completed, "nobody")];
        if !hold.starts_with("host") {
            legal.push(("resumed", Finalizing, "host g"));
        } else {
            legal.push(("lost", Finalizing, "Resume from 7"));
            match began {
                true => {
                    let of_it = ["usage", "policy_decision", "log"];
                    legal.extend(of_it.map(|kind| (kind, Finalizing, hold)));
                }
                false => legal.push(("finalizer_started", Finalizing, hold)),
            }
        }
        StateCase { name, events, hold, legal }
    };
    let begun = || vec![started(), completed(), Event::FinalizerStarted];
    let never = || vec![cancel_requested(), completed()];
    vec![
        place("finalizing, held", vec![started(), completed()], "host h", false),
        place("finalizing, held, asked", begun(), "host h", true),
        place("finalizing, wanted", vec![started(), lost(2), completed()], "Resume from 0", false),
        place(
            "finalizing, wanted, asked",
            begun().into_iter().chain([lost(2)]).collect(),
            "Resume from 7",
            true,
        ),
        place("finalizing, never begun", never(), "Resume from 0", false),
        place(
            "finalizing, never begun, held",
            never().into_iter().chain([resumed(1)]).collect(),
            "host g",
            false,
        ),
    ]
}

fn ended_ones() -> Vec<StateCase> {
    let place = |name, events| StateCase { name, events, hold: "nobody", legal: vec![] };
    let canceled = finalizing(Ending::canceled(StopReason::CanceledByOwner));
    vec![
        place("completed", ended(EndStatus::Completed)),
        place("failed", ended(EndStatus::Failed)),
        place("canceled", ended(EndStatus::Canceled)),
        place("canceled, never begun", vec![cancel_requested(), canceled, finished()]),
    ]
}
