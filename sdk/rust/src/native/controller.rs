//! Runs that are never executed: they stand as tests put them.

use crate::{
    bindings::agent::taskrun::plugin::controller::{
        Answer, CancelOutcome, ChangeOutcome, ControllerError, EventPage, InvalidField, ListFilter,
        NotAwaitableReason, RunPage, RunRecord, RunStatus, SpawnRequest, WaitOutcome,
    },
    native::{Host, host},
    types::Usage,
};

const PAGE_DEFAULT: u32 = 16;
const PAGE_MAX: u32 = 200;
const EVENTS_MAX: u32 = 256;

fn place(host: &Host, id: &str) -> Result<usize, ControllerError> {
    let found = host.runs.iter().position(|run| run.id == id);
    found.ok_or_else(|| ControllerError::NotFound(id.to_owned()))
}

fn invalid(field: &str, reason: &str) -> ControllerError {
    ControllerError::Invalid(InvalidField { field: field.to_owned(), reason: reason.to_owned() })
}

/// Starts a run, which stays queued.
///
/// # Errors
///
/// As set up in [`Host::spawn_errors`](crate::native::Host::spawn_errors), and for an empty task.
pub fn spawn(request: &SpawnRequest) -> Result<RunRecord, ControllerError> {
    if request.task.trim().is_empty() {
        return Err(invalid("task", "empty task"));
    }
    host(|host| {
        if let Some(error) = host.spawn_errors.get(&request.agent_name) {
            return Err(error.clone());
        }
        let known =
            host.spawns.iter().position(|known| request.key.is_some() && known.key == request.key);
        if let Some(known) = known {
            let id = format!("child-{}", known + 1);
            let run = host.runs[place(host, &id)?].clone();
            return match host.spawns[known] == *request {
                true => Ok(run),
                false => Err(ControllerError::AlreadyExists(run.id)),
            };
        }
        let run = RunRecord {
            id: format!("child-{}", host.spawns.len() + 1),
            parent_run_id: host.context.run_id.clone(),
            agent_name: request.agent_name.clone(),
            status: RunStatus::Queued,
            blocked_on: None,
            stop_reason: None,
            partial: false,
            result: None,
            truncated: false,
            images: Vec::new(),
            error: None,
            awaits: Vec::new(),
            turns: 0,
            usage: Usage::default(),
            labels: request.labels.clone(),
            revision: 1,
            created_at: host.now_ms,
            updated_at: host.now_ms,
            started_at: None,
            finished_at: None,
            details: "{}".to_owned(),
        };
        host.spawns.push(request.clone());
        host.runs.push(run.clone());
        Ok(run)
    })
}

/// Lists runs, the last one first. The stand-in's cursor is the number of those before.
///
/// # Errors
///
/// For a cursor of something else.
pub fn list(
    filter: &ListFilter,
    cursor: Option<&str>,
    limit: Option<u32>,
) -> Result<RunPage, ControllerError> {
    let skip: usize = match cursor {
        None => 0,
        Some(text) => text.parse().map_err(|_| invalid("cursor", "not a cursor"))?,
    };
    let limit = limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX) as usize;
    host(|host| {
        let fits = |run: &&RunRecord| {
            (filter.status.is_empty() || filter.status.contains(&run.status))
                && filter.agent_name.as_ref().is_none_or(|name| *name == run.agent_name)
                && filter.parent_run_id.as_ref().is_none_or(|id| *id == run.parent_run_id)
                && filter.labels.iter().all(|label| run.labels.contains(label))
        };
        let all: Vec<RunRecord> = host.runs.iter().rev().filter(fits).cloned().collect();
        let runs: Vec<RunRecord> = all.iter().skip(skip).take(limit).cloned().collect();
        let end = skip + runs.len();
        Ok(RunPage { runs, next: (end < all.len()).then(|| end.to_string()) })
    })
}

/// The run as it stands.
///
/// # Errors
///
/// When there is none of that id.
pub fn get(id: &str) -> Result<RunRecord, ControllerError> {
    host(|host| Ok(host.runs[place(host, id)?].clone()))
}

/// Cancels a run at once.
///
/// # Errors
///
/// When there is none of that id.
pub fn cancel(id: &str, _reason: Option<&str>) -> Result<CancelOutcome, ControllerError> {
    host(|host| {
        let at = place(host, id)?;
        let changed = stop(&mut host.runs[at]);
        Ok(CancelOutcome { run: host.runs[at].clone(), changed, descendants: Vec::new() })
    })
}

/// Cancels a run and those that it started at once.
///
/// # Errors
///
/// When there is none of that id.
pub fn cancel_tree(id: &str, reason: Option<&str>) -> Result<CancelOutcome, ControllerError> {
    let mut done = cancel(id, reason)?;
    host(|host| {
        let children = host.runs.iter_mut().filter(|run| run.parent_run_id == id);
        done.descendants = children.filter_map(|run| stop(run).then(|| run.id.clone())).collect();
    });
    Ok(done)
}

fn stop(run: &mut RunRecord) -> bool {
    let open = !run.is_over();
    if open {
        run.status = RunStatus::Canceled;
    }
    open
}

/// Pauses a run at once, which is blocked by that.
///
/// # Errors
///
/// When there is none of that id, or it has ended.
pub fn pause(
    id: &str,
    _reason: Option<&str>,
    _timeout: Option<u64>,
) -> Result<ChangeOutcome, ControllerError> {
    change(id, |run| {
        let changed = run.blocked_on.as_deref() != Some(PAUSE);
        run.status = RunStatus::Blocked;
        run.blocked_on = Some(PAUSE.to_owned());
        changed
    })
}

/// Lets a run that is paused go on.
///
/// # Errors
///
/// When there is none of that id, or it has ended.
pub fn resume(id: &str, _note: Option<&str>) -> Result<ChangeOutcome, ControllerError> {
    change(id, |run| {
        let changed = run.blocked_on.as_deref() == Some(PAUSE);
        if changed {
            run.status = RunStatus::Running;
            run.blocked_on = None;
        }
        changed
    })
}

/// The value of `blocked_on` of a paused run.
const PAUSE: &str = "pause";

fn change(
    id: &str,
    change: impl FnOnce(&mut RunRecord) -> bool,
) -> Result<ChangeOutcome, ControllerError> {
    host(|host| {
        let at = place(host, id)?;
        if host.runs[at].is_over() {
            return Err(ControllerError::NotAwaitable(NotAwaitableReason::Ended));
        }
        let changed = change(&mut host.runs[at]);
        Ok(ChangeOutcome { run: host.runs[at].clone(), changed })
    })
}

/// Does not wait, and says how the run stands.
///
/// # Errors
///
/// When there is none of that id.
pub fn wait(id: &str, _timeout: Option<u64>) -> Result<WaitOutcome, ControllerError> {
    let run = get(id)?;
    Ok(WaitOutcome { timed_out: !run.is_over(), run })
}

/// Answers what a run asks.
///
/// # Errors
///
/// When there is no such run, or nothing of that name is asked.
pub fn provide(
    id: &str,
    item: Option<&str>,
    answer: &Answer,
) -> Result<RunRecord, ControllerError> {
    host(|host| {
        let at = place(host, id)?;
        let awaits = &mut host.runs[at].awaits;
        let open = awaits.iter().position(|open| item.is_none_or(|item| open.id == item));
        if item.is_none() && awaits.len() > 1 {
            return Err(invalid("item", "several things are asked; say which one is answered"));
        }
        let open = open.ok_or(ControllerError::NotAwaitable(NotAwaitableReason::UnknownItem))?;
        let open = awaits.remove(open);
        host.provided.push((id.to_owned(), open.id, answer.clone()));
        Ok(host.runs[at].clone())
    })
}

/// The events of a run as they were set up; does not wait.
///
/// # Errors
///
/// When there is none of that id.
pub fn subscribe(
    id: &str,
    after: u64,
    limit: u32,
    _timeout: Option<u64>,
) -> Result<EventPage, ControllerError> {
    host(|host| {
        let at = place(host, id)?;
        let all = host.run_events.get(id).map_or(&[][..], Vec::as_slice);
        let count = limit.clamp(1, EVENTS_MAX) as usize;
        let events: Vec<_> =
            all.iter().filter(|event| event.seq > after).take(count).cloned().collect();
        let next_after = events.last().map_or(after, |last| last.seq);
        let ended = host.runs[at].is_over() && all.last().is_none_or(|last| last.seq <= next_after);
        Ok(EventPage { events, next_after, ended })
    })
}
