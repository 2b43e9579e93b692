//! From a component's bytes to native code, and to what there is to see of it before.

mod pauses;
mod process;
mod turns;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use taskrun::clock::SystemClock;
use taskrun_journal::text::cut;
use taskrun_journal::time::Clock;
use wasmtime::component::Component;

use self::pauses::Pauses;
use self::process::{Answer, run_worker};
use self::turns::CompileTurns;
use crate::cache::{Cache, Entry, NativeCode};
use crate::error::LoadError;
use crate::inspect::outline::{Outline, outline};
use crate::refusal::{self, Refusal};
use crate::worker::{Task, compile_threads, unless_it_panics};

/// A program that looks at components and compiles them, each in a process of its own: the host's
/// binary with a subcommand that calls [`compile_worker_main`](crate::compile_worker_main).
///
/// It is started with an empty environment, but for `TASKRUN_COMPILE_WORKER=1` (see
/// [`is_compile_worker`](crate::is_compile_worker)) and the number of its threads: without `PATH`,
/// `HOME` or `LD_LIBRARY_PATH`. Its standard output is for its answers alone, and what it writes to
/// standard error is thrown away. One that does not say that it is a worker within 10 s, or is one of
/// another version, is an error of the program, [`LoadError::Worker`], and nothing is put down to the
/// component.
#[derive(Debug, Clone)]
pub struct CompileWorker {
    /// The program that does it.
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
    /// Those of looks at components, which take milliseconds and do not wait behind compilations.
    outline_turns: CompileTurns,
    /// One lock for each component that is being compiled, so that it is compiled once at a time.
    flights: Mutex<HashMap<blake3::Hash, Weak<tokio::sync::Mutex<()>>>>,
    /// Components about which a worker gave no answer.
    pauses: Pauses,
    clock: Arc<dyn Clock>,
}

/// The reason that there is no native code of a component.
enum Unmade {
    /// The compiler or the engine does not accept it, and why.
    Refused(String),
    /// The compiler panicked at it, with these words.
    Panicked(String),
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
            outline_turns: CompileTurns::new(Arc::clone(&clock)),
            flights: Mutex::default(),
            pauses: Pauses::default(),
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
        self.check_refusal(entry, Task::Compile).await?;
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
        let (engine, cache) = (self.engine.clone(), self.cache.clone());
        let made = match &self.worker {
            Some(worker) => {
                let code = self.ask(worker, Task::Compile, &bytes, entry).await?;
                blocking(move || Ok(adopt_new(&engine, cache.as_ref(), entry, &code))).await?
            }
            None => blocking(move || compile_here(&engine, cache.as_ref(), entry, &bytes)).await?,
        };
        match made {
            Ok(component) => Ok(component),
            Err(Unmade::Refused(text)) => Err(self.not_accepted(entry, text).await),
            Err(Unmade::Panicked(words)) => Err(self.panicked(entry, Task::Compile, &words).await),
        }
    }

    /// Looks at a component whose parts were counted; what is found is to be kept as `entry`.
    ///
    /// # Cancel safety
    /// As [`Self::native`].
    pub(crate) async fn outline(
        &self,
        bytes: &Arc<Vec<u8>>,
        entry: Entry,
    ) -> Result<Outline, LoadError> {
        let look = async {
            self.check_refusal(entry, Task::Outline).await?;
            let Some(worker) = &self.worker else {
                let bytes = Arc::clone(bytes);
                let look =
                    move || outline(&bytes).map_err(|text| LoadError::from_compiler_text(&text));
                return blocking(look).await;
            };
            let answer = self.ask(worker, Task::Outline, bytes, entry).await?;
            serde_json::from_slice(&answer)
                .map_err(|_| LoadError::internal("the compile worker's answer cannot be read"))
        };
        self.outline_turns.take(look).await
    }

    /// The answer of a worker about a component; that there is none is remembered.
    async fn ask(
        &self,
        worker: &CompileWorker,
        task: Task,
        bytes: &[u8],
        entry: Entry,
    ) -> Result<Vec<u8>, LoadError> {
        let work = (entry.component, task);
        self.pauses.check(work, self.clock.monotonic())?;
        let answer = run_worker(worker, task, bytes).await;
        self.pauses.note(work, &answer, self.clock.monotonic());
        match answer? {
            Answer::Made(answer) => Ok(answer),
            Answer::Invalid(text) => Err(self.refuse(entry, task, Refusal::Invalid(text)).await),
            Answer::OverLimit => {
                let until = self.clock.now().plus(refusal::KEPT);
                self.refuse(entry, task, Refusal::OverLimit { until }).await;
                Err(LoadError::CompileLimit)
            }
            Answer::Panicked(words) => Err(self.panicked(entry, task, &words).await),
        }
    }

    /// The error of a component that does not come to native code which the engine takes. That an
    /// instance would need more than the pool has for one is so each time, and remembered; anything
    /// else may be a fault of whoever made the code.
    async fn not_accepted(&self, entry: Entry, text: String) -> LoadError {
        let error = LoadError::from_compiler_text(&text);
        match matches!(error, LoadError::TooMuch { .. }) {
            true => self.refuse(entry, Task::Compile, Refusal::Invalid(text)).await,
            false => error,
        }
    }

    /// Remembers that the compiler panicked, and gives it as an error. The log has its words, which
    /// may quote the component.
    async fn panicked(&self, entry: Entry, task: Task, words: &str) -> LoadError {
        let (component, words) = (entry.component, cut(words, refusal::TEXT_BYTES_MAX));
        tracing::warn!(%component, ?words, "the compiler panicked at a component");
        let until = self.clock.now().plus(refusal::KEPT);
        self.refuse(entry, task, Refusal::Panicked { until }).await
    }

    /// The error of a component that was refused before, if it was and that still counts.
    async fn check_refusal(&self, entry: Entry, task: Task) -> Result<(), LoadError> {
        let Some(cache) = self.cache.clone() else { return Ok(()) };
        let now = self.clock.now();
        blocking(move || {
            let kept = cache.refusal(refusal::entry(entry, task));
            let refusal = kept.and_then(|kept| Refusal::decode(kept.code()));
            match refusal.filter(|refusal| refusal.counts(now)) {
                Some(refusal) => Err(refusal.into()),
                None => Ok(()),
            }
        })
        .await
    }

    /// Remembers a refusal, and gives it as an error.
    async fn refuse(&self, entry: Entry, task: Task, refusal: Refusal) -> LoadError {
        if let Some(cache) = self.cache.clone() {
            let bytes = refusal.encode();
            let keep = move || {
                cache.put_refusal(refusal::entry(entry, task), &bytes);
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

/// Takes over native code that a worker has just made, and keeps it.
fn adopt_new(
    engine: &wasmtime::Engine,
    cache: Option<&Cache>,
    entry: Entry,
    code: &[u8],
) -> Result<Component, Unmade> {
    let component = adopt(engine, code).map_err(|e| Unmade::Refused(format!("{e:#}")))?;
    if let Some(cache) = cache {
        cache.put(entry, code);
    }
    Ok(component)
}

/// Compiles a component in this process, and keeps its native code.
///
/// # Errors
/// [`LoadError::Internal`] if no threads can be started for it.
fn compile_here(
    engine: &wasmtime::Engine,
    cache: Option<&Cache>,
    entry: Entry,
    bytes: &[u8],
) -> Result<Result<Component, Unmade>, LoadError> {
    let threads = compile_threads().map_err(|error| {
        tracing::warn!(%error, "no threads can be started that compile");
        LoadError::internal("no threads can be started that compile")
    })?;
    let component = match unless_it_panics(&threads, || Component::from_binary(engine, bytes)) {
        Ok(Ok(component)) => component,
        Ok(Err(error)) => return Ok(Err(Unmade::Refused(format!("{error:#}")))),
        Err(words) => return Ok(Err(Unmade::Panicked(words))),
    };
    if let Some(cache) = cache {
        match component.serialize() {
            Ok(code) => cache.put(entry, &code),
            Err(error) => tracing::warn!(?error, "cannot serialize native code"),
        }
    }
    Ok(Ok(component))
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
