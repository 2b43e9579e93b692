//! From a component's bytes to native code.

mod turns;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use taskrun::clock::SystemClock;
use taskrun_journal::time::Clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use wasmtime::component::Component;

use self::turns::CompileTurns;
use crate::cache::{Cache, Entry, NativeCode};
use crate::error::LoadError;
use crate::refusal::{self, Refusal};
use crate::worker::{INVALID, OK, THREADS_MAX};

/// Longest compilation, as a clock on the wall sees it: its processor time is bounded, and it stands
/// behind everything else on the machine.
const WALL_MAX: Duration = Duration::from_secs(300);
/// Most native code of one component.
const CODE_BYTES_MAX: u64 = 1 << 30;

/// A program that compiles in a process of its own: the host's binary with a subcommand that
/// calls [`compile_worker_main`](crate::compile_worker_main).
#[derive(Debug, Clone)]
pub struct CompileWorker {
    /// The program that compiles.
    pub program: PathBuf,
    /// The program's arguments.
    pub args: Vec<OsString>,
}

/// Compiles, or takes what was compiled before.
pub(crate) struct Compiler {
    engine: wasmtime::Engine,
    compatibility: blake3::Hash,
    cache: Option<Cache>,
    worker: Option<CompileWorker>,
    turns: CompileTurns,
    /// One lock for each component that is being compiled, so that it is compiled once at a time.
    flights: Mutex<HashMap<blake3::Hash, Weak<tokio::sync::Mutex<()>>>>,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiler").field("worker", &self.worker).finish_non_exhaustive()
    }
}

impl Compiler {
    pub(crate) fn new(
        engine: &wasmtime::Engine,
        cache: Option<Cache>,
        worker: Option<CompileWorker>,
    ) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        Self {
            engine: engine.clone(),
            compatibility: crate::config::compatibility(engine),
            cache,
            worker,
            turns: CompileTurns::new(Arc::clone(&clock)),
            flights: Mutex::default(),
            clock,
        }
    }

    pub(crate) fn cache(&self) -> Option<&Cache> {
        self.cache.as_ref()
    }

    /// A lock to be held while the component is looked for and compiled.
    pub(crate) fn flight(&self, digest: blake3::Hash) -> Arc<tokio::sync::Mutex<()>> {
        let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        flights.retain(|_, flight| flight.strong_count() > 0);
        if let Some(flight) = flights.get(&digest).and_then(Weak::upgrade) {
            return flight;
        }
        let flight = Arc::default();
        flights.insert(digest, Arc::downgrade(&flight));
        flight
    }

    /// Native code for a component whose hash is `digest`; `bytes` gives the component if it has to be
    /// compiled. Held under its [`Self::flight`].
    ///
    /// # Cancel safety
    /// Dropping the future ends the worker; without one, a compilation that began goes on to its
    /// end and is thrown away.
    pub(crate) async fn native(
        &self,
        bytes: impl AsyncFnOnce() -> Result<Arc<Vec<u8>>, LoadError>,
        digest: blake3::Hash,
    ) -> Result<Component, LoadError> {
        let entry = Entry { component: digest, compatibility: self.compatibility };
        if let Some(component) = self.cached(entry).await? {
            return Ok(component);
        }
        if let Some(refusal) = self.refused(entry).await? {
            return Err(refusal.into());
        }
        self.turns.take(self.compile(bytes, entry)).await
    }

    async fn compile(
        &self,
        bytes: impl AsyncFnOnce() -> Result<Arc<Vec<u8>>, LoadError>,
        entry: Entry,
    ) -> Result<Component, LoadError> {
        // Another process may have compiled the same meanwhile.
        if let Some(component) = self.cached(entry).await? {
            return Ok(component);
        }
        let bytes = bytes().await?;
        match &self.worker {
            Some(worker) => {
                let code = match run_worker(worker, &bytes).await? {
                    Answer::Native(code) => code,
                    Answer::Invalid(text) => {
                        return Err(self.refuse(entry, Refusal::Invalid(text)).await);
                    }
                    Answer::OverLimit => {
                        let until = self.clock.now().plus(refusal::KEPT);
                        self.refuse(entry, Refusal::OverLimit { until }).await;
                        return Err(LoadError::CompileLimit);
                    }
                };
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

    /// The reason that the component was refused before, if it was and that still counts.
    async fn refused(&self, entry: Entry) -> Result<Option<Refusal>, LoadError> {
        let Some(cache) = self.cache.clone() else { return Ok(None) };
        let now = self.clock.now();
        blocking(move || {
            let kept = cache.refusal(refusal::entry(entry));
            let refusal = kept.and_then(|kept| Refusal::decode(kept.code()));
            Ok(refusal.filter(|refusal| refusal.counts(now)))
        })
        .await
    }

    /// Remembers a refusal, and gives it as an error.
    async fn refuse(&self, entry: Entry, refusal: Refusal) -> LoadError {
        if let Some(cache) = self.cache.clone() {
            let bytes = refusal.encode();
            let keep = move || {
                cache.put_refusal(refusal::entry(entry), &bytes);
                Ok(())
            };
            if let Err(error) = blocking(keep).await {
                return error;
            }
        }
        refusal.into()
    }

    async fn cached(&self, entry: Entry) -> Result<Option<Component>, LoadError> {
        let Some(cache) = self.cache.clone() else { return Ok(None) };
        let engine = self.engine.clone();
        blocking(move || {
            let Some(verified) = cache.get(entry) else { return Ok(None) };
            match adopt_kept(&engine, verified) {
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

/// Takes over native code that was kept, whose hash shows that our own compiler made it.
fn adopt_kept(engine: &wasmtime::Engine, code: NativeCode) -> wasmtime::Result<Component> {
    match code {
        NativeCode::Bytes(code) => adopt(engine, &code),
        NativeCode::Sealed(file) => adopt_sealed(engine, file),
    }
}

/// Maps native code from a sealed file. Where that cannot be, as there are no files of processes by whose
/// names it is opened, or no code may be mapped from files in memory, it is copied.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "the one way to map native code")]
fn adopt_sealed(engine: &wasmtime::Engine, mut file: std::fs::File) -> wasmtime::Result<Component> {
    use std::io::{Read, Seek};
    use std::os::fd::AsRawFd;

    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // SAFETY: as in `adopt`, and the file is sealed.
    let mapped = unsafe { Component::deserialize_file(engine, path) };
    mapped.or_else(|error| {
        tracing::debug!(?error, "native code cannot be mapped");
        let mut code = Vec::new();
        file.rewind()?;
        file.read_to_end(&mut code)?;
        adopt(engine, &code)
    })
}

#[cfg(not(target_os = "linux"))]
fn adopt_sealed(_: &wasmtime::Engine, _: std::fs::File) -> wasmtime::Result<Component> {
    wasmtime::bail!("there are no sealed files on this system")
}

/// Takes over native code. It was made by our own compiler from a component: either the hash in
/// [`Cache::get`] shows that, or it came over a pipe from the process we started for it.
#[expect(unsafe_code, reason = "the one way to load native code; see the callers")]
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

/// The answer of a worker about a component.
enum Answer {
    Native(Vec<u8>),
    /// The component is not valid, and why.
    Invalid(String),
    /// It took more than it may, and always will.
    OverLimit,
}

async fn run_worker(worker: &CompileWorker, component: &[u8]) -> Result<Answer, LoadError> {
    let mut child = Command::new(&worker.program)
        .args(&worker.args)
        .env_clear()
        .env("RAYON_NUM_THREADS", threads().to_string())
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
        stdin.write_all(&(component.len() as u64).to_le_bytes()).await.ok();
        stdin.write_all(component).await.ok();
        stdin.flush().await.ok();
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
        // The machine may have been busy; it is not remembered.
        Err(_) => return Err(LoadError::CompileLimit),
    };
    // Closed only here: its end tells the worker that its host is gone.
    drop(stdin);
    match answer.split_first() {
        Some((&OK, _)) if status.success() => {
            answer.remove(0);
            Ok(Answer::Native(answer))
        }
        Some((&INVALID, text)) if status.success() => {
            Ok(Answer::Invalid(String::from_utf8_lossy(text).into_owned()))
        }
        _ => {
            tracing::warn!(%status, "the compile worker gave no answer");
            if met_limit(status) { Ok(Answer::OverLimit) } else { Err(LoadError::CompileLimit) }
        }
    }
}

/// Half of the machine: guests are served meanwhile, and another compilation may be under way.
fn threads() -> usize {
    let all = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    (all / 2).clamp(1, THREADS_MAX)
}

/// True if a worker met a limit of its own, as it would each time: of processor time, of memory or
/// of its stack. One that was killed from outside, such as by the system when memory was short, did
/// not.
#[cfg(unix)]
fn met_limit(status: ExitStatus) -> bool {
    use rustix::process::Signal;
    use std::os::unix::process::ExitStatusExt;

    let of_limits = [Signal::XCPU, Signal::ABORT, Signal::SEGV, Signal::BUS];
    status.signal().is_some_and(|signal| of_limits.iter().any(|one| one.as_raw() == signal))
}

#[cfg(not(unix))]
fn met_limit(_: ExitStatus) -> bool {
    false
}
