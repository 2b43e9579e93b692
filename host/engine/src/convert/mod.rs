//! Between the values of `wit/` and those of the ports: the same shapes under the same names.

pub(crate) mod controller;
pub(crate) mod finalizer;
#[cfg(test)]
mod fuzz;
pub(crate) mod input;
pub(crate) mod message;
pub(crate) mod model;
pub(crate) mod planner;
pub(crate) mod policy;
pub(crate) mod tool;

use std::collections::BTreeMap;

use taskrun_journal::message::Labels;

/// Labels as WIT lists them, sorted by key.
pub(crate) fn labels_to_guest(labels: &BTreeMap<String, String>) -> Vec<(String, String)> {
    labels.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Of duplicate keys the last one counts.
pub(crate) fn labels_from_guest(labels: Vec<(String, String)>) -> Labels {
    labels.into_iter().collect()
}
