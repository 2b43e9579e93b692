//! Lines of a run's log, which are for reading: a long one is cut, and says so.

use std::borrow::Cow;

use taskrun_journal::text::cut;

/// Most bytes of one log line. A longer one is cut, and ends with the number of bytes that are left
/// out.
pub const LOG_LINE_BYTES_MAX: usize = 8 << 10;

/// The mark of a line that was cut, around the number.
const MARK: (&str, &str) = ("… (", " bytes more)");

/// Bytes by which lines that were cut are shorter than they may be, at most: those of a character,
/// and digits of a number that was cut off less than it might have been.
const LACKING_BYTES_MAX: usize = 8;

/// A line as a log has it, with a character in the place of what is no text. It had so many more
/// bytes, which are left out already. The bytes of the line count, and not those in their place.
#[must_use]
pub fn log_line(line: &[u8], left_out: u64) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(line);
    if left_out == 0 && text.len() <= LOG_LINE_BYTES_MAX {
        return text;
    }
    let all = left_out.saturating_add(line.len() as u64);
    let mark = |bytes: u64| format!("{}{bytes}{}", MARK.0, MARK.1);
    let kept = cut(&text, LOG_LINE_BYTES_MAX - mark(all).len());
    let more = all.saturating_sub(bytes_of(line, kept.len()) as u64);
    Cow::Owned(format!("{kept}{}", mark(more)))
}

/// The number of bytes of a line that so many bytes of its text stand for.
fn bytes_of(line: &[u8], text_bytes: usize) -> usize {
    let (mut bytes, mut left) = (0, text_bytes);
    for chunk in line.utf8_chunks() {
        let valid = chunk.valid().len().min(left);
        bytes += valid;
        left -= valid;
        if left == 0 {
            break;
        }
        bytes += chunk.invalid().len();
        left = left.saturating_sub(char::REPLACEMENT_CHARACTER.len_utf8());
    }
    bytes
}

/// True if a program that cut lines and did not say so may have made this of a line which is marked
/// as cut.
pub(super) fn is_cut_without_mark(recorded: &str, line: &str) -> bool {
    let is_long = |text: &str| text.len() + LACKING_BYTES_MAX > LOG_LINE_BYTES_MAX;
    let kept = line.strip_suffix(MARK.1).and_then(|line| line.rsplit_once(MARK.0));
    is_long(recorded)
        && is_long(line)
        && kept.is_some_and(|(kept, number)| {
            number.bytes().all(|digit| digit.is_ascii_digit()) && recorded.starts_with(kept)
        })
}
