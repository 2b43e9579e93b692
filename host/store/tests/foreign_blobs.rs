//! Blobs that another user left, as one command as root does, in a folder that is one's own.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use taskrun_store::Blobs;

const FOREIGN: &str = "TASKRUN_TEST_FOREIGN_BLOBS";
const PIN: &str = "blake3:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
/// Nobody.
const USER: u32 = 65_534;

/// Keeps what is there already, as the owner of the folder.
fn keeps(dir: &Path) {
    let blobs = Blobs::open(dir).expect("opens");
    let digest = blobs.put_file(&dir.join("component"), 1_000).expect("the component is kept");
    assert!(blobs.check(&digest).expect("it can be read"));
    blobs.put_snapshot(PIN, "a policy").expect("the policy is kept");
    assert_eq!(blobs.snapshot(PIN).expect("it can be read").as_deref(), Some("a policy"));
    assert_eq!(blobs.unreadable_snapshots().expect("a folder"), Vec::<PathBuf>::new());
    println!("it is kept anew");
}

/// Root may read everything, so they are read by a process of somebody else.
#[test]
fn what_only_another_user_reads_is_written_anew() {
    #[expect(clippy::disallowed_methods, reason = "how the parent tells its child what to do")]
    let told = std::env::var_os(FOREIGN);
    if let Some(dir) = told {
        return keeps(Path::new(&dir));
    }
    let dir = tempfile::tempdir().expect("a folder");
    let component = dir.path().join("component");
    std::fs::write(&component, "component").expect("written");
    let blobs = Blobs::open(dir.path()).expect("opens");
    let digest = blobs.put_file(&component, 1_000).expect("kept");
    blobs.put_snapshot(PIN, "a policy").expect("kept");
    let is_root = rustix::process::geteuid().is_root();
    let folders =
        ["", "component", "blobs", "blobs/pins", "blobs/tmp"].map(|of| dir.path().join(of));
    let kept = blobs.path(&digest);
    let folders = folders.iter().map(PathBuf::as_path).chain(kept.parent());
    folders.filter(|_| is_root).for_each(|of| chown(of, Some(USER), Some(USER)).expect("given"));
    // Its owner has the right to change one that may not be read, and nobody else has.
    let mode = if is_root { 0o600 } else { 0o000 };
    let pin = dir.path().join("blobs/pins").join(PIN.trim_start_matches("blake3:"));
    for path in [&pin, &kept] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("set");
    }
    let mut child = Command::new(std::env::current_exe().expect("this test"));
    child.args(["--exact", "what_only_another_user_reads_is_written_anew", "--nocapture"]);
    child.env(FOREIGN, dir.path());
    if is_root {
        child.uid(USER).gid(USER);
    }
    let output = child.output().expect("the child runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("it is kept anew"), "{said}");
}
