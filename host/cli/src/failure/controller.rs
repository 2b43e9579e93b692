//! Refusals of the controller and failures of the store.

use std::borrow::Cow;

use taskrun::error::ControllerError;
use taskrun::ports::store::StoreError;

use super::Failure;
use crate::exit::Exit;

impl From<ControllerError> for Box<Failure> {
    fn from(error: ControllerError) -> Self {
        let code = error.code();
        let message = error.to_string();
        match error {
            ControllerError::NotFound { .. } => Failure::usage(code, message)
                .hint("list the runs with `taskrun ps -a`; another tenant's need --tenant"),
            ControllerError::AlreadyExists { id } => Failure::usage(code, message)
                .hint(format!("look at it with `taskrun get {id}`, or choose another id or key"))
                .about(&id),
            ControllerError::NotStarted | ControllerError::Closed => Failure::unexpected(message),
            ControllerError::Invalid { field, .. } => {
                Failure::usage(code, message).hint(invalid_hint(field))
            }
            ControllerError::Forbidden { .. } => Failure::new(Exit::Forbidden, code, message)
                .hint("run it as an owner who may do this; see --owner"),
            ControllerError::Storage(error) => store_failure(&error),
        }
    }
}

fn invalid_hint(field: &str) -> String {
    match field {
        "agent_name" => "list the agents with `taskrun agent ls`".to_owned(),
        "task" => "give the task as an argument, `-` for stdin or `@FILE`; \
                   larger inputs belong into files of the workspace"
            .to_owned(),
        _ => "see `taskrun run --help`".to_owned(),
    }
}

/// A store that does not do its work.
pub(super) fn store_failure(error: &StoreError) -> Box<Failure> {
    let hint = match error {
        StoreError::Locked { path } => {
            format!("see who has it open with `fuser {path}`, end that program, and try again")
        }
        StoreError::Version { .. } => {
            "use the newer taskrun that wrote it, or another --data-dir; \
             it was not changed"
                .to_owned()
        }
        StoreError::Corrupt { path, .. } => {
            format!("it was not changed; move {path} away, or give another --data-dir")
        }
        StoreError::Full { .. } => "make room on that disk and try again".to_owned(),
        StoreError::ReadOnly { .. } => "make it writable, or give another --data-dir".to_owned(),
        StoreError::Unavailable { .. } => {
            "give a local folder as --data-dir; `taskrun doctor` checks it".to_owned()
        }
        StoreError::Closed | StoreError::Unknown { .. } => {
            "try again; with --idempotency-key nothing is started twice".to_owned()
        }
    };
    let mut failure = Failure::new(Exit::Unreachable, "store", error.to_string()).hint(hint);
    failure.code = Cow::Borrowed(error.code());
    failure
}
