//! The input of finalizers, and the metadata that they add.

use std::collections::BTreeMap;

use taskrun::ports::planner as host;
use taskrun_journal::ending::EndStatus;
use taskrun_journal::message::Labels;
use taskrun_journal::plan::PlannerError;
use taskrun_journal::spec::{KEY_BYTES_MAX, KEYS_MAX};
use taskrun_journal::stop::CallAbort;

use super::labels_to_guest;
use crate::bindings::finalizer::exports::taskrun::plugin::finalizer as guest;

/// Input of a finalizer.
pub(crate) fn finalize_input(input: &host::FinalizeInput) -> guest::FinalizeInput {
    guest::FinalizeInput {
        run: (&input.run).into(),
        status: match input.ending.status {
            EndStatus::Completed => guest::EndStatus::Completed,
            EndStatus::Failed => guest::EndStatus::Failed,
            EndStatus::Canceled => guest::EndStatus::Canceled,
        },
        stop_reason: input.ending.stop_reason.to_string(),
        error: input.ending.told().map(str::to_owned),
        result: input.result.clone(),
        metadata: labels_to_guest(&input.metadata),
    }
}

impl From<guest::FinalizerError> for PlannerError {
    fn from(error: guest::FinalizerError) -> Self {
        let guest::FinalizerError { code, message, causes } = error;
        Self { code, message, causes, retry_after_ms: None }
    }
}

/// The metadata that a finalizer names, within the bounds of metadata given at the start.
///
/// # Errors
/// [`CallAbort::Limit`] where it is more.
pub(crate) fn metadata(labels: Vec<(String, String)>) -> Result<Labels, CallAbort> {
    let limit =
        |what: &str, limit: usize| CallAbort::Limit { what: what.to_owned(), limit: limit as u64 };
    let mut metadata = BTreeMap::new();
    for (key, value) in labels {
        let (key, value) = (key.trim(), value.trim());
        if key.is_empty() {
            continue;
        }
        if key.len().max(value.len()) > KEY_BYTES_MAX {
            return Err(limit("bytes of a metadata key or value", KEY_BYTES_MAX));
        }
        metadata.insert(key.to_owned(), value.to_owned());
        if metadata.len() > KEYS_MAX {
            return Err(limit("metadata keys", KEYS_MAX));
        }
    }
    Ok(metadata)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(labels: &[(&str, &str)]) -> Result<Labels, CallAbort> {
        metadata(labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
    }

    #[test]
    fn keys_and_values_are_trimmed_blank_keys_dropped_and_the_last_one_counts() {
        let kept = of(&[(" a ", " 1\n"), ("\t", "lost"), ("", "lost"), ("b", ""), ("a", "2")]);
        let expected = [("a", "2"), ("b", "")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(kept, Ok(Labels::from(expected)));
    }

    #[test]
    fn the_bounds_themselves_are_allowed_and_no_more() {
        let names: Vec<String> = (0..=KEYS_MAX).map(|n| n.to_string()).collect();
        let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
        assert_eq!(of(&many[1..]).expect("as many as allowed").len(), KEYS_MAX);
        let failure = CallAbort::Limit { what: "metadata keys".to_owned(), limit: 64 };
        assert_eq!(of(&many), Err(failure));
        let long = "x".repeat(KEY_BYTES_MAX + 1);
        assert!(of(&[("a", &long[1..]), (&long[1..], "")]).is_ok());
        for label in [("a", long.as_str()), (long.as_str(), "")] {
            assert!(matches!(of(&[label]), Err(CallAbort::Limit { limit: 4_096, .. })));
        }
        let padded = format!("{}a", " ".repeat(KEY_BYTES_MAX));
        assert!(of(&[(&padded, &padded)]).is_ok());
    }
}
