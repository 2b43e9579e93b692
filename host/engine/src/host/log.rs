//! `log`: lines of the guest in the run's log.

use taskrun::scope::LOG_LINE_BYTES_MAX;
use taskrun_journal::message::{Labels, LogLevel};

use crate::bindings::interfaces::log::{Host, Level};
use crate::state::CallState;

impl Host for CallState {
    fn log(
        &mut self,
        level: Level,
        message: String,
        fields: Vec<(String, String)>,
    ) -> wasmtime::Result<()> {
        self.enter()?;
        let level = match level {
            Level::Trace => LogLevel::Trace,
            Level::Debug => LogLevel::Debug,
            Level::Info => LogLevel::Info,
            Level::Warn => LogLevel::Warn,
            Level::Error => LogLevel::Error,
        };
        self.scope.log(level, &self.guest.source, &message, bounded(fields));
        Ok(())
    }
}

/// The first fields that fit into a line.
fn bounded(fields: Vec<(String, String)>) -> Labels {
    let mut left = LOG_LINE_BYTES_MAX;
    let fits = |(key, value): &(String, String)| {
        let size = key.len() + value.len();
        let fits = size <= left;
        left = left.saturating_sub(size);
        fits
    };
    fields.into_iter().take_while(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_beyond_a_line_are_left_out() {
        let field = |size: usize| ("k".to_owned(), "v".repeat(size - 1));
        assert_eq!(bounded(vec![field(10)]).len(), 1);
        assert_eq!(bounded(vec![field(LOG_LINE_BYTES_MAX + 1)]).len(), 0);
        let many = (0..1_000).map(|n| (n.to_string(), "v".repeat(1_000))).collect();
        assert_eq!(bounded(many).len(), 8);
    }
}
