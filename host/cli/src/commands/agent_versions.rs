//! `taskrun agent versions`.

use serde::Serialize;
use taskrun_journal::pin::agent_of;
use taskrun_journal::time::Timestamp;
use taskrun_policy::Policy;
use taskrun_runtime::{AgentVersion, KeptError, Storage, agent_versions};

use crate::args::OutputFormat;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::lookup;
use crate::output::{human, table, versioned};

/// Digits of a pin that stand for it: enough that no two versions of an agent ever have the same.
const SHORT_DIGITS: usize = 12;

#[derive(Serialize)]
struct List {
    versions: Vec<VersionView>,
}

#[derive(Serialize)]
struct VersionView {
    agent_name: String,
    pin: String,
    short: String,
    #[serde(serialize_with = "taskrun_journal::time::rfc3339::option::serialize")]
    since: Option<Timestamp>,
    open_runs: u64,
    runs: u64,
    kept: bool,
    current: bool,
}

impl From<&AgentVersion> for VersionView {
    fn from(version: &AgentVersion) -> Self {
        Self {
            agent_name: agent_of(&version.pin).to_owned(),
            pin: version.pin.clone(),
            short: short(&version.pin).to_owned(),
            since: version.since,
            open_runs: version.open_runs,
            runs: version.runs,
            kept: version.is_kept,
            current: version.is_current,
        }
    }
}

/// The versions of agents that are known here, with the policy in use, if there is one.
pub(super) struct KnownVersions {
    pub(super) policy: Option<Policy>,
    pub(super) storage: Storage,
    pub(super) versions: Vec<AgentVersion>,
}

impl KnownVersions {
    /// Those of all agents, or of one.
    ///
    /// # Errors
    /// If there is neither a policy nor a data directory, one cannot be used, or nothing knows an
    /// agent of that name.
    pub(super) async fn find(context: &Context, agent: Option<&str>) -> Outcome<Self> {
        let policy = match context.policy_file() {
            Ok(file) => file.map(|file| context.read_policy(&file)).transpose()?,
            // The data directory is named, and the policy that is found here is another one's.
            Err(_) if context.globals.data_dir.is_some() => None,
            Err(failure) => return Err(failure),
        };
        let (storage, scope) = (context.existing_storage()?, context.principal().scope);
        let versions = agent_versions(&storage, &scope, policy.as_ref(), agent).await;
        let versions = versions.map_err(|error| match error {
            KeptError::Store(error) => error.into(),
            KeptError::Blobs(_) | KeptError::Panicked => {
                Failure::unexpected("the versions of agents are not known").because(&error)
            }
        })?;
        if let Some(agent) = agent.filter(|_| versions.is_empty()) {
            if let Some(policy) = &policy {
                lookup::agent_of(policy, agent)?;
            } else {
                let message = format!("no version of an agent {agent:?} is known here");
                return Err(Failure::usage("unknown-agent", message)
                    .hint("list the versions of all agents with `taskrun agent versions`"));
            }
        }
        Ok(Self { policy, storage, versions })
    }
}

pub(super) async fn versions(context: &Context, agent: Option<&str>) -> Outcome {
    let KnownVersions { versions, .. } = KnownVersions::find(context, agent).await?;
    let views: Vec<VersionView> = versions.iter().map(VersionView::from).collect();
    let printer = &context.printer;
    match printer.format() {
        OutputFormat::Table if views.is_empty() => {
            printer.talk("no version of an agent is known here");
        }
        OutputFormat::Table => {
            let now = context.now();
            let cells = views.into_iter().map(|view| row(view, now)).collect();
            let headings = ["AGENT", "VERSION", "AGE", "OPEN", "RUNS", "IS"];
            printer.line(table(&headings, cells, printer.width()));
        }
        OutputFormat::Json => printer.json(&versioned(List { versions: views })),
        OutputFormat::Ndjson => views.iter().for_each(|view| printer.json_line(&versioned(view))),
        OutputFormat::Name => views.iter().for_each(|view| printer.line(&view.pin)),
    }
    Ok(Exit::Completed)
}

fn row(view: VersionView, now: Timestamp) -> Vec<String> {
    let age = view.since.map_or_else(|| "-".to_owned(), |since| human::age(now.since(since)));
    let is = match (view.current, view.kept) {
        (true, _) => "current",
        (false, true) => "",
        (false, false) => "not kept",
    };
    let (open, runs) = (view.open_runs.to_string(), view.runs.to_string());
    vec![view.agent_name, view.short, age, open, runs, is.to_owned()]
}

/// The beginning of the digest in a pin.
pub(super) fn short(pin: &str) -> &str {
    let digits = digits(pin);
    digits.get(..SHORT_DIGITS).unwrap_or(digits)
}

/// The hexadecimal digits of a pin, or of a part of one that somebody typed.
pub(super) fn digits(pin: &str) -> &str {
    let digest = pin.split_once('@').map_or(pin, |(_, digest)| digest);
    digest.strip_prefix("blake3:").unwrap_or(digest)
}
