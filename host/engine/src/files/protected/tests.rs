//! The host's own files under their names, and the folders in which agents work.

use std::fs;

use cap_std::ambient_authority;
use taskrun_policy::Capability;

use super::super::{CancelFlag, ListOptions, RelativePath, Workspace, is_own_file};
use super::*;
use crate::bindings::interfaces::workspace_write::WriteMode;
use crate::files::disk::Writes;

fn path(text: &str) -> RelativePath<'_> {
    RelativePath::new(text).expect("a path")
}

/// A workspace with a data directory, a policy, and a second name for the policy.
fn fixture() -> (tempfile::TempDir, Workspace) {
    let dir = tempfile::tempdir().expect("made");
    let root = dir.path();
    fs::create_dir_all(root.join("sub/data/native")).expect("made");
    fs::write(root.join("sub/data/native/key"), "key").expect("made");
    fs::write(root.join("policy.toml"), "policy").expect("made");
    fs::hard_link(root.join("policy.toml"), root.join("sub/again.toml")).expect("made");
    let protected = ProtectedPaths::default();
    let own = ["sub/data", "policy.toml", "absent", "none/absent"];
    protected.add(own.map(|name| root.join(name)));
    let workspace = Workspace::open(root, protected).expect("made");
    (dir, workspace)
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: Result<T>) {
    assert!(matches!(&result, Err(Refusal::OwnFile)), "{result:?}");
}

#[test]
fn nothing_is_done_to_them_under_any_name() {
    let (dir, workspace) = fixture();
    let (writes, there) = (Writes::of(&workspace), CancelFlag::default());
    let names = ["sub/data", "sub/data/native/key", "policy.toml", "sub/again.toml", "absent"];
    for name in names {
        assert_refused(workspace.stat(path(name)));
        assert_refused(workspace.read(path(name), 0, 10));
        for mode in [WriteMode::Replace, WriteMode::Append] {
            assert_refused(workspace.write(path(name), b"x", mode, &writes, &there));
        }
        assert_refused(workspace.remove(path(name), &writes, &there));
    }
    let aliases = ["Policy.TOML", "ABSENT", "policy.toml.", "absent:x", "ab\u{17f}ent"];
    for new in ["sub/data/new", "absent", "absent/new", "policy.toml"].iter().chain(&aliases) {
        assert_refused(workspace.write(path(new), b"x", WriteMode::CreateNew, &writes, &there));
        assert_refused(workspace.create_directory(path(new), &|_| Ok(()), &writes, &there));
    }
    assert_eq!(fs::read(dir.path().join("policy.toml")).expect("made"), b"policy");
    assert_eq!(fs::read(dir.path().join("sub/data/native/key")).expect("made"), b"key");
    assert!(!dir.path().join("absent").exists());
    // Whoever makes the folder does not get to what would be in it.
    workspace.create_directory(path("none"), &|_| Ok(()), &writes, &there).expect("made");
    assert_refused(workspace.write(
        path("none/absent"),
        b"x",
        WriteMode::CreateNew,
        &writes,
        &there,
    ));
}

#[test]
fn what_a_link_leads_to_that_a_policy_names_is_not_made() {
    let dir = tempfile::tempdir().expect("a folder");
    let root = dir.path();
    for folder in ["c", "build"] {
        fs::create_dir(root.join(folder)).expect("made");
    }
    let link = |target: &str, name: &str| std::os::unix::fs::symlink(target, root.join(name));
    link("../build/hop", "c/x.wasm").expect("linked");
    link("x.wasm", "build/hop").expect("linked");
    let protected = ProtectedPaths::default();
    protected.add([root.join("c/x.wasm")]);
    let workspace = Workspace::open(root, protected).expect("opened");
    let (writes, there) = (Writes::of(&workspace), CancelFlag::default());
    for made in ["build/x.wasm", "build/X.wasm", "build/hop"] {
        for mode in [WriteMode::CreateNew, WriteMode::Replace, WriteMode::Append] {
            assert_refused(workspace.write(path(made), b"x", mode, &writes, &there));
        }
        assert_refused(workspace.create_directory(path(made), &|_| Ok(()), &writes, &there));
    }
    assert!(!root.join("build/x.wasm").exists());
    assert!(workspace.protected.overlapping(&root.join("build")).is_some());
    let other = workspace.create_directory(path("build/y"), &|_| Ok(()), &writes, &there);
    other.expect("it is nothing of the host's");
}

#[test]
fn folders_in_which_agents_work_are_not_removed_and_those_that_they_are_in_are_not() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = "[agent.b]\ncomponent = \"b.wasm\"\nworkspace = \"above/sub\"\n";
    let policy = Policy::parse(text, &dir.path().join("taskrun.toml")).expect("a policy");
    let protected = ProtectedPaths::default();
    let _held = protected.hold_workspaces([policy.agents["b"].workspace.as_path()]);
    let workspace = Workspace::open(dir.path(), protected).expect("opened");
    let (writes, there) = (Writes::of(&workspace), CancelFlag::default());
    for folder in ["above/sub", "other"] {
        fs::create_dir_all(dir.path().join(folder)).expect("made");
    }
    assert_refused(workspace.remove(path("above/sub"), &writes, &there));
    fs::remove_dir(dir.path().join("above/sub")).expect("people may");
    assert_refused(workspace.remove(path("above"), &writes, &there));
    workspace.remove(path("other"), &writes, &there).expect("nobody works there");
}

#[test]
fn a_path_where_the_folder_of_an_agent_is_missing_is_the_hosts_own_for_writing_alone() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = "[agent.b]\ncomponent = \"b.wasm\"\nworkspace = \"here/deep/sub\"\n";
    let policy = Policy::parse(text, &dir.path().join("taskrun.toml")).expect("a policy");
    fs::create_dir(dir.path().join("here")).expect("made");
    let is_own = |capability, path| is_own_file([], &[&policy], (dir.path(), capability, path));
    let (read, write) = (Capability::WorkspaceRead, Capability::WorkspaceWrite);
    let needed = ["here/deep", "here/deep/sub", "here/Deep", "here/deep/other/new"];
    for path in needed {
        assert_eq!((is_own(read, path), is_own(write, path)), (false, true), "{path}");
    }
    for path in ["here", "here/other", "other/deep"] {
        assert!(!is_own(write, path), "{path}");
    }
    fs::create_dir_all(dir.path().join("here/deep/sub")).expect("made");
    for path in needed {
        assert!(!is_own(write, path), "{path}: people have made it");
    }
    assert!(is_own(read, "b.wasm") && is_own(write, "b.wasm"));
    let text = "[agent.c]\ncomponent = \"none/c.wasm\"\n";
    let policy = Policy::parse(text, &dir.path().join("taskrun.toml")).expect("a policy");
    let is_own = |path| is_own_file([], &[&policy], (dir.path(), write, path));
    assert!(is_own("none/c.wasm") && !is_own("none") && !is_own("none/d.wasm"));
}

#[test]
fn links_that_lead_to_themselves_are_followed_as_far_as_the_system_follows_them() {
    let dir = tempfile::tempdir().expect("a folder");
    let root = dir.path();
    fs::create_dir(root.join("b")).expect("made");
    for (target, link) in [("loop", "loop"), ("b/../grows/x", "grows")] {
        std::os::unix::fs::symlink(target, root.join(link)).expect("linked");
    }
    let protected = ProtectedPaths::default();
    let _held = protected.hold_workspaces([&*root.join("loop/x"), &*root.join("grows")]);
    let (ways, open) = (protected.ways(), Dir::open_ambient_dir(root, ambient_authority()));
    let open = open.expect("opened");
    for name in ["loop", "grows", "b"] {
        assert_refused(ways.check_name(&open, name));
    }
    ways.check_name(&open, "other").expect("it is on no way");
}

#[test]
fn listings_do_not_show_them() {
    let (_dir, workspace) = fixture();
    let wanted = ListOptions { recursive: true, limit: 100, bytes: 1 << 20 };
    let there = CancelFlag::default();
    let listing = workspace.list(path(""), wanted, &|_, _| true, &there).expect("made");
    let paths: Vec<&str> = listing.entries.iter().map(|entry| entry.path.as_str()).collect();
    assert_eq!(paths, ["sub"]);
    assert_refused(workspace.list(path("sub/data"), wanted, &|_, _| true, &there));
    assert!(workspace.open_folder("sub/data/native").is_err());
    assert!(workspace.open_folder("sub").is_ok());
}

#[test]
fn the_data_directory_of_another_project_is_neither_reached_nor_made() {
    let (dir, workspace) = fixture();
    let data = dir.path().join("sub/other/.taskrun");
    fs::create_dir_all(data.join("native")).expect("made");
    fs::write(data.join("native/key"), "key").expect("written");
    let (writes, there) = (Writes::of(&workspace), CancelFlag::default());
    let key = "sub/other/.taskrun/native/key";
    assert_refused(workspace.read(path(key), 0, 10));
    assert_refused(workspace.write(path(key), b"x", WriteMode::Append, &writes, &there));
    assert_refused(workspace.remove(path(key), &writes, &there));
    for new in [".taskrun", "sub/.TaskRun", "sub/.taskrun./native", "new/.taskrun"] {
        assert_refused(workspace.create_directory(path(new), &|_| Ok(()), &writes, &there));
    }
    assert!(workspace.open_folder("sub/other/.taskrun/native").is_err());
    let wanted = ListOptions { recursive: true, limit: 100, bytes: 1 << 20 };
    let listing = workspace.list(path("sub"), wanted, &|_, _| true, &there).expect("listed");
    let paths: Vec<&str> = listing.entries.iter().map(|entry| entry.path.as_str()).collect();
    assert_eq!(paths, ["sub/other"]);
    let used = workspace.used(&["sub".to_owned()], 100);
    assert_eq!((used.files, used.bytes), (1, 0), "of the folder that it is in");
}

#[test]
fn a_file_that_is_built_anew_is_protected_as_well() {
    let (dir, workspace) = fixture();
    let (own, other) = (dir.path().join("policy.toml"), dir.path().join("other"));
    fs::write(&other, "new").expect("made");
    fs::rename(&other, &own).expect("made");
    fs::rename(&own, dir.path().join("moved")).expect("made");
    fs::hard_link(dir.path().join("moved"), &own).expect("made");
    assert_refused(workspace.read(path("moved"), 0, 10));
}

#[test]
fn folders_overlap_through_links_and_before_they_exist() {
    let (dir, workspace) = fixture();
    let (root, link) = (dir.path(), dir.path().join("link"));
    std::os::unix::fs::symlink(root.join("sub"), &link).expect("made");
    let protected = &workspace.protected;
    for folder in ["", "sub", "link", "none", "absent", "absent/below", "sub/data/native"] {
        assert!(protected.overlapping(&root.join(folder)).is_some(), "{folder}");
    }
    assert!(protected.overlapping(&root.join("notes")).is_none());
    assert!(protected.containing(root).is_none());
    assert!(protected.containing(&link.join("data")).is_some());
}
