//! Labels, and other keys with values, that are given as arguments.

use taskrun_journal::message::Labels;

use crate::failure::{Failure, Outcome};

/// The labels of a command line, on which each key has one value.
pub(super) fn labels(given: &[(String, String)]) -> Outcome<Labels> {
    pairs("label", given)
}

/// The same of another option, by its name.
pub(super) fn pairs(option: &str, given: &[(String, String)]) -> Outcome<Labels> {
    let mut labels = Labels::new();
    for (key, value) in given {
        if let Some(other) = labels.insert(key.clone(), value.clone())
            && other != *value
        {
            let message = format!("{option} {key} has two values, {other:?} and {value:?}");
            return Err(Failure::usage("invalid", message)
                .hint(format!("a key has one value: give --{option} once for each key")));
        }
    }
    Ok(labels)
}
