//! `taskrun host`: the process that executes runs.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use taskrun::controller::Controller;
use taskrun_runtime::{OpenError, Options, Runtime};

use crate::args::HostArgs;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, open_failure};
use crate::signals::{Endings, Hangups};
use crate::{host_log, paths, place};

/// The pause between two looks of a host whether it is idle.
const IDLE_POLL: Duration = Duration::from_millis(250);
/// The same while runs wait for it.
const NEEDED_POLL: Duration = Duration::from_secs(1);

/// Executes wanted runs until it is idle, or told to end: then it hands over what is under way.
///
/// # Errors
/// If policy, store, engine or every agent is unusable.
pub(crate) async fn host(context: &Context, args: &HostArgs) -> Outcome {
    let Some(policy) = context.policy_file()? else {
        return Err(place::no_policy(&context.trust));
    };
    let data_dir = context.data_dir()?;
    if args.background {
        host_log::keep_short(&data_dir);
    }
    // Before there is anything that they could end.
    let (hangups, mut endings) = (Hangups::new(), Endings::new());
    let options = Options {
        slots: usize::from(args.slots),
        agents_loaded: usize::from(args.loaded_agents),
        lease: args.lease,
        background: args.background,
        store_layer: context.program.store_layer.clone(),
        ..context.options(policy, data_dir)
    };
    // In a task of its own: parts of it hold up the thread that they are on.
    let mut opening = tokio::spawn(Runtime::open(options));
    let opened = tokio::select! {
        biased;
        opened = &mut opening => {
            opened.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
        }
        reason = endings.next() => {
            tracing::info!(reason, "host ends before it began");
            return Ok(Exit::Completed);
        }
    };
    let runtime = match opened {
        Ok(runtime) => runtime,
        // Another process does it already.
        Err(OpenError::Executed) => return Ok(Exit::Completed),
        Err(error) => return Err(open_failure(error, context.is_colourful())),
    };
    context.tell_of_damage(runtime.storage());
    let controller = runtime.controller();
    tell_begin(context, args, &runtime.policy().path, controller);
    let reason = tokio::select! {
        reason = endings.next() => Ok(reason),
        () = idle(controller, args) => Ok("idle"),
        never = reloads(context, args, controller, hangups) => match never {},
        error = controller.store_lost() => Err(error),
    };
    // Ctrl-C once more ends the program, whatever is waited for.
    drop(endings);
    let reason = match reason {
        Ok(reason) => reason,
        Err(error) => {
            // Nothing can be recorded any more, so nothing is waited for.
            controller.hand_over(Duration::ZERO).await;
            return Err(error.into());
        }
    };
    tracing::info!(reason, "host ends");
    let closed = runtime.shutdown().await;
    if closed.stragglers.is_empty() {
        return Ok(Exit::Completed);
    }
    let ids: Vec<String> = closed.stragglers.iter().map(ToString::to_string).collect();
    let message = format!("runs could not be handed over in time: {}", ids.join(", "));
    Err(Failure::unexpected(message).hint(format!(
        "they are continued when this host is taken for dead; `taskrun wait {}` sees to that",
        ids.join(" ")
    )))
}

fn tell_begin(context: &Context, args: &HostArgs, policy: &Path, controller: &Controller) {
    if args.background {
        return;
    }
    let agents = controller.agents();
    let agents: Vec<&str> = agents.names().map(String::as_str).collect();
    let ends = match args.idle_exit {
        _ if args.service => "it stays until it is told to end".to_owned(),
        Duration::ZERO => "Ctrl-C hands its runs over and ends it".to_owned(),
        idle => {
            format!("ends after {} without work, or with Ctrl-C", humantime::format_duration(idle))
        }
    };
    context.printer.talk(format!(
        "executing runs of {} under {}; {ends}",
        agents.join(", "),
        paths::shown(policy)
    ));
}

/// Has the controller look at the policy whenever SIGHUP comes.
async fn reloads(
    context: &Context,
    args: &HostArgs,
    controller: &Controller,
    mut hangups: Hangups,
) -> Infallible {
    loop {
        hangups.next().await;
        tracing::info!("asked by SIGHUP to look at the policy");
        let before = controller.agents();
        controller.reload().await;
        if !args.background && !Arc::ptr_eq(&before, &controller.agents()) {
            context.printer.talk("the policy is in force as it is now");
        }
    }
}

/// Returns when the host has been idle for long enough, no run is due soon, and it is out of the list
/// of hosts. Until then nothing is written for that.
async fn idle(controller: &Controller, args: &HostArgs) {
    let limit = args.idle_exit;
    if args.service || limit.is_zero() {
        std::future::pending::<()>().await;
    }
    let mut pause = IDLE_POLL;
    loop {
        tokio::time::sleep(pause).await;
        pause = IDLE_POLL;
        if controller.idle_for() < limit {
            continue;
        }
        match controller.is_needed(args.idle_release).await {
            Ok(true) => {
                pause = NEEDED_POLL;
                continue;
            }
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, "it is not known what is due");
                continue;
            }
        }
        match controller.retire(args.idle_release).await {
            Ok(true) => return,
            // One was queued just now.
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "cannot retire"),
        }
    }
}
