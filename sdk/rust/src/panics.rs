//! The hook that runs before a trap: the panic's message and place go into the run's log.

/// Sees to it that a panic is logged. The export macros call it at each entry; only the first
/// call of an instance does something.
pub fn install_hook() {
    #[cfg(target_arch = "wasm32")]
    {
        use crate::log;
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            std::panic::set_hook(Box::new(|panic| {
                let message = panic.payload_as_str().unwrap_or("a panic without a message");
                let place = panic.location().map(|at| ("location".to_owned(), at.to_string()));
                log::log(log::Level::Error, message, place.as_slice());
            }));
        });
    }
}
