//! Loading a large component whose native code is kept.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use serde_json::{Value, json};
use taskrun_benches::percentile;
use taskrun_engine::{Cache, Engine, EngineOptions};
use taskrun_examples::evil;

/// First argument of the process that is measured.
pub(crate) const CHILD: &str = "large-load-child";

/// Loads of each kind, each in a process of its own.
const LOADS: usize = 15;

/// Milliseconds of one process: to hash the native file, to load the component from its file, and to load
/// it again while it is held.
type Took = [f64; 3];

fn engine(folder: &Path) -> std::sync::Arc<Engine> {
    let cache = Cache::open(&native(folder)).expect("a cache");
    Engine::new(EngineOptions { cache: Some(cache), ..EngineOptions::default() })
        .expect("an engine")
}

fn native(folder: &Path) -> PathBuf {
    folder.join("native")
}

fn component(folder: &Path) -> PathBuf {
    folder.join("large.wasm")
}

/// Loads the component in so many processes.
pub(crate) async fn measure() -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    let bytes = evil::large();
    std::fs::write(component(folder.path()), &bytes).expect("written");
    engine(folder.path()).load_file(&component(folder.path())).await.expect("it is admitted");
    let program = std::env::current_exe().expect("this program");
    let mut all: Vec<Took> = Vec::new();
    for _ in 0..LOADS {
        let mut child = Command::new(&program);
        child.arg(CHILD).arg(folder.path()).stdin(Stdio::null());
        let output = child.output().expect("starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        all.push(serde_json::from_slice(&output.stdout).expect("figures"));
    }
    let of = |pick: fn(&Took) -> f64| percentile(&all.iter().map(pick).collect::<Vec<_>>(), 50);
    json!({
        "unit": "ms wall, in a process of its own",
        "component_mb": bytes.len() as f64 / 1e6,
        "native_mb": kept(folder.path()).len() as f64 / 1e6,
        "n": all.len(),
        "hash_of_the_native_file": of(|took| took[0]),
        "load": of(|took| took[1]),
        "load_beyond_the_hash": of(|took| took[1] - took[0]),
        "goal_load_beyond_the_hash": 15.0,
        "load_again": of(|took| took[2]),
        "goal_load_again": 10.0,
    })
}

/// The file of the native code.
fn kept(folder: &Path) -> Vec<u8> {
    let files = std::fs::read_dir(native(folder)).expect("a folder");
    let mut paths = files.map(|file| file.expect("readable").path());
    let path = paths.find(|path| path.extension().is_some_and(|kind| kind == "native"));
    std::fs::read(path.expect("it is kept")).expect("readable")
}

/// The process that is measured.
pub(crate) fn child(folder: Option<&str>) -> ExitCode {
    let Some(folder) = folder.map(Path::new) else { return ExitCode::FAILURE };
    let runtime = taskrun_runtime::control_plane().expect("a runtime");
    let bytes = kept(folder);
    let floor = timed(|| {
        let mut hasher = blake3::Hasher::new_keyed(&[0; 32]);
        hasher.update_rayon(&bytes);
        assert_ne!(hasher.finalize(), blake3::hash(&[]));
    });
    let engine = engine(folder);
    let load = || runtime.block_on(engine.load_file(&component(folder))).expect("it loads");
    let (mut held, mut again) = (None, None);
    let first = timed(|| held = Some(load()));
    let second = timed(|| again = Some(load()));
    println!("{}", json!([floor, first, second]));
    ExitCode::SUCCESS
}

fn timed(work: impl FnOnce()) -> f64 {
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    let began = Instant::now();
    work();
    began.elapsed().as_secs_f64() * 1e3
}
