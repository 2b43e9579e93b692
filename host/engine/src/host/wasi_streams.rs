//! Streams of `wasi:filesystem`: reading and writing a file piece by piece, each piece on a
//! thread for file operations as soon as one may be used.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use rustix::io::Errno;
use taskrun::policy::Capability;
use taskrun::ports::call::CallScope;
use tokio::sync::Semaphore;
use wasmtime_wasi::async_trait;
use wasmtime_wasi::p2::{InputStream, OutputStream, Pollable, StreamError, StreamResult};
use wasmtime_wasi::runtime::{AbortOnDropJoinHandle, spawn, spawn_blocking};

use crate::disk::{DiskFull, Growth, Writes};
use crate::handles::Handle;
use crate::state::record_denial;

/// Most bytes of one piece.
pub(super) const PIECE_BYTES_MAX: usize = 64 << 10;
/// Bytes of a piece that is read before anybody says how many are wanted.
const PIECE_BYTES: usize = 4 << 10;

/// A file that a guest has open, and what keeps it counted.
#[derive(Clone)]
pub(super) struct OpenFile {
    pub(super) file: Arc<File>,
    pub(super) handle: Option<Arc<Handle>>,
    pub(super) turns: Arc<Semaphore>,
}

type Job<T> = AbortOnDropJoinHandle<io::Result<T>>;

impl OpenFile {
    /// Works with the file on a thread for such. The turn is kept until the thread is back, also
    /// when nobody waits for it any longer.
    fn start<T: Send + 'static>(
        &self,
        work: impl FnOnce(&File) -> io::Result<T> + Send + 'static,
    ) -> Job<T> {
        let Self { file, handle, turns } = self.clone();
        spawn(async move {
            let turn = turns.acquire_owned().await.map_err(io::Error::other)?;
            let work = spawn_blocking(move || {
                let _kept = (turn, handle);
                work(&file)
            });
            work.await
        })
    }
}

/// What a bound is for who writes to a stream.
pub(super) fn as_io(full: DiskFull) -> io::Error {
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
    state: Reading,
}

enum Reading {
    Idle,
    UnderWay(Job<Bytes>),
    Read(Bytes),
    Failed(io::Error),
    AtEnd,
}

impl Reader {
    pub(super) fn new(from: OpenFile, position: u64) -> Self {
        Self { from, position, state: Reading::Idle }
    }

    fn begin(&mut self, size: usize) {
        let (position, size) = (self.position, size.min(PIECE_BYTES_MAX));
        self.state = Reading::UnderWay(self.from.start(move |file| {
            let mut piece = vec![0; size];
            let read = loop {
                match file.read_at(&mut piece, position) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    read => break read?,
                }
            };
            piece.truncate(read);
            Ok(Bytes::from(piece))
        }));
    }
}

#[async_trait]
impl InputStream for Reader {
    fn read(&mut self, size: usize) -> StreamResult<Bytes> {
        match &mut self.state {
            Reading::Idle => {
                if size > 0 {
                    self.begin(size);
                }
                Ok(Bytes::new())
            }
            Reading::UnderWay(_) => Ok(Bytes::new()),
            Reading::Read(piece) => {
                let part = piece.split_to(piece.len().min(size));
                if piece.is_empty() {
                    self.state = Reading::Idle;
                }
                self.position = self.position.saturating_add(part.len() as u64);
                Ok(part)
            }
            Reading::Failed(_) => match std::mem::replace(&mut self.state, Reading::AtEnd) {
                Reading::Failed(error) => Err(StreamError::LastOperationFailed(error.into())),
                Reading::Idle | Reading::UnderWay(_) | Reading::Read(_) | Reading::AtEnd => {
                    Err(StreamError::Closed)
                }
            },
            Reading::AtEnd => Err(StreamError::Closed),
        }
    }

    async fn blocking_read(&mut self, size: usize) -> StreamResult<Bytes> {
        if size > 0 && matches!(self.state, Reading::Idle) {
            self.begin(size);
        }
        self.ready().await;
        self.read(size)
    }
}

#[async_trait]
impl Pollable for Reader {
    async fn ready(&mut self) {
        if matches!(self.state, Reading::Idle) {
            self.begin(PIECE_BYTES);
        }
        if let Reading::UnderWay(job) = &mut self.state {
            self.state = match job.await {
                Ok(piece) if piece.is_empty() => Reading::AtEnd,
                Ok(piece) => Reading::Read(piece),
                Err(error) => Reading::Failed(error),
            };
        }
    }
}

/// Writes to a file, from a place on or always at its end.
pub(super) struct Writer {
    to: OpenFile,
    /// `None` is the end.
    position: Option<u64>,
    counted: Counted,
    state: Writing,
}

/// Where what is written is counted, and a refusal is recorded.
#[derive(Clone)]
pub(super) struct Counted {
    pub(super) writes: Arc<Writes>,
    pub(super) scope: Arc<CallScope>,
}

enum Writing {
    Ready,
    UnderWay(Job<usize>),
    Failed(io::Error),
    Closed,
}

impl Counted {
    /// Writes all of a piece, at a place or at the end.
    pub(super) fn write(
        &self,
        file: &File,
        piece: &[u8],
        position: Option<u64>,
    ) -> io::Result<usize> {
        let (bytes, length) = (piece.len() as u64, file.metadata()?.len());
        let end = position.map_or(length.saturating_add(bytes), |at| at.saturating_add(bytes));
        let growth = Growth { written: bytes, longer: end.saturating_sub(length), files: 0 };
        let grant = self.writes.grant(file, growth).map_err(|full| {
            if self.writes.is_first_refusal() {
                let bound = full.to_string();
                record_denial(&self.scope, Capability::WorkspaceWrite, "", bound);
            }
            as_io(full)
        })?;
        match position {
            Some(position) => file.write_all_at(piece, position)?,
            None => append(file, piece)?,
        }
        grant.keep();
        Ok(piece.len())
    }
}

/// Adds to the end in one step each, so that who else appends loses nothing.
#[cfg(target_os = "linux")]
fn append(file: &File, mut piece: &[u8]) -> io::Result<()> {
    use rustix::io::{ReadWriteFlags, pwritev2};

    while !piece.is_empty() {
        let written = pwritev2(file, &[io::IoSlice::new(piece)], 0, ReadWriteFlags::APPEND)?;
        piece = piece.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// Elsewhere no folders are granted to WASI.
#[cfg(not(target_os = "linux"))]
fn append(_: &File, _: &[u8]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

impl Writer {
    pub(super) fn new(to: OpenFile, position: Option<u64>, counted: Counted) -> Self {
        Self { to, position, counted, state: Writing::Ready }
    }

    fn failure(&mut self) -> StreamError {
        match std::mem::replace(&mut self.state, Writing::Closed) {
            Writing::Failed(error) => StreamError::LastOperationFailed(error.into()),
            Writing::Ready | Writing::UnderWay(_) | Writing::Closed => StreamError::Closed,
        }
    }
}

#[async_trait]
impl OutputStream for Writer {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        match self.state {
            Writing::Ready if bytes.len() <= PIECE_BYTES_MAX => {}
            Writing::Closed => return Err(StreamError::Closed),
            Writing::Ready | Writing::UnderWay(_) | Writing::Failed(_) => {
                return Err(StreamError::trap("more was written than was permitted"));
            }
        }
        let (counted, position) = (self.counted.clone(), self.position);
        self.state =
            Writing::UnderWay(self.to.start(move |file| counted.write(file, &bytes, position)));
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        match self.state {
            Writing::Ready | Writing::UnderWay(_) => Ok(()),
            Writing::Failed(_) | Writing::Closed => Err(self.failure()),
        }
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        match self.state {
            Writing::Ready => Ok(PIECE_BYTES_MAX),
            Writing::UnderWay(_) => Ok(0),
            Writing::Failed(_) | Writing::Closed => Err(self.failure()),
        }
    }

    async fn cancel(&mut self) {
        // What is under way is waited for, as a guest is told whether it was written.
        self.ready().await;
        self.state = Writing::Closed;
    }
}

#[async_trait]
impl Pollable for Writer {
    async fn ready(&mut self) {
        if let Writing::UnderWay(job) = &mut self.state {
            self.state = match job.await {
                Ok(written) => {
                    if let Some(position) = &mut self.position {
                        *position = position.saturating_add(written as u64);
                    }
                    Writing::Ready
                }
                Err(error) => Writing::Failed(error),
            };
        }
    }
}
