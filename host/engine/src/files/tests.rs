//! Files, links and special files in a real folder.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::Duration;

use super::*;
use crate::bindings::interfaces::workspace_write::WriteMode;
use crate::course::Course;
use crate::files::disk::Writes;

struct Fixture {
    _dir: tempfile::TempDir,
    root: std::path::PathBuf,
    outside: std::path::PathBuf,
    workspace: Workspace,
    writes: Writes,
}

fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
    fs::create_dir_all(root.join("docs/inner")).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(root.join("docs/a.txt"), "0123456789").unwrap();
    fs::write(outside.join("secret.txt"), "secret").unwrap();
    symlink(&outside, root.join("docs/out")).unwrap();
    symlink(outside.join("secret.txt"), root.join("docs/out.txt")).unwrap();
    symlink("a.txt", root.join("docs/in.txt")).unwrap();
    let workspace = Workspace::open(&root, ProtectedPaths::default()).unwrap();
    let writes = Writes::of(&workspace);
    Fixture { _dir: dir, root, outside, workspace, writes }
}

fn path(text: &str) -> RelativePath<'_> {
    RelativePath::new(text).unwrap()
}

fn everything(_: &str, _: EntryKind) -> bool {
    true
}

#[test]
fn a_file_is_read_in_parts() {
    let f = fixture();
    let read = |offset, max| f.workspace.read(path("docs/a.txt"), offset, max).unwrap();
    assert_eq!(read(0, 4), b"0123");
    assert_eq!(read(8, 4), b"89");
    assert_eq!(read(10, 4), b"");
    assert_eq!(read(1 << 40, u32::MAX), b"");
}

#[test]
fn no_link_is_followed() {
    let f = fixture();
    for link in ["docs/out/secret.txt", "docs/out.txt", "docs/in.txt"] {
        let read = f.workspace.read(path(link), 0, 10);
        assert!(
            matches!(read, Err(Refusal::Error(FileError::InvalidPath(_)))),
            "read {link}: {read:?}"
        );
        for mode in [WriteMode::Replace, WriteMode::Append] {
            let written =
                f.workspace.write(path(link), b"x", mode, &f.writes, &CancelFlag::default());
            assert!(
                matches!(written, Err(Refusal::Error(FileError::InvalidPath(_)))),
                "write {link}: {written:?}"
            );
        }
        let removed = f.workspace.remove(path(link), &f.writes, &CancelFlag::default());
        assert!(
            matches!(removed, Err(Refusal::Error(FileError::InvalidPath(_)))),
            "remove {link}: {removed:?}"
        );
    }
    let new = f.workspace.write(
        path("docs/out/n"),
        b"x",
        WriteMode::CreateNew,
        &f.writes,
        &CancelFlag::default(),
    );
    assert!(matches!(new, Err(Refusal::Error(FileError::InvalidPath(_)))), "{new:?}");
    let new = f.workspace.write(
        path("docs/in.txt"),
        b"x",
        WriteMode::CreateNew,
        &f.writes,
        &CancelFlag::default(),
    );
    assert!(matches!(new, Err(Refusal::Error(FileError::AlreadyExists))), "{new:?}");
    let made = f.workspace.create_directory(
        path("docs/out/n"),
        &|_| Ok(()),
        &f.writes,
        &CancelFlag::default(),
    );
    assert!(matches!(made, Err(Refusal::Error(FileError::InvalidPath(_)))), "{made:?}");
    let listed = f.workspace.directory(path("docs/out"), &Guard::default());
    assert!(matches!(listed, Err(Refusal::Error(FileError::InvalidPath(_)))));
    assert_eq!(fs::read(f.outside.join("secret.txt")).unwrap(), b"secret");
    assert_eq!(fs::read_dir(&f.outside).unwrap().count(), 1);
}

#[test]
fn a_link_is_shown_as_something_else() {
    let f = fixture();
    assert_eq!(f.workspace.stat(path("docs/out")).unwrap().kind, EntryKind::Other);
    assert_eq!(f.workspace.stat(path("")).unwrap().kind, EntryKind::Directory);
    assert_eq!(f.workspace.stat(path("docs/a.txt")).unwrap().size, 10);
    assert!(matches!(
        f.workspace.stat(path("docs/none")),
        Err(Refusal::Error(FileError::NotFound))
    ));
    assert!(matches!(
        f.workspace.stat(path("docs/a.txt/b")),
        Err(Refusal::Error(FileError::NotADirectory))
    ));
}

#[test]
fn a_directory_swapped_for_a_link_leads_nowhere() {
    let f = fixture();
    let (root, outside) = (f.root.clone(), f.outside.clone());
    let done = Arc::new(AtomicBool::new(false));
    let swapper = {
        let done = Arc::clone(&done);
        std::thread::spawn(move || {
            let (real, spare) = (root.join("docs/inner"), root.join("spare"));
            let link = root.join("link");
            symlink(&outside, &link).unwrap();
            fs::write(real.join("secret.txt"), "harmless").unwrap();
            while !done.load(Ordering::Relaxed) {
                fs::rename(&real, &spare).unwrap();
                fs::rename(&link, &real).unwrap();
                fs::rename(&real, &link).unwrap();
                fs::rename(&spare, &real).unwrap();
            }
        })
    };
    for _ in 0..2_000 {
        if let Ok(bytes) = f.workspace.read(path("docs/inner/secret.txt"), 0, 100) {
            assert_ne!(bytes, b"secret");
        }
        if let Ok(()) = f.workspace.write(
            path("docs/inner/new"),
            b"x",
            WriteMode::Replace,
            &f.writes,
            &CancelFlag::default(),
        ) {
            assert!(!f.outside.join("new").exists());
        }
    }
    done.store(true, Ordering::Relaxed);
    swapper.join().unwrap();
    assert!(!f.outside.join("new").exists());
}

#[test]
fn pipes_and_directories_are_no_files() {
    let f = fixture();
    let fifo = f.root.join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    for name in ["fifo", "docs", "docs/inner"] {
        let read = f.workspace.read(path(name), 0, 10);
        assert!(matches!(read, Err(Refusal::Error(FileError::NotAFile))), "{name}: {read:?}");
        for mode in [WriteMode::Replace, WriteMode::Append] {
            let written =
                f.workspace.write(path(name), b"x", mode, &f.writes, &CancelFlag::default());
            assert!(
                matches!(written, Err(Refusal::Error(FileError::NotAFile))),
                "{name}: {written:?}"
            );
        }
    }
    assert!(matches!(f.workspace.read(path(""), 0, 10), Err(Refusal::Error(FileError::NotAFile))));
    assert!(matches!(
        f.workspace.remove(path("fifo"), &f.writes, &CancelFlag::default()),
        Err(Refusal::Error(FileError::NotAFile))
    ));
}

#[test]
fn listings_are_sorted_bounded_and_filtered() {
    let f = fixture();
    fs::write(f.root.join("docs/.taskrun-tmp-1"), "").unwrap();
    fs::write(f.root.join("docs/inner/x"), "").unwrap();
    fs::write(f.root.join("docs/inner-x"), "").unwrap();
    let list = |recursive, limit, shows: &dyn Fn(&str, EntryKind) -> bool| {
        let wanted = ListOptions { recursive, limit, bytes: 1 << 20 };
        let listing =
            f.workspace.list(path("docs"), wanted, shows, &CancelFlag::default()).unwrap();
        let paths: Vec<String> = listing.entries.into_iter().map(|entry| entry.path).collect();
        (paths, listing.truncated)
    };
    let (flat, truncated) = list(false, 100, &everything);
    let names = ["a.txt", "in.txt", "inner", "inner-x", "out", "out.txt"];
    assert_eq!(flat, names.map(|name| format!("docs/{name}")));
    assert!(!truncated);
    let (first, truncated) = list(true, 4, &everything);
    assert_eq!(first, ["docs/a.txt", "docs/in.txt", "docs/inner", "docs/inner-x"]);
    assert!(truncated);
    let (deep, _) = list(true, 100, &everything);
    assert!(deep.contains(&"docs/inner/x".to_owned()));
    assert!(!deep.iter().any(|path| path.contains("secret")));
    let (hidden, _) = list(true, 100, &|path, _| path != "docs/inner");
    assert!(!hidden.iter().any(|path| path.starts_with("docs/inner/")), "{hidden:?}");
}

#[test]
fn a_listing_keeps_the_first_whatever_the_order_on_disk() {
    let f = fixture();
    for n in 0..200 {
        fs::write(f.root.join(format!("docs/inner/{n:03}")), "").unwrap();
    }
    for limit in [0, 1, 7, 199, 200, 201] {
        let wanted = ListOptions { recursive: false, limit, bytes: 1 << 20 };
        let at = path("docs/inner");
        let listing = f.workspace.list(at, wanted, &everything, &CancelFlag::default()).unwrap();
        let names: Vec<String> = listing.entries.into_iter().map(|entry| entry.path).collect();
        let first: Vec<String> =
            (0..limit.min(200)).map(|n| format!("docs/inner/{n:03}")).collect();
        assert_eq!(names, first);
        assert_eq!(listing.truncated, limit < 200);
    }
}

#[test]
fn a_folder_that_goes_takes_nothing_from_a_listing() {
    let f = fixture();
    for name in ["gone", "swapped"] {
        fs::create_dir(f.root.join("docs").join(name)).expect("made");
    }
    fs::write(f.root.join("docs/inner/x"), "").expect("written");
    // Between the look at the name and the look into the folder.
    let shows = |path: &str, _: EntryKind| {
        if matches!(path, "docs/gone" | "docs/swapped") {
            fs::remove_dir(f.root.join(path)).expect("removed");
        }
        if path == "docs/swapped" {
            symlink(&f.outside, f.root.join(path)).expect("linked");
        }
        true
    };
    let wanted = ListOptions { recursive: true, limit: 100, bytes: 1 << 20 };
    let listing = f.workspace.list(path("docs"), wanted, &shows, &CancelFlag::default());
    let listing = listing.expect("the others are there");
    let paths: Vec<&str> = listing.entries.iter().map(|entry| entry.path.as_str()).collect();
    let names = ["a.txt", "in.txt", "inner", "inner/x", "out", "out.txt"];
    assert_eq!(paths, names.map(|name| format!("docs/{name}")));
}

/// Root may read every folder, but a thread of root's that has given up the right to do so may not.
#[cfg(target_os = "linux")]
#[test]
fn a_folder_that_may_not_be_read_takes_nothing_from_a_listing() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    let f = fixture();
    let folder = f.root.join("docs/kept");
    fs::create_dir(&folder).expect("made");
    for file in ["kept/x", "inner/x"] {
        fs::write(f.root.join("docs").join(file), "").expect("written");
    }
    let list = || {
        let wanted = ListOptions { recursive: true, limit: 100, bytes: 1 << 20 };
        let there = CancelFlag::default();
        let listing = f.workspace.list(path("docs"), wanted, &everything, &there);
        let entries = listing.expect("the others are there").entries;
        entries.into_iter().map(|entry| entry.path).collect::<Vec<_>>()
    };
    let list_without_rights = || {
        let mut sets = capabilities(None).expect("those of this thread");
        sets.effective.remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
        set_capabilities(None, sets).expect("everybody may give up some");
        list()
    };
    let may = |mode| fs::set_permissions(&folder, fs::Permissions::from_mode(mode));
    may(0).expect("its mode");
    let listed = std::thread::scope(|threads| threads.spawn(list_without_rights).join());
    may(0o700).expect("its mode");
    let names = ["a.txt", "in.txt", "inner", "inner/x", "kept", "out", "out.txt"];
    assert_eq!(listed.expect("it has listed"), names.map(|name| format!("docs/{name}")));
    assert!(list().contains(&"docs/kept/x".to_owned()), "it is there");
}

#[test]
fn a_listing_nobody_waits_for_ends() {
    let f = fixture();
    let abandoned = CancelFlag::default();
    drop(CancelOnDrop(abandoned.clone()));
    let wanted = ListOptions { recursive: true, limit: 10, bytes: 1 << 20 };
    assert!(f.workspace.list(path(""), wanted, &everything, &abandoned).is_err());
    let written =
        f.workspace.write(path("docs/a.txt"), b"x", WriteMode::Replace, &f.writes, &abandoned);
    assert!(written.is_err());
    let written =
        f.workspace.write(path("docs/new"), b"x", WriteMode::Append, &f.writes, &abandoned);
    assert!(written.is_err());
    assert!(f.workspace.remove(path("docs/a.txt"), &f.writes, &abandoned).is_err());
    assert!(
        f.workspace.create_directory(path("docs/new"), &|_| Ok(()), &f.writes, &abandoned).is_err()
    );
    assert_eq!(fs::read(f.root.join("docs/a.txt")).unwrap(), b"0123456789");
    assert_eq!(fs::read_dir(f.root.join("docs")).unwrap().count(), 5, "no temporary file is left");
}

#[test]
fn files_are_created_replaced_and_appended_to() {
    let f = fixture();
    let write = |name, bytes: &[u8], mode| {
        f.workspace.write(path(name), bytes, mode, &f.writes, &CancelFlag::default())
    };
    write("docs/n", b"1", WriteMode::CreateNew).unwrap();
    assert!(matches!(
        write("docs/n", b"2", WriteMode::CreateNew),
        Err(Refusal::Error(FileError::AlreadyExists))
    ));
    write("docs/n", b"3", WriteMode::Append).unwrap();
    write("docs/m", b"4", WriteMode::Append).unwrap();
    assert_eq!(fs::read(f.root.join("docs/n")).unwrap(), b"13");
    fs::set_permissions(f.root.join("docs/n"), fs::Permissions::from_mode(0o4640)).unwrap();
    write("docs/n", b"5", WriteMode::Replace).unwrap();
    assert_eq!(fs::read(f.root.join("docs/n")).unwrap(), b"5");
    let mode = fs::metadata(f.root.join("docs/n")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o640, "and no longer runs as its owner");
    assert!(matches!(
        write("none/n", b"", WriteMode::Replace),
        Err(Refusal::Error(FileError::NotFound))
    ));
    assert!(matches!(write("", b"", WriteMode::Replace), Err(Refusal::Error(FileError::NotAFile))));
}

#[test]
fn directories_are_made_as_far_as_allowed_and_removed_when_empty() {
    let f = fixture();
    f.workspace
        .create_directory(path("x/y/z"), &|_| Ok(()), &f.writes, &CancelFlag::default())
        .unwrap();
    f.workspace
        .create_directory(
            path("x/y/z"),
            &|_| panic!("it exists"),
            &f.writes,
            &CancelFlag::default(),
        )
        .unwrap();
    let refuse = |prefix: &str| match prefix {
        "p" => Ok(()),
        _ => Err(FileError::Denied(prefix.to_owned()).into()),
    };
    let made =
        f.workspace.create_directory(path("p/q/r"), &refuse, &f.writes, &CancelFlag::default());
    assert!(matches!(made, Err(Refusal::Error(FileError::Denied(prefix))) if prefix == "p/q"));
    assert!(matches!(
        f.workspace.remove(path("x/y"), &f.writes, &CancelFlag::default()),
        Err(Refusal::Error(FileError::Other(_)))
    ));
    f.workspace.remove(path("x/y/z"), &f.writes, &CancelFlag::default()).unwrap();
    assert!(!f.root.join("x/y/z").exists());
    assert!(matches!(
        f.workspace.remove(path(""), &f.writes, &CancelFlag::default()),
        Err(Refusal::Error(FileError::InvalidPath(_)))
    ));
    assert!(matches!(
        f.workspace.create_directory(
            path("docs/a.txt/b"),
            &|_| Ok(()),
            &f.writes,
            &CancelFlag::default()
        ),
        Err(Refusal::Error(FileError::NotADirectory))
    ));
}

#[tokio::test]
async fn an_operation_that_waited_for_its_thread_is_refused_if_the_rules_went_meanwhile() {
    let turns = Arc::new(tokio::sync::Semaphore::new(0));
    let (is_allowed, is_done) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
    let (rule, done) = (Arc::clone(&is_allowed), Arc::clone(&is_done));
    let denied = || Refusal::from(FileError::Denied("no rule".to_owned()));
    let allowed = move || rule.load(Ordering::SeqCst).then_some(()).ok_or_else(denied);
    let work = move |_: &CancelFlag| {
        done.store(true, Ordering::SeqCst);
        Ok(())
    };
    let threads = FileThreads::new(&turns, &Course::new(Duration::MAX));
    let mut waits = Box::pin(blocking(threads, allowed, work));
    assert!(futures::poll!(&mut waits).is_pending());
    is_allowed.store(false, Ordering::SeqCst);
    turns.add_permits(1);
    assert!(matches!(waits.await, Err(Refusal::Error(FileError::Denied(_)))));
    assert!(!is_done.load(Ordering::SeqCst));
}

/// Else a guest could have others wait for what it writes.
#[tokio::test]
async fn the_processors_time_of_an_operation_is_that_of_its_call() {
    let turns = Arc::new(tokio::sync::Semaphore::new(1));
    let course = Course::new(Duration::MAX);
    let threads = FileThreads::new(&turns, &course);
    let done = blocking(threads.clone(), || Ok(()), |_| Ok(blake3::hash(&[0; 4 << 10]))).await;
    assert!(done.is_ok());
    let first = course.used_ns();
    assert!(first > 0);
    assert!(threads.run(|| ()).await.is_some());
    assert!(course.used_ns() > first);
    assert_eq!(turns.available_permits(), 1);
}
