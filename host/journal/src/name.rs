//! Names that people give to runs.

/// Most bytes of a run's name. It stands in a column of a table and is typed by hand.
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// Text that is no name of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a name has 1 to {NAME_BYTES_MAX} ASCII letters, digits, '-' or '_', and begins with a letter"
)]
pub struct InvalidName;

/// Checks the name that somebody gives to a run.
///
/// It begins with a letter, so that it is never the beginning of an id made by a host: those begin
/// with the time, and so with a digit (until the year 7544), as they are UUIDv7. It has no `.` and
/// no `/`, as it stands in paths and in names that are made of several.
///
/// # Errors
/// [`InvalidName`] if the text is of another form; nothing is trimmed.
pub fn check_name(text: &str) -> Result<(), InvalidName> {
    let first_fits = text.bytes().next().is_some_and(|b| b.is_ascii_alphabetic());
    let all_fit = text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    if first_fits && all_fit && text.len() <= NAME_BYTES_MAX { Ok(()) } else { Err(InvalidName) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RunId;

    #[test]
    fn a_name_is_a_letter_and_up_to_63_letters_digits_and_dashes() {
        let longest = "x".repeat(NAME_BYTES_MAX);
        for good in ["a", "Z", "nightly-report_2", longest.as_str()] {
            assert_eq!(check_name(good), Ok(()), "{good:?}");
        }
        let longer = "x".repeat(NAME_BYTES_MAX + 1);
        for bad in
            ["", " ", "a b", "a.b", "a/b", "1a", "-a", "_a", "@last", "é", "a\n", longer.as_str()]
        {
            assert_eq!(check_name(bad), Err(InvalidName), "{bad:?}");
        }
    }

    #[test]
    fn no_name_is_the_beginning_of_an_id_that_a_host_makes() {
        // The second is the last one whose id begins with a digit and not with a letter.
        for ms in [1_800_000_000_000, (0xa << 44) - 1] {
            let id = RunId::generate(ms, &[0xff; 10]);
            assert_eq!(check_name(&id.as_str()[..1]), Err(InvalidName), "{id}");
        }
    }
}
