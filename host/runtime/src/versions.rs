//! The versions of agents that runs were accepted with, each by its pin.

use std::collections::BTreeMap;

use taskrun_journal::list::{ListFilter, Scope};
use taskrun_journal::pin::{Pins, has_digest};
use taskrun_journal::run::Run;
use taskrun_journal::store::StoreError;

use crate::storage::Storage;

/// The numbers of the runs that scope and filter admit, by the pins that they were accepted with. An
/// entry of a heartbeat, which has none, is not among them. Takes as long as reading all of them.
///
/// # Errors
/// [`StoreError`].
///
/// # Cancel safety
/// Dropping the future gives up the count.
pub async fn runs_by_pin(
    storage: &Storage,
    scope: &Scope,
    filter: &ListFilter,
) -> Result<BTreeMap<String, u64>, StoreError> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    let count = |run: &Run| {
        let pins = Pins::of(&run.spec);
        if has_digest(pins.own()) {
            *counts.entry(pins.own().to_owned()).or_default() += 1;
        }
    };
    storage.each_run(scope, filter, count).await?;
    Ok(counts)
}
