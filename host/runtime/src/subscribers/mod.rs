//! The subscribers of a policy: webhooks, commands and files.

mod check;
mod command;
mod file;
mod signature;
mod webhook;

use std::path::Path;
use std::sync::Arc;

use taskrun::clock::SystemClock;
use taskrun::ports::transport::{Subscriber, Subscribers, Transport};
use taskrun_engine::HostClient;
use taskrun_journal::time::Clock;
use taskrun_policy::{Policy, SubscriberKind, SubscriberPolicy};

pub use self::check::{SubscriberError, check_subscribers};
use self::command::Command;
use self::file::File;
use self::webhook::Webhook;

/// The subscribers of a policy, ready to be told. Nothing is read, connected to or made before that.
pub(crate) fn subscribers_of(policy: &Policy) -> Subscribers {
    let client = HostClient::default();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let folder = policy.path.parent().unwrap_or(Path::new(""));
    let open = |one: &SubscriberPolicy| {
        let subscriber = Subscriber {
            events: one.events.clone(),
            interrupts: false,
            include_result: one.include_result,
            transport: transport(one, folder, (&client, &clock)),
        };
        (one.name.clone(), subscriber)
    };
    Subscribers::new(policy.subscribers.values().map(open).collect())
}

fn transport(
    one: &SubscriberPolicy,
    folder: &Path,
    (client, clock): (&HostClient, &Arc<dyn Clock>),
) -> Arc<dyn Transport> {
    let whole = one.include_result;
    match &one.kind {
        SubscriberKind::Webhook { url, secret, old_secret } => Arc::new(Webhook {
            client: client.clone(),
            clock: Arc::clone(clock),
            url: url.clone(),
            secrets: std::iter::once(secret).chain(old_secret).cloned().collect(),
            whole,
        }),
        SubscriberKind::Command { program, args, timeout, named: _ } => Arc::new(Command {
            program: program.clone(),
            args: args.clone(),
            folder: folder.to_owned(),
            timeout: *timeout,
            whole,
        }),
        SubscriberKind::File { path } => Arc::new(File::new(path.clone(), whole)),
    }
}
