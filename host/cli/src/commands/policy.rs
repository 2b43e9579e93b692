//! `taskrun policy trust`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::args::OutputFormat;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::versioned;
use crate::paths::shown;
use crate::place::{POLICY_FILE, found_policy, named_policy, no_policy};

#[derive(Serialize)]
struct TrustView<'a> {
    policy: &'a Path,
}

/// Trusts the policy named, or the nearest one, from now on.
///
/// # Errors
/// If there is none, if it is none that is ever found, if another user owns it or may write it, or
/// if the trust cannot be kept.
pub(super) fn trust(context: &Context, named: Option<&Path>) -> Outcome {
    let file = match named {
        Some(named) => findable(named)?,
        None => match found_policy(&context.trust)? {
            Some((_, file)) => file,
            None => return Err(no_policy(&context.trust)),
        },
    };
    let folder = file.parent().ok_or_else(|| Failure::unexpected("a policy without a folder"))?;
    context.trust.trust(folder, &file)?;
    let printer = &context.printer;
    match printer.format() {
        OutputFormat::Table => {
            printer.line(format!("{} is used from now on where it is found", shown(&file)));
        }
        OutputFormat::Name => printer.line(file.display()),
        OutputFormat::Json => printer.json(&versioned(TrustView { policy: &file })),
        OutputFormat::Ndjson => printer.json_line(&versioned(TrustView { policy: &file })),
    }
    Ok(Exit::Completed)
}

/// The policy that a path names, if it is one that is found: trust is kept of a folder, so that for
/// another file in it the one that is found there would be trusted, which nobody named.
///
/// # Errors
/// If there is none, or it has another name.
fn findable(named: &Path) -> Outcome<PathBuf> {
    let file = named_policy(named)?;
    if file.file_name() == Some(OsStr::new(POLICY_FILE)) {
        return Ok(file);
    }
    let message = format!("only {POLICY_FILE} is found, and {} is another file", shown(&file));
    Err(Failure::usage("never-found", message).hint(
        "name this one each time with --config (or TASKRUN_CONFIG), or trust a folder with its \
         taskrun.toml",
    ))
}
