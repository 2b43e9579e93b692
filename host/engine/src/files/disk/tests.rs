//! The charges of a call for what it writes, and none for what it is refused.

use std::fs;

use super::*;
use crate::bindings::interfaces::workspace_write::WriteMode;
use crate::files::{CancelFlag, CancelOnDrop, ProtectedPaths, Refusal, RelativePath};

const CONTENTS: &[u8] = b"eight..b";

/// A folder with the file `there` of two bytes, and a call that writes in it.
struct Fixture {
    folder: tempfile::TempDir,
    workspace: Workspace,
    writes: Writes,
}

impl Fixture {
    fn new(of_workspace: WorkspaceLimits, (write_bytes, new_files): (u64, u32)) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("there"), "it").expect("a file");
        let workspace = Workspace::open(folder.path(), ProtectedPaths::default()).expect("opened");
        let limits = Limits { write_bytes, new_files, ..Limits::default() };
        let writes = Writes::under(&workspace, of_workspace, &limits);
        Self { folder, workspace, writes }
    }

    fn write(&self, name: &str, mode: WriteMode) -> Result<(), Refusal> {
        self.write_until(name, mode, &CancelFlag::default())
    }

    fn write_until(
        &self,
        name: &str,
        mode: WriteMode,
        abandoned: &CancelFlag,
    ) -> Result<(), Refusal> {
        let path = RelativePath::new(name).expect("a path");
        self.workspace.write(path, CONTENTS, mode, &self.writes, abandoned)
    }

    /// Bytes and files that the call is charged for.
    fn charged(&self) -> (u64, u64) {
        let Writes { bytes, files, .. } = &self.writes;
        (bytes.load(Ordering::Relaxed), files.load(Ordering::Relaxed))
    }
}

fn with_room() -> WorkspaceLimits {
    WorkspaceLimits { reserve_bytes: 0, ..WorkspaceLimits::default() }
}

#[track_caller]
fn assert_full(done: Result<(), Refusal>) {
    assert!(matches!(done, Err(Refusal::Error(FileError::Limit(_)))), "{done:?}");
}

#[test]
fn a_file_that_is_there_already_costs_nothing() {
    let f = Fixture::new(with_room(), (8, 1));
    for _ in 0..3 {
        let there = f.write("there", WriteMode::CreateNew);
        assert!(matches!(there, Err(Refusal::Error(FileError::AlreadyExists))), "{there:?}");
    }
    f.write("new", WriteMode::CreateNew).expect("the call has written nothing yet");
    assert_eq!(f.charged(), (8, 1));
    assert_full(f.write("newer", WriteMode::CreateNew));
}

#[test]
fn a_refusal_by_a_bound_of_the_workspace_costs_nothing() {
    let bounds = [
        WorkspaceLimits { bytes: 5, ..with_room() },
        WorkspaceLimits { files: 1, ..with_room() },
        WorkspaceLimits { reserve_bytes: u64::MAX, ..with_room() },
    ];
    for bound in bounds {
        let f = Fixture::new(bound, (100, 10));
        assert_full(f.write("new", WriteMode::CreateNew));
        assert_eq!(f.charged(), (0, 0), "{:?}", f.writes.bounds.limits);
    }
}

#[test]
fn bytes_of_a_file_too_many_cost_nothing() {
    let f = Fixture::new(with_room(), (8, 0));
    assert_full(f.write("new", WriteMode::CreateNew));
    f.write("there", WriteMode::Append).expect("the call has written nothing yet");
    assert_eq!(f.charged(), (8, 0));
}

#[test]
fn bytes_that_are_gone_again_were_written() {
    let f = Fixture::new(with_room(), (100, 10));
    let abandoned = CancelFlag::default();
    drop(CancelOnDrop(abandoned.clone()));
    assert!(f.write_until("there", WriteMode::Replace, &abandoned).is_err());
    assert_eq!(f.charged(), (8, 0));
    assert_eq!(f.writes.used().bytes, 2, "the workspace has its room again");
    let kept = fs::read_to_string(f.folder.path().join("there")).expect("the file is there");
    assert_eq!(kept, "it");
}
