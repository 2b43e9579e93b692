//! `taskrun memory`.

use serde::Serialize;
use taskrun::controller::Client;
use taskrun::error::ControllerError;
use taskrun_journal::fact::{FACT_TEXT_BYTES_MAX, Fact, OwnerSession};
use taskrun_journal::message::Labels;
use taskrun_journal::time::Timestamp;

use super::labels::labels;
use super::text::text;
use crate::args::{
    MemoryCommand, MemoryKeyArgs, MemoryLsArgs, MemoryPutArgs, MemoryRmArgs, MemorySearchArgs,
    OutputFormat,
};
use crate::context::{Context, OWNER_DEFAULT, no_agents};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::escape::escaped_line;
use crate::output::{human, table, versioned};
use crate::shell;

#[derive(Serialize)]
struct FactView<'a> {
    key: &'a str,
    text: &'a str,
    #[serde(skip_serializing_if = "Labels::is_empty")]
    labels: &'a Labels,
    #[serde(serialize_with = "taskrun_journal::time::rfc3339::serialize")]
    written_at: Timestamp,
}

impl<'a> From<&'a Fact> for FactView<'a> {
    fn from(fact: &'a Fact) -> Self {
        Self { key: &fact.key, text: &fact.text, labels: &fact.labels, written_at: fact.written_at }
    }
}

#[derive(Serialize)]
struct FactList<'a> {
    facts: Vec<FactView<'a>>,
    /// Where the next page begins; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_after: Option<&'a str>,
}

#[derive(Serialize)]
struct ForgetView<'a> {
    /// Keys of which there was a fact.
    forgotten: Vec<&'a str>,
    /// Keys of which there was none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    absent: Vec<&'a str>,
}

/// Where the facts are that a command is about.
struct MemoryTarget {
    tenant: String,
    session: Option<OwnerSession>,
}

impl MemoryTarget {
    fn of(context: &Context) -> Self {
        let globals = &context.globals;
        let owner = || globals.owner.clone().unwrap_or_else(|| OWNER_DEFAULT.to_owned());
        let session = globals.session.clone();
        let session = session.map(|id| OwnerSession { owner_user_id: owner(), id });
        Self { tenant: context.principal().scope.tenant, session }
    }

    fn shown(&self) -> String {
        match &self.session {
            Some(session) => format!("session {}", escaped_line(&session.id)),
            None => format!("tenant {}", escaped_line(&self.tenant)),
        }
    }
}

pub(super) async fn memory(context: &Context, command: &MemoryCommand) -> Outcome {
    let place = MemoryTarget::of(context);
    if let MemoryCommand::Put(args) = command {
        // The only one of these that something comes of where there is no store yet.
        let storage = context.storage(&context.data_dir()?)?;
        return put(context, &context.client(&storage.watch(no_agents())), &place, args).await;
    }
    let (_, controller) = context.looking().await?;
    let client = context.client(&controller);
    match command {
        MemoryCommand::Ls(args) => ls(context, &client, &place, args).await,
        MemoryCommand::Get(args) => get(context, &client, &place, args).await,
        MemoryCommand::Search(args) => search(context, &client, &place, args).await,
        MemoryCommand::Put(args) => put(context, &client, &place, args).await,
        MemoryCommand::Rm(args) => rm(context, &client, &place, args).await,
    }
}

/// The failure of a request about facts, for which other commands help than for runs.
fn failure(error: ControllerError) -> Box<Failure> {
    let (code, message) = (error.code(), error.to_string());
    let (exit, hint) = match &error {
        ControllerError::Invalid { .. } => (Exit::Usage, "see `taskrun memory put --help`"),
        ControllerError::Forbidden { .. } => {
            (Exit::Forbidden, "name a session with --session, or leave out --owner")
        }
        ControllerError::Limit { .. } => (Exit::Denied, "forget some with `taskrun memory rm KEY`"),
        ControllerError::NotFound { .. }
        | ControllerError::AlreadyExists { .. }
        | ControllerError::NameTaken { .. }
        | ControllerError::Locked { .. }
        | ControllerError::NoArtifact { .. }
        | ControllerError::NotLoaded { .. }
        | ControllerError::NotStarted
        | ControllerError::Closed
        | ControllerError::SessionEnded { .. }
        | ControllerError::ParentEnded { .. }
        | ControllerError::NotAwaitable { .. }
        | ControllerError::NotAnEntry { .. }
        | ControllerError::RunEnded { .. }
        | ControllerError::UnderWay { .. }
        | ControllerError::Inconsistent { .. }
        | ControllerError::Storage(_) => return error.into(),
    };
    Failure::new(exit, code, message).hint(hint.to_owned())
}

async fn ls(
    context: &Context,
    client: &Client,
    place: &MemoryTarget,
    args: &MemoryLsArgs,
) -> Outcome {
    let limit = usize::from(args.limit);
    let session = place.session.as_ref();
    // One more than asked for says whether there is one.
    let facts = client.facts(session, args.after.as_deref(), limit + 1).await;
    let mut facts = facts.map_err(failure)?;
    let more = facts.len() > limit;
    facts.truncate(limit);
    let next = if more { facts.last().map(|fact| fact.key.as_str()) } else { None };
    print(context, place, &facts, next);
    Ok(Exit::Completed)
}

async fn search(
    context: &Context,
    client: &Client,
    place: &MemoryTarget,
    args: &MemorySearchArgs,
) -> Outcome {
    let (query, limit) = (args.words.join(" "), usize::from(args.limit));
    let found = client.search_facts(place.session.as_ref(), &query, limit).await;
    print(context, place, &found.map_err(failure)?, None);
    Ok(Exit::Completed)
}

fn print(context: &Context, place: &MemoryTarget, facts: &[Fact], next_after: Option<&str>) {
    let printer = &context.printer;
    let views = || facts.iter().map(FactView::from);
    match printer.format() {
        OutputFormat::Table if facts.is_empty() => {
            printer.talk(format!("no such facts of {}", place.shown()));
        }
        OutputFormat::Table => {
            let row = |fact: &Fact| {
                let age = human::age(context.now().since(fact.written_at));
                vec![escaped_line(&fact.key).into_owned(), age, fact.text.clone()]
            };
            let rows = facts.iter().map(row).collect();
            printer.line(table(&["KEY", "AGE", "TEXT"], rows, printer.width()));
            if let Some(next) = next_after {
                printer.talk(match shell::word(next) {
                    Some(_) => format!("more with {}", shell::option("--after", next, "KEY")),
                    None => "more with --after and `next_after` of `-o json`".to_owned(),
                });
            }
        }
        OutputFormat::Json => {
            printer.json(&versioned(FactList { facts: views().collect(), next_after }));
        }
        OutputFormat::Ndjson => views().for_each(|fact| printer.json_line(&versioned(fact))),
        OutputFormat::Name => facts.iter().for_each(|fact| printer.line(escaped_line(&fact.key))),
    }
}

async fn get(
    context: &Context,
    client: &Client,
    place: &MemoryTarget,
    args: &MemoryKeyArgs,
) -> Outcome {
    let fact = client.fact(place.session.as_ref(), &args.key).await;
    let Some(fact) = fact.map_err(failure)? else {
        let message = format!("{} has no fact {:?}", place.shown(), args.key);
        return Err(Failure::usage("not-found", message).hint(
            "list facts with `taskrun memory ls`; those of a session need --session, and --owner \
             unless they are your own",
        ));
    };
    let printer = &context.printer;
    match printer.format() {
        OutputFormat::Table => printer.guest_text(&fact.text),
        OutputFormat::Json => printer.json(&versioned(FactView::from(&fact))),
        OutputFormat::Ndjson => printer.json_line(&versioned(FactView::from(&fact))),
        OutputFormat::Name => printer.line(escaped_line(&fact.key)),
    }
    Ok(Exit::Completed)
}

async fn put(
    context: &Context,
    client: &Client,
    place: &MemoryTarget,
    args: &MemoryPutArgs,
) -> Outcome {
    let said = text(&args.text, "text", FACT_TEXT_BYTES_MAX)?;
    let labels = labels(&args.labels)?;
    let session = place.session.as_ref();
    let kept = client.put_fact(session, &args.key, (said, labels)).await;
    let fact = kept.map_err(failure)?;
    let printer = &context.printer;
    match printer.format() {
        OutputFormat::Table => {
            printer.talk(format!("kept {} for {}", escaped_line(&fact.key), place.shown()));
        }
        OutputFormat::Json => printer.json(&versioned(FactView::from(&fact))),
        OutputFormat::Ndjson => printer.json_line(&versioned(FactView::from(&fact))),
        OutputFormat::Name => printer.line(escaped_line(&fact.key)),
    }
    Ok(Exit::Completed)
}

async fn rm(
    context: &Context,
    client: &Client,
    place: &MemoryTarget,
    args: &MemoryRmArgs,
) -> Outcome {
    let (mut forgotten, mut absent) = (Vec::new(), Vec::new());
    for key in &args.keys {
        let gone = client.delete_fact(place.session.as_ref(), key).await;
        match gone.map_err(failure)? {
            true => forgotten.push(key.as_str()),
            false => absent.push(key.as_str()),
        }
    }
    let printer = &context.printer;
    match printer.format() {
        OutputFormat::Table => {
            let count = human::count(forgotten.len() as u64, "fact");
            printer.line(format!("forgot {count} of {}", place.shown()));
        }
        OutputFormat::Json => printer.json(&versioned(ForgetView { forgotten, absent })),
        OutputFormat::Ndjson => printer.json_line(&versioned(ForgetView { forgotten, absent })),
        OutputFormat::Name => forgotten.iter().for_each(|key| printer.line(escaped_line(key))),
    }
    Ok(Exit::Completed)
}
