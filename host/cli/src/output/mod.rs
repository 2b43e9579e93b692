//! The output, and its forms.

mod compact;
pub(crate) mod escape;
pub(crate) mod human;
mod loads;
mod printer;
mod run_details;
mod run_table;
mod snapshot_details;
pub(crate) mod stream;
mod table;

use serde::Serialize;
use taskrun_journal::run::{Run, RunView};

pub(crate) use compact::compact;
pub(crate) use escape::excerpt_block;
pub(crate) use loads::load_text;
pub(crate) use printer::{Printer, paint, reader_is_gone};
pub use run_details::{Surroundings, UsageBeneath, run_details};
pub use run_table::{Beats, run_table, run_tree};
pub(crate) use run_table::{GOES_ON, PlacedRuns, progress_text, status_text, without_answer};
pub(crate) use snapshot_details::snapshot_details;
pub(crate) use table::{pairs, side_by_side, table, table_with_free};

/// Version of the JSON that this program prints; fields are added without changing it.
pub(crate) const JSON_VERSION: u32 = 1;

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
