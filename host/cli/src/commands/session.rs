//! `taskrun session`.

use serde::Serialize;
use taskrun::controller::{Client, SessionDeletion};
use taskrun::error::ControllerError;
use taskrun_journal::ids::RunId;
use taskrun_journal::store::Session;
use taskrun_journal::time::Timestamp;

use super::gc::{RemovedView, removed_text};
use crate::args::{OutputFormat, SessionCommand};
use crate::context::{Context, no_agents};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::escape::escaped_line;
use crate::output::{human, pairs, versioned};
use crate::shell;

#[derive(Serialize)]
struct SessionView<'a> {
    id: &'a str,
    tenant: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner_user_id: Option<&'a str>,
    #[serde(serialize_with = "taskrun_journal::time::rfc3339::serialize")]
    created_at: Timestamp,
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "taskrun_journal::time::rfc3339::option::serialize"
    )]
    ended_at: Option<Timestamp>,
}

impl<'a> From<&'a Session> for SessionView<'a> {
    fn from(session: &'a Session) -> Self {
        Self {
            id: &session.key.id,
            tenant: &session.key.tenant,
            owner_user_id: session.key.owner_user_id.as_deref(),
            created_at: session.created_at,
            ended_at: session.ended_at,
        }
    }
}

#[derive(Serialize)]
struct DeletedView<'a> {
    id: &'a str,
    /// Runs that were canceled.
    canceled: &'a [RunId],
    /// Runs that had not ended in time and are still there.
    open: &'a [RunId],
    removed: RemovedView,
    /// Facts that were forgotten.
    #[serde(skip_serializing_if = "is_none")]
    facts: u64,
    /// Consents that were bound to it.
    #[serde(skip_serializing_if = "is_none")]
    consents: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the serialiser wants a reference")]
fn is_none(count: &u64) -> bool {
    *count == 0
}

pub(super) async fn session(context: &Context, command: &SessionCommand) -> Outcome {
    match command {
        SessionCommand::Create(args) => {
            // The only one of these that something comes of where there is no store yet.
            let storage = context.storage(&context.data_dir()?)?;
            let client = context.client(&storage.watch(no_agents()));
            let made = client.create_session(&args.id).await;
            print(context, &made.map_err(|error| failure(error, &args.id))?);
            Ok(Exit::Completed)
        }
        SessionCommand::Show(args) => {
            let (_, controller) = context.looking().await?;
            let session = context.client(&controller).session(&args.id).await;
            print(context, &session.map_err(|error| failure(error, &args.id))?);
            Ok(Exit::Completed)
        }
        SessionCommand::End(args) => {
            let (_, controller) = context.looking().await?;
            let ended = context.client(&controller).end_session(&args.id).await;
            print(context, &ended.map_err(|error| failure(error, &args.id))?);
            Ok(Exit::Completed)
        }
        SessionCommand::Delete(args) => {
            let (_, controller) = context.looking().await?;
            delete(context, &context.client(&controller), &args.id).await
        }
    }
}

/// A session that is not there is no run that is not there.
pub(super) fn failure(error: ControllerError, id: &str) -> Box<Failure> {
    match error {
        ControllerError::NotFound { .. } => {
            Failure::usage("not-found", format!("session not found: {id}")).hint(
                "a session is known once `taskrun session create ID` or `end` named it, and one of \
                 an owner with `--owner NAME`; `taskrun ps -a --session ID` lists the runs of any",
            )
        }
        other @ (ControllerError::AlreadyExists { .. }
        | ControllerError::NameTaken { .. }
        | ControllerError::Locked { .. }
        | ControllerError::NoArtifact { .. }
        | ControllerError::NotLoaded { .. }
        | ControllerError::NotStarted
        | ControllerError::Closed
        | ControllerError::Invalid { .. }
        | ControllerError::Forbidden { .. }
        | ControllerError::Limit { .. }
        | ControllerError::SessionEnded { .. }
        | ControllerError::ParentEnded { .. }
        | ControllerError::RunEnded { .. }
        | ControllerError::UnderWay { .. }
        | ControllerError::NotAwaitable { .. }
        | ControllerError::NotAnEntry { .. }
        | ControllerError::Inconsistent { .. }
        | ControllerError::Storage(_)) => other.into(),
    }
}

fn print(context: &Context, session: &Session) {
    let printer = &context.printer;
    match printer.format() {
        OutputFormat::Table => {
            let ago =
                |time: Timestamp| format!("{time} ({} ago)", human::age(context.now().since(time)));
            let mut lines = vec![("session", escaped_line(&session.key.id).into_owned())];
            if let Some(owner) = &session.key.owner_user_id {
                lines.push(("owner", escaped_line(owner).into_owned()));
            }
            lines.push(("created", ago(session.created_at)));
            lines.push(("ended", session.ended_at.map_or_else(|| "no".to_owned(), ago)));
            printer.line(pairs(&lines));
        }
        OutputFormat::Json => printer.json(&versioned(SessionView::from(session))),
        OutputFormat::Ndjson => printer.json_line(&versioned(SessionView::from(session))),
        OutputFormat::Name => printer.line(escaped_line(&session.key.id)),
    }
}

async fn delete(context: &Context, client: &Client, id: &str) -> Outcome {
    let deleted = client.delete_session(id).await;
    let deleted = deleted.map_err(|error| failure(error, id))?;
    let SessionDeletion { canceled, open, removed, facts, consents } = &deleted;
    let printer = &context.printer;
    let view = || {
        let (removed, facts, consents) = ((*removed).into(), *facts, *consents);
        versioned(DeletedView { id, canceled, open, removed, facts, consents })
    };
    match printer.format() {
        OutputFormat::Table => {
            let canceled = human::count(canceled.len() as u64, "run");
            let removed = removed_text(removed);
            let facts = match facts {
                0 => String::new(),
                some => format!(", forgot {}", human::count(*some, "fact")),
            };
            let consents = match consents {
                0 => String::new(),
                some => format!(", forgot {}", human::count(*some, "consent")),
            };
            printer.line(format!(
                "ended {}, canceled {canceled}, removed {removed}{facts}{consents}",
                escaped_line(id)
            ));
        }
        OutputFormat::Json => printer.json(&view()),
        OutputFormat::Ndjson => printer.json_line(&view()),
        OutputFormat::Name => printer.line(escaped_line(id)),
    }
    let Some(first) = open.first() else { return Ok(Exit::Completed) };
    let many = human::count(open.len() as u64, "run");
    let message = format!("{many} of session {id} had not ended in time");
    Err(Failure::new(Exit::WaitTimedOut, "wait-timed-out", message).about(first).hint(format!(
        "wait with `taskrun wait {first}`, then `taskrun session delete {}` again",
        shell::argument(id, "ID")
    )))
}
