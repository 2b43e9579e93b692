//! `taskrun inbox`.

use serde::Serialize;
use taskrun_journal::list::{ListFilter, PAGE_MAX};
use taskrun_journal::question::{Answer, AwaitItem, Item};
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_journal::time::Timestamp;

use crate::args::OutputFormat;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Outcome;
use crate::output::escape::{escaped_line, excerpt};
use crate::output::{human, table, versioned};

/// Longest name of an agent, and of an item, that is shown whole.
const NAME_CHARS_MAX: usize = 24;

/// Something asked, as the JSON output shows it.
#[derive(Serialize)]
struct Row<'a> {
    run_id: &'a str,
    agent_name: &'a str,
    item: &'a str,
    kind: &'static str,
    prompt: String,
    #[serde(serialize_with = "taskrun_journal::time::rfc3339::serialize")]
    since: Timestamp,
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "taskrun_journal::time::rfc3339::option::serialize"
    )]
    until: Option<Timestamp>,
    /// The answer that the host gives then.
    #[serde(skip_serializing_if = "Option::is_none")]
    default: Option<&'a Answer>,
    ask: &'a AwaitItem,
}

#[derive(Serialize)]
struct List<'a> {
    items: Vec<Row<'a>>,
}

impl<'a> Row<'a> {
    fn of((run, item): &'a (Run, Item)) -> Self {
        Self {
            run_id: run.id().as_str(),
            agent_name: &run.spec.agent_name,
            item: item.id(),
            kind: kind(&item.what),
            prompt: item.what.prompt(),
            since: run.state.updated_at,
            until: item.until,
            default: item.default.as_ref(),
            ask: &item.what,
        }
    }
}

/// The kind of an item, as journal and JSON have it.
fn kind(item: &AwaitItem) -> &'static str {
    match item {
        AwaitItem::Clarification { .. } => "clarification",
        AwaitItem::Questions { .. } => "questions",
        AwaitItem::ExternalTools { .. } => "external_tools",
        AwaitItem::Confirmation { .. } => "confirmation",
    }
}

pub(super) async fn inbox(context: &Context) -> Outcome {
    let (_, controller) = context.looking().await?;
    let client = context.client(&controller);
    // A run may ask while other calls of it are still under way.
    let status = vec![Status::Running, Status::Blocked];
    let filter = ListFilter { status, ..ListFilter::default() };
    let (mut asked, mut cursor) = (Vec::new(), None);
    loop {
        let page = client.list(&filter, cursor.as_ref(), PAGE_MAX).await?;
        for run in page.runs {
            if run.state.awaits.iter().any(|one| !one.answered) {
                let items = client.asks(run.id().as_str()).await?;
                asked.extend(items.into_iter().map(|item| (run.clone(), item)));
            }
        }
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    print(context, &asked);
    Ok(Exit::Completed)
}

fn print(context: &Context, asked: &[(Run, Item)]) {
    let printer = &context.printer;
    match printer.format() {
        OutputFormat::Table if asked.is_empty() => printer.talk("nobody asks anything"),
        OutputFormat::Table => {
            let rows = asked.iter().map(Row::of).map(|row| {
                vec![
                    row.run_id.to_owned(),
                    excerpt(row.agent_name, NAME_CHARS_MAX),
                    escaped_line(row.item).into_owned(),
                    row.kind.to_owned(),
                    human::age(context.now().since(row.since)),
                    row.prompt,
                ]
            });
            let headings = ["RUN", "AGENT", "ITEM", "KIND", "SINCE", "PROMPT"];
            printer.line(table(&headings, rows.collect(), printer.width()));
        }
        OutputFormat::Json => {
            printer.json(&versioned(List { items: asked.iter().map(Row::of).collect() }));
        }
        OutputFormat::Ndjson => {
            asked.iter().for_each(|one| printer.json_line(&versioned(Row::of(one))));
        }
        OutputFormat::Name => asked.iter().for_each(|(run, _)| printer.line(run.id())),
    }
}
