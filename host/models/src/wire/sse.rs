//! Server-sent events, as <https://html.spec.whatwg.org/multipage/server-sent-events.html> has
//! them, as far as providers use them: the name and the data of each event.

use std::collections::VecDeque;

/// An event.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Event {
    /// The kind of event, where its server says one.
    pub(crate) name: String,
    pub(crate) data: String,
}

/// Puts events together from pieces of a body, however those are cut.
///
/// It keeps at most what of an event has arrived; the bound on the whole answer bounds that too.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// The line that is under way, as bytes: a piece may end within a character.
    line: Vec<u8>,
    /// The event that is under way.
    event: Event,
    has_data: bool,
    /// True if the last byte was a carriage return: a line feed after it ends no other line.
    after_return: bool,
    begun: bool,
    ready: VecDeque<Event>,
}

impl Events {
    /// Takes a piece of the body.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        if std::mem::take(&mut self.after_return) && rest.first() == Some(&b'\n') {
            rest = &rest[1..];
        }
        while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            self.line.extend_from_slice(&rest[..end]);
            let line = std::mem::take(&mut self.line);
            self.line(&line);
            let is_return = rest[end] == b'\r';
            rest = &rest[end + 1..];
            if is_return {
                match rest.first() {
                    Some(b'\n') => rest = &rest[1..],
                    Some(_) => {}
                    None => self.after_return = true,
                }
            }
        }
        self.line.extend_from_slice(rest);
    }

    /// The next whole event.
    pub(crate) fn next(&mut self) -> Option<Event> {
        self.ready.pop_front()
    }

    /// True if an event has begun and is not whole.
    pub(crate) fn is_within_event(&self) -> bool {
        self.has_data || !self.line.is_empty()
    }

    fn line(&mut self, line: &[u8]) {
        let line =
            if self.begun { line } else { line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line) };
        self.begun = true;
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            if std::mem::take(&mut self.has_data) {
                self.ready.push_back(event);
            }
            return;
        }
        let (field, value) = field_of(line);
        let text = String::from_utf8_lossy(value);
        match field {
            b"event" => self.event.name = text.into_owned(),
            b"data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(&text);
            }
            _ => {}
        }
    }
}

/// The field in a line, and its value. A comment is of a field without a name.
fn field_of(line: &[u8]) -> (&[u8], &[u8]) {
    let end = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
    let (field, rest) = line.split_at(end);
    let value = rest.strip_prefix(b":").unwrap_or(rest);
    (field, value.strip_prefix(b" ").unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = "\u{feff}: hello\ndata: one\n\nevent: x\r\ndata:two\r\ndata: zwö\r\n\r\n\
                        data\n\nid: 1\n\ndata: [DONE]\r\rdata: cut";

    fn events(pieces: impl Iterator<Item = Vec<u8>>) -> (Vec<Event>, bool) {
        let mut events = Events::default();
        let mut all = Vec::new();
        for piece in pieces {
            events.push(&piece);
            all.extend(std::iter::from_fn(|| events.next()));
        }
        (all, events.is_within_event())
    }

    #[test]
    fn events_are_the_same_however_the_body_is_cut() {
        let want = [("", "one"), ("x", "two\nzwö"), ("", ""), ("", "[DONE]")];
        for size in 1..=BODY.len() {
            let pieces = BODY.as_bytes().chunks(size).map(<[u8]>::to_vec);
            let (all, is_within) = events(pieces);
            let all: Vec<_> = all.iter().map(|event| (&*event.name, &*event.data)).collect();
            assert_eq!((&all[..], is_within), (&want[..], true), "in pieces of {size}");
        }
    }
}
