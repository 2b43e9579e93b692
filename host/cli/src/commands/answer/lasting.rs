//! Answers for more runs than the one that asks.

use taskrun::controller::{ConsentAnswer, ConsentExtent, ConsentRequest};
use taskrun::error::ControllerError;
use taskrun_journal::consent::{CONSENT_TIME_DEFAULT, ConsentRecord, session_of};
use taskrun_journal::question::Item;
use taskrun_journal::run::Run;
use taskrun_journal::store::StoreError;

use super::unreadable;
use crate::args::AnswerArgs;
use crate::commands::run::SESSION_DEFAULT;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::escape::escaped_line;

/// Checks that options which widen an answer stand beside one that they can widen.
pub(super) fn check(args: &AnswerArgs, item: &Item) -> Outcome<()> {
    let widening = [
        ("--for-run", args.for_run),
        ("--for-session", args.for_session),
        ("--always", args.always),
    ];
    let given = widening.into_iter().find(|(_, is_given)| *is_given);
    match given {
        Some((option, _)) if !args.accept && !args.decline => {
            Err(unreadable(&format!("{option} is for --accept and --decline"), item))
        }
        Some(_) | None if args.expires.is_some() && extent(args).is_none() => {
            Err(unreadable("--expires is for --for-session and --always", item))
        }
        Some(_) | None => Ok(()),
    }
}

/// True if the answer is for more than the call.
pub(super) fn is_widened(args: &AnswerArgs) -> bool {
    args.for_run || extent(args).is_some()
}

/// The answer for further runs of this one, where it is one.
///
/// # Errors If it is for a session, and the run was asked for from none that somebody named: of
/// those are all runs of the terminal.
pub(super) fn request(args: &AnswerArgs, run: &Run) -> Outcome<Option<ConsentRequest>> {
    let Some(extent) = extent(args) else { return Ok(None) };
    let (approved, expires) = (args.accept, args.expires);
    let expires = match extent {
        ConsentExtent::Session if session_of(&run.spec) == Some(SESSION_DEFAULT) => {
            let message = format!("run {} belongs to no session that somebody named", run.id());
            return Err(Failure::usage("invalid", message)
                .about(run.id())
                .hint("answer for all runs with --always, or start runs with --session NAME"));
        }
        ConsentExtent::Session => expires,
        ConsentExtent::Always => expires.or(Some(CONSENT_TIME_DEFAULT)),
    };
    Ok(Some(ConsentRequest { approved, extent, expires }))
}

fn extent(args: &AnswerArgs) -> Option<ConsentExtent> {
    match (args.for_session, args.always) {
        (true, _) => Some(ConsentExtent::Session),
        (false, true) => Some(ConsentExtent::Always),
        (false, false) => None,
    }
}

/// Says what is kept of such an answer.
///
/// # Errors
/// If nothing is, or nobody knows: the run has its answer.
pub(super) fn tell(context: &Context, answered: ConsentAnswer) -> Outcome {
    let ConsentAnswer { run, kept } = answered;
    match kept {
        Ok(record) => {
            context.printer.talk(told(&record));
            Ok(Exit::Completed)
        }
        Err(error) => Err(unkept(error).about(run.id())),
    }
}

/// The failure to keep an answer for other runs.
fn unkept(error: ControllerError) -> Box<Failure> {
    let is_unknown = matches!(error, ControllerError::Storage(StoreError::Unknown { .. }));
    let mut failure = Box::<Failure>::from(error);
    let others = match is_unknown {
        true => "it is not known if it is kept for other runs",
        false => "other runs ask again",
    };
    failure.message = format!("the run has the answer, and {others}: {}", failure.message);
    match is_unknown {
        true => failure.hint("see if it is kept with `taskrun consents`"),
        false => failure,
    }
}

/// `consent 3: mail/send by agent a may be called in all runs of ann, until 2026-...`.
fn told(record: &ConsentRecord) -> String {
    let consent = &record.consent;
    let line = |text: &str| escaped_line(text).into_owned();
    let may = if consent.approved { "may" } else { "may not" };
    let runs = match &consent.session {
        Some(session) => format!("runs of session {}", line(session)),
        None => "all runs".to_owned(),
    };
    let until = consent.until.map_or_else(String::new, |until| format!(", until {until}"));
    format!(
        "consent {}: {} {may} be called by agent {} in {runs} of {}{until}",
        record.number,
        line(&consent.subject.function),
        line(&consent.subject.agent_name),
        line(&consent.subject.owner_user_id),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_033_what_other_runs_do_is_said_where_it_is_known() {
        let said = |error: StoreError| {
            let failure = unkept(ControllerError::Storage(error));
            (failure.message.clone(), failure.hint.clone().unwrap_or_default())
        };
        let (message, hint) = said(StoreError::Unknown { detail: "torn".to_owned() });
        assert!(message.starts_with("the run has the answer, and it is not known if"), "{message}");
        assert!(hint.contains("taskrun consents"), "{hint}");
        let (message, hint) = said(StoreError::Full { path: "/s".to_owned() });
        assert!(message.starts_with("the run has the answer, and other runs ask"), "{message}");
        assert!(!hint.contains("taskrun consents"), "{hint}");
    }
}
