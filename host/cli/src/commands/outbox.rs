//! `taskrun outbox`.

use serde::Serialize;
use taskrun::controller::Client;
use taskrun_journal::delivery::{Report, ReportState};
use taskrun_journal::list::PAGE_MAX;
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::store::ReportChange;

use crate::args::{OutboxCommand, OutboxListArgs, OutputFormat};
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
    let (_, controller) = context.looking().await?;
    let client = context.client(&controller);
    match command {
        OutboxCommand::Ls(args) => ls(context, &client, args).await,
        OutboxCommand::Show(args) => {
            let run = resolve(&client, &args.run).await?;
            let id = run.id().as_str();
            let report = client.report(id).await?.ok_or_else(|| none(id))?;
            show(context, &(report, run));
            Ok(Exit::Completed)
        }
        OutboxCommand::Retry(args) => {
            let wrong = "it is no dead letter; `taskrun outbox show` says what it is";
            change(context, &client, (&args.run, ReportChange::Retry), wrong).await
        }
        OutboxCommand::Drop(args) => {
            let wrong =
                "it is neither pending nor a dead letter; `taskrun outbox show` says what it is";
            change(context, &client, (&args.run, ReportChange::Drop), wrong).await
        }
    }
}

/// The failure of a command about a run of whose outcome nobody is told.
fn none(id: &str) -> Box<Failure> {
    Failure::usage("not-found", format!("nobody is told of the outcome of run {id}")).hint(
        "outcomes are told of runs that another run started, that have ended and that are no tool \
         calls; `taskrun outbox ls` lists them",
    )
}

async fn change(
    context: &Context,
    client: &Client,
    (named, change): (&str, ReportChange),
    wrong: &str,
) -> Outcome {
    let run = resolve(client, named).await?;
    let id = run.id().as_str();
    if !client.change_report(id, change).await? {
        let known = client.report(id).await?.ok_or_else(|| none(id))?;
        let text = format!("the outcome of run {id} is {}", known.state.as_str());
        return Err(Failure::usage("conflict", text).hint(wrong));
    }
    let done = match change {
        ReportChange::Retry => "pending again",
        ReportChange::Drop => "forgotten",
        ReportChange::Quiet => "told with the next run",
    };
    context.printer.talk(format!("the outcome of run {id} is {done}"));
    Ok(Exit::Completed)
}

async fn ls(context: &Context, client: &Client, args: &OutboxListArgs) -> Outcome {
    let states: Vec<ReportState> = match args.state.is_empty() {
        true => vec![ReportState::Pending, ReportState::Taken, ReportState::Dead],
        false => args.state.iter().map(|state| state.state()).collect(),
    };
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
        OutputFormat::Table if reports.is_empty() => printer.talk("nothing is to be told"),
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
            printer.json(&versioned(List { reports: reports.iter().map(Row::of).collect() }));
        }
        OutputFormat::Ndjson => {
            reports.iter().for_each(|one| printer.json_line(&versioned(Row::of(one))));
        }
        OutputFormat::Name => reports.iter().for_each(|(report, _)| printer.line(&report.run)),
    }
    Ok(Exit::Completed)
}

fn show(context: &Context, one: &(Report, Run)) {
    let (printer, row) = (&context.printer, Row::of(one));
    match printer.format() {
        OutputFormat::Table => {
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
        OutputFormat::Json => printer.json(&versioned(row)),
        OutputFormat::Ndjson => printer.json_line(&versioned(row)),
        OutputFormat::Name => printer.line(row.run_id),
    }
}
