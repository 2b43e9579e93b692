//! Mistakes in a policy file, each with its place and a remedy.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::location::{Location, Source};

/// Characters of a name or value shown in a message; the rest is cut. An error stays readable
/// whatever is in the file.
const SHOWN_CHARS_MAX: usize = 80;

/// One problem of a policy file: what is wrong, where, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{location}: {kind}")]
pub struct PolicyError {
    /// The mistake. Its `Display` is the message without the place.
    pub kind: PolicyErrorKind,
    /// Where `span` begins.
    pub location: Location,
    /// Bytes of the source text that the message is about; empty at the end of the file.
    pub span: Range<usize>,
    /// The remedy, as a sentence fragment.
    pub help: String,
}

/// A mistake.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyErrorKind {
    /// The file is not TOML.
    #[error("not valid TOML: {0}")]
    Syntax(String),
    /// The file is larger than [`POLICY_BYTES_MAX`](crate::policy::POLICY_BYTES_MAX).
    #[error("the policy has {bytes} bytes, more than {max}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The bound.
        max: usize,
    },
    /// A key that means nothing in its table.
    #[error("unknown key `{key}` in {table}")]
    UnknownKey {
        /// The key.
        key: String,
        /// Its table, such as `[agent.researcher]`.
        table: String,
    },
    /// A key that must be there is not.
    #[error("`{key}` is missing in {table}")]
    MissingKey {
        /// The key.
        key: &'static str,
        /// Its table.
        table: String,
    },
    /// A value of another TOML type than its key takes.
    #[error("`{key}` must be {expected}, not {found}")]
    WrongType {
        /// The key, or the table's name.
        key: String,
        /// The type that it takes, with its article.
        expected: &'static str,
        /// The type that stands there, with its article.
        found: &'static str,
    },
    /// The name of an agent, a tool or a model is not of the form `[a-z][a-z0-9_-]{0,63}`.
    #[error("`{name}` is not a name for {what}")]
    BadName {
        /// The thing that the name is for, with its article.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A word that names nothing: a capability, a provider, or an undeclared tool or model.
    #[error("unknown {what} `{name}`")]
    Unknown {
        /// The kind of thing that the word should name.
        what: &'static str,
        /// The word.
        name: String,
    },
    /// A value whose text is not of the form that its key takes.
    #[error("bad {what} \"{value}\": {reason}")]
    BadValue {
        /// The thing that the value should be.
        what: &'static str,
        /// The value.
        value: String,
        /// The mistake in it.
        reason: String,
    },
    /// A number, size or duration outside what its key takes.
    #[error("`{key}` is {value}, which is out of range")]
    OutOfRange {
        /// The key.
        key: String,
        /// The value as written.
        value: String,
    },
    /// A rule or a tool that says nothing which an earlier one has not said.
    #[error("\"{text}\" repeats \"{first_text}\" ({first})")]
    Duplicate {
        /// As written.
        text: String,
        /// The earlier one, as written.
        first_text: String,
        /// Where the earlier one stands.
        first: Location,
    },
    /// A rule that decides nothing because a deny rule covers all of it.
    #[error("\"{text}\" can never decide anything: deny \"{deny_text}\" ({deny}) covers it")]
    NeverMatches {
        /// As written.
        text: String,
        /// The deny rule, as written.
        deny_text: String,
        /// Where the deny rule stands.
        deny: Location,
    },
    /// A deny rule that cuts a piece out of nothing: no rule allows anything of its capability.
    #[error("\"{text}\" takes a part of `{capability}` away, of which nothing is allowed")]
    DenyWithoutAllow {
        /// As written.
        text: String,
        /// The capability's word.
        capability: &'static str,
    },
    /// A file or folder that the policy names cannot be used.
    #[error("{what} {} {reason}", path.display())]
    BadFile {
        /// The use of the file.
        what: &'static str,
        /// The path, resolved.
        path: PathBuf,
        /// The mistake in it.
        reason: String,
    },
}

/// Every problem of one policy file, in the order of the text, with the text itself so that
/// they can be shown in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyErrors {
    /// The policy file, as it was named when it was loaded.
    pub path: Arc<Path>,
    /// Its text; the spans of the errors count its bytes.
    pub source_text: Arc<str>,
    /// At least one.
    pub errors: Vec<PolicyError>,
}

/// Prints each problem and its help, one line for each.
impl fmt::Display for PolicyErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            let line_break = if index == 0 { "" } else { "\n" };
            write!(f, "{line_break}{error}\n  help: {}", error.help)?;
        }
        Ok(())
    }
}

impl std::error::Error for PolicyErrors {}

/// The problems found so far while one file is read.
#[derive(Debug)]
pub(super) struct Problems<'s> {
    pub(super) source: &'s Source,
    errors: RefCell<Vec<PolicyError>>,
}

impl<'s> Problems<'s> {
    pub(super) fn new(source: &'s Source) -> Self {
        Self { source, errors: RefCell::default() }
    }

    pub(super) fn add(&self, span: Range<usize>, kind: PolicyErrorKind, help: impl Into<String>) {
        let location = self.source.locate(span.start);
        self.errors.borrow_mut().push(PolicyError { kind, location, span, help: help.into() });
    }

    /// The number of problems so far.
    pub(super) fn count(&self) -> usize {
        self.errors.borrow().len()
    }

    /// All of them, as the result of reading the file.
    ///
    /// # Errors
    ///
    /// [`PolicyErrors`] if there is any.
    pub(super) fn into_result(self) -> Result<(), PolicyErrors> {
        if self.errors.borrow().is_empty() { Ok(()) } else { Err(self.into_errors()) }
    }

    /// All of them, in the order of the text.
    pub(super) fn into_errors(self) -> PolicyErrors {
        let mut errors = self.errors.into_inner();
        errors.sort_by_key(|error| (error.span.start, error.span.end));
        PolicyErrors {
            path: Arc::clone(&self.source.file),
            source_text: Arc::clone(&self.source.text),
            errors,
        }
    }
}

/// `text` made fit for a message: control characters escaped, cut after a line's length.
pub(super) fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len().min(SHOWN_CHARS_MAX));
    for (index, character) in text.chars().enumerate() {
        if index == SHOWN_CHARS_MAX {
            shown.push('…');
            break;
        }
        if is_hostile(character) {
            shown.extend(character.escape_unicode());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Tells if a character can change how the text around it is displayed: a control character, or
/// one of Unicode's invisible marks for direction and joining.
pub(super) fn is_hostile(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// `did you mean X? ` if a word of `known` is near, then all of them.
pub(super) fn suggest<'k>(
    name: &str,
    what: &str,
    known: impl IntoIterator<Item = &'k str>,
) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    if known.is_empty() {
        return format!("the policy declares no {what}");
    }
    let question = match nearest(name, &known) {
        Some(near) => format!("did you mean `{near}`? "),
        None => String::new(),
    };
    format!("{question}known: `{}`", known.join("`, `"))
}

/// The known word that `name` is most likely a misspelling of. `None` if more than a third of
/// it would have to change.
pub(super) fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    // Distances are quadratic in the length, and no known word is longer than this.
    let name: String = name.chars().take(64).collect();
    let changes_max = (name.chars().count() / 3).max(1);
    known
        .iter()
        .map(|word| (strsim::damerau_levenshtein(&name.to_lowercase(), word), *word))
        .filter(|(changes, _)| *changes <= changes_max)
        .min_by_key(|(changes, _)| *changes)
        .map(|(_, word)| word)
}
