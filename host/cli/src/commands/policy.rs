//! `taskrun policy trust`.

use std::path::Path;

use serde::Serialize;

use crate::args::OutputFormat;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::versioned;
use crate::paths::shown;
use crate::place::{found_policy, named_policy, no_policy};

#[derive(Serialize)]
struct TrustView<'a> {
    policy: &'a Path,
}

/// Trusts the policy named, or the nearest one, from now on.
///
/// # Errors
/// If there is none, if another user owns it or may write it, or if it cannot be kept.
pub(super) fn trust(context: &Context, named: Option<&Path>) -> Outcome {
    let file = match named {
        Some(named) => named_policy(named)?,
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
