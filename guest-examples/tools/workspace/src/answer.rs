//! The answer that a model is given when the host refuses.

use taskrun_guest::{
    tool::{Failure, RetryHint, RetryReason, ToolCall},
    workspace::FileError,
};

/// The folder that a file is in; `None` for the workspace itself.
pub(crate) fn parent(path: &str) -> Option<&str> {
    path.rsplit_once('/').map(|(parent, _)| parent)
}

/// A failed file operation, with advice where another call may do better. A denial has none: the
/// same wish in other words is denied again.
pub(crate) fn file_failure(error: &FileError, path: &str, call: &ToolCall) -> Failure {
    let shown = if path.is_empty() { "the workspace" } else { path };
    let failure = Failure::new(format!("{shown}: {}", error.text())).code(error.code());
    let advice = match error {
        FileError::Denied(_) | FileError::Other(_) => return failure,
        FileError::NotFound => "see what there is with `list`, or look for it with `search`",
        FileError::InvalidPath(_) => {
            "give a path from the workspace, such as `docs/limits.md`: no leading `/`, no `..`"
        }
        FileError::NotAFile => "this is a folder; `list` shows what is in it",
        FileError::NotADirectory => "part of this path is a file; `list` the folder above it",
        FileError::AlreadyExists => "use the mode `replace` or `append`, or another path",
        FileError::Limit(_) => "ask for less at once",
    };
    let mut hint = RetryHint::new(RetryReason::InvalidArguments, &call.name).advice(advice);
    hint.prior_input = Some(call.payload.clone());
    failure.hint(hint)
}
