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
    revision: u64,
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
    /// The agents that it has left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<LeftOutView>,
    /// The time for which it has not reported, where its process exists and it does not live.
    #[serde(skip_serializing_if = "Option::is_none")]
    silent_ms: Option<u64>,
    #[serde(skip)]
    is_leaving: bool,
}

/// An agent that a host has left out, and the reason for which it does not load.
#[derive(Serialize)]
struct LeftOutView {
    agent_name: String,
    reason: String,
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
        revision: revision.number,
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
        let left_out = told.into_iter().flat_map(|told| &told.left_out);
        let left_out = left_out
            .map(|(name, reason)| LeftOutView { agent_name: name.clone(), reason: reason.clone() });
        HostView {
            pid: host.pid,
            policy,
            same_file: same.is_some(),
            same_text: same_text.map(|(own, digest)| own == digest),
            digest,
            since: told.map_or(host.started_at, |told| told.since),
            refused: told.and_then(|told| told.refused.clone()),
            left_out: left_out.collect(),
            silent_ms: silence.map(millis),
            is_leaving: host.is_leaving(),
        }
    };
    hosts.iter().map(view).collect()
}

impl RevisionView {
    fn text(&self, now: Timestamp) -> String {
        let since = format!("for {}, number {}", human::age(now.since(self.since)), self.revision);
        match self.same_text {
            Some(true) => format!("the text as it is now, {since}"),
            Some(false) => {
                format!("an earlier text, until a host or a command reads this one, {since}")
            }
            None => format!(
                "an earlier text, {since}; the file as it is now cannot be used and changes nothing"
            ),
        }
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

    /// A line about each agent that it has left out.
    pub(super) fn left_out_lines(&self) -> impl Iterator<Item = String> {
        self.left_out.iter().map(|LeftOutView { agent_name, reason }| {
            let (agent, reason) = (escaped_line(agent_name), escaped_line(reason));
            format!("agent {agent} does not load: {reason}")
        })
    }

    fn left_out_text(&self) -> String {
        let names: Vec<_> = self.left_out.iter().map(|one| escaped_line(&one.agent_name)).collect();
        match names.as_slice() {
            [] => String::new(),
            [name] => format!("; without agent {name}, which does not load"),
            names => format!("; without agents {}, which do not load", names.join(", ")),
        }
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
        let left_out = self.left_out_text();
        format!("process {pid} for {age}, under {file}{refused}{left_out}{silent}{leaves}")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_in_force_that_is_not_that_of_the_file_is_told_with_the_reason() {
        for (same_text, expected) in [
            (Some(true), "the text as it is now, for 0s, number 2"),
            (
                Some(false),
                "an earlier text, until a host or a command reads this one, for 0s, number 2",
            ),
            (
                None,
                "an earlier text, for 0s, number 2; the file as it is now cannot be used and \
                 changes nothing",
            ),
        ] {
            let revision = RevisionView { revision: 2, same_text, since: Timestamp(1) };
            assert_eq!(revision.text(Timestamp(1)), expected);
        }
    }
}
