//! The process that executes runs, and how it is started.

mod attendant;
mod lock;
mod log_file;
mod noticed;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use taskrun::agents::Agents;
use taskrun::controller::{Controller, DRAIN_DEFAULT};

pub(crate) use attendant::Attendant;

use self::lock::BackgroundLock;
use self::noticed::Noticed;
use crate::args::HostArgs;
use crate::context::{Books, Context};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::house::{EngineUse, House, engine};
use crate::signals;

/// How often a host looks whether it is idle.
const IDLE_POLL: Duration = Duration::from_millis(250);

/// Executes queued runs until it is idle or told to end.
///
/// # Errors
/// If policy, store, engine or every agent is unusable.
pub(crate) async fn host(context: &Context, args: &HostArgs) -> Outcome {
    let policy = context.policy()?;
    let data_dir = context.data_dir()?;
    let books = context.books(&data_dir)?;
    let house = House::new(engine(Some(&data_dir), EngineUse::Executing)?, policy)?;
    let lock = match args.background {
        true => match BackgroundLock::take(&data_dir, house.digest(), &books).await? {
            Some(lock) => Some(lock),
            // Another process does it already.
            None => return Ok(Exit::Completed),
        },
        false => None,
    };
    let agents = load_all(&house).await?;
    let names: Vec<&str> = agents.by_name.keys().map(String::as_str).collect();
    tracing::info!(policy = %house.policy.path.display(), agents = names.join(","), "host begins");
    let noticed = Arc::new(Noticed::new(Arc::clone(&books.store), Arc::clone(&context.clock)));
    let books = Books { store: noticed.clone(), hosts: books.hosts };
    let controller =
        context.controller(&books, agents, house.engine.interrupt(), usize::from(args.slots));
    controller.start().await?;
    tell_begin(context, args, &house.policy.path, &controller);
    let reason = tokio::select! {
        reason = signals::end() => reason,
        () = idle(&controller, &noticed, args.idle_exit) => "idle",
    };
    tracing::info!(reason, "host ends");
    let closed = controller.close(DRAIN_DEFAULT).await;
    drop(lock);
    if closed.stragglers.is_empty() {
        return Ok(Exit::Completed);
    }
    let ids: Vec<String> = closed.stragglers.iter().map(ToString::to_string).collect();
    Err(Failure::unexpected(format!("runs had not ended in time: {}", ids.join(", ")))
        .hint("they are ended as interrupted when the next command looks at them"))
}

fn tell_begin(context: &Context, args: &HostArgs, policy: &Path, controller: &Controller) {
    if args.background {
        return;
    }
    let agents: Vec<&str> = controller.agents().by_name.keys().map(String::as_str).collect();
    let ends = match args.idle_exit {
        Duration::ZERO => "Ctrl-C ends it".to_owned(),
        idle => {
            format!("ends after {} without work, or with Ctrl-C", humantime::format_duration(idle))
        }
    };
    context.printer.talk(format!(
        "executing runs of {} under {}; {ends}",
        agents.join(", "),
        crate::place::shown(policy)
    ));
}

/// Loads every agent. One that does not load is left out, so that it does not keep the others
/// from working; `run` says of it what is wrong.
async fn load_all(house: &House) -> Outcome<Agents> {
    let mut by_name = BTreeMap::new();
    let mut first = None;
    for name in house.policy.agents.keys() {
        match house.agent(name).await {
            Ok(agent) => {
                by_name.insert(name.clone(), Arc::new(agent));
            }
            Err(failure) => {
                tracing::warn!(agent = name, "left out: {}", failure.text());
                first.get_or_insert(failure);
            }
        }
    }
    match first {
        Some(failure) if by_name.is_empty() => Err(failure),
        Some(_) | None => Ok(Agents { policy_digest: house.digest().to_owned(), by_name }),
    }
}

/// Returns when the host has been idle for `limit` and is out of the list of hosts.
async fn idle(controller: &Controller, noticed: &Noticed, limit: Duration) {
    if limit.is_zero() {
        std::future::pending::<()>().await;
    }
    loop {
        tokio::time::sleep(IDLE_POLL).await;
        if noticed.idle_for() < limit {
            continue;
        }
        match controller.retire().await {
            Ok(true) => return,
            // A run goes on without writing anything, or one was queued just now.
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "cannot retire"),
        }
    }
}
