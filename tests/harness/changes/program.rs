//! The program that goes on with the runs.

use std::sync::Arc;

use taskrun_journal::format::JournalFormat;
use taskrun_policy::Defaults;

/// The program that goes on with runs, beside the one that accepted them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramForm {
    /// The same.
    Same,
    /// One that writes journals in a later format.
    Later,
    /// That one, with other defaults.
    LaterWithOtherDefaults,
}

impl ProgramForm {
    /// The format in which it writes journals.
    #[must_use]
    pub fn format(self) -> JournalFormat {
        match self {
            Self::Same => JournalFormat::CURRENT,
            Self::Later | Self::LaterWithOtherDefaults => {
                JournalFormat(JournalFormat::CURRENT.0 + 1)
            }
        }
    }

    /// Its defaults.
    #[must_use]
    pub fn defaults(self) -> Arc<Defaults> {
        match self {
            Self::Same | Self::Later => Arc::default(),
            Self::LaterWithOtherDefaults => Arc::new(other_defaults()),
        }
    }
}

/// Defaults some of which give more and some less. A run that was cut off would fail under them, and so
/// would one that is to try a step again.
fn other_defaults() -> Defaults {
    let defaults = Defaults::default();
    Defaults {
        turns: defaults.turns + 1,
        tool_calls: defaults.tool_calls - 1,
        step_ms: 2 * defaults.step_ms,
        wall_ms: defaults.wall_ms / 2,
        ask_timeout_ms: defaults.ask_timeout_ms / 2,
        workspace_files: 2 * defaults.workspace_files,
        attempts: 1,
        durable: false,
        ..defaults
    }
}
