//! Texts that are given as an argument, from stdin or from a file.

use std::error::Error;
use std::io::{self, Read};

use crate::failure::{Failure, Outcome};
use crate::output::stream::BlockingStream;

/// The text that `argument` stands for: itself, stdin for `-`, a file for `@FILE`. At most
/// `bytes_max`.
///
/// # Errors
/// If it cannot be read, is longer, or is not UTF-8.
pub(super) fn text(argument: &str, what: &str, bytes_max: usize) -> Outcome<String> {
    let (place, bytes) = match argument.strip_prefix('@') {
        _ if argument == "-" => ("stdin", beginning(BlockingStream(io::stdin()), bytes_max)),
        Some(path) => {
            let opened = std::fs::File::open(path);
            (path, opened.and_then(|file| beginning(file, bytes_max)))
        }
        None => (argument, Ok(argument.as_bytes().to_owned())),
    };
    let failed = |error: &(dyn Error + 'static)| {
        Failure::usage("unreadable", format!("cannot read the {what} from {place}"))
            .because(error)
            .hint("give it as an argument, `-` for stdin, or `@FILE`")
    };
    let bytes = bytes.map_err(|error| failed(&error))?;
    // Where it is cut may be within a character.
    if bytes.len() > bytes_max {
        return Err(Failure::usage(
            "too-long",
            format!("the {what} has more than {bytes_max} bytes"),
        )
        .hint("put large inputs into files of the workspace and name them"));
    }
    String::from_utf8(bytes).map_err(|error| failed(&error))
}

/// All that there is to read, or one byte more than the most.
fn beginning(input: impl Read, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
