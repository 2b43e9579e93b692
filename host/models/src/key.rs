//! Keys of providers, and secrets of webhooks: read from where the policy says, and never shown.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use taskrun_policy::KeySource;

use crate::regular_file::open_regular;

/// Most bytes of a key. Tokens of some providers are signed statements of a few thousand.
const KEY_BYTES_MAX: u64 = 16 << 10;
/// Shortest key that is looked for in texts: a shorter one would be found in words.
const SCRUBBED_BYTES_MIN: usize = 6;

/// A key. It has no `Display`, is not serialised, and its `Debug` says nothing.
#[derive(Clone)]
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The reason that a key cannot be had. Names where it should be, never what is there.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("the key file {path} cannot be read")]
    Read {
        /// The key's file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// Others than its owner can read or write the file.
    #[error("the key file {path} can be {what} by others: `chmod 600` it")]
    Open {
        /// The key's file.
        path: PathBuf,
        /// The access that others have.
        what: &'static str,
    },
    /// The environment variable is not set.
    #[error("the environment variable {0} is not set")]
    NoVariable(String),
    /// The content is empty, too long, or has spaces or control characters in it.
    #[error("{0} does not hold a key: one line of visible ASCII is expected")]
    NotAKey(String),
}

impl Secret {
    /// Reads a key.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn read(source: &KeySource) -> Result<Self, KeyError> {
        let text = match source {
            KeySource::File(path) => {
                let unreadable = |source| KeyError::Read { path: path.clone(), source };
                let file = open_regular(OpenOptions::new().read(true), path);
                let file = file.map_err(unreadable)?;
                let meta = file.metadata().map_err(unreadable)?;
                if let Some(what) = open_to_others(meta.uid(), meta.gid(), meta.mode()) {
                    return Err(KeyError::Open { path: path.clone(), what });
                }
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
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Tells if a word and the key have so many bytes in a row in common.
    pub(crate) fn has_in_common(&self, word: &str, bytes: usize) -> bool {
        let parts = self.0.as_bytes().windows(bytes);
        parts.into_iter().any(|part| word.as_bytes().windows(bytes).any(|other| part == other))
    }

    /// A key for tests.
    #[cfg(test)]
    pub(crate) fn for_test(key: &str) -> Self {
        Self(key.into())
    }

    /// `text` without the key, if a provider said it back.
    pub(crate) fn scrub(&self, text: &str) -> String {
        if self.0.len() < SCRUBBED_BYTES_MIN {
            return text.to_owned();
        }
        text.replace(&self.0, "[key]")
    }
}

/// The access of others than the owner to a file of this owner, group and mode, if that is too much
/// for a key. One that root owns may be read by others, as containers mount their secrets so. A
/// group of the same number as the owner is the owner's alone, as most systems make them.
fn open_to_others(owner: u32, group: u32, mode: u32) -> Option<&'static str> {
    let mode = if owner == group { mode & !0o070 } else { mode };
    match mode {
        mode if mode & 0o022 != 0 => Some("written"),
        mode if mode & 0o044 != 0 && owner != 0 => Some("read"),
        _ => None,
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
    fn a_key_is_its_owners_alone() {
        let table = [
            (1_000, 1_000, 0o100_600, None),
            (1_000, 1_000, 0o100_660, None),
            (1_000, 100, 0o100_640, Some("read")),
            (1_000, 1_000, 0o100_644, Some("read")),
            (1_000, 1_000, 0o100_602, Some("written")),
            (1_000, 100, 0o100_620, Some("written")),
            (0, 0, 0o100_444, None),
            (0, 0, 0o100_646, Some("written")),
            // What a shell gives in the place of a file.
            (1_000, 1_000, 0o010_600, None),
        ];
        for (owner, group, mode, what) in table {
            assert_eq!(open_to_others(owner, group, mode), what, "{owner} {group} {mode:o}");
        }
    }

    #[test]
    fn a_key_file_that_others_can_write_is_not_read() {
        use std::os::unix::fs::PermissionsExt;
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "sk-abcdef").expect("written");
        let open = std::fs::Permissions::from_mode(0o666);
        std::fs::set_permissions(file.path(), open).expect("its mode");
        let error = Secret::read(&KeySource::File(file.path().to_owned())).expect_err("refused");
        let text = error.to_string();
        assert!(text.contains("written by others") && !text.contains("abcdef"), "{text}");
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
