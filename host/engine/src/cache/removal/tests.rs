//! Files that go and files that stay, by the time of their last use.

use std::path::Path;

use super::super::{Entry, KEY_FILE};
use super::*;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const MONTH: Duration = Duration::from_secs(30 * 24 * 60 * 60);

struct Kept {
    _dir: tempfile::TempDir,
    cache: Cache,
    /// The time of day by the file system.
    now: SystemTime,
}

impl Kept {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let cache = Cache::open(&dir.path().join("native")).expect("a cache");
        let key = cache.dir.join(KEY_FILE);
        let now = key.metadata().and_then(|meta| meta.modified()).expect("a time");
        Self { _dir: dir, cache, now }
    }

    /// Has a file count as used this long ago.
    fn age(&self, path: &Path, age: Duration) {
        let file = File::options().write(true).open(path).expect("opens");
        file.set_modified(self.now - age).expect("set");
    }

    fn aged(&self, content: Content, entry: Entry, age: Duration) -> PathBuf {
        self.cache.keep(content, entry, b"bytes");
        let path = self.cache.path(content, entry);
        self.age(&path, age);
        path
    }

    /// Removes what was not used for a month and is not of the component `needed`.
    fn remove(&self, dry_run: bool) -> CachedFiles {
        let age = |at| self.now.duration_since(at).unwrap_or_default();
        let is_needed = |component: &blake3::Hash| *component == blake3::hash(b"needed");
        self.cache.remove_unneeded((MONTH, dry_run), age, is_needed).expect("removes")
    }
}

fn entry(component: &[u8], compatibility: &[u8]) -> Entry {
    Entry { component: blake3::hash(component), compatibility: blake3::hash(compatibility) }
}

#[test]
fn what_was_not_used_for_long_goes_unless_its_component_is_needed() {
    let kept = Kept::new();
    let (old, young) = (MONTH + DAY, MONTH - DAY);
    let gone = [
        kept.aged(Content::Native, entry(b"before", b"x"), old),
        kept.aged(Content::Inspection, entry(b"before", b"x"), old),
        kept.aged(Content::Description, entry(b"before", b"agent"), old),
        kept.aged(Content::Refusal, entry(b"before", b"x"), old),
        kept.aged(Content::FileDigest, entry(b"a file", b"file"), old),
        // Of an engine before.
        kept.aged(Content::Native, entry(b"needed", b"w"), old + DAY),
    ];
    let stay = [
        kept.aged(Content::Native, entry(b"needed", b"x"), old),
        kept.aged(Content::Inspection, entry(b"needed", b"x"), old),
        kept.aged(Content::Description, entry(b"needed", b"agent"), old),
        kept.aged(Content::Description, entry(b"needed", b"tool"), old + DAY),
        kept.aged(Content::Native, entry(b"before", b"y"), young),
        kept.aged(Content::FileDigest, entry(b"another file", b"file"), young),
    ];
    let [key, others] = [KEY_FILE, "notes.txt"].map(|name| kept.cache.dir.join(name));
    std::fs::write(&others, "not ours").expect("written");
    for path in [&key, &others] {
        kept.age(path, old);
    }
    let all = kept.cache.files().expect("counted");
    assert_eq!(all.count, 12);
    let would = kept.remove(true);
    assert_eq!((would.count, would.bytes * 2), (6, all.bytes), "the files are alike");
    assert!(gone.iter().all(|path| path.exists()), "nothing is removed");
    assert_eq!(kept.remove(false), would);
    assert!(!gone.iter().any(|path| path.exists()), "{gone:?}");
    assert!(stay.iter().chain([&key, &others]).all(|path| path.exists()), "{stay:?}");
    assert_eq!(kept.remove(false), CachedFiles::default());
}

#[test]
fn files_of_another_form_go_when_no_version_used_them_for_long() {
    let kept = Kept::new();
    let of_other_form = |content: Content, end: &str, age| {
        let component = blake3::hash(b"needed");
        let name = format!("{component}-0123456789abcdef{end}.{}", content.extension());
        let path = kept.cache.dir.join(name);
        std::fs::write(&path, "bytes").expect("written");
        kept.age(&path, age);
        path
    };
    let (old, young) = (MONTH + DAY, MONTH - DAY);
    let gone = Content::ALL.map(|content| of_other_form(content, "", old));
    let stay = Content::ALL.map(|content| of_other_form(content, "-9", young));
    let current = kept.aged(Content::Description, entry(b"needed", b"agent"), old + DAY);
    assert_eq!(kept.remove(false), CachedFiles { count: 5, bytes: 25 });
    assert!(!gone.iter().any(|path| path.exists()), "{gone:?}");
    assert!(stay.iter().chain([&current]).all(|path| path.exists()), "{stay:?}");
}

#[test]
fn a_file_that_is_being_written_stays_for_an_hour() {
    let kept = Kept::new();
    let [left, young] = [1, 2].map(|number| kept.cache.dir.join(format!(".{number:016x}.tmp")));
    for path in [&left, &young] {
        std::fs::write(path, "half").expect("written");
    }
    kept.age(&left, LEFT_AFTER + Duration::from_secs(1));
    kept.age(&young, LEFT_AFTER / 2);
    assert_eq!(kept.remove(false), CachedFiles { count: 1, bytes: 4 });
    assert_eq!((left.exists(), young.exists()), (false, true));
}

#[test]
fn what_is_read_counts_as_used() {
    let kept = Kept::new();
    let [read, left] = [entry(b"read", b"x"), entry(b"left", b"x")];
    let paths = [read, left].map(|entry| kept.aged(Content::Native, entry, MONTH + DAY));
    assert!(kept.cache.get(read).is_some());
    assert_eq!(kept.remove(false).count, 1);
    assert_eq!(paths.map(|path| path.exists()), [true, false]);
}

#[test]
fn what_was_read_lately_is_not_written_to() {
    let kept = Kept::new();
    let entry = entry(b"read", b"x");
    let path = kept.aged(Content::Native, entry, Duration::from_secs(60));
    let modified = || path.metadata().and_then(|meta| meta.modified()).expect("a time");
    let before = modified();
    assert!(kept.cache.get(entry).is_some());
    assert_eq!(modified(), before);
}
