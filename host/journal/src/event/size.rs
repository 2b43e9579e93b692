//! The room that events take.

use std::io;

use super::Event;

/// Counts bytes and keeps none.
struct Counter(u64);

impl io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Event {
    /// The bytes of its JSON, which is what a journal keeps of it.
    #[must_use]
    pub fn journal_bytes(&self) -> u64 {
        let mut counter = Counter(0);
        serde_json::to_writer(&mut counter, self).expect("events are plain data");
        counter.0
    }
}
