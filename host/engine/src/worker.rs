//! The other side of [`CompileWorker`](crate::CompileWorker): a process that compiles one
//! component under limits and ends.
//!
//! It reads the component's length, eight bytes with the least first, and the component; what it
//! reads from then on says nothing, but that its end says that the host is gone.

use std::io::{self, Read, Write};
use std::process::ExitCode;

use wasmtime::Engine;

/// Processor time of compiling a JavaScript engine (StarlingMonkey), the longest of what toolchains
/// make.
const LONGEST_KNOWN_SECONDS: u64 = 23;
/// Memory of compiling a Python interpreter, the most of what toolchains make.
const LARGEST_KNOWN_BYTES: u64 = 512 << 20;
/// Processor time of one compilation.
pub(crate) const CPU_SECONDS_MAX: u64 = 100;
/// Address space of one compilation, with what its threads reserve and do not use.
pub(crate) const ADDRESS_SPACE_BYTES_MAX: u64 = 3 << 30;
// Four times what is known is admitted.
const _: () = assert!(CPU_SECONDS_MAX >= 4 * LONGEST_KNOWN_SECONDS);
const _: () = assert!(ADDRESS_SPACE_BYTES_MAX >= 4 * LARGEST_KNOWN_BYTES);
/// Threads of one compilation, whatever the machine has: each reserves address space, and guests
/// are served meanwhile.
pub(crate) const THREADS_MAX: usize = 4;
/// Files that it may have open: its three streams, and what threads and the standard library look
/// at while they start.
const OPEN_FILES_MAX: u64 = 32;
/// Largest component that it reads; the host has a bound of its own below that.
const COMPONENT_BYTES_MAX: u64 = 1 << 30;

/// First byte of an answer that is native code.
pub(crate) const OK: u8 = 0;
/// First byte of an answer that is an error's text.
pub(crate) const INVALID: u8 = 1;

/// Reads a component from standard input and writes its native code to standard output, as the
/// engine expects it of its [`CompileWorker`](crate::CompileWorker). For a hidden subcommand of
/// the host's own binary; nothing else must write to standard output.
///
/// The process limits its own processor time and memory first, and stands behind everything else
/// on the machine, so it is of no use for anything afterwards. It ends as soon as standard input
/// does: the host that keeps it open is gone then, however it went.
pub fn compile_worker_main() -> ExitCode {
    limit_self();
    let answer = match answer() {
        Ok(answer) => answer,
        Err(_) => return ExitCode::FAILURE,
    };
    match io::stdout().write_all(&answer).and_then(|()| io::stdout().flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn answer() -> io::Result<Vec<u8>> {
    let component = component()?;
    end_with_the_host()?;
    let engine = Engine::new(&crate::config::base()).map_err(io::Error::other)?;
    let (status, body) = match engine.precompile_component(&component) {
        Ok(code) => (OK, code),
        Err(error) => (INVALID, format!("{error:#}").into_bytes()),
    };
    let mut answer = Vec::with_capacity(body.len() + 1);
    answer.push(status);
    answer.extend_from_slice(&body);
    Ok(answer)
}

fn component() -> io::Result<Vec<u8>> {
    let mut stdin = io::stdin().lock();
    let mut length = [0; 8];
    stdin.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > COMPONENT_BYTES_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut component = Vec::new();
    stdin.take(length).read_to_end(&mut component)?;
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
fn limit_self() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    // Where these fail it is no more than slower for others, or not the first to be ended when
    // memory is short.
    taskrun_priority::lower(taskrun_priority::Priority::Low).ok();
    std::fs::write("/proc/self/oom_score_adj", "1000").ok();
    // Of processor time the first limit ends it with a signal that says so, the second in any case.
    let limits = [
        (Resource::Cpu, CPU_SECONDS_MAX, CPU_SECONDS_MAX + 5),
        (Resource::As, ADDRESS_SPACE_BYTES_MAX, ADDRESS_SPACE_BYTES_MAX),
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
fn limit_self() {}
