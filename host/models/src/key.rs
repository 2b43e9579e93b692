//! Keys of providers: read once, from where the policy says, and never shown.

use std::fmt;
use std::io::Read;
use std::path::PathBuf;

use taskrun::policy::KeySource;

/// Most bytes of a key. Tokens of some providers are signed statements of a few thousand.
const KEY_BYTES_MAX: u64 = 16 << 10;
/// Shortest key that is looked for in texts: a shorter one would be found in words.
const SCRUBBED_BYTES_MIN: usize = 6;

/// A key. It has no `Display`, is not serialised, and its `Debug` says nothing.
#[derive(Clone)]
pub(crate) struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Why a key cannot be had. Names where it should be, never what is there.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("the key file {path} cannot be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The environment variable is not set.
    #[error("the environment variable {0} is not set")]
    NoVariable(String),
    /// What is there is empty, too long, or has spaces or control characters in it.
    #[error("{0} does not hold a key: one line of visible ASCII is expected")]
    NotAKey(String),
}

impl Secret {
    /// Reads a key.
    ///
    /// # Errors
    /// [`KeyError`].
    pub(crate) fn read(source: &KeySource) -> Result<Self, KeyError> {
        let text = match source {
            KeySource::File(path) => {
                let unreadable = |source| KeyError::Read { path: path.clone(), source };
                let file = std::fs::File::open(path).map_err(unreadable)?;
                let mut text = String::new();
                file.take(KEY_BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
                text
            }
            KeySource::Env(name) => variable(name)?,
        };
        let key = text.trim_ascii();
        let good = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
        if !good || key.len() as u64 > KEY_BYTES_MAX {
            return Err(KeyError::NotAKey(source.to_string()));
        }
        Ok(Self(key.to_owned()))
    }

    /// The key, for the header that it is sent in.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// `text` without the key, if a provider said it back.
    pub(crate) fn scrub(&self, text: &str) -> String {
        if self.0.len() < SCRUBBED_BYTES_MIN {
            return text.to_owned();
        }
        text.replace(&self.0, "[key]")
    }
}

#[expect(clippy::disallowed_methods, reason = "the policy names this variable")]
fn variable(name: &str) -> Result<String, KeyError> {
    std::env::var(name).map_err(|error| match error {
        std::env::VarError::NotPresent => KeyError::NoVariable(name.to_owned()),
        std::env::VarError::NotUnicode(_) => KeyError::NotAKey(format!("${name}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Secret, KeyError> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        Secret::read(&KeySource::File(file.path().to_owned()))
    }

    #[test]
    fn a_key_is_the_line_of_its_file_and_is_not_shown() {
        let key = read("sk-abcdef\n").expect("a key");
        assert_eq!(key.reveal(), "sk-abcdef");
        assert!(!format!("{key:?}").contains("abc"));
        assert_eq!(key.scrub("bad key sk-abcdef!"), "bad key [key]!");
    }

    #[test]
    fn what_is_no_key_is_refused_without_being_repeated() {
        for text in ["", "  \n", "two words", "a\nb", "ä"] {
            let error = read(text).expect_err("no key").to_string();
            assert!(error.contains("does not hold a key"), "{error}");
            assert!(!error.contains("words"), "{error}");
        }
        let missing = Secret::read(&KeySource::Env("TASKRUN_TEST_NO_SUCH_KEY".into()));
        let error = missing.expect_err("not set").to_string();
        assert_eq!(error, "the environment variable TASKRUN_TEST_NO_SUCH_KEY is not set");
    }
}
