//! The other side of [`CompileWorker`](crate::CompileWorker): a process that compiles one
//! component under limits, or looks at it, and ends.
//!
//! It reads eight bytes, of which the last says what to do ([`Task`]) and the others are the
//! component's length, the least first, limits itself and writes [`hello`], by which the host knows
//! it for a worker of its own version. Then it reads the component; what it reads from then on says
//! nothing, but that its end says that the host is gone.

use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use wasmtime::Engine;

use crate::call::panic_message;
use crate::config::ENGINE_VERSION;
use crate::inspect::outline::outline;
use crate::machine_memory::compile_memory_max;

/// Processor time of compiling a JavaScript engine (StarlingMonkey), the longest of what toolchains
/// make.
const LONGEST_KNOWN_SECONDS: u64 = 23;
/// Memory of compiling a Python interpreter, the most of what toolchains make.
const LARGEST_KNOWN_BYTES: u64 = 512 << 20;
/// Processor time of one compilation.
const CPU_SECONDS_MAX: u64 = 100;
/// Address space of one compilation, with what its threads reserve and do not use.
const ADDRESS_SPACE_BYTES_MAX: u64 = 3 << 30;
/// Processor time of looking at a component. That of a Python tool takes 20 ms.
const OUTLINE_CPU_SECONDS_MAX: u64 = 10;
/// Address space of looking at a component, beside its bytes, with what threads reserve and do not use
/// and with this program. A Python tool takes 5 MiB of memory.
const OUTLINE_ADDRESS_SPACE_BYTES_MAX: u64 = 1 << 30;
// Four times what is known is admitted.
const _: () = assert!(CPU_SECONDS_MAX >= 4 * LONGEST_KNOWN_SECONDS);
const _: () = assert!(ADDRESS_SPACE_BYTES_MAX >= 4 * LARGEST_KNOWN_BYTES);
/// Threads of one compilation, whatever the machine has: each reserves address space, and guests
/// are served meanwhile.
pub(crate) const THREADS_MAX: usize = 4;
/// Stack of each of these threads: as much as the first thread of a process has.
const THREAD_STACK_BYTES: usize = 8 << 20;
/// Files that it may have open: its three streams, and what threads and the standard library look
/// at while they start.
const OPEN_FILES_MAX: u64 = 32;
/// Largest component that it reads; the host has a bound of its own below that.
const COMPONENT_BYTES_MAX: u64 = 1 << 30;

/// The beginning of the line that a worker writes first, whichever version it is of.
pub(crate) const HELLO_BEGINNING: &str = "taskrun compile worker, ";
/// The code by which a worker answers. Where it differs, the answer may have another form, or be
/// native code for other settings.
const ANSWERERS: [&str; 3] =
    [include_str!("worker.rs"), include_str!("config.rs"), include_str!("inspect/outline.rs")];
/// The variable of the environment that a worker is started with.
pub(crate) const WORKER_VARIABLE: &str = "TASKRUN_COMPILE_WORKER";

/// First byte of an answer that is native code.
pub(crate) const OK: u8 = 0;
/// First byte of an answer that is an error's text.
pub(crate) const INVALID: u8 = 1;
/// First byte of an answer that is the words with which the compiler panicked.
pub(crate) const PANICKED: u8 = 2;

/// The line that a worker of this version writes first.
pub(crate) fn hello() -> String {
    let mut answerers = blake3::Hasher::new();
    for source in ANSWERERS {
        answerers.update(source.as_bytes());
    }
    let answerers = answerers.finalize().to_hex();
    format!("{HELLO_BEGINNING}{ENGINE_VERSION}, {}\n", &answerers[..16])
}

/// The work that a worker does with a component.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Task {
    /// Compiles it; the answer is native code.
    Compile,
    /// Looks at it; the answer is an [`Outline`](crate::inspect::outline::Outline) as JSON.
    Outline,
}

impl Task {
    const ALL: [Self; 2] = [Self::Compile, Self::Outline];

    /// Processor time that it may take.
    pub(crate) fn cpu_seconds_max(self) -> u64 {
        match self {
            Self::Compile => CPU_SECONDS_MAX,
            Self::Outline => OUTLINE_CPU_SECONDS_MAX,
        }
    }

    /// Address space that it may take, but for that of the component's bytes while it is looked at.
    pub(crate) fn address_space_bytes_max(self) -> u64 {
        match self {
            Self::Compile => ADDRESS_SPACE_BYTES_MAX,
            Self::Outline => OUTLINE_ADDRESS_SPACE_BYTES_MAX,
        }
    }

    /// Memory that it may take: as much as address space, or less where the machine, or the control
    /// group, has little.
    pub(crate) fn memory_bytes_max(self) -> u64 {
        self.address_space_bytes_max().min(compile_memory_max())
    }

    /// The beginning of what the worker reads. A worker of another version that knows one task alone
    /// compiles, or finds the component too large.
    pub(crate) fn header(self, component_bytes: u64) -> [u8; 8] {
        let mut header = component_bytes.to_le_bytes();
        header[7] = self.number();
        header
    }

    fn number(self) -> u8 {
        match self {
            Self::Compile => 0,
            Self::Outline => 1,
        }
    }

    /// The task and the component's length.
    fn read(mut header: [u8; 8]) -> io::Result<(Self, u64)> {
        let task = Self::ALL.into_iter().find(|task| task.number() == header[7]);
        let task = task.ok_or(io::ErrorKind::InvalidData)?;
        header[7] = 0;
        match u64::from_le_bytes(header) {
            length if length > COMPONENT_BYTES_MAX => Err(io::ErrorKind::FileTooLarge.into()),
            length => Ok((task, length)),
        }
    }
}

/// Reads a component from standard input and writes its native code, or what there is to see
/// of it, to standard output, as the engine expects it of its [`CompileWorker`](crate::CompileWorker). For a hidden subcommand of
/// the host's own binary; nothing else must write to standard output.
///
/// The process limits its own processor time and memory first, and stands behind everything else
/// on the machine, so it is of no use for anything afterwards. It ends as soon as standard input
/// does: the host that keeps it open is gone then, however it went.
pub fn compile_worker_main() -> ExitCode {
    let answer = match answer() {
        Ok(answer) => answer,
        Err(_) => return ExitCode::FAILURE,
    };
    match io::stdout().write_all(&answer).and_then(|()| io::stdout().flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// True in a process that was started as a compile worker. It is to do nothing else: a program whose
/// `main` does not call [`compile_worker_main`] for it would start one worker within the other.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the way by which a host tells its worker")]
pub fn is_compile_worker() -> bool {
    std::env::var_os(WORKER_VARIABLE).is_some()
}

fn answer() -> io::Result<Vec<u8>> {
    let mut header = [0; 8];
    io::stdin().lock().read_exact(&mut header)?;
    let (task, length) = Task::read(header)?;
    limit_self(task, length);
    // The host takes a signal for one of these limits from now on.
    io::stdout().write_all(hello().as_bytes()).and_then(|()| io::stdout().flush())?;
    let component = component(length)?;
    end_with_the_host()?;
    let (status, body) = match task {
        Task::Compile => {
            let engine = Engine::new(&crate::config::base()).map_err(io::Error::other)?;
            // Without threads there is no answer, which is not remembered.
            let threads = compile_threads().map_err(io::Error::other)?;
            of_compiler(unless_it_panics(&threads, || engine.precompile_component(&component)))
        }
        Task::Outline => match outline(&component) {
            Ok(outline) => (OK, serde_json::to_vec(&outline)?),
            Err(text) => (INVALID, text.into_bytes()),
        },
    };
    let mut answer = Vec::with_capacity(body.len() + 1);
    answer.push(status);
    answer.extend_from_slice(&body);
    Ok(answer)
}

/// The status and the body of an answer by the compiler.
fn of_compiler(compiled: Result<wasmtime::Result<Vec<u8>>, String>) -> (u8, Vec<u8>) {
    match compiled {
        Ok(Ok(code)) => (OK, code),
        Ok(Err(error)) => (INVALID, format!("{error:#}").into_bytes()),
        Err(words) => (PANICKED, words.into_bytes()),
    }
}

/// Starts the threads of one compilation, as many as the environment says (`RAYON_NUM_THREADS`), or
/// as there are processors. The compiler would take those that all of a process share. They are
/// started once: where that fails, as a limit of the machine is met for a moment, it panics at every
/// component.
///
/// # Errors
/// If one of them cannot be started, which may be otherwise in a moment.
pub(crate) fn compile_threads() -> Result<ThreadPool, ThreadPoolBuildError> {
    let threads = ThreadPoolBuilder::new().stack_size(THREAD_STACK_BYTES);
    threads.thread_name(|_| "taskrun-compile".to_owned()).build()
}

/// The compiler's result, by these threads; an error with the words of its panic if it meets what it
/// does not expect. That says nothing of the host, and is so each time.
pub(crate) fn unless_it_panics<T: Send>(
    threads: &ThreadPool,
    compile: impl FnOnce() -> T + Send,
) -> Result<T, String> {
    let compiled = catch_unwind(AssertUnwindSafe(|| threads.install(compile)));
    compiled.map_err(|panic| panic_message(&*panic).to_owned())
}

fn component(length: u64) -> io::Result<Vec<u8>> {
    let mut component = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    io::stdin().lock().take(length).read_to_end(&mut component)?;
    match component.len() as u64 == length {
        true => Ok(component),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Makes the worker end with its host: its end of the pipe closes with it, also where it was
/// killed.
fn end_with_the_host() -> io::Result<()> {
    let watch = || {
        let mut byte = [0; 1];
        while matches!(io::stdin().lock().read(&mut byte), Ok(1..)) {}
        std::process::abort();
    };
    std::thread::Builder::new().name("taskrun-host".to_owned()).spawn(watch).map(|_| ())
}

#[cfg(unix)]
fn limit_self(task: Task, component_bytes: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    // Where these fail it is no more than slower for others, or not the first to be ended when
    // memory is short.
    taskrun_priority::lower(taskrun_priority::Priority::Low).ok();
    std::fs::write("/proc/self/oom_score_adj", "1000").ok();
    // Of processor time the first limit ends it with a signal that says so, the second in any case.
    let cpu_seconds = task.cpu_seconds_max();
    let address_space = match task {
        Task::Compile => task.address_space_bytes_max(),
        Task::Outline => task.address_space_bytes_max() + component_bytes,
    };
    let memory = address_space.min(compile_memory_max());
    let limits = [
        (Resource::Cpu, cpu_seconds, cpu_seconds + 5),
        (Resource::As, address_space, address_space),
        // Of the address space much is reserved for threads and never used.
        (Resource::Data, memory, memory),
        (Resource::Nofile, OPEN_FILES_MAX, OPEN_FILES_MAX),
        (Resource::Fsize, 0, 0),
        (Resource::Core, 0, 0),
    ];
    for (resource, soft, hard) in limits {
        let most = getrlimit(resource).maximum.unwrap_or(u64::MAX);
        let (current, maximum) = (Some(soft.min(most)), Some(hard.min(most)));
        // Lowering a limit of one's own is always allowed.
        setrlimit(resource, Rlimit { current, maximum }).ok();
    }
}

#[cfg(not(unix))]
fn limit_self(_: Task, _: u64) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_the_compiler_is_an_answer_with_its_words() {
        let threads = compile_threads().expect("some threads");
        let answer = |compile: fn() -> wasmtime::Result<Vec<u8>>| {
            of_compiler(unless_it_panics(&threads, compile))
        };
        assert_eq!(answer(|| Ok(vec![7])), (OK, vec![7]));
        let invalid = answer(|| Err(wasmtime::Error::msg("not a component")));
        assert_eq!(invalid, (INVALID, b"not a component".to_vec()));
        // Where it works on several parts at once, too.
        let panics: [fn() -> wasmtime::Result<Vec<u8>>; 2] =
            [not_expected, || rayon::join(|| (), not_expected).1];
        for panics in panics {
            assert_eq!(answer(panics), (PANICKED, b"this is not expected".to_vec()));
        }
    }

    fn not_expected() -> wasmtime::Result<Vec<u8>> {
        panic!("this is not expected")
    }

    #[test]
    fn each_compilation_has_threads_of_its_own() {
        let threads = compile_threads().expect("some threads");
        let name = unless_it_panics(&threads, || {
            rayon::join(|| (), || std::thread::current().name().map(str::to_owned)).1
        });
        assert_eq!(name, Ok(Some("taskrun-compile".to_owned())));
    }

    #[test]
    fn a_task_is_read_as_it_was_written() {
        for task in Task::ALL {
            for length in [0, 1, COMPONENT_BYTES_MAX] {
                assert_eq!(Task::read(task.header(length)).unwrap(), (task, length));
            }
            assert!(Task::read(task.header(COMPONENT_BYTES_MAX + 1)).is_err());
        }
        assert!(Task::read([0, 0, 0, 0, 0, 0, 0, 2]).is_err());
        // What workers read that know one task.
        assert_eq!(Task::Compile.header(300), 300_u64.to_le_bytes());
    }
}
