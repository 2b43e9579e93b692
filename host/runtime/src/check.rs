//! Checks of an installation: the engine, the native code and the store.

use std::path::{Path, PathBuf};

use taskrun_engine::{
    AgentGrants, Cache, CacheError, CachedFiles, CompileWorker, EngineError, Inspection, LoadError,
};
use taskrun_journal::format::JournalFormat;
use taskrun_journal::store::StoreError;
use taskrun_policy::Policy;
use taskrun_store::{BlobError, Blobs, Repair, SqliteOptions, SqliteStore};

use crate::loader::{CACHE_DIR, LoaderError, LoaderOptions, engine};
use crate::problem::chain;

/// Under this policy a tool is loaded: it asks for nothing and gets nothing.
const SMOKE_POLICY: &str = "\
[tool.smoke]
component = \"smoke.wasm\"
[agent.smoke]
component = \"smoke.wasm\"
tools = [\"smoke/*\"]
";

/// The reason that the engine does not do its work.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// It cannot be set up.
    #[error("the WebAssembly engine does not start")]
    Engine(#[from] EngineError),
    /// The component that was tried does not load.
    #[error(transparent)]
    Component(#[from] LoadError),
}

/// Compiles a tool's component, has it describe itself and counts its functions: the whole way of
/// the engine, without a policy, a data directory or native code that was kept.
///
/// # Errors
/// [`CheckError`].
///
/// # Cancel safety
/// Dropping the future gives up the check.
pub async fn check_engine(
    tool: &[u8],
    compile_worker: Option<CompileWorker>,
) -> Result<usize, CheckError> {
    let engine = engine(LoaderOptions { compile_worker, ..LoaderOptions::default() })?;
    let policy = Policy::parse(SMOKE_POLICY, Path::new("smoke.toml")).expect("it is checked here");
    let loaded = engine.load(tool.to_vec()).await?;
    let mut grants = AgentGrants::of_tool(&policy.agents["smoke"], &policy.tools["smoke"]);
    // No rule of it is about files, and it must exist.
    grants.workspace = std::env::temp_dir();
    Ok(engine.tool(&loaded, grants).await?.specs().len())
}

/// Reads a component that no policy names, and says what it is, asks for and offers. Without a worker
/// it is looked at in this process, whose memory it may take.
///
/// # Errors
/// [`CheckError`].
///
/// # Cancel safety
/// Dropping the future changes nothing.
pub async fn inspect_component(
    path: &Path,
    compile_worker: Option<CompileWorker>,
) -> Result<Inspection, CheckError> {
    let engine = engine(LoaderOptions { compile_worker, ..LoaderOptions::default() })?;
    Ok(engine.examine_file(path).await?.inspect().clone())
}

/// Looks whether native code can be kept in a data directory, and how much is.
///
/// # Errors
/// [`CacheError`]; then every component is compiled at each start.
pub fn check_native_code(data_dir: &Path) -> Result<CachedFiles, CacheError> {
    Cache::open(&data_dir.join(CACHE_DIR))?.files()
}

/// The components that a data directory keeps for the runs that were accepted with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptComponents {
    /// Their number.
    pub count: u64,
    /// All of their bytes.
    pub bytes: u64,
    /// The files of those whose bytes cannot be read, or are not what they were; none if nobody
    /// looked at the bytes.
    pub damaged: Vec<PathBuf>,
    /// The files of the policies kept beside them that this process cannot read, as they are another
    /// user's.
    pub unreadable: Vec<PathBuf>,
    /// The reason that no more can be kept, in words; `None` if a file can be written there.
    pub unwritable: Option<String>,
}

/// Counts the components that a data directory keeps, and reads all of them if `all`; makes a file
/// beside them and removes it. Blocks for as long as that takes.
///
/// # Errors
/// [`BlobError`], if they cannot be looked at.
pub fn check_components(data_dir: &Path, all: bool) -> Result<KeptComponents, BlobError> {
    let blobs = Blobs::existing(data_dir);
    let mut kept = KeptComponents {
        unreadable: blobs.unreadable_snapshots()?,
        unwritable: blobs.try_writing().err().map(|error| chain(&error).join(": ")),
        ..KeptComponents::default()
    };
    for blob in blobs.list()? {
        kept.count += 1;
        kept.bytes += blob.bytes;
        if all {
            match blobs.check(&blob.digest) {
                // One that is gone meanwhile is nobody's.
                Ok(_) => {}
                // One that cannot be read is of no more use, and the others are looked at.
                Err(
                    BlobError::Damaged { path }
                    | BlobError::Io { path, .. }
                    | BlobError::NotAFile { path }
                    | BlobError::TooLarge { path, .. },
                ) => kept.damaged.push(path),
                Err(error @ BlobError::BadPin(_)) => return Err(error),
            }
        }
    }
    Ok(kept)
}

/// Looks whether what runs need can be kept in a data directory, where anything is already: makes a
/// file there and removes it. Blocks for as long as that takes.
///
/// # Errors
/// [`LoaderError::Blobs`], if it cannot.
pub fn check_keeping(data_dir: &Path) -> Result<(), LoaderError> {
    Ok(Blobs::existing(data_dir).try_writing()?)
}

/// Reads every page, run and index of the store in a data directory, and gives the damage, a line
/// each.
///
/// # Errors
/// [`StoreError`], if the store cannot be used.
///
/// # Cancel safety
/// Dropping the future gives up the check.
pub async fn check_store(
    data_dir: &Path,
    format: JournalFormat,
) -> Result<Vec<String>, StoreError> {
    let options = SqliteOptions { format, ..SqliteOptions::default() };
    SqliteStore::open(data_dir, options)?.check().await
}

/// Makes the store of a data directory anew, see [`SqliteStore::repair`]. Blocks for as long as that
/// takes.
///
/// # Errors
/// [`StoreError::Locked`] if a process has the store open; others of [`StoreError`]. The store is as it
/// was then.
pub fn repair_store(data_dir: &Path, format: JournalFormat) -> Result<Repair, StoreError> {
    SqliteStore::repair(data_dir, format)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_component_is_looked_at_by_the_worker() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("tool.wasm");
        std::fs::write(&file, taskrun_examples::SCRIPTED_TOOL.bytes).expect("written");
        assert!(inspect_component(&file, None).await.is_ok());
        let says_nothing = CompileWorker { program: PathBuf::from("true"), args: Vec::new() };
        let refused = inspect_component(&file, Some(says_nothing)).await;
        assert!(
            matches!(refused, Err(CheckError::Component(LoadError::Worker { .. }))),
            "{refused:?}"
        );
    }

    #[test]
    fn a_component_that_cannot_be_read_hides_no_other_damage() {
        let dir = tempfile::tempdir().expect("a folder");
        let blobs = Blobs::open(dir.path()).expect("a folder");
        let kept = |bytes: &[u8]| {
            let file = dir.path().join("file");
            std::fs::write(&file, bytes).expect("written");
            blobs.path(&blobs.put_file(&file, 1_000).expect("kept"))
        };
        let mut paths = [kept(b"one"), kept(b"two"), kept(b"three")];
        std::fs::remove_file(&paths[0]).expect("removed");
        std::fs::create_dir(&paths[0]).expect("made");
        std::fs::write(&paths[1], b"TWO").expect("written");
        let found = check_components(dir.path(), true).expect("looked at");
        assert_eq!(found.count, 3);
        let mut damaged = found.damaged;
        damaged.sort();
        paths[..2].sort();
        assert_eq!(damaged, paths[..2]);
        assert_eq!((found.unreadable, found.unwritable), (Vec::new(), None));
    }

    #[test]
    fn a_policy_that_cannot_be_read_is_named_and_so_is_a_folder_that_takes_nothing() {
        let dir = tempfile::tempdir().expect("a folder");
        let nothing = check_components(dir.path(), false).expect("looked at");
        assert_eq!(nothing, KeptComponents::default(), "nothing is made");
        assert!(!dir.path().join("blobs").exists());
        drop(Blobs::open(dir.path()).expect("a folder"));
        let pin = dir.path().join("blobs/pins").join("0".repeat(64));
        std::fs::create_dir(&pin).expect("made");
        let writes = dir.path().join("blobs/tmp");
        let left = || std::fs::read_dir(&writes).expect("a folder").count();
        let found = check_components(dir.path(), false).expect("looked at");
        assert_eq!((found.unreadable, found.unwritable, left()), (vec![pin], None, 0));
        std::fs::remove_dir(&writes).expect("removed");
        std::fs::write(&writes, "no folder").expect("written");
        let found = check_components(dir.path(), false).expect("looked at");
        let why = found.unwritable.expect("nothing can be written");
        assert!(why.contains("blobs/tmp"), "{why}");
    }
}
