//! Blobs that are kept, damaged, cut off and refused.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use rustix::fs::CWD;

use super::files::{LEFT_AFTER, SYNCED_AFTER};
use super::*;

const PIN: &str = "blake3:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

fn blobs() -> (tempfile::TempDir, Blobs) {
    let dir = tempfile::tempdir().expect("a folder");
    let blobs = Blobs::open(dir.path()).expect("opens");
    (dir, blobs)
}

fn file(dir: &tempfile::TempDir, bytes: &[u8]) -> PathBuf {
    let path = dir.path().join("component.wasm");
    std::fs::write(&path, bytes).expect("written");
    path
}

#[test]
fn a_file_is_kept_by_the_digest_of_its_bytes_whatever_becomes_of_it() {
    let (dir, blobs) = blobs();
    let bytes = vec![7; 3 * PIECE_BYTES + 1];
    let from = file(&dir, &bytes);
    let digest = blake3::hash(&bytes);
    assert!(!blobs.renew(&digest).expect("looks") && !blobs.check(&digest).expect("looks"));
    assert_eq!(blobs.put_file(&from, 1 << 20).expect("kept"), digest);
    std::fs::write(&from, b"other").expect("written");
    assert_eq!(std::fs::read(blobs.path(&digest)).expect("there"), bytes);
    assert!(blobs.renew(&digest).expect("renewed") && blobs.check(&digest).expect("whole"));
    let mode = |path: &Path| path.metadata().expect("there").permissions().mode() & 0o777;
    assert_eq!(mode(&blobs.path(&digest)), 0o600);
    assert_eq!(mode(&dir.path().join(FOLDER)), 0o700);
    let listed = blobs.list().expect("listed");
    let [BlobInfo { digest: known, bytes: size, .. }] = *listed else { panic!("{listed:?}") };
    assert_eq!((known, size), (digest, bytes.len() as u64));
    let left = entries(&dir.path().join(FOLDER).join(TEMPORARY)).expect("listed");
    assert_eq!(left, Vec::<PathBuf>::new(), "nothing is left of the copy");
}

#[test]
fn a_blob_that_was_cut_is_made_whole_and_a_changed_byte_is_found() {
    let (dir, blobs) = blobs();
    let bytes: Vec<u8> = (0..=255).cycle().take(10_000).collect();
    let from = file(&dir, &bytes);
    let digest = blobs.put_file(&from, 1 << 20).expect("kept");
    let path = blobs.path(&digest);
    std::fs::write(&path, &bytes[..5_000]).expect("cut");
    assert!(matches!(blobs.check(&digest), Err(BlobError::Damaged { .. })));
    blobs.put_file(&from, 1 << 20).expect("kept again");
    assert!(blobs.check(&digest).expect("whole"));
    for at in [0, 1, 4_096, 9_999] {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        std::fs::write(&path, &changed).expect("changed");
        assert!(matches!(blobs.check(&digest), Err(BlobError::Damaged { .. })), "{at}");
    }
}

#[test]
fn a_copy_that_was_cut_off_is_no_blob_and_in_nobodys_way() {
    let (dir, blobs) = blobs();
    let from = file(&dir, b"component");
    // As if the process had died before the move.
    let temporary = blobs.temporary().expect("begun");
    std::mem::forget(temporary);
    assert_eq!(blobs.list().expect("listed"), []);
    let digest = blobs.put_file(&from, 1 << 20).expect("kept");
    assert!(blobs.check(&digest).expect("whole"));
}

#[test]
fn many_threads_keep_the_same_file_at_once() {
    let (dir, blobs) = blobs();
    let from = file(&dir, &vec![1; 100_000]);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let digest = blobs.put_file(&from, 1 << 20).expect("kept");
                assert!(blobs.check(&digest).expect("whole"));
                blobs.put_snapshot(PIN, "a policy").expect("kept");
                assert_eq!(blobs.snapshot(PIN).expect("read").as_deref(), Some("a policy"));
            });
        }
    });
    assert_eq!(blobs.list().expect("listed").len(), 1);
}

#[test]
fn what_is_no_file_or_too_large_is_refused_without_waiting() {
    let (dir, blobs) = blobs();
    let pipe = dir.path().join("pipe");
    rustix::fs::mkfifoat(CWD, &pipe, rustix::fs::Mode::RUSR).expect("a pipe");
    assert!(matches!(blobs.put_file(&pipe, 9), Err(BlobError::NotAFile { .. })));
    assert!(matches!(blobs.put_file(dir.path(), 9), Err(BlobError::NotAFile { .. })));
    let from = file(&dir, b"0123456789");
    assert!(matches!(blobs.put_file(&from, 9), Err(BlobError::TooLarge { limit: 9, .. })));
    assert!(matches!(blobs.put_file(Path::new("/none"), 9), Err(BlobError::Io { .. })));
    assert_eq!(blobs.list().expect("listed"), []);
}

#[test]
fn a_text_is_found_under_its_pin_and_replaced_whole() {
    let (_dir, blobs) = blobs();
    assert_eq!(blobs.snapshot(PIN).expect("read"), None);
    for text in ["one", "one", "another"] {
        blobs.put_snapshot(PIN, text).expect("kept");
        assert_eq!(blobs.snapshot(PIN).expect("read").as_deref(), Some(text));
    }
    for bad in ["", "blake3:", "../../etc/passwd", &PIN.to_uppercase(), &PIN[..70]] {
        assert!(matches!(blobs.snapshot(bad), Err(BlobError::BadPin(_))), "{bad}");
        assert!(matches!(blobs.put_snapshot(bad, "x"), Err(BlobError::BadPin(_))), "{bad}");
    }
}

#[test]
fn files_that_another_process_is_writing_are_left_to_it() {
    let (dir, blobs) = blobs();
    let from = file(&dir, b"component");
    // A process in another container has its own numbering of processes, and so may have ours.
    let next = WRITTEN.load(Ordering::Relaxed);
    let theirs = |number| {
        let name = format!("{}-{number}", std::process::id());
        dir.path().join(FOLDER).join(TEMPORARY).join(name)
    };
    for number in next..next + 64 {
        std::fs::write(theirs(number), b"theirs").expect("written");
    }
    blobs.put_file(&from, 1 << 20).expect("kept");
    for number in next..next + 64 {
        let there = std::fs::read(theirs(number)).ok();
        assert_eq!(there.as_deref(), Some(b"theirs".as_slice()), "{number}");
    }
}

#[test]
fn copies_that_were_cut_off_long_ago_are_removed_and_later_ones_are_not() {
    let (dir, _blobs) = blobs();
    let folder = dir.path().join(FOLDER).join(TEMPORARY);
    let (old, recent) = (folder.join("1-1"), folder.join("1-2"));
    for path in [&old, &recent] {
        std::fs::write(path, b"half").expect("written");
    }
    let long_ago = old.metadata().expect("there").modified().expect("a time") - 2 * LEFT_AFTER;
    File::options().write(true).open(&old).expect("opens").set_modified(long_ago).expect("set");
    Blobs::open(dir.path()).expect("opens");
    assert!(!old.exists() && recent.exists());
}

#[test]
fn a_damaged_text_is_replaced_by_the_next_that_is_kept() {
    let (dir, blobs) = blobs();
    let path = dir.path().join(FOLDER).join(PINS).join(&PIN["blake3:".len()..]);
    for bit in 0..8 {
        blobs.put_snapshot(PIN, "a policy").expect("kept");
        let mut bytes = std::fs::read(&path).expect("there");
        bytes[0] ^= 1 << bit;
        std::fs::write(&path, &bytes).expect("changed");
        blobs.put_snapshot(PIN, "a policy").unwrap_or_else(|error| panic!("bit {bit}: {error}"));
        assert_eq!(blobs.snapshot(PIN).expect("read").as_deref(), Some("a policy"), "{bit}");
    }
}

#[test]
fn a_text_that_could_not_be_read_again_is_not_kept() {
    let (_dir, blobs) = blobs();
    let text = "x".repeat(usize::try_from(SNAPSHOT_BYTES_MAX).expect("small") + 1);
    let kept = blobs.put_snapshot(PIN, &text);
    assert!(matches!(kept, Err(BlobError::TooLarge { .. })), "{kept:?}");
    blobs.put_snapshot(PIN, "a policy").expect("kept");
    assert_eq!(blobs.snapshot(PIN).expect("read").as_deref(), Some("a policy"));
}

#[test]
fn a_blob_is_made_whole_from_a_file_with_its_bytes_and_from_no_other() {
    let (dir, blobs) = blobs();
    let from = file(&dir, b"component");
    let digest = blobs.put_file(&from, 100).expect("kept");
    for damage in [Some(b"Component".as_slice()), None] {
        match damage {
            Some(bytes) => std::fs::write(blobs.path(&digest), bytes).expect("written"),
            None => std::fs::remove_file(blobs.path(&digest)).expect("removed"),
        }
        let other = file(&dir, b"another");
        assert!(!blobs.mend(&digest, &other, 100).expect("tried"));
        assert!(!matches!(blobs.check(&digest), Ok(true)));
        let same = file(&dir, b"component");
        assert!(blobs.mend(&digest, &same, 100).expect("mended"));
        assert!(matches!(blobs.check(&digest), Ok(true)));
    }
}

fn age(path: &Path, by: Duration) {
    let file = File::options().write(true).open(path).expect("opens");
    let modified = file.metadata().and_then(|meta| meta.modified()).expect("a time");
    file.set_modified(modified - by).expect("set");
}

const HOUR: Duration = Duration::from_secs(60 * 60);

#[test]
fn what_is_old_and_needed_by_nobody_is_removed_and_nothing_else() {
    let (dir, blobs) = blobs();
    let put = |bytes: &[u8]| blobs.put_file(&file(&dir, bytes), 100).expect("kept");
    let [old, needed, young] = [put(b"old"), put(b"needed"), put(b"young")];
    blobs.put_snapshot(PIN, "a policy").expect("kept");
    let snapshot = dir.path().join(FOLDER).join(PINS).join(&PIN["blake3:".len()..]);
    for path in [&blobs.path(&old), &blobs.path(&needed), &snapshot] {
        age(path, 2 * HOUR);
    }
    age(&blobs.path(&young), HOUR / 2);
    let removal = blobs.begin_removal().expect("begins").expect("nobody holds them");
    let would = removal.blobs(HOUR, true, |digest| *digest == needed).expect("looks");
    assert_eq!(would, RemovedBlobs { count: 1, bytes: 3 });
    assert_eq!(blobs.list().expect("listed").len(), 3, "nothing is removed");
    let did = removal.blobs(HOUR, false, |digest| *digest == needed).expect("removes");
    assert_eq!(did, would);
    let mut left: Vec<_> = blobs.list().expect("listed").iter().map(|blob| blob.digest).collect();
    left.sort_by_key(|digest| *digest.as_bytes());
    let mut expected = vec![needed, young];
    expected.sort_by_key(|digest| *digest.as_bytes());
    assert_eq!(left, expected);
    let kept = removal.snapshots(HOUR, false, |pin| pin == PIN).expect("looks");
    assert_eq!((kept.count, blobs.snapshot(PIN).expect("read").is_some()), (0, true));
    let gone = removal.snapshots(HOUR, false, |_| false).expect("removes");
    assert_eq!(
        (gone, blobs.snapshot(PIN).expect("read")),
        (RemovedBlobs { count: 1, bytes: 8 }, None)
    );
}

#[test]
fn what_is_wanted_again_is_young() {
    let (dir, blobs) = blobs();
    let digest = blobs.put_file(&file(&dir, b"component"), 100).expect("kept");
    blobs.put_snapshot(PIN, "a policy").expect("kept");
    let snapshot = dir.path().join(FOLDER).join(PINS).join(&PIN["blake3:".len()..]);
    type Renew<'a> = Box<dyn Fn() + 'a>;
    let renewals: [Renew<'_>; 3] = [
        Box::new(|| assert!(blobs.renew(&digest).expect("renewed"))),
        Box::new(|| {
            assert_eq!(blobs.put_file(&file(&dir, b"component"), 100).expect("kept"), digest)
        }),
        Box::new(|| assert!(blobs.mend(&digest, &file(&dir, b"component"), 100).expect("mended"))),
    ];
    for renew in renewals {
        age(&blobs.path(&digest), 2 * HOUR);
        age(&snapshot, 2 * HOUR);
        renew();
        assert!(blobs.renew_snapshot(PIN).expect("renewed"));
        let removal = blobs.begin_removal().expect("begins").expect("nobody holds them");
        assert_eq!(removal.blobs(HOUR, false, |_| false).expect("looks").count, 0);
        assert_eq!(removal.snapshots(HOUR, false, |_| false).expect("looks").count, 0);
    }
}

#[test]
fn nothing_is_removed_while_somebody_holds_blobs_and_nobody_holds_them_while_some_are_removed() {
    let (_dir, blobs) = blobs();
    let first = blobs.hold(HOUR).expect("held").expect("in time");
    let second = blobs.hold(HOUR).expect("held").expect("by two");
    assert!(blobs.begin_removal().expect("tries").is_none());
    drop(first);
    assert!(blobs.begin_removal().expect("tries").is_none());
    drop(second);
    let removal = blobs.begin_removal().expect("begins").expect("nobody holds them");
    assert!(blobs.begin_removal().expect("tries").is_none(), "there is one removal at a time");
    assert!(blobs.hold(Duration::ZERO).expect("tries").is_none());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| blobs.hold(HOUR).expect("held"));
        drop(removal);
        assert!(waiting.join().expect("no panic").is_some(), "held once the removal is over");
    });
}

/// Says whether a process that has just begun syncs the folders of a file that it renews.
fn is_synced_by_another(dir: &tempfile::TempDir, path: &Path) -> bool {
    let other = Blobs::open(dir.path()).expect("opens");
    assert!(other.renew_file(path).expect("renewed"));
    other.synced.sync(path, || Err("it was not")).is_ok()
}

/// Sets the time of the last change of a folder.
fn set_changed(folder: &Path, at: SystemTime) {
    File::open(folder).expect("opens").set_modified(at).expect("set");
}

#[test]
fn folders_that_have_not_changed_for_a_while_are_not_synced_however_often_a_file_is_renewed() {
    let (dir, blobs) = blobs();
    let digest = blobs.put_file(&file(&dir, b"component"), 100).expect("kept");
    blobs.put_snapshot(PIN, "a policy").expect("kept");
    let pins = dir.path().join(FOLDER).join(PINS);
    let paths = [blobs.path(&digest), pins.join(&PIN["blake3:".len()..])];
    let now = paths[0].metadata().and_then(|meta| meta.modified()).expect("a time");
    for path in &paths {
        assert!(is_synced_by_another(&dir, path), "it came just now");
        let folders: Vec<_> = path.ancestors().skip(1).take(FOLDERS).collect();
        assert_eq!(folders[1], dir.path().join(FOLDER));
        for folder in &folders {
            set_changed(folder, now - 2 * SYNCED_AFTER);
        }
        for _ in 0..3 {
            assert!(!is_synced_by_another(&dir, path), "the file alone is young");
        }
        // It took long to write it, and it was moved just now, or a folder was made for it.
        age(path, HOUR);
        for folder in folders {
            for at in [now, now + HOUR] {
                set_changed(folder, at);
                assert!(is_synced_by_another(&dir, path), "{folder:?} at {at:?}");
            }
            set_changed(folder, now - 2 * SYNCED_AFTER);
        }
    }
    let another = blobs.put_file(&file(&dir, b"another"), 100).expect("kept");
    age(&blobs.path(&another), HOUR);
    assert!(is_synced_by_another(&dir, &blobs.path(&another)), "moving it changed its folder");
}

#[test]
fn whoever_only_looks_makes_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let blobs = Blobs::existing(dir.path());
    let digest = blake3::hash(b"x");
    assert_eq!(blobs.list().expect("looks"), []);
    assert_eq!(blobs.kept_pins().expect("looks"), []);
    assert!(!blobs.check(&digest).expect("looks"));
    let pin = format!("blake3:{}", digest.to_hex());
    assert_eq!(blobs.snapshot(&pin).expect("looks"), None);
    assert_eq!(std::fs::read_dir(dir.path()).expect("a folder").count(), 0);
}
