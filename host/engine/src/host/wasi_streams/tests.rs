//! Pieces that streams keep, and the memory for them.

use std::time::Duration;

use taskrun::scope::RunContext;
use tokio::sync::Semaphore;

use super::*;
use crate::apart;
use crate::course::Course;
use crate::files::{ProtectedPaths, Workspace};

/// A file, and memory for one large piece of it: the rest is taken.
struct Fixture {
    _folder: tempfile::TempDir,
    file: Arc<File>,
    turns: Arc<Semaphore>,
    counted: WriteAccount,
    buffers: Buffers,
    _taken: Vec<Buffer>,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(&[1; 2 * PIECE_BYTES_MAX], 0).expect("written");
        let workspace = Workspace::open(folder.path(), ProtectedPaths::default()).expect("opened");
        let counted = WriteAccount {
            writes: Arc::new(Writes::of(&workspace)),
            scope: apart::scope(RunContext::default(), Duration::from_secs(60)),
            is_revoked: Arc::default(),
        };
        let buffers = Buffers::new();
        let piece = || buffers.try_keep_piece(PIECE_BYTES_MAX as u64);
        let mut taken: Vec<Buffer> = std::iter::from_fn(piece).collect();
        taken.pop();
        let turns = Arc::new(Semaphore::new(1));
        Self { _folder: folder, file: Arc::new(file), turns, counted, buffers, _taken: taken }
    }

    fn open(&self) -> OpenFile {
        OpenFile {
            file: Arc::clone(&self.file),
            handle: None,
            _stream: Arc::default(),
            threads: FileThreads::new(&self.turns, &Course::new(Duration::MAX)),
            granted: GrantCheck::new(&self.counted.scope, 0, &Arc::default()),
            buffers: self.buffers.clone(),
        }
    }

    fn reader(&self) -> Reader {
        Reader::new(self.open(), 0)
    }

    fn writer(&self) -> Writer {
        Writer::new(self.open(), Some(0), self.counted.clone())
    }

    fn has_room(&self) -> bool {
        self.buffers.try_keep_piece(PIECE_BYTES_MAX as u64).is_some()
    }
}

#[tokio::test]
async fn a_piece_that_was_read_counts_until_it_is_taken_and_without_room_it_is_small() {
    let f = Fixture::new();
    let (mut first, mut second) = (f.reader(), f.reader());
    for reader in [&mut first, &mut second] {
        assert!(reader.read(PIECE_BYTES_MAX).expect("it begins").is_empty());
        reader.ready().await;
    }
    assert!(!f.has_room(), "the first keeps a large piece");
    assert_eq!(first.read(usize::MAX).expect("a piece").len(), PIECE_BYTES_MAX);
    assert!(f.has_room(), "what the guest has taken counts no more");
    assert_eq!(second.read(usize::MAX).expect("a piece").len(), PIECE_BYTES);
    assert_eq!(second.blocking_read(usize::MAX).await.expect("a piece").len(), PIECE_BYTES_MAX);
}

#[tokio::test]
async fn a_piece_that_a_guest_leaves_with_its_stream_counts_no_more() {
    let f = Fixture::new();
    let mut left = f.reader();
    assert!(left.read(PIECE_BYTES_MAX).expect("it begins").is_empty());
    left.ready().await;
    assert!(!f.has_room());
    drop(left);
    assert!(f.has_room());
}

#[tokio::test]
async fn a_piece_counts_until_it_is_written_and_none_is_larger_than_was_permitted() {
    let f = Fixture::new();
    let (mut first, mut second) = (f.writer(), f.writer());
    assert_eq!(first.check_write().expect("it may write"), PIECE_BYTES_MAX);
    assert_eq!(second.check_write().expect("it may write"), PIECE_BYTES);
    let too_much = second.write(vec![2; PIECE_BYTES + 1].into());
    assert!(matches!(too_much, Err(StreamError::Trap(_))), "{too_much:?}");
    first.write(vec![2; PIECE_BYTES_MAX].into()).expect("it begins");
    assert!(!f.has_room(), "it is not written yet");
    first.ready().await;
    assert!(f.has_room());
    assert_eq!(second.check_write().expect("it may write"), PIECE_BYTES_MAX);
}

#[tokio::test]
async fn a_small_piece_needs_no_room() {
    let f = Fixture::new();
    let mut writer = f.writer();
    assert_eq!(writer.check_write().expect("it may write"), PIECE_BYTES_MAX);
    writer.write(vec![2; PIECE_BYTES].into()).expect("it begins");
    assert!(f.has_room(), "what was permitted is given back");
    writer.ready().await;
    assert!(writer.flush().is_ok());
}
