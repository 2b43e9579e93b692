//! Components that are known by what is kept of them.

use super::*;
use crate::cache::Cache;
use crate::options::EngineOptions;

/// The agent `chat`, with a section that says nothing but this.
fn chat(name: &str) -> Vec<u8> {
    let length = u8::try_from(name.len()).expect("a short name");
    [taskrun_examples::CHAT.bytes, &[0, length + 1, length], name.as_bytes()].concat()
}

fn engine(dir: &Path) -> Arc<Engine> {
    let cache = Some(Cache::open(&dir.join("native")).expect("a cache"));
    let options = EngineOptions { cache, instances: Some(1), ..EngineOptions::default() };
    Engine::new(options).expect("an engine")
}

/// A file with a component, of which everything is kept.
async fn kept_in(dir: &Path) -> PathBuf {
    let path = dir.join("chat.wasm");
    std::fs::write(&path, chat("one")).expect("written");
    let first = engine(dir).load_file(&path).await.expect("it is admitted");
    let again = engine(dir).load_file(&path).await.expect("it is known");
    assert_eq!(first.inspect(), again.inspect());
    assert!(again.inspect().imports.iter().any(|import| !import.functions.is_empty()));
    path
}

#[tokio::test]
async fn the_bytes_of_a_known_component_are_hashed_and_not_kept() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = kept_in(dir.path()).await;
    let examined = engine(dir.path()).examine_file(&path).await.expect("it is known");
    assert!(matches!(examined.bytes, ComponentBytes::In(_)));
    std::fs::write(&path, chat("two")).expect("written");
    let other = engine(dir.path()).examine_file(&path).await.expect("it is admitted");
    assert!(matches!(other.bytes, ComponentBytes::Read(_)));
    assert_ne!(other.digest, examined.digest);
}

#[tokio::test]
async fn a_file_that_this_process_has_hashed_is_not_read_again_until_it_changes() {
    let dir = tempfile::tempdir().expect("a folder");
    let (path, engine) = (kept_in(dir.path()).await, engine(dir.path()));
    let known = engine.examine_file(&path).await.expect("it is known");
    engine.inspections().put(&known);
    // Others have the bytes now: the identity is what is gone by.
    std::fs::write(&path, chat("two")).expect("written");
    let identity = FileIdentity::of(&std::fs::metadata(&path).expect("it is there"));
    engine.files().put(identity, known.digest);
    assert_eq!(engine.examine_file(&path).await.expect("known").digest, known.digest);
    std::fs::write(&path, chat("three")).expect("written");
    assert_ne!(engine.examine_file(&path).await.expect("read").digest, known.digest);
}

#[tokio::test]
async fn a_file_that_was_changed_just_now_is_hashed_each_time() {
    let dir = tempfile::tempdir().expect("a folder");
    let (path, engine) = (kept_in(dir.path()).await, engine(dir.path()));
    // It may be long ago that it was written, on a busy machine.
    let file = std::fs::File::options().write(true).open(&path).expect("opens");
    let written = file.metadata().and_then(|meta| meta.modified()).expect("has times");
    file.set_modified(written + std::time::Duration::from_secs(600)).expect("has times");
    engine.examine_file(&path).await.expect("it is known");
    let identity = FileIdentity::of(&std::fs::metadata(&path).expect("it is there"));
    assert_eq!(engine.files().get(identity), None);
}

#[tokio::test]
async fn a_component_that_changes_before_it_is_compiled_is_not_compiled() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = kept_in(dir.path()).await;
    for file in std::fs::read_dir(dir.path().join("native")).expect("a folder") {
        let native = file.expect("readable").path();
        if native.extension().is_some_and(|kind| kind == "native") {
            std::fs::remove_file(native).expect("removed");
        }
    }
    let engine = engine(dir.path());
    let examined = engine.examine_file(&path).await.expect("it is known");
    engine.compile(&examined).await.expect("it is read once more");
    let other = self::engine(dir.path());
    std::fs::write(&path, chat("two")).expect("written");
    let examined = ExaminedComponent { digest: blake3::hash(b"other"), ..examined };
    let refused = other.compile(&examined).await.map(drop);
    assert!(matches!(refused, Err(LoadError::Changed { .. })), "{refused:?}");
}

#[tokio::test]
async fn of_a_component_that_is_refused_nothing_is_kept() {
    let dir = tempfile::tempdir().expect("a folder");
    let (path, mut bytes) = (dir.path().join("chat.wasm"), chat("one"));
    // A section of no known kind.
    bytes.extend([0x7f, 0]);
    std::fs::write(&path, &bytes).expect("written");
    for _ in 0..2 {
        let refused = engine(dir.path()).examine_file(&path).await.map(drop);
        assert!(refused.is_err());
    }
    let cache = Cache::open(&dir.path().join("native")).expect("a cache");
    assert!(kept::find(&cache, &blake3::hash(&bytes)).is_none());
}

#[tokio::test]
async fn of_a_file_that_is_pinned_other_bytes_are_not_looked_at() {
    let dir = tempfile::tempdir().expect("a folder");
    let (path, bytes) = (dir.path().join("chat.wasm"), chat("one"));
    let engine = engine(dir.path());
    engine.pin(path.clone(), blake3::hash(&bytes));
    for other in [&bytes[..bytes.len() - 1], b"no component"] {
        std::fs::write(&path, other).expect("written");
        let refused = engine.examine_file(&path).await.map(drop);
        assert!(matches!(refused, Err(LoadError::Changed { .. })), "{refused:?}");
    }
    std::fs::write(&path, &bytes).expect("written");
    engine.examine_file(&path).await.expect("it has the digest");
}
