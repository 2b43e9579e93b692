//! Facts: what tools and the host remember for a session or for a whole tenant, and planners read.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::message::Labels;
use crate::time::Timestamp;
/// Most bytes of a fact's key.
pub const FACT_KEY_BYTES_MAX: usize = 256;
/// Most bytes of a fact's text: a page or two. What is longer is a file of the workspace.
pub const FACT_TEXT_BYTES_MAX: usize = 64 << 10;
/// Most labels of a fact.
pub(crate) const FACT_LABELS_MAX: usize = 16;
/// Most bytes of a key or a value of those.
pub(crate) const FACT_LABEL_BYTES_MAX: usize = 256;
/// Most facts of a session, and of a tenant: all of them together have at most 64 MiB.
pub const FACTS_MAX: usize = 1_000;
/// Most bytes of a query; words beyond [`QUERY_WORDS_MAX`] do not count.
pub const QUERY_BYTES_MAX: usize = 4 << 10;
/// Most different words of a query.
pub const QUERY_WORDS_MAX: usize = 16;
/// Most facts that a search gives.
pub const SEARCH_MAX: usize = 100;
/// Most bytes of facts that one answer gives; further ones are left out.
pub const FACTS_ANSWER_BYTES_MAX: usize = 1 << 20;
/// Most changes of one call: each is an event of its run.
pub const FACT_CHANGES_MAX: u32 = 1_000;
/// Most bytes of a word that is searched for; a longer one is cut, in facts and in queries alike.
const WORD_BYTES_MAX: usize = 64;

/// Something remembered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    /// Its name: among the facts of its place there is one of each. Not empty, without control
    /// characters, at most [`FACT_KEY_BYTES_MAX`] bytes.
    pub key: String,
    /// The text that is remembered, at most [`FACT_TEXT_BYTES_MAX`] bytes.
    pub text: String,
    /// Keys and values to tell it from others by.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// When it was written.
    pub written_at: Timestamp,
}

/// Which of its two memories somebody means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryScope {
    /// That of the session from which the first run of a tree was asked for, and of its owner:
    /// facts there end with the session.
    Session,
    /// That of the tenant.
    Tenant,
}

/// Facts that are kept together. No search, and no key, reaches beyond.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FactNamespace {
    /// The tenant.
    pub tenant: String,
    /// The session, for facts that are its own; `None` for those of the tenant.
    pub session: Option<OwnerSession>,
}

/// A session as one owner has it: two owners who call theirs by the same name share nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerSession {
    /// Whose.
    pub owner_user_id: String,
    /// Its id.
    pub id: String,
}

/// A fact that cannot be kept: which field, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct InvalidFact {
    /// The field.
    pub field: &'static str,
    /// The fault, in words.
    pub reason: String,
}

/// Why memory did not answer, or a change was not made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case", tag = "error")]
pub enum MemoryError {
    /// The call belongs to nobody who has a memory.
    #[error("there is no memory here")]
    Absent,
    /// Part of the request cannot be accepted.
    #[error("{reason}")]
    Invalid {
        /// Which part.
        field: String,
        /// The fault, in words.
        reason: String,
    },
    /// A bound was met.
    #[error("limit met: {kind} ({cap})")]
    Limit {
        /// Which.
        kind: String,
        /// The bound.
        cap: u64,
    },
    /// No more facts fit there.
    #[error("limit met: facts of the {} ({cap})", scope.as_str())]
    Full {
        /// Where.
        scope: MemoryScope,
        /// The bound.
        cap: u64,
    },
    /// The run is being stopped.
    #[error("the run is being stopped")]
    Canceled,
    /// The store failed.
    #[error("the store failed: {code}")]
    Storage {
        /// The word for programs.
        code: String,
    },
}

impl MemoryScope {
    /// Both, the nearer first.
    pub const ALL: [Self; 2] = [Self::Session, Self::Tenant];

    /// Its word in a policy and on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Tenant => "tenant",
        }
    }
}

fn invalid(field: &'static str, reason: String) -> InvalidFact {
    InvalidFact { field, reason }
}

/// Checks the key of a fact.
///
/// # Errors
/// [`InvalidFact`].
pub fn check_key(key: &str) -> Result<(), InvalidFact> {
    if key.trim().is_empty() {
        return Err(invalid("key", "the key of a fact is empty".to_owned()));
    }
    if key.len() > FACT_KEY_BYTES_MAX {
        let reason = format!("the key of a fact has at most {FACT_KEY_BYTES_MAX} bytes");
        return Err(invalid("key", reason));
    }
    if key.chars().any(char::is_control) {
        return Err(invalid("key", "the key of a fact has a control character".to_owned()));
    }
    Ok(())
}

impl Fact {
    /// Holds it to its bounds.
    ///
    /// # Errors
    /// [`InvalidFact`].
    pub fn check(&self) -> Result<(), InvalidFact> {
        check_key(&self.key)?;
        if self.text.len() > FACT_TEXT_BYTES_MAX {
            let reason = format!("the text of a fact has at most {FACT_TEXT_BYTES_MAX} bytes");
            return Err(invalid("text", reason));
        }
        if self.labels.len() > FACT_LABELS_MAX {
            let reason = format!("a fact has at most {FACT_LABELS_MAX} labels");
            return Err(invalid("labels", reason));
        }
        let long = |text: &String| text.len() > FACT_LABEL_BYTES_MAX;
        if self.labels.iter().any(|(key, value)| long(key) || long(value)) {
            let reason =
                format!("a label of a fact has at most {FACT_LABEL_BYTES_MAX} bytes in each part");
            return Err(invalid("labels", reason));
        }
        Ok(())
    }

    /// Bytes of everything in it that somebody outside wrote.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let labels: usize = self.labels.iter().map(|(key, value)| key.len() + value.len()).sum();
        self.key.len() + self.text.len() + labels
    }

    /// The words by which it is found: those of key, text and labels.
    #[must_use]
    pub fn words(&self) -> BTreeSet<String> {
        let labels = self.labels.iter().flat_map(|(key, value)| [key, value]);
        [&self.key, &self.text].into_iter().chain(labels).flat_map(|text| words(text)).collect()
    }
}

/// The words of a query, each once, in its order; at most [`QUERY_WORDS_MAX`]. Whatever else is in
/// it means nothing.
#[must_use]
pub fn query_words(query: &str) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut different = Vec::new();
    for word in words(crate::text::cut(query, QUERY_BYTES_MAX)) {
        if different.len() == QUERY_WORDS_MAX {
            break;
        }
        if seen.insert(word.clone()) {
            different.push(word);
        }
    }
    different
}

/// Words of a text: stretches of letters and digits of any script, in lower case.
fn words(text: &str) -> impl Iterator<Item = String> {
    let parts = text.split(|c: char| !c.is_alphanumeric()).filter(|part| !part.is_empty());
    parts.map(|part| {
        // In lower case some letters become two, one of which may be no letter by itself.
        let mut word: String =
            part.chars().flat_map(char::to_lowercase).filter(|c| c.is_alphanumeric()).collect();
        word.truncate(word.floor_char_boundary(WORD_BYTES_MAX));
        word
    })
}

/// The order in which a search gives facts: the more of its words are in a fact the earlier, then
/// the later it was written, then by key.
#[must_use]
pub fn rank(
    hits: usize,
    fact: &Fact,
) -> (std::cmp::Reverse<usize>, std::cmp::Reverse<u64>, String) {
    use std::cmp::Reverse;
    (Reverse(hits), Reverse(fact.written_at.0), fact.key.clone())
}

impl From<InvalidFact> for MemoryError {
    fn from(invalid: InvalidFact) -> Self {
        Self::Invalid { field: invalid.field.to_owned(), reason: invalid.reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(key: &str, text: &str) -> Fact {
        Fact {
            key: key.to_owned(),
            text: text.to_owned(),
            labels: Labels::new(),
            written_at: Timestamp(1),
        }
    }

    #[test]
    fn words_are_letters_and_digits_of_any_script_in_lower_case() {
        let found: Vec<_> =
            fact("Köln-1", "ÄPFEL, \"apples\" OR яблоко* NEAR(2)").words().into_iter().collect();
        assert_eq!(found, ["1", "2", "apples", "köln", "near", "or", "äpfel", "яблоко"]);
        assert_eq!(query_words("a A b\" OR key:a -- ; b"), ["a", "b", "or", "key"]);
        assert_eq!(query_words("\"*^(){}"), Vec::<String>::new());
    }

    #[test]
    fn a_query_counts_up_to_its_bounds() {
        let many = (0..100).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(query_words(&many).len(), QUERY_WORDS_MAX);
        let long = "x".repeat(1 << 20);
        assert_eq!(query_words(&long), ["x".repeat(WORD_BYTES_MAX)]);
        assert_eq!(fact("k", &long).words().last().map(String::len), Some(WORD_BYTES_MAX));
    }

    #[test]
    fn facts_are_held_to_their_bounds() {
        let wrong = |fact: Fact| fact.check().expect_err("refused").field;
        assert_eq!(fact("k", "t").check(), Ok(()));
        for key in ["", "  ", "a\nb", &"k".repeat(FACT_KEY_BYTES_MAX + 1)] {
            assert_eq!(wrong(fact(key, "t")), "key");
        }
        assert_eq!(wrong(fact("k", &"t".repeat(FACT_TEXT_BYTES_MAX + 1))), "text");
        let labels = (0..=FACT_LABELS_MAX).map(|n| (n.to_string(), String::new())).collect();
        assert_eq!(wrong(Fact { labels, ..fact("k", "t") }), "labels");
        let labels = Labels::from([("l".to_owned(), "v".repeat(FACT_LABEL_BYTES_MAX + 1))]);
        assert_eq!(wrong(Fact { labels, ..fact("k", "t") }), "labels");
    }
}
