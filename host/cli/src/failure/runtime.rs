//! Failures of the runtime, as the terminal tells them.

use taskrun_runtime::{
    AcceptanceError, BackgroundError, EngineError, KeptRemovalError, LoaderError, ModelError,
    OpenError, SubscriberError, SupervisorError, io_kind,
};

use super::component::disk_fault;
use super::{Failure, agent_failure, controller::store_failure, policy_failure};
use crate::exit::Exit;
use crate::output::human;
use crate::paths::{shown, shown_in};
use crate::shell;

/// A runtime that does not open. `fancy` says whether a report may have colours and frames.
pub(crate) fn open_failure(error: OpenError, fancy: bool) -> Box<Failure> {
    match error {
        OpenError::Policy(error) => policy_failure(&error, fancy),
        OpenError::Store(error) => store_failure(&error),
        OpenError::Loader(error) => loader_failure(&error),
        OpenError::Agent(error) => agent_failure(&error),
        OpenError::Controller(error) => error.into(),
        OpenError::Layer(source) => {
            Failure::unexpected("the log cannot be opened").because(&source)
        }
        OpenError::Lock { ref source, .. } => {
            Failure::unexpected(error.to_string()).because(source).with_places()
        }
        OpenError::Executed | OpenError::Option { .. } => Failure::unexpected(error.to_string()),
        OpenError::Standstill { ref path } => {
            let hint = format!("`fuser {}` names the process; end it", shell::path(path, "FILE"));
            Failure::unexpected(error.to_string()).with_places().hint(hint)
        }
    }
}

/// An agent of which no runs are accepted.
pub(crate) fn acceptance_failure(error: &AcceptanceError) -> Box<Failure> {
    match error {
        AcceptanceError::Loader(error) => loader_failure(error),
        AcceptanceError::Agent(error) => agent_failure(error),
    }
}

/// Components that are not removed.
pub(crate) fn kept_removal_failure(error: &KeptRemovalError) -> Box<Failure> {
    let failure = |words: &str| Failure::new(Exit::Unexpected, "components-kept", words);
    match error {
        KeptRemovalError::Store(error) => store_failure(error),
        KeptRemovalError::Damaged => failure("all components stay")
            .because(error)
            .hint("look at the store with `taskrun doctor`"),
        KeptRemovalError::Unknown { .. } => failure("all components stay").because(error).hint(
            "cancel these runs, which cannot go on, or put the policy that they were accepted \
             under back and start one more",
        ),
        KeptRemovalError::Busy => failure("all components stay").because(error).hint("try again"),
        KeptRemovalError::Blobs(_) | KeptRemovalError::Native(_) | KeptRemovalError::Panicked => {
            failure("not all components that nobody needs were removed").because(error)
        }
    }
}

/// Agents that cannot be loaded.
pub(crate) fn loader_failure(error: &LoaderError) -> Box<Failure> {
    match error {
        LoaderError::Engine(error) => engine_failure(error),
        LoaderError::Blobs(source) => match io_kind(source).and_then(disk_fault) {
            Some((code, hint)) => {
                Failure::new(Exit::Unreachable, code, error.to_string()).because(source).hint(hint)
            }
            None => Failure::unexpected(error.to_string()).because(source),
        },
    }
}

/// An engine that does not start.
pub(crate) fn engine_failure(error: &EngineError) -> Box<Failure> {
    let failure = Failure::unexpected("the WebAssembly engine does not start").because(error);
    match error {
        EngineError::Descriptors { needed, .. } => failure
            .hint(format!("raise the hard limit of open files: `ulimit -n {needed}`, or more")),
        EngineError::Wasmtime(_) | EngineError::Threads(_) | EngineError::Ticker(_) => failure,
    }
}

/// A model that cannot be used.
pub(crate) fn model_failure(error: &ModelError) -> Box<Failure> {
    let ModelError { model, place, source } = error;
    Failure::usage("model", error.to_string())
        .because(&**source)
        .with_places()
        .hint(model_hint(model, place))
}

/// The subscribers that cannot be told of anything; `None` if there are none.
pub(crate) fn subscribers_failure(errors: &[SubscriberError]) -> Option<Box<Failure>> {
    let SubscriberError { subscriber, place, reason: _ } = errors.first()?;
    let count = human::count(errors.len() as u64, "subscriber");
    let mut failure = Failure::usage("subscriber", format!("{count} cannot be told"));
    failure.causes = errors.iter().map(ToString::to_string).collect();
    let table = subscriber.replacen('/', ".", 1);
    let place = shown_in(place);
    let hint = format!("correct [{table}] at {place}, or make what it names");
    Some(failure.with_places().hint(hint))
}

/// The words on what helps against a fault of a model.
pub(super) fn model_hint(model: &str, place: &str) -> String {
    format!("correct [model.{model}] at {}, or the file that it names", shown_in(place))
}

/// A run that cannot be looked after.
impl From<SupervisorError> for Box<Failure> {
    fn from(error: SupervisorError) -> Self {
        match error {
            SupervisorError::Controller(error) => error.into(),
            SupervisorError::Host { run, source } => background_failure(&source).about(&run),
        }
    }
}

/// A background host that does not execute runs.
pub(crate) fn background_failure(error: &BackgroundError) -> Box<Failure> {
    match error {
        BackgroundError::Store(error) => store_failure(error),
        BackgroundError::Start(source) => {
            Failure::new(Exit::Unreachable, "host-start", error.to_string())
                .because(source)
                .hint("start one yourself in another terminal: `taskrun host`")
        }
        BackgroundError::Died { log, tail, .. } => {
            let mut failure = Failure::new(Exit::Unreachable, "host-died", error.to_string());
            if !tail.is_empty() {
                failure.causes.push(format!("its log ends with:\n{}", tail.join("\n")));
            }
            failure.hint(format!(
                "see {}, or watch a host in another terminal: `taskrun host`",
                shown(log)
            ))
        }
    }
}
