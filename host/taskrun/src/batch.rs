//! The batch runs of heartbeats: which of the waiting entries one takes, and what its task says.

use taskrun_journal::run::Run;
use taskrun_journal::spec::{RunSpec, TASK_BYTES_MAX};
use taskrun_journal::store::Idempotency;
use taskrun_policy::Heartbeat;

use crate::spawn::digest_of_parts;

/// The text before the entries in the task of a batch, unless the policy says otherwise.
pub const HEADING: &str = "Tasks that wait for you. Work on each of them:";
/// Label by which batch runs are found.
pub const LABEL: (&str, &str) = ("taskrun.batch", "heartbeat");
/// Most bytes of the result with which an entry is acknowledged.
pub const ENTRY_RESULT_BYTES_MAX: usize = 64 << 10;

/// The text between two lines of an entry's task, so that none of them looks like the first
/// line of another entry.
const NEXT_LINE: &str = "\n  ";

/// The entries that a batch takes of those that wait, best first, and its task: at most `max` that
/// run as the same application, beneath the same run, within the same request and with the same
/// answers, as many as one task has room for.
#[must_use]
pub(crate) fn fill(heartbeat: &Heartbeat, waiting: Vec<Run>, max: usize) -> (Vec<Run>, String) {
    let mut task = heartbeat.prompt.clone().unwrap_or_else(|| HEADING.to_owned());
    let place = |spec: &RunSpec| {
        let above = (spec.parent_run_id.clone(), spec.narrow.clone());
        (spec.app_name.clone(), above, spec.answers.clone())
    };
    let first = waiting.first().map(|entry| place(&entry.spec));
    let mut taken = Vec::new();
    for entry in waiting {
        let line = line(&entry.spec);
        if taken.len() == max || task.len() + line.len() > TASK_BYTES_MAX {
            break;
        }
        if first.as_ref() == Some(&place(&entry.spec)) {
            task.push_str(&line);
            taken.push(entry);
        }
    }
    (taken, task)
}

fn line(spec: &RunSpec) -> String {
    let text = spec.task.replace('\n', NEXT_LINE);
    format!("\nTask #{}: {text}", spec.id)
}

/// The key that keeps a beat from making two batches where one is due: there is one open batch at a
/// time of an agent for an owner, session and application, and each tick makes one at most.
#[must_use]
pub(crate) fn beat_of(entry: &RunSpec, tick: &str) -> Idempotency {
    let app = entry.parent_app_name.as_deref().unwrap_or_default();
    let parts = [
        // Tells it from the keys of callers.
        "heartbeat",
        &entry.agent_name,
        &entry.owner_user_id,
        &entry.parent_session_id,
        app,
    ];
    Idempotency {
        key: digest_of_parts(&parts),
        fingerprint: tick.to_owned(),
        completed_since: None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::fixtures::{run, spec};
    use taskrun_journal::answers::Answers;
    use taskrun_journal::ids::RunId;
    use taskrun_journal::spec::ENTRY_BYTES_MAX;
    use taskrun_policy::BeatTimes;

    fn entry(id: &str, task: &str, app: Option<&str>) -> Run {
        let spec = RunSpec {
            id: RunId::new(id).expect("a valid id"),
            task: task.to_owned(),
            app_name: app.map(str::to_owned),
            ..spec()
        };
        Run { spec: Arc::new(spec), ..run([]) }
    }

    fn heartbeat(prompt: Option<&str>) -> Heartbeat {
        Heartbeat {
            times: BeatTimes::Every(Duration::from_secs(1)),
            prompt: prompt.map(str::to_owned),
        }
    }

    fn ids(runs: &[Run]) -> Vec<&str> {
        runs.iter().map(|run| run.id().as_str()).collect()
    }

    #[test]
    fn a_task_is_the_prompt_and_a_line_for_each_entry() {
        let waiting = || vec![entry("1", "one", None), entry("2", "two", None)];
        let (taken, task) = fill(&heartbeat(Some("Do these.")), waiting(), 4);
        assert_eq!(ids(&taken), ["1", "2"]);
        assert_eq!(task, "Do these.\nTask #1: one\nTask #2: two");
        let (taken, task) = fill(&heartbeat(None), waiting(), 1);
        assert_eq!(ids(&taken), ["1"]);
        assert_eq!(task, format!("{HEADING}\nTask #1: one"));
    }

    #[test]
    fn no_line_of_an_entry_looks_like_another_entry() {
        let waiting = vec![entry("1", "one\nTask #2: two", None)];
        let (_, task) = fill(&heartbeat(Some("p")), waiting, 4);
        assert_eq!(task, "p\nTask #1: one\n  Task #2: two");
    }

    #[test]
    fn a_batch_runs_as_one_application() {
        let waiting =
            vec![entry("1", "t", Some("a")), entry("2", "t", None), entry("3", "t", Some("a"))];
        assert_eq!(ids(&fill(&heartbeat(None), waiting, 4).0), ["1", "3"]);
    }

    #[test]
    fn one_who_answers_entries_answers_their_batch() {
        let answered = |id, answers| {
            let run = entry(id, "t", None);
            Run { spec: Arc::new(RunSpec { answers, ..(*run.spec).clone() }), ..run }
        };
        let refuse = || Answers::Refuse { reason: "nobody is here".to_owned() };
        let waiting =
            vec![answered("1", refuse()), answered("2", Answers::Inbox), answered("3", refuse())];
        assert_eq!(ids(&fill(&heartbeat(None), waiting, 4).0), ["1", "3"]);
    }

    #[test]
    fn the_largest_entry_fits_and_what_has_no_room_waits() {
        let largest = "\n".repeat(ENTRY_BYTES_MAX);
        let prompt = "p".repeat(taskrun_policy::HEARTBEAT_PROMPT_BYTES_MAX);
        let waiting = vec![entry("1", &largest, None), entry("2", &largest, None)];
        let (taken, task) = fill(&heartbeat(Some(&prompt)), waiting, 4);
        assert_eq!(ids(&taken), ["1"]);
        assert!(task.len() <= TASK_BYTES_MAX);
    }

    #[test]
    fn beats_differ_by_all_that_keeps_entries_apart() {
        let base = spec();
        let others = [
            RunSpec { agent_name: "b".into(), ..base.clone() },
            RunSpec { owner_user_id: "b".into(), ..base.clone() },
            RunSpec { parent_session_id: "b".into(), ..base.clone() },
            RunSpec { parent_app_name: Some("b".into()), ..base.clone() },
        ];
        for other in &others {
            assert_ne!(beat_of(&base, "1").key, beat_of(other, "1").key, "{other:?}");
        }
        let same = RunSpec { task: "other".into(), ..base.clone() };
        assert_eq!(beat_of(&base, "1").key, beat_of(&same, "2").key);
    }
}
