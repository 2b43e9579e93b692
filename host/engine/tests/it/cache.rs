//! Native code between starts.

use std::path::{Path, PathBuf};

use taskrun_engine::{Cache, EngineOptions};

use crate::support::*;

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "native")).collect();
    files.sort();
    files
}

fn answering(text: &str) -> Vec<u8> {
    let code = format!(
        "(call $ok (i32.const 2200) (i32.const {}))) (data (i32.const 2200) \"{text}\"",
        text.len()
    );
    tool_bytes("", &format!("{code}) (func"))
}

/// Loads and calls a tool on an engine of its own.
async fn answer(dir: &Path, bytes: &[u8]) -> String {
    let cache = Some(Cache::open(dir).unwrap());
    let engine = engine_with(EngineOptions { cache, ..EngineOptions::default() });
    let tool = tool(&engine, bytes.to_vec(), grants("")).await.unwrap();
    ask(&*tool, call(), patient()).await.unwrap().unwrap().value
}

#[tokio::test]
async fn native_code_is_kept_and_a_changed_file_never_run() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("native");
    let (one, two) = (answering("1"), answering("22"));
    assert_eq!(answer(&dir, &one).await, "1");
    let first = files(&dir);
    let [path] = &first[..] else { panic!("{first:?}") };
    let good = std::fs::read(path).unwrap();
    let written = std::fs::metadata(path).unwrap().modified().unwrap();
    assert_eq!(answer(&dir, &one).await, "1");
    assert_eq!(
        std::fs::metadata(path).unwrap().modified().unwrap(),
        written,
        "taken, not rewritten"
    );

    for position in [0, 20, 45, good.len() / 2, good.len() - 1] {
        let mut bad = good.clone();
        bad[position] ^= 0x40;
        std::fs::write(path, &bad).unwrap();
        assert_eq!(answer(&dir, &one).await, "1", "byte {position}");
        assert_eq!(std::fs::read(path).unwrap(), good, "compiled anew");
    }

    assert_eq!(answer(&dir, &two).await, "22");
    let both = files(&dir);
    let (a, b) = (std::fs::read(&both[0]).unwrap(), std::fs::read(&both[1]).unwrap());
    std::fs::write(&both[0], b).unwrap();
    std::fs::write(&both[1], a).unwrap();
    assert_eq!(answer(&dir, &one).await, "1");
    assert_eq!(answer(&dir, &two).await, "22");
}

#[tokio::test]
async fn a_cache_that_cannot_be_written_stops_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("native");
    let cache = Some(Cache::open(&dir).unwrap());
    std::fs::remove_dir_all(&dir).unwrap();
    let engine = engine_with(EngineOptions { cache, ..EngineOptions::default() });
    let tool = tool(&engine, answering("3"), grants("")).await.unwrap();
    assert_eq!(ask(&*tool, call(), patient()).await.unwrap().unwrap().value, "3");
}
