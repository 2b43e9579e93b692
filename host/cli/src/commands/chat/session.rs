//! The session of a conversation: whose it is, whether lines can be said in it, and what was said.

use taskrun::controller::{Client, Controller};
use taskrun::error::ControllerError;
use taskrun_journal::list::{ListFilter, PAGE_MAX};
use taskrun_journal::run::Run;
use taskrun_journal::store::SessionKey;
use taskrun_runtime::Storage;

use super::view::is_line;
use crate::context::{Context, OWNER_DEFAULT};
use crate::failure::{Failure, Outcome};
use crate::shell;

/// Lines of the conversation that are shown when it is opened.
const LINES_SHOWN: usize = 20;

/// The context of a conversation, which is that of its session. The environment may name another one for
/// other commands.
///
/// # Errors
/// If the command line names another session.
pub(super) fn in_session(context: &Context, session: &str) -> Outcome<Context> {
    let is_named = context.printer.invocation().names_session();
    let named = context.globals.session.as_deref().map(str::trim);
    if is_named && named != Some(session) {
        let again = shell::argument(session, "SESSION");
        return Err(Failure::usage("usage", "the session is the argument of chat")
            .hint(format!("leave out --session: `taskrun chat {again}`")));
    }
    Ok(context.in_session(session))
}

/// Refuses a session in which nothing can be said any more.
///
/// # Errors
/// That it has ended, and those of the store.
pub(super) async fn check_open(context: &Context, storage: &Storage, session: &str) -> Outcome<()> {
    let mut scope = context.principal().scope;
    // Lines are this owner's, whoever looks at them.
    scope.owner_user_id.get_or_insert_with(|| OWNER_DEFAULT.to_owned());
    let known = storage.sessions.session(&SessionKey::of(&scope, session)).await?;
    match known.is_some_and(|known| known.ended_at.is_some()) {
        true => Err(refused(ControllerError::SessionEnded { id: session.to_owned() })),
        false => Ok(()),
    }
}

/// The failure of a line that was not accepted.
pub(super) fn refused(error: ControllerError) -> Box<Failure> {
    let ended =
        if let ControllerError::SessionEnded { id } = &error { Some(id.clone()) } else { None };
    let failure = Box::<Failure>::from(error);
    match ended {
        Some(id) => failure.hint(format!(
            "speak in another session: `taskrun chat OTHER --agent NAME`; {id} stays ended"
        )),
        None => failure,
    }
}

/// The caller within a session.
pub(super) fn inside(controller: &Controller, context: &Context, session: &str) -> Client {
    controller.at(&SessionKey::of(&context.principal().scope, session).scope())
}

/// The last lines of a conversation, the earliest first.
pub(super) async fn lines_of(
    controller: &Controller,
    context: &Context,
    session: &str,
) -> Outcome<Vec<Run>> {
    let inside = inside(controller, context, session);
    let (mut lines, mut cursor) = (Vec::new(), None);
    loop {
        let page = inside.list(&ListFilter::default(), cursor.as_ref(), PAGE_MAX).await?;
        lines.extend(page.runs.into_iter().filter(|run| is_line(&run.spec)));
        cursor = page.next;
        if cursor.is_none() || lines.len() >= LINES_SHOWN {
            break;
        }
    }
    lines.sort_by_key(|run| (run.spec.created_at, run.id().clone()));
    Ok(lines.split_off(lines.len().saturating_sub(LINES_SHOWN)))
}
