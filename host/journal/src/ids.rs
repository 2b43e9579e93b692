//! Names of things: runs and hosts.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Most bytes of a caller-given run id. Ids stand in file names, URLs and table columns.
pub const RUN_ID_BYTES_MAX: usize = 128;

/// Names a run: a UUIDv7 in its usual text form, or what the caller gave.
///
/// Caller-given ids are 1 to [`RUN_ID_BYTES_MAX`] bytes of ASCII letters, digits, `-`, `_`, `.`
/// and `:`, and do not begin with `-`, `.` or `@`, so that an id can never be taken for an
/// option, a path or a shorthand.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RunId(Arc<str>);

/// Text that is no run id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "run id must be 1 to {RUN_ID_BYTES_MAX} ASCII letters, digits, '-', '_', '.' or ':', and begin with a letter or digit"
)]
pub struct InvalidRunId;

/// The tenant of those who name none.
pub const TENANT_DEFAULT: &str = "default";

/// Checks that an id which a caller chose is one of its tenant: in any but [`TENANT_DEFAULT`] it
/// begins with the name of the tenant and `:`, in that it has no `:`, and nowhere is it of the form
/// of those which hosts make. So no two tenants can choose the same id, and a refusal tells none
/// of them what another one has.
///
/// # Errors
/// The fault, in words.
pub fn check_own_id(id: &RunId, tenant: &str) -> Result<(), String> {
    if uuid::Uuid::try_parse(id.as_str()).is_ok() {
        return Err("ids of this form are made by hosts".to_owned());
    }
    if tenant == TENANT_DEFAULT {
        let fits = !id.as_str().contains(':');
        return fits.then_some(()).ok_or_else(|| "an id has a ':' after a tenant only".to_owned());
    }
    let own = id.as_str().strip_prefix(tenant).and_then(|rest| rest.strip_prefix(':'));
    let fits = !tenant.contains(':') && own.is_some_and(|own| !own.is_empty());
    fits.then_some(()).ok_or_else(|| format!("in this tenant an id begins with \"{tenant}:\""))
}

impl RunId {
    /// Checks a caller-given id.
    ///
    /// # Errors
    /// [`InvalidRunId`] if the text is not of the form above.
    pub fn new(text: &str) -> Result<Self, InvalidRunId> {
        let first_fits = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
        let all_fit = text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':'));
        if first_fits && all_fit && text.len() <= RUN_ID_BYTES_MAX {
            Ok(Self(text.into()))
        } else {
            Err(InvalidRunId)
        }
    }

    /// The id a host makes: UUIDv7 (RFC 9562) from a time in milliseconds and ten random bytes.
    #[must_use]
    pub fn generate(unix_ms: u64, random: &[u8; 10]) -> Self {
        let uuid = uuid::Builder::from_unix_timestamp_millis(unix_ms, random).into_uuid();
        Self(uuid.hyphenated().to_string().into())
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunId({})", self.0)
    }
}

impl TryFrom<String> for RunId {
    type Error = InvalidRunId;

    fn try_from(text: String) -> Result<Self, InvalidRunId> {
        Self::new(&text)
    }
}

impl From<RunId> for String {
    fn from(id: RunId) -> Self {
        id.0.as_ref().to_owned()
    }
}

/// Names one host process for its life time; a restarted process has another.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HostId(Arc<str>);

impl HostId {
    /// Takes the text as it is: only hosts make and compare these.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostId({})", self.0)
    }
}

/// Position in a run's journal, from 1, without gaps.
pub type Seq = u64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_ids_sort_by_time_and_are_valid() {
        let early = RunId::generate(1_700_000_000_000, &[0xff; 10]);
        let late = RunId::generate(1_700_000_000_001, &[0; 10]);
        assert!(early < late);
        assert_eq!(RunId::new(early.as_str()), Ok(early));
    }

    #[test]
    fn ids_that_could_be_mistaken_for_something_else_are_refused() {
        for text in ["", "-d", ".", "../x", "@last", "a b", "a/b", "ä", &"x".repeat(129)] {
            assert_eq!(RunId::new(text), Err(InvalidRunId), "{text:?}");
        }
        assert!(RunId::new("run-1.a:b_C").is_ok());
    }
}
