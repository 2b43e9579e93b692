//! Streams of `wasi:filesystem`: reading and writing a file piece by piece, each piece on a
//! thread for file operations as soon as one may be used.
//!
//! A stream keeps a piece that was read until the guest takes it, and one that is written until a
//! thread has done so. A small piece needs nothing; a larger one takes its bytes from the memory
//! for what guests keep, and where there is none left, the stream goes on with small ones.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use rustix::io::Errno;
use taskrun::scope::CallScope;
use taskrun_journal::stop::StopCause;
use taskrun_policy::Capability;
use wasmtime_wasi::async_trait;
use wasmtime_wasi::p2::{InputStream, OutputStream, Pollable, StreamError, StreamResult};
use wasmtime_wasi::runtime::{AbortOnDropJoinHandle, spawn};

use super::wasi_files::GrantCheck;
use crate::buffers::{Buffer, Buffers};
use crate::failure::Violation;
use crate::files::disk::{DiskFull, Writes};
use crate::files::{Fault, FileThreads, by_place};
use crate::handles::Handle;

/// Most bytes of one piece.
pub(super) const PIECE_BYTES_MAX: usize = 64 << 10;
/// Bytes of a piece that is read before the guest says how many it wants, and most bytes of one
/// that needs nothing of the memory for what guests keep.
const PIECE_BYTES: usize = 4 << 10;

/// A file that a guest reads or writes through a stream, and what keeps both counted.
pub(super) struct OpenFile {
    pub(super) file: Arc<File>,
    pub(super) handle: Option<Arc<Handle>>,
    /// Counts the stream, as long as it is there.
    pub(super) _stream: Arc<()>,
    pub(super) threads: FileThreads,
    pub(super) granted: GrantCheck,
    pub(super) buffers: Buffers,
}

type Job<T> = AbortOnDropJoinHandle<io::Result<T>>;

impl OpenFile {
    /// The memory for a large piece, if there is some left.
    fn room(&self, bytes: usize) -> Option<Buffer> {
        self.buffers.try_keep_piece(bytes as u64)
    }

    /// Works with the file on a thread for such, if the folders of the call are granted then. The
    /// turn is kept until the thread is back, also when the result is not waited for any longer.
    fn start<T: Send + 'static>(
        &self,
        work: impl FnOnce(&File) -> io::Result<T> + Send + 'static,
    ) -> Job<T> {
        let (file, handle) = (Arc::clone(&self.file), self.handle.clone());
        let (threads, granted) = (self.threads.clone(), self.granted.clone());
        spawn(async move {
            let done = threads.run(move || {
                let _kept = handle;
                granted.pass()?;
                work(&file)
            });
            done.await.unwrap_or_else(|| Err(Errno::IO.into()))
        })
    }
}

/// The error of a bound for a guest that writes to a stream.
fn as_io(full: DiskFull) -> io::Error {
    match full {
        DiskFull::Reserve(_) => Errno::NOSPC.into(),
        DiskFull::CallBytes(_)
        | DiskFull::CallFiles(_)
        | DiskFull::WorkspaceBytes(_)
        | DiskFull::WorkspaceFiles(_) => Errno::DQUOT.into(),
    }
}

/// Reads a file from a place on.
pub(super) struct Reader {
    from: OpenFile,
    position: u64,
    state: ReadState,
}

enum ReadState {
    Idle,
    UnderWay(Job<Piece>),
    Read(Piece),
    Failed(io::Error),
    AtEnd,
}

/// Bytes that were read and that the guest has not taken yet.
struct Piece {
    bytes: Bytes,
    _room: Option<Buffer>,
}

impl Reader {
    pub(super) fn new(from: OpenFile, position: u64) -> Self {
        Self { from, position, state: ReadState::Idle }
    }

    fn begin(&mut self, size: usize) {
        let (position, wanted) = (self.position, size.min(PIECE_BYTES_MAX));
        let room = (wanted > PIECE_BYTES).then(|| self.from.room(wanted)).flatten();
        let size = if room.is_some() { wanted } else { wanted.min(PIECE_BYTES) };
        self.state = ReadState::UnderWay(self.from.start(move |file| {
            let mut bytes = vec![0; size];
            let read = loop {
                match file.read_at(&mut bytes, position) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    read => break read?,
                }
            };
            bytes.truncate(read);
            Ok(Piece { bytes: bytes.into(), _room: room })
        }));
    }
}

#[async_trait]
impl InputStream for Reader {
    fn read(&mut self, size: usize) -> StreamResult<Bytes> {
        match &mut self.state {
            ReadState::Idle => {
                if size > 0 {
                    self.begin(size);
                }
                Ok(Bytes::new())
            }
            ReadState::UnderWay(_) => Ok(Bytes::new()),
            ReadState::Read(piece) => {
                let part = piece.bytes.split_to(piece.bytes.len().min(size));
                if piece.bytes.is_empty() {
                    self.state = ReadState::Idle;
                }
                self.position = self.position.saturating_add(part.len() as u64);
                Ok(part)
            }
            ReadState::Failed(_) => match std::mem::replace(&mut self.state, ReadState::AtEnd) {
                ReadState::Failed(error) => Err(StreamError::LastOperationFailed(error.into())),
                ReadState::Idle
                | ReadState::UnderWay(_)
                | ReadState::Read(_)
                | ReadState::AtEnd => Err(StreamError::Closed),
            },
            ReadState::AtEnd => Err(StreamError::Closed),
        }
    }

    async fn blocking_read(&mut self, size: usize) -> StreamResult<Bytes> {
        if size > 0 && matches!(self.state, ReadState::Idle) {
            self.begin(size);
        }
        self.ready().await;
        self.read(size)
    }
}

#[async_trait]
impl Pollable for Reader {
    async fn ready(&mut self) {
        if matches!(self.state, ReadState::Idle) {
            self.begin(PIECE_BYTES);
        }
        if let ReadState::UnderWay(job) = &mut self.state {
            self.state = match job.await {
                Ok(piece) if piece.bytes.is_empty() => ReadState::AtEnd,
                Ok(piece) => ReadState::Read(piece),
                Err(error) => ReadState::Failed(error),
            };
        }
    }
}

/// Writes to a file, from a place on or always at its end.
pub(super) struct Writer {
    to: OpenFile,
    /// `None` is the end.
    position: Option<u64>,
    counted: WriteAccount,
    state: WriteState,
}

/// Where what is written is counted, and a refusal is recorded.
#[derive(Clone)]
pub(super) struct WriteAccount {
    pub(super) writes: Arc<Writes>,
    pub(super) scope: Arc<CallScope>,
    /// Set once a rule is gone under which the file was opened.
    pub(super) is_revoked: Arc<AtomicBool>,
}

enum WriteState {
    /// With the memory for a large piece, once the guest has been permitted one.
    Ready(Option<Buffer>),
    UnderWay(Job<usize>),
    Failed(io::Error),
    Closed,
}

impl WriteAccount {
    /// Writes all of a piece, at a place or at the end.
    fn write(&self, file: &File, piece: &[u8], position: Option<u64>) -> io::Result<usize> {
        let written = by_place::write(file, piece, position, &self.writes);
        written.map(|()| piece.len()).map_err(|fault| match fault {
            Fault::Io(error) => error,
            Fault::Own | Fault::Out | Fault::Special => Errno::PERM.into(),
            Fault::Full(full) => {
                if self.writes.is_first_refusal() {
                    let bound = full.to_string();
                    self.scope.record_refusal(Capability::WorkspaceWrite, "", bound);
                }
                as_io(full)
            }
        })
    }
}

/// Most bytes of the next piece of a writer that has this memory for it.
fn permitted(room: Option<&Buffer>) -> usize {
    if room.is_some() { PIECE_BYTES_MAX } else { PIECE_BYTES }
}

impl Writer {
    pub(super) fn new(to: OpenFile, position: Option<u64>, counted: WriteAccount) -> Self {
        Self { to, position, counted, state: WriteState::Ready(None) }
    }

    fn failure(&mut self) -> StreamError {
        match std::mem::replace(&mut self.state, WriteState::Closed) {
            WriteState::Failed(error) => StreamError::LastOperationFailed(error.into()),
            WriteState::Ready(_) | WriteState::UnderWay(_) | WriteState::Closed => {
                StreamError::Closed
            }
        }
    }
}

#[async_trait]
impl OutputStream for Writer {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        // The guest ends at the next look at the epoch; this is before it.
        if self.counted.is_revoked.load(Ordering::Acquire) {
            return Err(StreamError::Trap(Violation::Stopped(StopCause::Denied).into()));
        }
        let room = match &mut self.state {
            WriteState::Ready(room) if bytes.len() <= permitted(room.as_ref()) => room.take(),
            WriteState::Closed => return Err(StreamError::Closed),
            WriteState::Ready(_) | WriteState::UnderWay(_) | WriteState::Failed(_) => {
                return Err(StreamError::trap("more was written than was permitted"));
            }
        };
        let room = room.filter(|_| bytes.len() > PIECE_BYTES);
        let (counted, position) = (self.counted.clone(), self.position);
        self.state = WriteState::UnderWay(self.to.start(move |file| {
            let _room = room;
            counted.write(file, &bytes, position)
        }));
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        match self.state {
            WriteState::Ready(_) | WriteState::UnderWay(_) => Ok(()),
            WriteState::Failed(_) | WriteState::Closed => Err(self.failure()),
        }
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        match &mut self.state {
            WriteState::Ready(room) => {
                if room.is_none() {
                    *room = self.to.room(PIECE_BYTES_MAX);
                }
                Ok(permitted(room.as_ref()))
            }
            WriteState::UnderWay(_) => Ok(0),
            WriteState::Failed(_) | WriteState::Closed => Err(self.failure()),
        }
    }

    async fn cancel(&mut self) {
        // What is under way is waited for, as a guest is told whether it was written.
        self.ready().await;
        self.state = WriteState::Closed;
    }
}

#[async_trait]
impl Pollable for Writer {
    async fn ready(&mut self) {
        if let WriteState::UnderWay(job) = &mut self.state {
            self.state = match job.await {
                Ok(written) => {
                    if let Some(position) = &mut self.position {
                        *position = position.saturating_add(written as u64);
                    }
                    WriteState::Ready(None)
                }
                Err(error) => WriteState::Failed(error),
            };
        }
    }
}

#[cfg(test)]
mod tests;
