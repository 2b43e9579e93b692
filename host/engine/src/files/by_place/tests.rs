//! The host's own files, and what is counted when names and lengths change.

use std::fs;
use std::path::PathBuf;

use cap_std::ambient_authority;
use taskrun_policy::Policy;

use super::*;
use crate::bindings::interfaces::workspace_write::WriteMode;
use crate::files::{CancelFlag, ProtectedPaths, RelativePath, Workspace, WorkspaceHold};

struct Fixture {
    folder: tempfile::TempDir,
    root: Dir,
    workspace: Workspace,
    writes: Writes,
}

impl Fixture {
    fn new(own: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let protected = ProtectedPaths::default();
        protected.add(own.iter().map(|name| folder.path().join(name)));
        let root = Dir::open_ambient_dir(folder.path(), ambient_authority()).unwrap();
        let workspace = Workspace::open(folder.path(), protected).unwrap();
        let writes = Writes::of(&workspace);
        Self { folder, root, workspace, writes }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Takes up a policy, whose agents have their folders for as long as the hold is there.
    fn policy(&self, text: &str) -> WorkspaceHold {
        let policy = Policy::parse(text, &self.path("taskrun.toml")).expect("a policy");
        self.workspace.protected.add_policy(&policy);
        let folders = policy.agents.values().map(|agent| agent.workspace.as_path());
        self.workspace.protected.hold_workspaces(folders)
    }

    fn place(&self, path: &str) -> Result<Place, Fault> {
        Place::find(&self.root, path, false, &self.workspace.guard())
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), Fault> {
        let (guard, ways) = (self.workspace.guard(), self.workspace.ways());
        rename(self.place(from)?, self.place(to)?, (&guard, &ways), &self.writes)
    }

    fn link(&self, from: &str, to: &str) -> Result<(), Fault> {
        link(self.place(from)?, self.place(to)?, &self.workspace.guard(), &self.writes)
    }

    fn open(&self, path: &str) -> Result<File, Fault> {
        let how = AccessFlags { read: true, write: true, create: true, ..AccessFlags::default() };
        match open(self.place(path)?, how, &self.workspace.guard(), Some(&self.writes))? {
            OpenEntry::File(file) => Ok(file),
            OpenEntry::Folder(folder) => panic!("{folder:?}"),
        }
    }

    fn remove(&self, path: &str) -> Result<(), Fault> {
        self.remove_kind(path, false)
    }

    fn remove_kind(&self, path: &str, folder: bool) -> Result<(), Fault> {
        let (guard, ways) = (self.workspace.guard(), || self.workspace.ways());
        remove(self.place(path)?, folder, (&guard, ways), &self.writes)
    }

    /// The use of the workspace, each file once for each of its names.
    fn held(&self) -> DiskUse {
        let mut held = DiskUse::default();
        let mut folders = vec![self.folder.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let entry = entry.unwrap();
                let metadata = fs::symlink_metadata(entry.path()).unwrap();
                held.files += 1;
                match metadata.is_dir() {
                    true => folders.push(entry.path()),
                    false => held.bytes += metadata.len(),
                }
            }
        }
        held
    }
}

#[track_caller]
fn assert_own<T: std::fmt::Debug>(done: Result<T, Fault>) {
    assert!(matches!(done, Err(Fault::Own)), "{done:?}");
}

#[test]
fn no_folder_on_the_way_to_a_file_of_the_host_is_moved() {
    let f = Fixture::new(&["sub/data/key", "link/deep/later"]);
    fs::create_dir_all(f.path("sub/data")).unwrap();
    fs::write(f.path("sub/data/key"), "key").unwrap();
    fs::create_dir_all(f.path("real/deep")).unwrap();
    fs::create_dir(f.path("other")).unwrap();
    std::os::unix::fs::symlink("real", f.path("link")).unwrap();
    for way in ["sub", "sub/data", "real", "real/deep", "link"] {
        assert_own(f.rename(way, "other/taken"));
        assert!(f.path(way).exists(), "{way}");
    }
    // Nor is an empty one replaced, as then the host would find what somebody else made.
    fs::create_dir(f.path("prepared")).unwrap();
    assert_own(f.rename("prepared", "real/deep"));
    f.rename("other", "another").unwrap();
    assert!(f.path("another").exists());
}

#[test]
fn nothing_is_put_where_a_folder_of_the_host_will_be() {
    let f = Fixture::new(&["later/data/key"]);
    fs::create_dir_all(f.path("prepared/data")).unwrap();
    fs::write(f.path("prepared/data/key"), "mine").unwrap();
    assert_own(f.rename("prepared", "later"));
    fs::create_dir(f.path("later")).unwrap();
    assert_own(f.rename("prepared/data", "later/data"));
    assert!(!f.path("later/data").exists());
}

#[test]
fn no_folder_in_which_an_agent_works_is_moved_replaced_or_removed() {
    let f = Fixture::new(&[]);
    let text = "[agent.b]\ncomponent = \"b.wasm\"\nworkspace = \"above/sub\"\n\
                [agent.c]\ncomponent = \"c.wasm\"\nworkspace = \"link\"\n";
    let _held = f.policy(text);
    for folder in ["above/sub", "real", "other"] {
        fs::create_dir_all(f.path(folder)).expect("made");
    }
    std::os::unix::fs::symlink("real", f.path("link")).expect("linked");
    for way in ["above/sub", "above", "real"] {
        assert_own(f.rename(way, "other/taken"));
        assert_own(f.rename("other", way));
        assert_own(f.remove_kind(way, true));
        assert!(f.path(way).exists(), "{way}");
    }
    assert_own(f.remove_kind("link", false));
    assert!(f.path("link").exists());
    // Nor does another one come there that people have taken away.
    fs::remove_dir(f.path("above/sub")).expect("removed");
    assert_own(f.rename("other", "above/sub"));
    f.remove_kind("other", true).expect("nobody works there");
}

#[test]
fn nothing_that_a_link_on_the_way_leads_through_is_moved_replaced_or_removed() {
    let f = Fixture::new(&["c/x.wasm"]);
    let outside = tempfile::tempdir().expect("a folder");
    fs::write(outside.path().join("x.wasm"), "code").expect("written");
    let _held = f.policy("[agent.b]\ncomponent = \"b.wasm\"\nworkspace = \"current/b\"\n");
    for folder in ["releases", "store/v1/b", "d", "other"] {
        fs::create_dir_all(f.path(folder)).expect("made");
    }
    let links: [(&str, PathBuf); 4] = [
        ("current", "releases/latest".into()),
        ("releases/latest", "../store/v1".into()),
        ("c", "d/l2".into()),
        ("d/l2", outside.path().to_owned()),
    ];
    for (link, target) in &links {
        std::os::unix::fs::symlink(target, f.path(link)).expect("linked");
    }
    for way in ["releases", "store", "store/v1", "store/v1/b", "d"] {
        assert_own(f.rename(way, "other/taken"));
        assert_own(f.rename("other", way));
        assert!(f.path(way).exists(), "{way}");
    }
    for (link, target) in &links {
        assert_own(f.rename("other", link));
        assert_own(f.remove_kind(link, false));
        assert_eq!(fs::read_link(f.path(link)).expect("a link"), *target);
    }
    // Nor does another one come there that people have taken away.
    fs::rename(f.path("releases"), f.path("away")).expect("moved");
    assert_own(f.rename("other", "releases"));
    f.rename("away", "other/away").expect("it is on the way to nothing");
}

#[test]
fn the_folder_of_an_agent_that_is_in_no_policy_any_more_may_be_made_and_moved() {
    let f = Fixture::new(&[]);
    let without = "[agent.a]\ncomponent = \"a.wasm\"\n";
    let with = format!("{without}[agent.b]\ncomponent = \"b.wasm\"\nworkspace = \"out/b\"\n");
    fs::create_dir(f.path("out")).expect("made");
    let create = || create_folder(f.place("out/b")?, &f.workspace.guard(), &f.writes);
    let before = f.policy(&with);
    // They are read, and do not come into force.
    for tried in [without, &with] {
        drop(f.policy(tried));
        assert_own(create());
        assert_own(f.rename("out", "taken"));
    }
    let _now = f.policy(without);
    assert_own(create());
    // A run goes on under the policy before.
    fs::create_dir(f.path("out/b")).expect("made");
    let loaded = Workspace::open(&f.path("out/b"), f.workspace.protected.clone());
    let loaded = loaded.expect("opened").anew();
    drop(before);
    assert_own(f.rename("out", "taken"));
    drop(loaded);
    fs::remove_dir(f.path("out/b")).expect("removed");
    create().expect("nobody works there");
    f.rename("out", "taken").expect("nobody works there");
}

#[test]
fn an_own_file_is_not_made_in_a_folder_that_is_made_while_the_operation_is_under_way() {
    let f = Fixture::new(&["none/absent"]);
    let guard = f.workspace.guard();
    create_folder(f.place("none").expect("found"), &guard, &f.writes).expect("it is no own file");
    let place = || Place::find(&f.root, "none/absent", false, &guard);
    assert_own(place().and_then(|place| create_folder(place, &guard, &f.writes)));
    let creates = AccessFlags { write: true, create: true, ..AccessFlags::default() };
    let opened = place().and_then(|place| open(place, creates, &guard, Some(&f.writes)));
    assert_own(opened.map(drop));
    assert!(!f.path("none/absent").exists());
}

#[test]
fn nothing_is_made_where_the_folder_of_an_agent_is_missing() {
    let f = Fixture::new(&[]);
    let text = "[agent.b]\ncomponent = \"b.wasm\"\nworkspace = \"here/deep/sub\"\n\
                [agent.c]\ncomponent = \"c.wasm\"\nworkspace = \"link\"\n";
    let _held = f.policy(text);
    fs::create_dir(f.path("here")).expect("made");
    std::os::unix::fs::symlink("here/real", f.path("link")).expect("linked");
    f.open("file").expect("made");
    let create = |path: &str| create_folder(f.place(path)?, &f.workspace.guard(), &f.writes);
    let (there, new) = (CancelFlag::default(), WriteMode::CreateNew);
    for missing in ["here/deep", "here/Deep", "here/real"] {
        assert_own(create(missing));
        assert_own(f.open(missing));
        assert_own(f.link("file", missing));
        let path = || RelativePath::new(missing).expect("a path");
        let made = f.workspace.create_directory(path(), &|_| Ok(()), &f.writes, &there);
        assert_own(made.map_err(Fault::from));
        let written = f.workspace.write(path(), b"x", new, &f.writes, &there);
        assert_own(written.map_err(Fault::from));
        let looked =
            f.place(missing).and_then(|place| place.stat(&f.workspace.guard()).map(|_| ()));
        assert!(matches!(looked, Err(Fault::Io(_))), "it may be asked for: {looked:?}");
    }
    for other in ["deep", "here/other"] {
        create(other).expect("nobody works there");
    }
    // People make them, and guests what is in them.
    fs::create_dir(f.path("here/deep")).expect("made");
    assert_own(create("here/deep/sub"));
    fs::create_dir(f.path("here/deep/sub")).expect("made");
    create("here/deep/sub/new").expect("nothing is missing any more");
}

#[test]
fn what_becomes_something_else_while_its_ways_are_looked_for_stays() {
    let f = Fixture::new(&[]);
    std::os::unix::fs::symlink("none", f.path("it")).expect("linked");
    let ways = || {
        // Looking for them takes long, and others go on meanwhile.
        fs::remove_file(f.path("it")).expect("removed");
        fs::write(f.path("it"), "a file").expect("written");
        f.workspace.ways()
    };
    let place = f.place("it").expect("found");
    let removed = remove(place, false, (&f.workspace.guard(), ways), &f.writes);
    let Err(Fault::Io(error)) = removed else { panic!("it is removed") };
    assert_eq!(error.raw_os_error(), Some(Errno::BUSY.raw_os_error()));
    assert!(f.path("it").exists());
}

#[test]
fn no_data_directory_of_another_project_is_made_moved_or_replaced() {
    let f = Fixture::new(&[]);
    let data = "project/.taskrun";
    fs::create_dir_all(f.path("project/.taskrun/native")).expect("made");
    for file in ["forged", "project/.taskrun/native/key"] {
        fs::write(f.path(file), file).expect("written");
    }
    fs::create_dir(f.path("made")).expect("made");
    assert_own(f.rename("forged", "project/.taskrun/native/key"));
    assert_own(f.rename("project/.taskrun/native/key", "taken"));
    assert_own(f.rename(data, "taken"));
    assert_own(f.rename("made", data));
    assert_own(f.rename("made", ".TASKRUN"));
    assert_own(f.remove_kind(data, true));
    f.rename("made", "moved").expect("it is nothing of the host's");
}

#[test]
fn what_is_neither_a_file_nor_a_folder_is_not_moved() {
    let f = Fixture::new(&[]);
    fs::create_dir(f.path("deep")).expect("made");
    std::os::unix::fs::symlink("../../outside", f.path("deep/link")).expect("linked");
    assert!(matches!(f.rename("deep/link", "link"), Err(Fault::Special)));
    assert!(matches!(f.link("deep/link", "link"), Err(Fault::Special)));
    assert!(fs::symlink_metadata(f.path("deep/link")).is_ok());
    assert!(fs::symlink_metadata(f.path("link")).is_err());
    f.open("file").expect("made");
    f.rename("file", "deep/link").expect("a link may be replaced, as it may be removed");
}

#[test]
fn a_name_that_cannot_be_said_takes_nothing_from_a_listing() {
    let f = Fixture::new(&[]);
    let name: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"\xff");
    fs::write(f.folder.path().join(name), "").expect("written");
    fs::write(f.path("plain"), "").expect("written");
    let entries = entries(&f.root, 10, &f.workspace.guard()).expect("listed");
    assert_eq!(entries.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["plain"]);
}

#[test]
fn a_path_that_leads_out_is_told_apart_from_what_the_system_refuses() {
    let f = Fixture::new(&[]);
    std::os::unix::fs::symlink("/etc", f.path("link")).expect("linked");
    for path in ["/etc", "..", "none/../../x", "link/passwd"] {
        fs::create_dir_all(f.path("none")).expect("made");
        assert!(matches!(f.place(path), Err(Fault::Out)), "{path}");
    }
    assert!(matches!(f.place("absent/x"), Err(Fault::Io(_))));
}

#[test]
fn what_is_taken_away_is_given_back_once() {
    let f = Fixture::new(&[]);
    let keep = f.open("keep").unwrap();
    write(&keep, &[1; 5_000], Some(0), &f.writes).unwrap();
    let file = f.open("gone").unwrap();
    write(&file, &[1; 3_000], None, &f.writes).unwrap();
    assert_eq!(f.writes.used(), DiskUse { bytes: 8_000, files: 2 });
    f.remove("gone").unwrap();
    set_size(&file, 0, Some(&f.writes)).unwrap();
    assert_eq!(f.writes.used(), DiskUse { bytes: 5_000, files: 1 });
    let replaced = f.open("replaced").unwrap();
    set_size(&replaced, 4_000, Some(&f.writes)).unwrap();
    f.rename("keep", "replaced").unwrap();
    set_size(&replaced, 0, Some(&f.writes)).unwrap();
    assert_eq!(f.writes.used(), f.held());
}

#[test]
fn paths_are_bounded_and_what_is_being_written_is_not_there() {
    let f = Fixture::new(&[]);
    fs::write(f.path(".taskrun-tmp-1"), "half").unwrap();
    fs::write(f.path("whole"), "").unwrap();
    assert!(f.open(".taskrun-tmp-1").is_err());
    let entries = entries(&f.root, 10, &f.workspace.guard()).unwrap();
    assert_eq!(entries.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["whole"]);
    let long = "./".repeat(2_048) + "whole";
    let Err(Fault::Io(error)) = f.place(&long) else { panic!("a path of {} bytes", long.len()) };
    assert_eq!(error.raw_os_error(), Some(Errno::NAMETOOLONG.raw_os_error()));
}

/// Lets four calls do the same kind of steps at the same time, and gives what the workspace is then
/// taken to hold. Steps that come too late fail.
fn race(f: &Fixture, step: impl Fn(&Fixture, u64) + Sync) -> DiskUse {
    std::thread::scope(|threads| {
        for seed in 1..5_u64 {
            let step = &step;
            threads.spawn(move || {
                let mut random = seed;
                for _ in 0..3_000 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    step(f, random >> 33);
                }
            });
        }
    });
    f.writes.used()
}

#[test]
fn calls_that_make_a_file_shorter_at_once_make_no_room_that_is_not_there() {
    let f = Fixture::new(&[]);
    let file = f.open("one").unwrap();
    let counted = race(&f, |f, random| match random % 3 {
        0 => write(&file, &[1; 3_000], None, &f.writes).unwrap(),
        _ => set_size(&file, random / 3 % 4 * 1_000, Some(&f.writes)).unwrap(),
    });
    assert_eq!(counted, f.held());
}

#[test]
fn calls_that_replace_and_remove_a_file_at_once_make_no_room_that_is_not_there() {
    let f = Fixture::new(&[]);
    let counted = race(&f, |f, random| {
        let (path, there) = (RelativePath::new("one").unwrap(), CancelFlag::default());
        let contents = vec![1; usize::try_from(random / 4 % 4 * 1_000).unwrap()];
        match random % 4 {
            0 => drop(f.workspace.remove(path, &f.writes, &there)),
            1 => drop(f.remove("one")),
            _ => {
                let replace = WriteMode::Replace;
                f.workspace.write(path, &contents, replace, &f.writes, &there).unwrap();
            }
        }
    });
    assert_eq!(counted, f.held());
}
