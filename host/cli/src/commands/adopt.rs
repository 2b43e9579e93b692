//! `taskrun adopt`.

use serde::Serialize;
use taskrun::controller::{AdoptOutcome, Client};
use taskrun::error::ControllerError;
use taskrun_journal::list::{ListFilter, PAGE_MAX};
use taskrun_journal::run::{Run, RunView};
use taskrun_policy::Policy;

use super::agent_versions::short;
use crate::args::{AdoptArgs, OutputFormat};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Outcome, refusal_of};
use crate::follow::supervisor_at_hand;
use crate::lookup::agent_of;
use crate::output::{human, status_text, versioned};
use crate::resolve::resolve_all;

/// A run that has the pin of now.
#[derive(Serialize)]
struct AdoptedView {
    changed: bool,
    /// Its pin.
    pin: String,
    /// The one before, if it was another.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    #[serde(flatten)]
    run: RunView,
}

#[derive(Serialize)]
struct List {
    runs: Vec<AdoptedView>,
    /// The ids of those that are under way, and stay as they are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    under_way: Vec<String>,
}

pub(super) async fn adopt(context: &Context, args: &AdoptArgs) -> Outcome {
    let policy = context.policy()?;
    let (storage, looking) = context.looking().await?;
    let client = context.client(&looking);
    let runs = match &args.agent {
        Some(agent) => open_runs(&client, &policy, agent).await?,
        None => resolve_all(&client, &args.runs).await?,
    };
    let mut names: Vec<String> = runs.iter().map(|run| run.spec.agent_name.clone()).collect();
    names.sort();
    names.dedup();
    for name in &names {
        agent_of(&policy, name)?;
    }
    let controller = context.accepting(&storage, &policy, &names).await?;
    let client = context.client(&controller);
    let (mut adopted, mut under_way) = (Vec::new(), Vec::new());
    for run in &runs {
        match client.adopt(run.id().as_str()).await {
            Ok(outcome) => adopted.push(outcome),
            Err(ControllerError::UnderWay { id }) if args.agent.is_some() => under_way.push(id),
            // It ended meanwhile.
            Err(ControllerError::RunEnded { .. } | ControllerError::NotFound { .. })
                if args.agent.is_some() => {}
            Err(error) => {
                print(context, &adopted, Vec::new());
                return Err(refusal_of(error, run.id()));
            }
        }
    }
    let left = under_way.iter().map(ToString::to_string).collect();
    print(context, &adopted, left);
    if !under_way.is_empty() {
        let left = human::count(under_way.len() as u64, "run");
        context.printer.say(format!("{left} under way stay as they are; pause them first"));
    }
    let mut supervisor = supervisor_at_hand(context, &controller, &storage);
    for outcome in &adopted {
        supervisor.find_host(&outcome.run).await?;
    }
    Ok(Exit::Completed)
}

/// The open runs of an agent that is in the policy.
async fn open_runs(client: &Client, policy: &Policy, agent: &str) -> Outcome<Vec<Run>> {
    agent_of(policy, agent)?;
    let filter = ListFilter { agent_name: Some(agent.to_owned()), ..ListFilter::open() };
    let (mut runs, mut after) = (Vec::new(), None);
    loop {
        let page = client.list(&filter, after.as_ref(), PAGE_MAX).await?;
        runs.extend(page.runs);
        match page.next {
            Some(next) => after = Some(next),
            // An entry is of the agent that has its name, in whatever form.
            None => return Ok(runs.into_iter().filter(|run| run.spec.class.is_task()).collect()),
        }
    }
}

fn print(context: &Context, adopted: &[AdoptOutcome], under_way: Vec<String>) {
    let printer = &context.printer;
    match printer.format() {
        OutputFormat::Table => adopted.iter().for_each(|outcome| printer.line(line(outcome))),
        OutputFormat::Json => {
            let runs = adopted.iter().map(AdoptedView::from).collect();
            printer.json(&versioned(List { runs, under_way }));
        }
        OutputFormat::Ndjson => adopted
            .iter()
            .for_each(|outcome| printer.json_line(&versioned(AdoptedView::from(outcome)))),
        OutputFormat::Name => adopted.iter().for_each(|outcome| printer.line(outcome.run.id())),
    }
}

impl From<&AdoptOutcome> for AdoptedView {
    fn from(AdoptOutcome { run, from }: &AdoptOutcome) -> Self {
        let (pin, from) = (run.pin().to_owned(), from.clone());
        Self { changed: from.is_some(), pin, from, run: run.into() }
    }
}

fn line(AdoptOutcome { run, from }: &AdoptOutcome) -> String {
    let now = short(run.pin());
    let note = match from {
        Some(from) => format!("version {now}, before {}", short(from)),
        None => format!("version {now} as before"),
    };
    format!("{}  {}, {note}", run.id(), status_text(run))
}
