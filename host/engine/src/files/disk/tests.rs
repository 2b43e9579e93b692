//! The charges of a call for what it writes, and none for what it is refused.

use std::fs;
use std::path::Path;
use std::time::Duration;

use cap_std::ambient_authority;
use cap_std::fs::Dir;

use super::*;
use crate::bindings::interfaces::workspace_write::WriteMode;
use crate::files::{
    CancelFlag, CancelOnDrop, Guard, Place, ProtectedPaths, Refusal, RelativePath, by_place,
};

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

/// A call under no bound that may write everywhere in a workspace.
fn call_in(disk: &Arc<Disk>, workspace: &Workspace) -> Writes {
    call_under(disk, workspace, with_room())
}

/// The same under bounds of the workspace.
fn call_under(disk: &Arc<Disk>, workspace: &Workspace, bounds: WorkspaceLimits) -> Writes {
    let limits = Limits { write_bytes: u64::MAX, new_files: u32::MAX, ..Limits::default() };
    Arc::new(disk.bounds(vec![String::new()], bounds, &limits)).for_call(workspace)
}

/// Begins a long pause: the workspace was counted just now, and holds what is accounted.
fn begin_pause(writes: &Writes) {
    let mut account = writes.own().open();
    let used = account.used;
    account.set(used, Instant::now() + Duration::from_secs(3_600));
}

/// A workspace with a file `one` in another workspace, and calls that write in both. The inner one
/// may hold two files, and was counted just now.
struct Nested {
    folder: tempfile::TempDir,
    outer: (Workspace, Writes),
    inner: (Workspace, Writes),
}

impl Nested {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("sub")).expect("a folder in it");
        let disk = Arc::new(Disk::default());
        let (outer, inner) = (open(folder.path()), open(&folder.path().join("sub")));
        // The outer call has written when the inner workspace gets its account.
        let of_outer = call_in(&disk, &outer);
        make(&outer, &of_outer, "own");
        let bounds = WorkspaceLimits { files: 2, ..with_room() };
        let of_inner = call_under(&disk, &inner, bounds);
        make(&inner, &of_inner, "one");
        begin_pause(&of_inner);
        Self { folder, outer: (outer, of_outer), inner: (inner, of_inner) }
    }

    fn make_outside(&self, name: &str) {
        make(&self.outer.0, &self.outer.1, name);
    }

    fn place(&self, path: &str) -> Place {
        let root = Dir::open_ambient_dir(self.folder.path(), ambient_authority()).expect("opened");
        Place::find(&root, path, false, &Guard::default()).expect("its folder is there")
    }

    fn rename(&self, from: &str, to: &str) {
        let none = Guard::default();
        let (from, to) = (self.place(from), self.place(to));
        by_place::rename(from, to, (&none, &none), &self.outer.1).expect("moved");
    }

    fn make_inside(&self, name: &str) -> Result<(), Refusal> {
        let (path, there) = (RelativePath::new(name).expect("a path"), CancelFlag::default());
        let (workspace, writes) = &self.inner;
        workspace.write(path, CONTENTS, WriteMode::CreateNew, writes, &there)
    }
}

#[test]
fn a_call_that_has_written_counts_in_a_workspace_that_others_write_in_later() {
    let nested = Nested::new();
    nested.make_outside("sub/two");
    assert_eq!(nested.inner.1.used(), DiskUse { bytes: 16, files: 2 });
    assert_full(nested.make_inside("three"));
}

#[test]
fn a_call_that_writes_around_a_workspace_takes_none_of_its_room() {
    let nested = Nested::new();
    for name in ["a", "b", "c"] {
        nested.make_outside(name);
    }
    nested.make_inside("two").expect("one is there, in spite of the pause");
    assert_eq!(nested.inner.1.used(), DiskUse { bytes: 16, files: 2 });
    begin_pause(&nested.inner.1);
    assert_full(nested.make_inside("three"));
}

#[test]
fn what_is_moved_or_linked_into_a_workspace_counts_there_before_it_grows() {
    let move_it = |nested: &Nested| nested.rename("own", "sub/own");
    let link_it = |nested: &Nested| {
        let (from, to) = (nested.place("own"), nested.place("sub/own"));
        by_place::link(from, to, &Guard::default(), &nested.outer.1).expect("linked");
    };
    let move_all = |nested: &Nested| {
        fs::create_dir(nested.folder.path().join("deep")).expect("made");
        nested.rename("own", "deep/own");
        nested.rename("deep", "sub/deep");
    };
    let ways: [&dyn Fn(&Nested); 3] = [&move_it, &link_it, &move_all];
    for bring in ways {
        let nested = Nested::new();
        bring(&nested);
        assert_full(nested.make_inside("two"));
        assert!(nested.inner.1.used().files >= 2, "{:?}", nested.inner.1.used());
    }
}

#[test]
fn a_workspace_is_not_counted_for_what_is_moved_around_it_or_within() {
    let nested = Nested::new();
    nested.rename("own", "other");
    nested.rename("sub/one", "sub/first");
    // A count would see this.
    fs::write(nested.folder.path().join("sub/by-hand"), CONTENTS).expect("written");
    nested.make_inside("two").expect("there is room");
    assert_eq!(nested.inner.1.used(), DiskUse { bytes: 16, files: 2 });
}

#[test]
fn what_others_put_there_makes_no_room_when_it_is_removed() {
    let f = Fixture::new(WorkspaceLimits { bytes: 9, ..with_room() }, (100, 10));
    assert_full(f.write("one", WriteMode::CreateNew));
    begin_pause(&f.writes);
    fs::write(f.folder.path().join("theirs"), CONTENTS).expect("written");
    take(&f.workspace, &f.writes, "theirs");
    assert_full(f.write("one", WriteMode::CreateNew));
}

fn open(path: &Path) -> Workspace {
    Workspace::open(path, ProtectedPaths::default()).expect("opened")
}

fn make(workspace: &Workspace, writes: &Writes, name: &str) {
    let (path, there) = (RelativePath::new(name).expect("a path"), CancelFlag::default());
    workspace.write(path, CONTENTS, WriteMode::CreateNew, writes, &there).expect("there is room");
}

fn take(workspace: &Workspace, writes: &Writes, name: &str) {
    let path = RelativePath::new(name).expect("a path");
    workspace.remove(path, writes, &CancelFlag::default()).expect("it is there");
}

#[test]
fn files_of_a_workspace_in_another_count_in_both_until_they_are_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("sub")).expect("a folder in it");
    let disk = Arc::new(Disk::default());
    let (outer, inner) = (open(folder.path()), open(&folder.path().join("sub")));
    let first = call_in(&disk, &outer);
    make(&outer, &first, "own");
    let of_inner = call_in(&disk, &inner);
    for name in ["one", "two"] {
        make(&inner, &of_inner, name);
    }
    assert_eq!(first.used(), DiskUse { bytes: 24, files: 4 });
    let second = call_in(&disk, &outer);
    take(&outer, &second, "sub/one");
    assert_eq!(second.used(), DiskUse { bytes: 16, files: 3 });
    make(&outer, &second, "sub/three");
    assert!(of_inner.used().bytes >= 16, "{:?}", of_inner.used());
    for name in ["two", "three"] {
        take(&inner, &of_inner, name);
    }
    assert_eq!(second.used(), DiskUse { bytes: 8, files: 2 }, "its own, and the folder");
}

#[test]
fn a_folder_in_the_place_of_another_is_what_the_next_call_writes_in_and_counts() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, old) = (folder.path().join("w"), folder.path().join("w.old"));
    fs::create_dir(&path).expect("a workspace");
    fs::write(path.join("there"), [0; 1_000]).expect("a file");
    let (disk, workspace) = (Arc::new(Disk::default()), open(&path));
    let first = call_in(&disk, &workspace);
    make(&workspace, &first, "one");
    fs::rename(&path, &old).expect("moved");
    fs::create_dir(&path).expect("another one");
    let again = workspace.anew();
    let second = call_in(&disk, &again);
    make(&again, &second, "two");
    assert!(path.join("two").exists());
    assert_eq!(second.used(), DiskUse { bytes: 8, files: 1 });
    // What is under way goes on where it began.
    make(&workspace, &first, "three");
    assert!(old.join("three").exists());
    assert_eq!(first.used(), DiskUse { bytes: 1_016, files: 3 });
}
