//! Wishes that come as signals.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ctrl-C, from now on: none that is pressed while nobody waits is lost.
#[derive(Debug)]
pub(crate) struct Interrupts(Option<Signal>);

impl Interrupts {
    /// Takes Ctrl-C over from the system. Where that is not to be had, it ends the program as
    /// ever.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self(signal(SignalKind::interrupt()).ok())
    }

    /// Returns when Ctrl-C is pressed, or was since the last time.
    pub(crate) async fn pressed(&mut self) {
        if let Some(signal) = &mut self.0
            && signal.recv().await.is_some()
        {
            return;
        }
        std::future::pending::<()>().await;
    }
}

impl Default for Interrupts {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns when somebody asks this process to end, with the name of the wish.
pub(crate) async fn end() -> &'static str {
    let terminate = async {
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => terminate.recv().await,
            Err(_) => std::future::pending().await,
        }
    };
    let mut interrupts = Interrupts::new();
    tokio::select! {
        () = interrupts.pressed() => "interrupted",
        _ = terminate => "terminated",
    }
}
