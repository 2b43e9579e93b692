//! The supervisor of runs that a command waits for.

use taskrun::controller::Controller;
use taskrun_runtime::{BackgroundHost, Notice, Storage, Supervisor};

use super::nobody_executes;
use crate::context::Context;
use crate::output::load_text;

/// A supervisor that talks to the terminal, and starts hosts only if there is one to start.
pub(crate) fn supervisor(
    context: &Context,
    controller: &Controller,
    storage: &Storage,
    background: Option<BackgroundHost>,
) -> Supervisor {
    let printer = context.printer.clone();
    let tell = move |text: String| printer.talk(text);
    telling(context, controller, storage, background, tell)
}

/// The same as [`supervisor_at_hand`], for a caller that tells what there is to tell in its own way.
pub(crate) fn supervisor_telling(
    context: &Context,
    controller: &Controller,
    storage: &Storage,
    tell: impl Fn(String) + Send + 'static,
) -> Supervisor {
    telling(context, controller, storage, background_at_hand(context, storage), tell)
}

fn telling(
    context: &Context,
    controller: &Controller,
    storage: &Storage,
    background: Option<BackgroundHost>,
    tell: impl Fn(String) + Send + 'static,
) -> Supervisor {
    let (clock, printer) = (context.clock.clone(), context.printer.clone());
    let notify = move |notice: Notice| match notice {
        Notice::Unattended(id) => tell(nobody_executes(&id, &printer)),
        Notice::Loading(load) => tell(load_text(&load, clock.now(), &printer)),
    };
    let mut supervisor = Supervisor::new(context.client(controller), storage, notify);
    if let Ok(data_dir) = context.data_dir() {
        supervisor = supervisor.telling_of_loads(&data_dir);
    }
    match background {
        Some(background) => supervisor.starting(background),
        None => supervisor,
    }
}

/// A supervisor that starts hosts of the policy at hand, if there is one and it can be used.
pub(crate) fn supervisor_at_hand(
    context: &Context,
    controller: &Controller,
    storage: &Storage,
) -> Supervisor {
    supervisor(context, controller, storage, background_at_hand(context, storage))
}

fn background_at_hand(context: &Context, storage: &Storage) -> Option<BackgroundHost> {
    let file = context.policy_file().ok()??;
    context.read_policy(&file).ok()?;
    context.background_host(&file, storage).ok()
}
