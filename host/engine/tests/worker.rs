//! Compiling in a process of its own: this program is both the host and the worker.

#![expect(clippy::unwrap_used, reason = "a test that finds nothing to unwrap has failed")]

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use taskrun_engine::{Cache, CompileWorker, Engine, EngineOptions, LoadError, compile_worker_main};

fn main() -> ExitCode {
    let mut args = std::env::args();
    let program = PathBuf::from(args.next().unwrap());
    match args.next().as_deref() {
        Some("worker") => return compile_worker_main(),
        Some("silent") => return ExitCode::FAILURE,
        Some("--list") => return ExitCode::SUCCESS,
        Some(_) | None => {}
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(compiles_elsewhere(program.clone()));
    runtime.block_on(a_worker_that_fails_fails_the_load(program));
    println!("test result: ok");
    ExitCode::SUCCESS
}

fn engine(program: PathBuf, arg: &str, cache: Option<Cache>) -> Arc<Engine> {
    let compile_worker = Some(CompileWorker { program, args: vec![OsString::from(arg)] });
    let options = EngineOptions { compile_worker, cache, instances: Some(2), ..Default::default() };
    Engine::new(options).unwrap()
}

fn component() -> Vec<u8> {
    wat::parse_str("(component (core module $m (memory 1)) (core instance (instantiate $m)))")
        .unwrap()
}

async fn compiles_elsewhere(program: PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let native = dir.path().join("native");
    let cache = || Some(Cache::open(&native).unwrap());
    let here = engine(program.clone(), "worker", cache());
    here.load(component()).await.unwrap();
    // What the worker made is kept: a worker that does nothing is not asked.
    engine(program.clone(), "silent", cache()).load(component()).await.unwrap();

    let error = here.load(b"\0asm\x0d\0\x01\0\xff\xff".to_vec()).await.unwrap_err();
    assert!(matches!(error, LoadError::Invalid { .. } | LoadError::Truncated { .. }), "{error}");
    let text = r#"(component
        (core module $m (func (export "f")))
        (core instance $i (instantiate $m))
        (func (export "f") async (canon lift (core func $i "f") async)))"#;
    let error = here.load(wat::parse_str(text).unwrap()).await.unwrap_err();
    assert!(matches!(error, LoadError::Async { .. }), "{error}");
}

async fn a_worker_that_fails_fails_the_load(program: PathBuf) {
    let error = engine(program, "silent", None).load(component()).await.unwrap_err();
    assert!(matches!(error, LoadError::CompileLimit), "{error}");
    let error =
        engine("/does/not/exist".into(), "worker", None).load(component()).await.unwrap_err();
    assert!(matches!(error, LoadError::Worker { .. }), "{error}");
}
