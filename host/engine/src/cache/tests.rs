//! Files that are kept between starts.

use super::*;

fn entry(component: &[u8], compatibility: &[u8]) -> Entry {
    Entry { component: blake3::hash(component), compatibility: blake3::hash(compatibility) }
}

fn cache() -> (tempfile::TempDir, Cache) {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::open(&dir.path().join("native")).unwrap();
    (dir, cache)
}

#[test]
fn what_was_put_is_got_also_by_another_process() {
    let (_dir, cache) = cache();
    cache.put(entry(b"a", b"x"), b"code");
    let again = Cache::open(&cache.dir).unwrap();
    let found = again.get(entry(b"a", b"x")).unwrap();
    assert!(matches!(found, NativeCode::Bytes(code) if code == b"code"));
    assert!(again.get(entry(b"b", b"x")).is_none());
}

#[test]
fn a_flipped_bit_anywhere_is_noticed() {
    let (_dir, cache) = cache();
    let entry = entry(b"a", b"x");
    cache.put(entry, b"code");
    let path = cache.path(Content::Native, entry);
    let good = fs::read(&path).unwrap();
    for index in 0..good.len() {
        let mut bad = good.clone();
        bad[index] ^= 1;
        fs::write(&path, bad).unwrap();
        assert!(cache.get(entry).is_none(), "byte {index}");
    }
    for len in 0..good.len() {
        fs::write(&path, &good[..len]).unwrap();
        assert!(cache.get(entry).is_none(), "length {len}");
    }
}

#[test]
fn swapped_and_stale_files_are_noticed() {
    let (_dir, cache) = cache();
    let (a, b, stale) = (entry(b"a", b"x"), entry(b"b", b"x"), entry(b"a", b"y"));
    cache.put(a, b"code of a");
    cache.put(b, b"code of b");
    fs::copy(cache.path(Content::Native, a), cache.path(Content::Native, stale)).unwrap();
    let bytes = fs::read(cache.path(Content::Native, a)).unwrap();
    fs::copy(cache.path(Content::Native, b), cache.path(Content::Native, a)).unwrap();
    fs::write(cache.path(Content::Native, b), bytes).unwrap();
    for entry in [a, b, stale] {
        assert!(cache.get(entry).is_none());
    }
}

#[test]
fn a_refusal_is_no_native_code_and_the_other_way_round() {
    let (_dir, cache) = cache();
    let (a, b) = (entry(b"a", b"x"), entry(b"b", b"x"));
    cache.put(a, b"code");
    cache.put_refusal(b, b"why");
    assert!(cache.refusal(a).is_none() && cache.get(b).is_none());
    assert_eq!(cache.refusal(b).unwrap().code(), b"why");
    fs::copy(cache.path(Content::Refusal, b), cache.path(Content::Native, b)).unwrap();
    fs::copy(cache.path(Content::Native, a), cache.path(Content::Refusal, a)).unwrap();
    assert!(cache.refusal(a).is_none() && cache.get(b).is_none());
}

#[test]
fn files_of_another_form_are_not_looked_at_and_not_replaced() {
    let (_dir, cache) = cache();
    let entry = entry(b"a", b"x");
    for content in Content::ALL {
        let path = cache.path(content, entry);
        let name = path.file_name().and_then(|name| name.to_str()).expect("a text");
        let (form, extension) = (content.form(), content.extension());
        let bare = name.strip_suffix(&format!("-{form}.{extension}")).expect("it names the form");
        // As versions before and after this one name them.
        let others = [format!("{bare}.{extension}"), format!("{bare}-9.{extension}")];
        let others = others.map(|name| cache.dir.join(name));
        for other in &others {
            fs::write(other, "of another form").expect("written");
        }
        // What is not there is no reason for a warning, as what is not what was written would be.
        assert!(!path.exists() && open_ours(&path).is_err());
        cache.keep(content, entry, b"bytes");
        assert!(path.exists());
        for other in &others {
            assert_eq!(fs::read(other).expect("reads"), b"of another form");
        }
    }
    assert!(cache.get(entry).is_some() && cache.refusal(entry).is_some());
}

#[test]
fn another_key_opens_nothing() {
    let (_dir, cache) = cache();
    cache.put(entry(b"a", b"x"), b"code");
    fs::remove_file(cache.dir.join(KEY_FILE)).unwrap();
    let other = Cache::open(&cache.dir).unwrap();
    assert!(other.get(entry(b"a", b"x")).is_none());
}

#[cfg(unix)]
#[test]
fn folder_and_key_are_private() {
    use std::os::unix::fs::PermissionsExt;

    let (_dir, cache) = cache();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&cache.dir), 0o700);
    assert_eq!(mode(&cache.dir.join(KEY_FILE)), 0o600);
    fs::set_permissions(&cache.dir, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(matches!(Cache::open(&cache.dir), Err(CacheError::Exposed { mode: 0o700, .. })));
}

#[cfg(unix)]
#[test]
fn folder_and_key_are_no_links() {
    let (dir, cache) = cache();
    let (real, link) = (cache.dir.join(KEY_FILE), dir.path().join("link"));
    std::os::unix::fs::symlink(&*cache.dir, &link).unwrap();
    assert!(matches!(Cache::open(&link), Err(CacheError::Exposed { .. })));
    let elsewhere = dir.path().join("key");
    fs::rename(&real, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &real).unwrap();
    assert!(matches!(Cache::open(&cache.dir), Err(CacheError::Io { .. })));
}
