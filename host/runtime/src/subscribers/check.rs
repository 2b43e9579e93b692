//! The subscribers of a policy that cannot be told of anything.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use rustix::fs::{Access, access};
use taskrun_policy::{AgentPolicy, Policy, SubscriberKind, SubscriberPolicy};

use super::webhook::read_key;

/// A subscriber of a policy that cannot be told of anything.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: subscriber {subscriber} cannot be told: {reason}")]
pub struct SubscriberError {
    /// Its kind and its name in the policy, as in `webhook/ci`.
    pub subscriber: String,
    /// The place where the policy names it.
    pub place: String,
    /// The fault of what its table names.
    pub reason: String,
}

/// The subscribers that agents have, by name or at the other end of a channel, and that cannot be
/// told: secrets are read, and programs and folders looked for. Nothing is connected to, started or
/// written.
#[must_use]
pub fn check_subscribers(policy: &Policy) -> Vec<SubscriberError> {
    let used: BTreeSet<&str> =
        policy.agents.values().flat_map(|agent| names_of(policy, agent)).collect();
    let used = used.into_iter().filter_map(|name| policy.subscribers.get(name));
    used.filter_map(error_of).collect()
}

/// The names of the subscribers that runs of an agent may have.
fn names_of<'p>(policy: &'p Policy, agent: &'p AgentPolicy) -> impl Iterator<Item = &'p str> {
    let channels = agent.channels.iter().chain(&agent.delegation.share_channels);
    let ends =
        channels.filter_map(move |name| policy.channels.get(name)).map(|one| one.to.as_str());
    agent.subscribers.iter().map(String::as_str).chain(ends)
}

fn error_of(one: &SubscriberPolicy) -> Option<SubscriberError> {
    let looked = match &one.kind {
        SubscriberKind::Webhook { secret, old_secret, url: _ } => {
            let mut secrets = std::iter::once(secret).chain(old_secret);
            let read = secrets.try_for_each(|source| read_key(source).map(|_| ()));
            read.map_err(|error| error.to_string())
        }
        SubscriberKind::Command { program, args: _, named: _, timeout: _ } => {
            look_at_program(program).map_err(|error| of_path(program, &error))
        }
        SubscriberKind::File { path } => look_at_file(path).map_err(|error| of_path(path, &error)),
    };
    let (subscriber, place) = (one.name.clone(), one.location.to_string());
    looked.err().map(|reason| SubscriberError { subscriber, place, reason })
}

fn of_path(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

fn look_at_program(program: &Path) -> io::Result<()> {
    if !program.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    access(program, Access::EXEC_OK).map_err(io::Error::from)
}

/// A file that is not there is made with its first line, and its folder is not.
fn look_at_file(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(about) if about.is_file() => Ok(()),
        Ok(_) => Err(io::Error::other("it is no regular file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            match folder.unwrap_or(Path::new(".")).is_dir() {
                true => Ok(()),
                false => Err(io::Error::other("its folder is not there")),
            }
        }
        Err(error) => Err(error),
    }
}
