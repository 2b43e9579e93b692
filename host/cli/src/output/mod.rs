//! The output, and its forms.

mod compact;
pub mod escape;
pub mod human;
mod loads;
mod printer;
mod run_details;
mod run_table;
mod snapshot_details;
mod table;

use serde::Serialize;
use taskrun_journal::run::{Run, RunView};

pub use compact::compact;
pub use escape::excerpt_block;
pub use loads::load_text;
pub use printer::{Printer, paint};
pub use run_details::run_details;
pub use run_table::{GOES_ON, progress_text, run_table, run_tree, status_text};
pub use snapshot_details::snapshot_details;
pub use table::{pairs, side_by_side, table};

/// Version of the JSON that this program prints; fields are added without changing it.
pub const JSON_VERSION: u32 = 1;

/// An object of the JSON output: the version first, then its fields.
#[derive(Debug, Serialize)]
pub struct JsonObject<T> {
    v: u32,
    #[serde(flatten)]
    body: T,
}

/// A list in the JSON output.
#[derive(Debug, Serialize)]
pub struct RunList<T> {
    /// The runs of the page.
    pub runs: Vec<T>,
    /// Where the next page begins; null at the end.
    pub next_cursor: Option<String>,
}

/// Puts the version before an object.
pub fn versioned<T>(body: T) -> JsonObject<T> {
    JsonObject { v: JSON_VERSION, body }
}

/// A run as the JSON output shows it.
#[must_use]
pub fn run_object(run: &Run) -> JsonObject<RunView> {
    versioned(RunView::from(run))
}
