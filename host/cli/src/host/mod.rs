//! The process that executes runs, and how it is started.

mod attendant;
mod crash;
mod loads;
mod lock;
mod log_file;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use taskrun::agents::Agents;
use taskrun::controller::{Controller, DRAIN_DEFAULT, Settings};
use taskrun_journal::store::Store;

pub(crate) use attendant::Attendant;
pub(crate) use loads::{AgentOfPolicy, Told, load_text, told, waited_for};

use self::crash::Crashing;
use self::loads::Loads;
use self::lock::BackgroundLock;
use crate::args::HostArgs;
use crate::context::{Books, Context};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::house::{EngineUse, House, engine};
use crate::signals;

/// How often a host looks whether it is idle.
const IDLE_POLL: Duration = Duration::from_millis(250);

/// Executes wanted runs until it is idle, or told to end: then it hands over what is under way.
///
/// # Errors
/// If policy, store, engine or every agent is unusable.
pub(crate) async fn host(context: &Context, args: &HostArgs) -> Outcome {
    let policy = context.policy()?;
    let data_dir = context.data_dir()?;
    let books = context.books(&data_dir)?;
    let house = Arc::new(House::new(engine(Some(&data_dir), EngineUse::Executing)?, policy)?);
    let lock = match args.background {
        true => match BackgroundLock::take(&data_dir, house.digest(), &books).await? {
            Some(lock) => Some(lock),
            // Another process does it already.
            None => return Ok(Exit::Completed),
        },
        false => None,
    };
    let loads = Arc::new(Loads::new(&data_dir, Arc::clone(&context.clock)));
    let agents = look_at_all(&house, &loads).await?;
    let names: Vec<&str> = agents.by_name.keys().map(String::as_str).collect();
    tracing::info!(policy = %house.policy.path.display(), agents = names.join(","), "host begins");
    let store = watched(&books, args)?;
    let books = Books { store, ..books };
    let controller = context.controller(&books, agents, Some(&house.engine), settings(args));
    loads.begin(controller.host(), &books.hosts.hosts().await?);
    controller.start().await?;
    tell_begin(context, args, &house.policy.path, &controller);
    let reason = tokio::select! {
        reason = signals::end() => reason,
        () = idle(&controller, args.idle_exit) => "idle",
        error = controller.store_lost() => {
            // Nothing can be recorded any more, so nothing is waited for.
            controller.hand_over(Duration::ZERO).await;
            return Err(error.into());
        }
    };
    tracing::info!(reason, "host ends");
    let closed = controller.hand_over(DRAIN_DEFAULT).await;
    drop(lock);
    if closed.stragglers.is_empty() {
        return Ok(Exit::Completed);
    }
    let ids: Vec<String> = closed.stragglers.iter().map(ToString::to_string).collect();
    let message = format!("runs could not be handed over in time: {}", ids.join(", "));
    Err(Failure::unexpected(message)
        .hint("they are continued when this host is taken for dead; `taskrun wait` sees to that"))
}

/// The store, and around it what the crash tests ask for.
fn watched(books: &Books, args: &HostArgs) -> Outcome<Arc<dyn Store>> {
    let store = Arc::clone(&books.store);
    if args.crash_at.is_none() && args.acknowledged.is_none() {
        return Ok(store);
    }
    match Crashing::new(store, args.crash_at, args.acknowledged.as_deref()) {
        Ok(crashing) => Ok(Arc::new(crashing)),
        Err(error) => Err(Failure::unexpected("the log cannot be opened").because(&error)),
    }
}

fn settings(args: &HostArgs) -> Settings {
    let default = Settings::default();
    let lease = args.lease.unwrap_or(default.lease);
    Settings { slots: usize::from(args.slots), lease, ..default }
}

fn tell_begin(context: &Context, args: &HostArgs, policy: &Path, controller: &Controller) {
    if args.background {
        return;
    }
    let agents: Vec<&str> = controller.agents().by_name.keys().map(String::as_str).collect();
    let ends = match args.idle_exit {
        Duration::ZERO => "Ctrl-C hands its runs over and ends it".to_owned(),
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

/// Looks at every agent; its code is loaded when a run wants it. One that cannot be used is left out,
/// so that it does not keep the others from working; `run` says of it what is wrong.
async fn look_at_all(house: &Arc<House>, loads: &Arc<Loads>) -> Outcome<Agents> {
    let mut by_name = BTreeMap::new();
    let mut first = None;
    let looks = house.policy.agents.keys().map(|name| async move {
        let (house, loads) = (Arc::clone(house), Some(Arc::clone(loads)));
        let source = AgentOfPolicy { house: Arc::clone(&house), name: name.clone(), loads };
        (name, house.agent_on_demand(name, Arc::new(source)).await)
    });
    for (name, known) in join_all(looks).await {
        match known {
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
async fn idle(controller: &Controller, limit: Duration) {
    if limit.is_zero() {
        std::future::pending::<()>().await;
    }
    loop {
        tokio::time::sleep(IDLE_POLL).await;
        if controller.idle_for() < limit {
            continue;
        }
        match controller.retire().await {
            Ok(true) => return,
            // One was queued just now.
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "cannot retire"),
        }
    }
}
