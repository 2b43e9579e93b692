//! `taskrun policy show`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use taskrun_journal::store::{Host, PresentHost, StoreError};
use taskrun_journal::time::{Timestamp, millis};
use taskrun_runtime::{PolicyInForce, policies_in_force};

use crate::args::OutputFormat;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Outcome;
use crate::output::escape::escaped_line;
use crate::output::{human, pairs, versioned};
use crate::paths::shown;
use crate::place::no_policy;

#[derive(Serialize)]
struct Shown {
    policy: PathBuf,
    /// Of its text and its prompts; `None` if it has a mistake.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    /// The text that binds runs which were accepted under this file; `None` if none ever was.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_force: Option<RevisionView>,
    hosts: Vec<HostView>,
}

/// The text of the file that is in force in the store.
#[derive(Serialize)]
struct RevisionView {
    /// The number of texts of the file that were in force, with this one.
    number: u64,
    /// True if it is that of the file as it is now; `None` if that has a mistake.
    #[serde(skip_serializing_if = "Option::is_none")]
    same_text: Option<bool>,
    #[serde(serialize_with = "taskrun_journal::time::rfc3339::serialize")]
    since: Timestamp,
}

/// The policy of this terminal.
#[derive(Clone, Copy)]
pub(super) struct OwnPolicy<'p> {
    pub(super) path: &'p Path,
    /// `None` if it has a mistake.
    pub(super) digest: Option<&'p str>,
}

/// A host, and the policy that it executes runs under.
#[derive(Serialize)]
pub(super) struct HostView {
    pid: u32,
    policy: PathBuf,
    /// True if that is the file of this terminal.
    same_file: bool,
    /// True if it is that file as it is now; `None` if the host does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    same_text: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(serialize_with = "taskrun_journal::time::rfc3339::serialize")]
    since: Timestamp,
    /// The mistake of a later text, which changes nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    /// The time for which it has not reported, where its process exists and it does not live.
    #[serde(skip_serializing_if = "Option::is_none")]
    silent_ms: Option<u64>,
    #[serde(skip)]
    is_leaving: bool,
}

/// Shows what is in force, also where the file has a mistake.
///
/// # Errors
/// If there is no policy, or anything is wrong with it.
pub(super) async fn show(context: &Context) -> Outcome {
    let Some(path) = context.policy_file()? else { return Err(no_policy(&context.trust)) };
    let policy = context.read_policy(&path);
    let digest = policy.as_ref().ok().map(|policy| policy.digest.clone());
    let path = policy.as_ref().map_or(path, |policy| policy.path.clone());
    let own = OwnPolicy { path: &path, digest: digest.as_deref() };
    let (hosts, in_force) = match context.data_dir()? {
        dir if dir.is_dir() => {
            let storage = context.existing_storage()?;
            let hosts = storage.hosts.present_hosts().await?;
            let in_force = storage.policies.policy_in_force(&path.display().to_string()).await;
            let in_force = match in_force {
                Err(StoreError::Corrupt { detail, .. }) => {
                    context.printer.say(format!("what is in force is not known: {detail}"));
                    None
                }
                in_force => in_force?,
            };
            (views(&dir, &hosts, Some(own)), in_force)
        }
        _ => (Vec::new(), None),
    };
    let in_force = in_force.map(|revision| RevisionView {
        number: revision.number,
        same_text: digest.as_ref().map(|digest| *digest == revision.policy.digest),
        since: revision.policy.read_at,
    });
    let report = Shown { policy: path, digest, in_force, hosts };
    let printer = &context.printer;
    match printer.format() {
        OutputFormat::Table => printer.line(pairs(&lines(&report, context.now()))),
        OutputFormat::Json => printer.json(&versioned(&report)),
        OutputFormat::Ndjson => printer.json_line(&versioned(&report)),
        OutputFormat::Name => printer.line(report.policy.display()),
    }
    policy.map(|_| Exit::Completed)
}

fn lines(report: &Shown, now: Timestamp) -> Vec<(&'static str, String)> {
    let Shown { policy, digest, in_force, hosts } = report;
    let mut lines = vec![("policy", shown(policy).to_string())];
    lines.extend(digest.clone().map(|digest| ("digest", digest)));
    lines.extend(in_force.as_ref().map(|revision| ("in force", revision.text(now))));
    if hosts.is_empty() {
        lines.push(("hosts", "none lives".to_owned()));
    }
    lines.extend(hosts.iter().enumerate().map(|(index, host)| {
        let name = if index == 0 { "hosts" } else { "" };
        (name, host.text(now))
    }));
    lines
}

/// The hosts of a data directory, beside the policy of this terminal.
pub(super) fn views(
    data_dir: &Path,
    hosts: &[PresentHost],
    own: Option<OwnPolicy<'_>>,
) -> Vec<HostView> {
    let told = policies_in_force(data_dir, hosts.iter().map(|one| &one.host));
    let view = |PresentHost { host, silence }: &PresentHost| {
        let policy = PathBuf::from(&host.policy);
        let same = own.filter(|own| own.path == policy);
        let told = told.iter().find(|told| told.host == host.id);
        let digest = told.map(|told| told.digest.clone());
        let same_text = same.and_then(|own| own.digest).zip(digest.as_ref());
        HostView {
            pid: host.pid,
            policy,
            same_file: same.is_some(),
            same_text: same_text.map(|(own, digest)| own == digest),
            digest,
            since: told.map_or(host.started_at, |told| told.since),
            refused: told.and_then(|told| told.refused.clone()),
            silent_ms: silence.map(millis),
            is_leaving: host.is_leaving(),
        }
    };
    hosts.iter().map(view).collect()
}

impl RevisionView {
    fn text(&self, now: Timestamp) -> String {
        let age = human::age(now.since(self.since));
        let text = match self.same_text {
            Some(true) => "the text as it is now",
            Some(false) | None => "an earlier text, until a host or a command reads this one",
        };
        format!("{text}, for {age}, number {}", self.number)
    }
}

impl HostView {
    /// True if its file has a later text, which it cannot use.
    pub(super) fn is_behind(&self) -> bool {
        self.refused.is_some()
    }

    /// True if its process exists and it does not live.
    pub(super) fn is_silent(&self) -> bool {
        self.silent_ms.is_some()
    }

    pub(super) fn text(&self, now: Timestamp) -> String {
        let age = human::age(now.since(self.since));
        let pid = self.pid;
        let file = match (self.same_file, self.same_text) {
            (true, Some(true)) => "this policy as it is now".to_owned(),
            (true, Some(false)) => "this policy as it was before".to_owned(),
            // The text as it is now has the mistake here, too.
            (true, None) if self.is_behind() => "this policy as it was before".to_owned(),
            (true, None) => "this policy".to_owned(),
            (false, _) => format!(
                "another policy, {}, whose rules bind the runs that it executes, too",
                escaped_line(&shown(&self.policy).to_string())
            ),
        };
        // The first mistake: `policy check` tells all of them, and what helps.
        let refused = self.refused.as_deref().and_then(|why| why.lines().next()).map(escaped_line);
        let refused = refused.map_or_else(String::new, |why| format!("; not as it is now: {why}"));
        let silent = self.silent_ms.map_or_else(String::new, |silent_ms| {
            let silence = human::age(Duration::from_millis(silent_ms));
            format!("; it has not reported for {silence}")
        });
        let leaves = if self.is_leaving { "; it hands its runs over and ends" } else { "" };
        format!("process {pid} for {age}, under {file}{refused}{silent}{leaves}")
    }
}

/// Says so where runs that this terminal has accepted may be executed by a host under another file.
///
/// # Errors
/// Those of reading the policy of this terminal.
pub(super) fn tell_other_hosts(
    context: &Context,
    hosts: &[Host],
    own: &Path,
    agent: &str,
) -> Outcome<()> {
    let other = |host: &&Host| {
        Path::new(&host.policy) != own && host.agents.iter().any(|name| name == agent)
    };
    let Some(host) = hosts.iter().find(other) else { return Ok(()) };
    let told = policies_in_force(&context.data_dir()?, hosts);
    // A copy of the same text binds it to nothing else.
    let digest = |told: &PolicyInForce| (told.host == host.id).then(|| told.digest.clone());
    let own = context.read_policy(own)?.digest;
    if told.iter().find_map(digest).is_some_and(|digest| digest == own) {
        return Ok(());
    }
    context.printer.advise(&format!(
        "process {} may execute it, under {}, whose rules bind it, too; see `taskrun policy show`",
        host.pid,
        escaped_line(&shown(Path::new(&host.policy)).to_string())
    ));
    Ok(())
}
