//! Labels that are given as arguments.

use taskrun_journal::message::Labels;

use crate::failure::{Failure, Outcome};

/// The labels of a command line, on which each key has one value.
pub(super) fn labels(given: &[(String, String)]) -> Outcome<Labels> {
    let mut labels = Labels::new();
    for (key, value) in given {
        if let Some(other) = labels.insert(key.clone(), value.clone())
            && other != *value
        {
            let message = format!("label {key} has two values, {other:?} and {value:?}");
            return Err(Failure::usage("invalid", message)
                .hint("a key has one value: give --label once for each key"));
        }
    }
    Ok(labels)
}
