//! Requests of guests themselves to what is outside of their run, and the replies as they are given
//! and as the journal keeps them.

use serde::Serialize;
use taskrun::scope::{CallScope, OutsideReply, OutsideRequest, StopNotice};
use taskrun_journal::event::Reply;
use taskrun_journal::outside::{
    BudgetLeft, FileEntry, FileFault, FileKind, FileListing, HttpAnswer, HttpFault, KeptBytes,
    OutsideAnswer,
};
use taskrun_journal::stop::StopCause;

use crate::bindings::interfaces::http::Response;
use crate::bindings::interfaces::run::Remaining;
use crate::bindings::interfaces::workspace_read::{Entry, EntryKind, FileError, Listing};
use crate::egress;
use crate::failure::Violation;
use crate::files::{self, Refusal};

/// Makes a request of the guest itself, once rules and bounds have allowed it: a plan step that runs
/// again is given what it was given before.
pub(crate) async fn ask_outside<A: Serialize + Send + Sync, R: OutsideReply>(
    scope: &CallScope,
    request: OutsideRequest<A>,
    live: impl Future<Output = R> + Send,
) -> Result<R, Violation> {
    let stopped = |StopNotice| Violation::Stopped(StopCause::Diverged);
    scope.ask_outside(request, live).await.map_err(stopped)
}

/// The rest of a budget.
pub(crate) struct Budget(pub(crate) Remaining);

/// The entries of a folder.
pub(crate) struct Listed(pub(crate) files::Result<Listing>);

/// The entry at a path.
pub(crate) struct Stated(pub(crate) files::Result<Entry>);

/// Part of a file.
pub(crate) struct FileRead(pub(crate) files::Result<Vec<u8>>);

/// A change of a file or a folder.
pub(crate) struct Changed(pub(crate) files::Result<()>);

/// An exchange with a server.
pub(crate) enum Exchanged {
    /// Its answer.
    Answer(Response),
    /// The reason that there is none.
    Refused(egress::Refusal),
    /// The call stops.
    Canceled,
}

/// Bytes of an entry beside its path.
const ENTRY_BYTES: usize = 64;

impl OutsideReply for Budget {
    fn bytes(&self) -> usize {
        ENTRY_BYTES
    }

    fn kept(&self) -> Option<OutsideAnswer> {
        let Remaining { call_time, turns, tool_calls, tokens, tool_failures, cost_microusd } =
            self.0;
        Some(OutsideAnswer::Budget(BudgetLeft {
            call_time_ms: call_time,
            turns,
            tool_calls,
            tokens,
            tool_failures,
            cost_microusd,
        }))
    }

    fn given(answer: OutsideAnswer) -> Option<Self> {
        let OutsideAnswer::Budget(left) = answer else { return None };
        let BudgetLeft { call_time_ms, turns, tool_calls, tokens, tool_failures, cost_microusd } =
            left;
        Some(Self(Remaining {
            call_time: call_time_ms,
            turns,
            tool_calls,
            tokens,
            tool_failures,
            cost_microusd,
        }))
    }
}

impl OutsideReply for Listed {
    fn bytes(&self) -> usize {
        let entries = self.0.iter().flat_map(|listing| &listing.entries);
        entries.map(|entry| entry.path.len() + ENTRY_BYTES).sum()
    }

    fn kept(&self) -> Option<OutsideAnswer> {
        kept(&self.0, |listing| FileListing {
            entries: listing.entries.iter().map(entry_kept).collect(),
            truncated: listing.truncated,
        })
        .map(OutsideAnswer::Listing)
    }

    fn given(answer: OutsideAnswer) -> Option<Self> {
        let OutsideAnswer::Listing(reply) = answer else { return None };
        let listing = |kept: FileListing| Listing {
            entries: kept.entries.into_iter().map(entry_given).collect(),
            truncated: kept.truncated,
        };
        Some(Self(given(reply).map(listing)))
    }
}

impl OutsideReply for Stated {
    fn bytes(&self) -> usize {
        self.0.as_ref().map_or(ENTRY_BYTES, |entry| entry.path.len() + ENTRY_BYTES)
    }

    fn kept(&self) -> Option<OutsideAnswer> {
        kept(&self.0, entry_kept).map(OutsideAnswer::Entry)
    }

    fn given(answer: OutsideAnswer) -> Option<Self> {
        let OutsideAnswer::Entry(reply) = answer else { return None };
        Some(Self(given(reply).map(entry_given)))
    }
}

impl OutsideReply for FileRead {
    fn bytes(&self) -> usize {
        self.0.as_ref().map_or(ENTRY_BYTES, Vec::len)
    }

    fn kept(&self) -> Option<OutsideAnswer> {
        kept(&self.0, |bytes| KeptBytes::from(bytes.clone())).map(OutsideAnswer::File)
    }

    fn given(answer: OutsideAnswer) -> Option<Self> {
        let OutsideAnswer::File(reply) = answer else { return None };
        match given(reply) {
            Ok(kept) => Some(Self(Ok(kept.into_bytes()?))),
            Err(refusal) => Some(Self(Err(refusal))),
        }
    }
}

impl OutsideReply for Changed {
    fn bytes(&self) -> usize {
        ENTRY_BYTES
    }

    fn kept(&self) -> Option<OutsideAnswer> {
        kept(&self.0, |()| ()).map(OutsideAnswer::Change)
    }

    fn given(answer: OutsideAnswer) -> Option<Self> {
        let OutsideAnswer::Change(reply) = answer else { return None };
        Some(Self(given(reply)))
    }
}

impl OutsideReply for Exchanged {
    fn bytes(&self) -> usize {
        match self {
            Self::Answer(Response { status: _, headers, body }) => {
                headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
                    + body.len()
            }
            Self::Refused(_) | Self::Canceled => ENTRY_BYTES,
        }
    }

    fn kept(&self) -> Option<OutsideAnswer> {
        let reply = match self {
            Self::Answer(Response { status, headers, body }) => Reply::Given(HttpAnswer {
                status: *status,
                headers: headers.clone(),
                body: KeptBytes::from(body.clone()),
            }),
            Self::Refused(refusal) => Reply::Error(fault_of_exchange(refusal)),
            Self::Canceled => return None,
        };
        Some(OutsideAnswer::Http(reply))
    }

    fn given(answer: OutsideAnswer) -> Option<Self> {
        let OutsideAnswer::Http(reply) = answer else { return None };
        Some(match reply {
            Reply::Given(HttpAnswer { status, headers, body }) => {
                Self::Answer(Response { status, headers, body: body.into_bytes()? })
            }
            Reply::Error(fault) => Self::Refused(refusal_of_exchange(fault)),
        })
    }
}

/// The outcome of an operation on files as it is kept; `None` if a rule refused it.
fn kept<T, K>(
    outcome: &files::Result<T>,
    keep: impl FnOnce(&T) -> K,
) -> Option<Reply<K, FileFault>> {
    Some(match outcome {
        Ok(done) => Reply::Given(keep(done)),
        Err(refusal) => Reply::Error(fault(refusal)?),
    })
}

fn given<K>(reply: Reply<K, FileFault>) -> files::Result<K> {
    match reply {
        Reply::Given(kept) => Ok(kept),
        Reply::Error(fault) => Err(refusal(fault)),
    }
}

fn fault(refusal: &Refusal) -> Option<FileFault> {
    Some(match refusal {
        Refusal::OwnFile => FileFault::OwnFile,
        Refusal::Error(error) => match error {
            FileError::Denied(_) => return None,
            FileError::NotFound => FileFault::NotFound,
            FileError::InvalidPath(why) => FileFault::InvalidPath(why.clone()),
            FileError::NotAFile => FileFault::NotAFile,
            FileError::NotADirectory => FileFault::NotADirectory,
            FileError::AlreadyExists => FileFault::AlreadyExists,
            FileError::Limit(bound) => FileFault::Limit(bound.clone()),
            FileError::Other(why) => FileFault::Other(why.clone()),
        },
    })
}

fn refusal(fault: FileFault) -> Refusal {
    let error = match fault {
        FileFault::OwnFile => return Refusal::OwnFile,
        FileFault::NotFound => FileError::NotFound,
        FileFault::InvalidPath(why) => FileError::InvalidPath(why),
        FileFault::NotAFile => FileError::NotAFile,
        FileFault::NotADirectory => FileError::NotADirectory,
        FileFault::AlreadyExists => FileError::AlreadyExists,
        FileFault::Limit(bound) => FileError::Limit(bound),
        FileFault::Other(why) => FileError::Other(why),
    };
    Refusal::Error(error)
}

fn entry_kept(entry: &Entry) -> FileEntry {
    let kind = match entry.kind {
        EntryKind::File => FileKind::File,
        EntryKind::Directory => FileKind::Directory,
        EntryKind::Other => FileKind::Other,
    };
    let (path, size, modified_at) = (entry.path.clone(), entry.size, entry.modified_at);
    FileEntry { path, kind, size, modified_at }
}

fn entry_given(kept: FileEntry) -> Entry {
    let FileEntry { path, kind, size, modified_at } = kept;
    let kind = match kind {
        FileKind::File => EntryKind::File,
        FileKind::Directory => EntryKind::Directory,
        FileKind::Other => EntryKind::Other,
    };
    Entry { path, kind, size, modified_at }
}

fn fault_of_exchange(refusal: &egress::Refusal) -> HttpFault {
    use egress::Refusal;
    match refusal {
        Refusal::Denied { subject, reason, operator } => HttpFault::Denied {
            subject: subject.clone(),
            reason: reason.clone(),
            operator: operator.clone(),
        },
        Refusal::Invalid(reason) => HttpFault::Invalid(reason.clone()),
        Refusal::Unreachable(reason) => HttpFault::Unreachable(reason.clone()),
        Refusal::Timeout | Refusal::PartTimeout(_) => HttpFault::Timeout,
        Refusal::Limit(bound) => HttpFault::Limit(bound.to_string()),
        Refusal::Other(reason) => HttpFault::Other(reason.clone()),
    }
}

fn refusal_of_exchange(fault: HttpFault) -> egress::Refusal {
    use egress::Refusal;
    match fault {
        HttpFault::Denied { subject, reason, operator } => {
            Refusal::Denied { subject, reason, operator }
        }
        HttpFault::Invalid(reason) => Refusal::Invalid(reason),
        HttpFault::Unreachable(reason) => Refusal::Unreachable(reason),
        HttpFault::Timeout => Refusal::Timeout,
        HttpFault::Limit(bound) => Refusal::Limit(egress::ExchangeLimit::Recorded(bound)),
        HttpFault::Other(reason) => Refusal::Other(reason),
    }
}
