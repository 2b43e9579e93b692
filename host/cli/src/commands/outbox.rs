//! `taskrun outbox`.

use std::collections::BTreeSet;

use serde::Serialize;
use taskrun::controller::Client;
use taskrun_journal::delivery::{Report, ReportState};
use taskrun_journal::dispatch::{Dispatch, DispatchState};
use taskrun_journal::list::PAGE_MAX;
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::store::ReportChange;
use taskrun_runtime::Storage;

use super::gone_subscribers;
use super::outbox_dispatches::{self, DispatchRow};
use crate::args::{OutboxChangeArgs, OutboxCommand, OutboxListArgs, OutputFormat};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::escape::excerpt;
use crate::output::{pairs, table, versioned};
use crate::resolve::resolve;

/// Longest name of an agent that is shown whole in a table.
const NAME_CHARS_MAX: usize = 24;

/// An outcome, as the JSON output shows it.
#[derive(Serialize)]
struct Row<'a> {
    run_id: &'a str,
    agent_name: &'a str,
    /// The status with which the run ended.
    status: &'static str,
    state: ReportState,
    attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    taken_by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// The session of the conversation that is told where no run above it is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<String>,
}

#[derive(Serialize)]
struct List<'a> {
    reports: Vec<Row<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    dispatches: Vec<DispatchRow<'a>>,
}

/// All that is told of a run.
#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    report: Option<Row<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    dispatches: Vec<DispatchRow<'a>>,
}

impl<'a> Row<'a> {
    fn of((report, run): &'a (Report, Run)) -> Self {
        let conversation = run.spec.delivery.as_ref().and_then(|one| one.conversation.as_ref());
        Self {
            run_id: run.id().as_str(),
            agent_name: &run.spec.agent_name,
            status: run.status().as_str(),
            state: report.state,
            attempts: report.attempts,
            taken_by: report.taken_by.as_ref().map(|taker| taker.as_str()),
            reason: report.reason.map(|reason| reason.as_str()),
            session: conversation.map(|one| one.session.as_str()),
            summary: RunView::from(run).summary,
        }
    }

    /// The stage with what belongs to it, for people.
    fn stage(&self) -> String {
        match (self.state, self.reason) {
            (ReportState::Dead, Some(reason)) => format!("dead ({reason})"),
            (state, _) => state.as_str().to_owned(),
        }
    }
}

pub(super) async fn outbox(context: &Context, command: &OutboxCommand) -> Outcome {
    let (storage, controller) = context.looking().await?;
    let client = context.client(&controller);
    match command {
        OutboxCommand::Ls(args) => ls(context, (&client, &storage), args).await,
        OutboxCommand::Show(args) => {
            let run = resolve(&client, &args.run).await?;
            let id = run.id().as_str();
            let dispatches = client.dispatches_of(id).await?;
            let report = client.report(id).await?;
            if report.is_none() && dispatches.is_empty() {
                return Err(none(id));
            }
            show(context, report.map(|report| (report, run.clone())).as_ref(), &dispatches);
            tell_gone(context, &storage, &dispatches).await
        }
        OutboxCommand::Retry(args) => {
            let wrong = "it is no dead letter";
            change(context, &client, (args, ReportChange::Retry), wrong).await
        }
        OutboxCommand::Drop(args) => {
            let wrong = "it is neither pending nor a dead letter";
            change(context, &client, (args, ReportChange::Drop), wrong).await
        }
    }
}

/// The failure of a command about a run of whose outcome nobody is told.
fn none(id: &str) -> Box<Failure> {
    Failure::usage("not-found", format!("nobody is told of the outcome of run {id}")).hint(
        "outcomes are told of runs that another run started, that have ended and that are no tool \
         calls, and events of runs with subscribers; `taskrun outbox ls` lists them",
    )
}

/// The failure of a command about a subscriber who is told nothing of a run of which others are.
fn not_among(id: &str, name: &str, dispatches: &[Dispatch]) -> Box<Failure> {
    let told: BTreeSet<&str> = dispatches.iter().map(|one| one.key.subscriber.as_str()).collect();
    let told = told.into_iter().collect::<Vec<_>>().join(", ");
    let message = format!("{name:?} is not among the subscribers that are told of run {id}");
    Failure::usage("not-found", message).hint(format!("told are {told}"))
}

async fn change(
    context: &Context,
    client: &Client,
    (args, change): (&OutboxChangeArgs, ReportChange),
    wrong: &str,
) -> Outcome {
    let run = resolve(client, &args.run).await?;
    let id = run.id().as_str();
    let wrong = format!("{wrong}; `taskrun outbox show {id}` says what it is");
    let subscriber = args.subscriber.as_deref();
    let told = outbox_dispatches::change(client, id, subscriber, change).await?;
    let has_report = subscriber.is_none() && client.change_report(id, change).await?;
    let done = match change {
        ReportChange::Retry => "pending again",
        ReportChange::Drop => "forgotten",
        ReportChange::Quiet => "told with the next run",
        ReportChange::Block => "blocked",
    };
    if told > 0 {
        context.printer.talk(format!("{told} of what subscribers are told of run {id}: {done}"));
    }
    if !has_report {
        if told > 0 {
            return Ok(Exit::Completed);
        }
        let dispatches = client.dispatches_of(id).await?;
        if subscriber.is_some() || client.report(id).await?.is_none() {
            let mut named = dispatches.iter();
            let is_meant = |one: &&Dispatch| subscriber.is_none_or(|it| it == one.key.subscriber);
            let known = named.find(is_meant).ok_or_else(|| match subscriber {
                Some(name) if !dispatches.is_empty() => not_among(id, name, &dispatches),
                Some(_) | None => none(id),
            })?;
            let text = format!("{} is {}", known.key, known.state.as_str());
            return Err(Failure::usage("conflict", text).hint(wrong));
        }
        let known = client.report(id).await?.ok_or_else(|| none(id))?;
        let text = format!("the outcome of run {id} is {}", known.state.as_str());
        return Err(Failure::usage("conflict", text).hint(wrong));
    }
    context.printer.talk(format!("the outcome of run {id} is {done}"));
    Ok(Exit::Completed)
}

/// Says which of the subscribers that are to be told nobody tells.
async fn tell_gone(context: &Context, storage: &Storage, dispatches: &[Dispatch]) -> Outcome {
    let lines = gone_subscribers::lines(context, storage, dispatches).await?;
    lines.iter().for_each(|line| context.printer.talk(line));
    Ok(Exit::Completed)
}

async fn ls(
    context: &Context,
    (client, storage): (&Client, &Storage),
    args: &OutboxListArgs,
) -> Outcome {
    let states: Vec<ReportState> = match args.state.is_empty() {
        true => vec![ReportState::Pending, ReportState::Taken, ReportState::Dead],
        false => args.state.iter().map(|state| state.state()).collect(),
    };
    let dispatches = match args.state.is_empty() {
        true => vec![DispatchState::Pending, DispatchState::Taken, DispatchState::Dead],
        false => args.state.iter().map(|state| state.of_dispatch()).collect(),
    };
    let dispatches = outbox_dispatches::list(client, &dispatches).await?;
    let (mut reports, mut after) = (Vec::new(), 0);
    loop {
        let page = client.reports(&states, after, PAGE_MAX).await?;
        let Some(last) = page.last() else { break };
        after = last.place;
        for report in page {
            // One that was removed in this moment is not listed.
            if let Ok(run) = client.get(report.run.as_str()).await {
                reports.push((report, run));
            }
        }
    }
    let printer = &context.printer;
    match printer.format() {
        OutputFormat::Table if reports.is_empty() && dispatches.is_empty() => {
            printer.talk("nothing is to be told");
        }
        OutputFormat::Table if reports.is_empty() => {}
        OutputFormat::Table => {
            let rows = reports.iter().map(Row::of).map(|row| {
                vec![
                    row.run_id.to_owned(),
                    excerpt(row.agent_name, NAME_CHARS_MAX),
                    row.status.to_owned(),
                    row.stage(),
                    row.attempts.to_string(),
                    row.taken_by.unwrap_or_default().to_owned(),
                ]
            });
            let headings = ["RUN", "AGENT", "STATUS", "STATE", "ATTEMPTS", "TAKEN BY"];
            printer.line(table(&headings, rows.collect(), printer.width()));
        }
        OutputFormat::Json => {
            let dispatches = dispatches.iter().map(DispatchRow::of).collect();
            let reports = reports.iter().map(Row::of).collect();
            printer.json(&versioned(List { reports, dispatches }));
        }
        OutputFormat::Ndjson => {
            reports.iter().for_each(|one| printer.json_line(&versioned(Row::of(one))));
            let rows = dispatches.iter().map(DispatchRow::of);
            rows.for_each(|row| printer.json_line(&versioned(row)));
        }
        OutputFormat::Name => {
            let runs = reports.iter().map(|(report, _)| &report.run);
            let runs: BTreeSet<_> = runs.chain(dispatches.iter().map(|one| &one.key.run)).collect();
            runs.into_iter().for_each(|run| printer.line(run));
        }
    }
    outbox_dispatches::print_table(context, &dispatches);
    tell_gone(context, storage, &dispatches).await
}

fn show(context: &Context, one: Option<&(Report, Run)>, dispatches: &[Dispatch]) {
    let (printer, row) = (&context.printer, one.map(Row::of));
    let whole =
        |report| Whole { report, dispatches: dispatches.iter().map(DispatchRow::of).collect() };
    match printer.format() {
        OutputFormat::Table => {
            outbox_dispatches::print_table(context, dispatches);
            let Some(row) = row else { return };
            let lines = [
                ("run", Some(row.run_id.to_owned())),
                ("agent", Some(excerpt(row.agent_name, NAME_CHARS_MAX))),
                ("status", Some(row.status.to_owned())),
                ("state", Some(row.stage())),
                ("attempts", Some(row.attempts.to_string())),
                ("taken by", row.taken_by.map(str::to_owned)),
                ("session", row.session.map(|session| excerpt(session, NAME_CHARS_MAX))),
                ("summary", row.summary.as_deref().map(|text| excerpt(text, 200))),
            ];
            let lines: Vec<_> =
                lines.into_iter().filter_map(|(name, text)| Some((name, text?))).collect();
            printer.line(pairs(&lines));
        }
        OutputFormat::Json => printer.json(&versioned(whole(row))),
        OutputFormat::Ndjson => printer.json_line(&versioned(whole(row))),
        OutputFormat::Name => {
            let of_dispatch = dispatches.first().map(|one| one.key.run.as_str());
            printer.line(row.map(|row| row.run_id).or(of_dispatch).unwrap_or_default());
        }
    }
}
