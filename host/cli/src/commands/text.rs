//! Texts that are given as an argument, from stdin or from a file.

use std::io::Read;

use crate::failure::{Failure, Outcome};

/// The text that `argument` stands for: itself, stdin for `-`, a file for `@FILE`. At most
/// `bytes_max`.
///
/// # Errors
/// If it cannot be read, is not UTF-8, or is longer.
pub(super) fn text(argument: &str, what: &str, bytes_max: usize) -> Outcome<String> {
    let failed = |error: std::io::Error, place: &str| {
        Failure::usage("unreadable", format!("cannot read the {what} from {place}"))
            .because(&error)
            .hint("give it as an argument, `-` for stdin, or `@FILE`")
    };
    let limit = bytes_max as u64 + 1;
    let mut text = String::new();
    match argument.strip_prefix('@') {
        _ if argument == "-" => {
            let read = std::io::stdin().take(limit).read_to_string(&mut text);
            read.map_err(|error| failed(error, "stdin"))?;
        }
        Some(path) => {
            let opened = std::fs::File::open(path);
            let read = opened.and_then(|file| file.take(limit).read_to_string(&mut text));
            read.map_err(|error| failed(error, path))?;
        }
        None => text.push_str(argument),
    }
    if text.len() > bytes_max {
        return Err(Failure::usage(
            "too-long",
            format!("the {what} has more than {bytes_max} bytes"),
        )
        .hint("put large inputs into files of the workspace and name them"));
    }
    Ok(text)
}
