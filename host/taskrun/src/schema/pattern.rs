//! Patterns of strings, which are looked for in linear time.

use regex::{Regex, RegexBuilder};

/// Longest pattern. The longest in use, for addresses of mail, have some four hundred bytes.
pub(super) const PATTERN_BYTES_MAX: usize = 1_000;
/// Largest automata, in bytes, and the steps that a byte of a string costs there.
///
/// Looking for a pattern takes, at worst, time in proportion to the string times the automaton,
/// which has a state in some 32 bytes; nearly always it is a look-up for each byte. The largest is
/// that of up to a thousand characters of whatever kind.
const SIZES: [(u32, u64); 5] =
    [(4 << 10, 1), (16 << 10, 4), (64 << 10, 16), (256 << 10, 64), (1 << 20, 256)];
/// Most bytes of tables that are made while a pattern is looked for.
const TABLE_BYTES_MAX: usize = 256 << 10;

/// A pattern as JSON schemas have it, without look-around and references to what was matched.
#[derive(Debug)]
pub(super) struct Pattern {
    /// As it is written.
    pub(super) source: String,
    regex: Regex,
    steps_per_byte: u64,
    /// Bytes that its automaton may have.
    pub(super) bytes: u32,
}

impl Pattern {
    /// # Errors
    /// Why it cannot be used.
    pub(super) fn new(source: &str) -> Result<Self, String> {
        if source.len() > PATTERN_BYTES_MAX {
            return Err(format!("a pattern has at most {PATTERN_BYTES_MAX} bytes"));
        }
        let translated = jsonschema_regex::to_rust_regex(source)
            .map_err(|()| format!("{source:?} is no pattern that can be used here"))?;
        let mut refused = None;
        for (bytes, steps_per_byte) in SIZES {
            let mut builder = RegexBuilder::new(&translated);
            match builder.size_limit(bytes as usize).dfa_size_limit(TABLE_BYTES_MAX).build() {
                Ok(regex) => {
                    return Ok(Self { source: source.to_owned(), regex, steps_per_byte, bytes });
                }
                Err(regex::Error::CompiledTooBig(_)) => {
                    refused = Some(format!("the pattern {source:?} is too large"));
                }
                Err(error) => {
                    let error = error.to_string();
                    // The last line says what is wrong, those before it draw where.
                    let why = error.lines().last().unwrap_or_default();
                    return Err(format!("the pattern {source:?} cannot be used: {why}"));
                }
            }
        }
        Err(refused.unwrap_or_default())
    }

    /// The steps that it takes to look for it.
    pub(super) fn steps(&self, text: &str) -> u64 {
        1 + (text.len() as u64).saturating_mul(self.steps_per_byte)
    }

    pub(super) fn is_in(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }
}
