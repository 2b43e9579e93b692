//! Subscribers: whoever outside of the runs is told that a run was accepted, or has ended.

use std::path::{Path, PathBuf};
use std::time::Duration;

use taskrun_journal::dispatch::TaskEvent;

use crate::location::Location;
use crate::model::KeySource;

/// The kind of subscribers that a program which embeds the runtime registers itself, as it stands
/// before their names.
pub const TRANSPORT: &str = "transport";

/// The subscriber that stands for the best of those that a program registered.
pub const ANY_TRANSPORT: &str = "transport/*";

/// The subscriber that is the terminal at which a run's session is open (`taskrun chat`).
pub const TERMINAL: &str = "terminal";

/// True for the name of the terminal of one session, which no host tells of anything.
#[must_use]
pub fn is_terminal(subscriber: &str) -> bool {
    subscriber.split_once('/').is_some_and(|(kind, _)| kind == TERMINAL)
}

/// Most subscribers of a policy: a host looks for what is due for each.
pub const SUBSCRIBERS_MAX: usize = 64;

/// The time for a command to take what it is told, unless the policy says otherwise.
pub(crate) const COMMAND_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// The longest such time, less than what a host has a dispatch for.
pub const COMMAND_TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// Most arguments of a command, and most bytes of them together.
pub(crate) const COMMAND_ARGS_MAX: usize = 64;
/// See [`COMMAND_ARGS_MAX`].
pub(crate) const COMMAND_BYTES_MAX: usize = 16 << 10;

/// Most bytes of a webhook's URL.
pub(crate) const WEBHOOK_URL_BYTES_MAX: usize = 2 << 10;

/// A subscriber of the policy: `[webhook.NAME]`, `[command.NAME]` or `[file.NAME]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriberPolicy {
    /// Its kind and its name, as in `webhook/ci`.
    pub name: String,
    /// The way in which it is told.
    pub kind: SubscriberKind,
    /// The events of which it is told, each once. Default all.
    pub events: Vec<TaskEvent>,
    /// True if it is told the task, and the result or the error. Default `false`.
    pub include_result: bool,
    /// Of its table's header.
    pub location: Location,
}

/// The way in which a subscriber is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubscriberKind {
    /// By a signed request over HTTP.
    Webhook {
        /// Its address: `https`, or `http` to a loopback address that is written as such.
        url: String,
        /// Where the secret is by which requests are signed.
        secret: KeySource,
        /// Where the secret is that this one is to take the place of: requests are signed with
        /// both.
        old_secret: Option<KeySource>,
    },
    /// By a program on this machine.
    Command {
        /// The program, resolved.
        program: PathBuf,
        /// Its arguments.
        args: Vec<String>,
        /// The paths that its arguments would name in the folder of the policy, resolved: a shell
        /// is given the script that it executes as one.
        named: Vec<PathBuf>,
        /// The time that it may take, at most [`COMMAND_TIMEOUT_MAX`].
        timeout: Duration,
    },
    /// By a line at the end of a file.
    File {
        /// The file, resolved; made where it is not there.
        path: PathBuf,
    },
}

impl SubscriberPolicy {
    /// The files that it consists of: no guest gets at them.
    pub fn files(&self) -> Vec<&Path> {
        match &self.kind {
            SubscriberKind::Webhook { secret, old_secret, url: _ } => {
                let keys = std::iter::once(secret).chain(old_secret);
                keys.filter_map(KeySource::file).collect()
            }
            SubscriberKind::Command { program, args: _, named: _, timeout: _ } => vec![program],
            SubscriberKind::File { path } => vec![path],
        }
    }

    /// The paths that the arguments of its command may name: files, folders, or nothing at all.
    #[must_use]
    pub fn arguments(&self) -> &[PathBuf] {
        match &self.kind {
            SubscriberKind::Command { named, .. } => named,
            SubscriberKind::Webhook { .. } | SubscriberKind::File { .. } => &[],
        }
    }
}
