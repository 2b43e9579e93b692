//! From a component's bytes to native code.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use wasmtime::component::Component;

use crate::cache::{Cache, Entry};
use crate::error::LoadError;
use crate::worker::{INVALID, OK};

/// Longest compilation, as a clock on the wall sees it.
const WALL_MAX: Duration = Duration::from_secs(300);
/// Most native code of one component.
const CODE_BYTES_MAX: u64 = 1 << 30;

/// A program that compiles in a process of its own: the host's binary with a subcommand that
/// calls [`compile_worker_main`](crate::compile_worker_main).
#[derive(Debug, Clone)]
pub struct CompileWorker {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
}

/// Compiles, or takes what was compiled before.
#[derive(Debug)]
pub(crate) struct Compiler {
    engine: wasmtime::Engine,
    compatibility: blake3::Hash,
    cache: Option<Cache>,
    worker: Option<CompileWorker>,
    /// One at a time: a compilation takes every core it can get.
    turn: tokio::sync::Semaphore,
}

impl Compiler {
    pub(crate) fn new(
        engine: &wasmtime::Engine,
        cache: Option<Cache>,
        worker: Option<CompileWorker>,
    ) -> Self {
        Self {
            engine: engine.clone(),
            compatibility: crate::config::compatibility(engine),
            cache,
            worker,
            turn: tokio::sync::Semaphore::new(1),
        }
    }

    /// Native code for a component whose hash is `digest`.
    ///
    /// # Cancel safety
    /// Dropping the future ends the worker; without one, a compilation that began goes on to its
    /// end and is thrown away.
    pub(crate) async fn native(
        &self,
        bytes: Arc<Vec<u8>>,
        digest: blake3::Hash,
    ) -> Result<Component, LoadError> {
        let entry = Entry { component: digest, compatibility: self.compatibility };
        if let Some(component) = self.cached(entry).await? {
            return Ok(component);
        }
        let _turn = self.turn.acquire().await.map_err(|_| LoadError::internal("closed"))?;
        // Whoever had the turn before may have compiled the same.
        if let Some(component) = self.cached(entry).await? {
            return Ok(component);
        }
        match &self.worker {
            Some(worker) => {
                let code = run_worker(worker, &bytes).await?;
                let (engine, cache) = (self.engine.clone(), self.cache.clone());
                blocking(move || {
                    let component =
                        adopt(&engine, &code).map_err(|e| LoadError::from_compiler(&e))?;
                    if let Some(cache) = cache {
                        cache.put(entry, &code);
                    }
                    Ok(component)
                })
                .await
            }
            None => {
                let (engine, cache) = (self.engine.clone(), self.cache.clone());
                blocking(move || {
                    let component = Component::from_binary(&engine, &bytes)
                        .map_err(|error| LoadError::from_compiler(&error))?;
                    if let Some(cache) = cache {
                        match component.serialize() {
                            Ok(code) => cache.put(entry, &code),
                            Err(error) => tracing::warn!(?error, "cannot serialize native code"),
                        }
                    }
                    Ok(component)
                })
                .await
            }
        }
    }

    async fn cached(&self, entry: Entry) -> Result<Option<Component>, LoadError> {
        let Some(cache) = self.cache.clone() else { return Ok(None) };
        let engine = self.engine.clone();
        blocking(move || {
            let Some(verified) = cache.get(entry) else { return Ok(None) };
            match adopt(&engine, verified.code()) {
                Ok(component) => Ok(Some(component)),
                Err(error) => {
                    tracing::warn!(?error, "the engine refuses cached native code; compiling anew");
                    Ok(None)
                }
            }
        })
        .await
    }
}

/// Takes over native code. It was made by our own compiler from a component: either the hash in
/// [`Cache::get`] shows that, or it came over a pipe from the process we started for it.
#[expect(unsafe_code, reason = "the one way to load native code; see the two callers")]
fn adopt(engine: &wasmtime::Engine, code: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: `code` was written by `Component::serialize` or `Engine::precompile_component` and
    // not changed since, as said above; it is in memory that nobody else can write to. wasmtime
    // itself refuses code of another version or other settings.
    unsafe { Component::deserialize(engine, code) }
}

async fn blocking<R: Send + 'static>(
    work: impl FnOnce() -> Result<R, LoadError> + Send + 'static,
) -> Result<R, LoadError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => {
            tracing::error!(%error, "compiling panicked");
            Err(LoadError::internal("the compiler panicked"))
        }
    }
}

async fn run_worker(worker: &CompileWorker, component: &[u8]) -> Result<Vec<u8>, LoadError> {
    let mut child = Command::new(&worker.program)
        .args(&worker.args)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|source| LoadError::Worker { source })?;
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(LoadError::internal("the compile worker has no pipes"));
    };
    let feed = async {
        // A worker that ends early closes the pipe; its status says why.
        stdin.write_all(component).await.ok();
        drop(stdin);
    };
    let mut answer = Vec::new();
    let mut stdout = stdout.take(CODE_BYTES_MAX);
    let exchange = async {
        let (_, read) = tokio::join!(feed, stdout.read_to_end(&mut answer));
        read?;
        child.wait().await
    };
    let status = match tokio::time::timeout(WALL_MAX, exchange).await {
        Ok(status) => status.map_err(|source| LoadError::Worker { source })?,
        Err(_) => return Err(LoadError::CompileLimit),
    };
    match answer.split_first() {
        Some((&OK, _)) if status.success() => {
            answer.remove(0);
            Ok(answer)
        }
        Some((&INVALID, text)) if status.success() => {
            Err(LoadError::from_compiler_text(&String::from_utf8_lossy(text)))
        }
        // Ended by a signal, or by an allocation that failed: it met a limit.
        _ => {
            tracing::warn!(%status, "the compile worker gave no answer");
            Err(LoadError::CompileLimit)
        }
    }
}
