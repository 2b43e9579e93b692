//! The thread that makes guests look up: it has nothing else to do, so no guest can starve it.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Time between two looks of a guest at its deadline and stop signal.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// Ticks until dropped.
#[derive(Debug)]
pub(crate) struct Ticker {
    _stop: Sender<()>,
}

impl Ticker {
    /// Starts the thread. It holds the engine weakly and ends with it in any case.
    pub(crate) fn start(engine: &wasmtime::Engine) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let engine = engine.weak();
        std::thread::Builder::new().name("taskrun-epoch".to_owned()).spawn(move || {
            while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                match engine.upgrade() {
                    Some(engine) => engine.increment_epoch(),
                    None => return,
                }
            }
        })?;
        Ok(Self { _stop: stop })
    }
}
