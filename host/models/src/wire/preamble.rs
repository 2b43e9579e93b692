//! Blank lines and comments before an answer: servers send them to keep a connection open while the
//! model is at work, OpenRouter among them (<https://openrouter.ai/docs/api/reference/streaming>).

/// Finds the beginning of an answer, however its body is cut.
#[derive(Debug, Default)]
pub(crate) struct Preamble {
    /// True if a comment has begun and its line has not ended.
    is_comment: bool,
}

impl Preamble {
    /// The beginning of the answer in the next piece of the body; `None` if it is in a later one.
    pub(crate) fn strip<'b>(&mut self, bytes: &'b [u8]) -> Option<&'b [u8]> {
        let place = bytes.iter().position(|byte| self.ends_at(*byte))?;
        Some(&bytes[place..])
    }

    fn ends_at(&mut self, byte: u8) -> bool {
        match byte {
            b'\n' | b'\r' => self.is_comment = false,
            _ if self.is_comment => {}
            b':' => self.is_comment = true,
            b' ' | b'\t' => {}
            _ => return true,
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_begins_at_the_same_place_however_the_body_is_cut() {
        let body = b"\n  \r\n: {\"busy\": true}\r:\n\t{\"a\": 1}";
        for size in 1..=body.len() {
            let mut preamble = Preamble::default();
            let mut pieces = body.chunks(size);
            let first = pieces.find_map(|piece| preamble.strip(piece));
            let first = first.expect("it begins");
            let rest: Vec<u8> = first.iter().chain(pieces.flatten()).copied().collect();
            assert_eq!(rest, b"{\"a\": 1}", "in pieces of {size}");
        }
        assert_eq!(Preamble::default().strip(b"\n: busy, {"), None);
    }
}
