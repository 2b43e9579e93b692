//! The supervisor of runs that a command waits for.

use taskrun::controller::Controller;
use taskrun_runtime::{BackgroundHost, Notice, Storage, Supervisor};

use super::Attendance;
use crate::context::Context;
use crate::failure::{Outcome, background_failure};
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
    telling(context, controller, storage, Ok(background), tell)
}

/// The same as [`supervisor_at_hand`], for a caller that tells what there is to tell in its own way.
pub(crate) fn supervisor_telling(
    context: &Context,
    controller: &Controller,
    storage: &Storage,
    tell: impl Fn(String) + Send + 'static,
) -> Supervisor {
    let background = background_at_hand(context, storage).map(Some);
    telling(context, controller, storage, background, tell)
}

fn telling(
    context: &Context,
    controller: &Controller,
    storage: &Storage,
    background: Outcome<Option<BackgroundHost>>,
    tell: impl Fn(String) + Send + 'static,
) -> Supervisor {
    let known = context.clone();
    let (background, failure) = match background {
        Ok(background) => (background, None),
        Err(failure) => (None, Some(failure)),
    };
    let notify = move |notice: Notice| match notice {
        Notice::Unattended { run, hosts, error } => {
            let (attendance, now) = (Attendance::of(&known, hosts), known.now());
            let unstarted = error.as_deref().map(background_failure);
            tell(match unstarted.as_ref().or(failure.as_ref()) {
                Some(failure) => attendance.unstarted_text(&run, failure, now, &known.printer),
                None => attendance.unattended_text(&run, now, &known.printer),
            });
        }
        Notice::Loading(load) => tell(load_text(&load, known.now(), &known.printer)),
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

/// A supervisor that starts hosts of the policy at hand, if there is one and it can be used. Otherwise
/// it says why not, where no host executes a run.
pub(crate) fn supervisor_at_hand(
    context: &Context,
    controller: &Controller,
    storage: &Storage,
) -> Supervisor {
    let printer = context.printer.clone();
    let background = background_at_hand(context, storage).map(Some);
    telling(context, controller, storage, background, move |text| printer.talk(text))
}

/// The background host of the policy at hand.
///
/// # Errors
/// If there is none, or none that can be used.
fn background_at_hand(context: &Context, storage: &Storage) -> Outcome<BackgroundHost> {
    context.background_host(&context.policy()?, storage)
}
