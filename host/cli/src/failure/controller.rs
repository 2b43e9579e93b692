//! Refusals of the controller and failures of the store.

use std::borrow::Cow;
use std::path::Path;

use taskrun::controller::WAIT_RUNS_MAX;
use taskrun::error::{ControllerError, LockedWait, NotAnEntry};
use taskrun_journal::ids::RunId;
use taskrun_journal::question::AnswerRefusal;
use taskrun_journal::store::StoreError;

use super::Failure;
use crate::exit::Exit;
use crate::paths::shown;
use crate::shell;

impl From<ControllerError> for Box<Failure> {
    fn from(error: ControllerError) -> Self {
        let code = error.code();
        let message = error.to_string();
        match error {
            ControllerError::NotFound { .. } => Failure::usage(code, message)
                .hint("list the runs with `taskrun ps -a`; another tenant's need --tenant"),
            ControllerError::NoArtifact { id } => Failure::usage(code, message)
                .hint(format!("see what it has with `taskrun get {id} -o json`")),
            ControllerError::AlreadyExists { id } => Failure::usage(code, message)
                .hint(format!("look at it with `taskrun get {id}`, or choose another id or key"))
                .about(&id),
            ControllerError::NameTaken { name, id } => Failure::usage(code, message)
                .hint(format!(
                    "wait for its end with `taskrun wait {name}`, or choose another name"
                ))
                .about(&id),
            ControllerError::NotStarted | ControllerError::Closed => Failure::unexpected(message),
            ControllerError::Invalid { field, .. } => {
                Failure::usage(code, message).hint(invalid_hint(field, None))
            }
            ControllerError::NotLoaded { .. } => {
                Failure::usage(code, message).hint(invalid_hint("agent_name", None))
            }
            ControllerError::Forbidden { .. } => Failure::new(Exit::Forbidden, code, message).hint(
                "run it as an owner who may do this (--owner); beneath a run stand only \
                     agents that its own agent names in `members` (`taskrun agent show AGENT`)",
            ),
            ControllerError::Limit { kind, cap } => {
                Failure::new(Exit::Denied, code, message).hint(limit_hint(kind, cap))
            }
            ControllerError::SessionEnded { id } => Failure::usage(code, message)
                .hint(format!("start it in another session: --session NAME; {id} stays ended")),
            ControllerError::ParentEnded { id } => Failure::usage(code, message).hint(format!(
                "see how it ended with `taskrun get {id}`, or start it without --parent"
            )),
            ControllerError::RunEnded { id } => Failure::usage(code, message)
                .hint(format!("see how with `taskrun get {id}`"))
                .about(&id),
            ControllerError::Locked { id, waits, .. } => {
                let hint = match waits {
                    Some(LockedWait::Paused) => format!("let it go on with `taskrun resume {id}`"),
                    Some(LockedWait::Deferred) => format!("wake it with `taskrun wake {id}`"),
                    Some(LockedWait::Asking) => {
                        format!("see what it asks with `taskrun inbox`, answer it with `taskrun answer {id}`")
                    }
                    None => format!("wait for its end with `taskrun wait {id}`"),
                };
                Failure::new(Exit::Denied, code, message)
                    .hint(format!("{hint}, or end it with `taskrun cancel {id}`"))
                    .about(&id)
            }
            ControllerError::UnderWay { id } => Failure::usage(code, message)
                .hint(format!(
                    "pause it first with `taskrun pause {id}`, until `taskrun get {id}` says blocked"
                ))
                .about(&id),
            ControllerError::NotAwaitable { id, why } => not_awaitable(&id, why, message),
            ControllerError::NotAnEntry { id, why } => not_an_entry(&id, why, message),
            ControllerError::Inconsistent { id, .. } => {
                Failure::new(Exit::Unreachable, code, message).about(&id).hint(format!(
                    "nothing was recorded; see what it holds with `taskrun events {id}`"
                ))
            }
            ControllerError::Storage(error) => store_failure(&error),
        }
    }
}

/// The refusal of what was asked of this run, with the commands that are about it.
pub(crate) fn refusal_of(error: ControllerError, run: &RunId) -> Box<Failure> {
    let hint = if let ControllerError::Invalid { field, .. } = &error {
        Some(invalid_hint(field, Some(run)))
    } else {
        None
    };
    let mut failure = Box::<Failure>::from(error);
    if let Some(hint) = hint {
        failure = failure.hint(hint);
    }
    failure
}

/// The remedy for a part of a request that cannot be accepted; of one about a run, if it is known.
fn invalid_hint(field: &str, about: Option<&RunId>) -> String {
    let run = about.map_or("RUN", RunId::as_str);
    match field {
        "agent_name" => "list the agents with `taskrun agent ls`".to_owned(),
        "task" => "give the task as an argument, `-` for stdin or `@FILE`; \
                   larger inputs belong into files of the workspace"
            .to_owned(),
        "injected_context_messages" => {
            "put large inputs into files of the workspace and name them".to_owned()
        }
        "answer" => "see what is asked with `taskrun inbox -o json`, and how it is answered with \
                     `taskrun answer --help`"
            .to_owned(),
        "item" => {
            format!("see the items with `taskrun inbox`: `taskrun answer {run} ITEM ANSWER`")
        }
        "narrow.tools" | "narrow.deny" | "narrow" => {
            "see what the agent has with `taskrun agent show AGENT`; a request can only take away \
             from that"
                .to_owned()
        }
        "messages" | "text" => {
            format!(
                "`taskrun inject {run} TEXT` tells any run something, and `taskrun resume {run} \
                 --message TEXT` a paused one"
            )
        }
        "id" if about.is_some() => format!("see it with `taskrun get {run}`"),
        "id" => "leave out --id, and the host makes one".to_owned(),
        "budget" => "give the model its price in the policy, as in \
                     prices = { prompt = 0.15, completion = 0.60 }, dollars for a million tokens"
            .to_owned(),
        "session" => "give the name of a session".to_owned(),
        "expires" => "write a time as in --expires 30d".to_owned(),
        "ask" => "name who answers: `answers` of the agent in the policy, or --answers where the \
                  run is started"
            .to_owned(),
        "ids" => {
            format!("wait for them in parts, as with `xargs -n {WAIT_RUNS_MAX} taskrun wait`")
        }
        "class" => "see `taskrun agent show AGENT`, or leave out --heartbeat".to_owned(),
        _ => "see `taskrun run --help`".to_owned(),
    }
}

fn limit_hint(kind: &str, cap: u64) -> String {
    match kind {
        "queue" => format!(
            "{cap} runs wait to begin; wait for some of them, or see them with \
             `taskrun ps --status queued`"
        ),
        "tree" => format!("a tree has at most {cap} runs, ended ones included; start another one"),
        "consents" => format!(
            "an owner has at most {cap}; `taskrun gc` removes those that are over, and \
             `taskrun consents revoke NUMBER` ends one"
        ),
        "inbox" | "inbox-bytes" => "its next turn is shown all of it; wait for that".to_owned(),
        "depth" => format!("at most {cap} runs stand above a run; start it higher up"),
        _ => "leave out --no-queue and it begins as soon as it can".to_owned(),
    }
}

/// Each reason has a word of its own: what helps is different.
fn not_awaitable(id: &RunId, why: AnswerRefusal, message: String) -> Box<Failure> {
    let (code, hint) = match why {
        AnswerRefusal::UnknownItem => (
            "unknown-item",
            "see what is asked, and under which names, with `taskrun inbox`".into(),
        ),
        AnswerRefusal::Answered => {
            ("already-answered", format!("see by whom with `taskrun events {id} --kind answered`"))
        }
        AnswerRefusal::Ended => ("run-ended", format!("see how with `taskrun get {id}`")),
    };
    Failure::usage(code, message).about(id).hint(hint)
}

/// Each reason has a word of its own, as with [`not_awaitable`].
fn not_an_entry(id: &RunId, why: NotAnEntry, message: String) -> Box<Failure> {
    let code = match why {
        NotAnEntry::OfThisBatch => "not-an-entry",
        NotAnEntry::BatchNotBegun => "batch-not-begun",
        NotAnEntry::BatchEnded => "batch-ended",
        NotAnEntry::Ended => "run-ended",
    };
    Failure::usage(code, message).about(id).hint(format!("see it with `taskrun get {id}`"))
}

/// A store that does not do its work.
pub(crate) fn store_failure(error: &StoreError) -> Box<Failure> {
    let hint = match error {
        StoreError::Locked { path } => {
            let file = shell::path(Path::new(path), "FILE");
            format!("see who has it open with `fuser {file}`, end that program, and try again")
        }
        StoreError::Version { .. } => {
            "it was not changed: use the taskrun that wrote it, or end what uses it and have this one \
             make it anew from its journals, by `taskrun doctor --repair`, which keeps the file"
                .to_owned()
        }
        StoreError::Format { .. } => {
            "use the taskrun that wrote it, or a later one: nothing was changed, and its runs go on \
             under that"
                .to_owned()
        }
        StoreError::Corrupt { path, .. } => {
            format!(
                "it was not changed: `taskrun doctor --repair` makes a damaged one anew from its \
                 journals; else move {} away, or give another --data-dir",
                shown(Path::new(path))
            )
        }
        StoreError::Full { .. } | StoreError::NoRoom { .. } => {
            "make room on that disk; if it has room, the store has the most bytes that --store-max \
             allows: raise that, or remove ended runs (`taskrun gc`)"
                .to_owned()
        }
        StoreError::ReadOnly { .. } => "make it writable, or give another --data-dir".to_owned(),
        StoreError::Unavailable { .. } => {
            "give a local folder as --data-dir; `taskrun doctor` checks it".to_owned()
        }
        StoreError::Replaced { path } => format!(
            "put the file that was there back with its log, or begin anew with what is there; end \
             every program that still has the former {} open first",
            shown(Path::new(path))
        ),
        StoreError::Refused { .. } => {
            "see what is kept with `taskrun doctor`; what is refused can be made smaller".to_owned()
        }
        StoreError::Closed | StoreError::Unknown { .. } => {
            "try again; with --idempotency-key nothing is started twice".to_owned()
        }
    };
    let mut failure = Failure::new(Exit::Unreachable, "store", error.to_string()).hint(hint);
    failure.code = Cow::Borrowed(error.code());
    failure.with_places()
}
