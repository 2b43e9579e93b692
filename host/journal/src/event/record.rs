//! An event in its place.

use serde::{Deserialize, Serialize};

use super::Event;
use crate::ids::Seq;
use crate::time::Timestamp;

/// An event in its place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventRecord {
    /// Its position.
    pub seq: Seq,
    /// Tells a repeated append from another one at the same place.
    pub id: u64,
    /// The time at which it was recorded.
    pub at: Timestamp,
    /// The event itself.
    pub event: Event,
}
