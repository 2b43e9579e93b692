//! The other side of [`CompileWorker`](crate::CompileWorker): a process that compiles one
//! component under limits and ends.

use std::io::{self, Read, Write};
use std::process::ExitCode;

use wasmtime::Engine;

/// Processor time of one compilation. StarlingMonkey, the largest that we know of, takes 25 s.
const CPU_SECONDS_MAX: u64 = 180;
/// Address space of one compilation. A large component takes 0.5 GB of memory, and each thread
/// reserves more than it uses.
const ADDRESS_SPACE_BYTES_MAX: u64 = 8 << 30;

/// First byte of an answer that is native code.
pub(crate) const OK: u8 = 0;
/// First byte of an answer that is an error's text.
pub(crate) const INVALID: u8 = 1;

/// Reads a component from standard input and writes its native code to standard output, as the
/// engine expects it of its [`CompileWorker`](crate::CompileWorker). For a hidden subcommand of
/// the host's own binary; nothing else must write to standard output.
///
/// The process limits its own processor time and memory first, so it is of no use for anything
/// afterwards.
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
    let mut component = Vec::new();
    io::stdin().read_to_end(&mut component)?;
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

#[cfg(unix)]
fn limit_self() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let limits = [
        (Resource::Cpu, CPU_SECONDS_MAX),
        (Resource::As, ADDRESS_SPACE_BYTES_MAX),
        (Resource::Core, 0),
    ];
    for (resource, wanted) in limits {
        let maximum = getrlimit(resource).maximum.map_or(wanted, |maximum| maximum.min(wanted));
        // Lowering a limit of one's own is always allowed.
        setrlimit(resource, Rlimit { current: Some(maximum), maximum: Some(maximum) }).ok();
    }
}

#[cfg(not(unix))]
fn limit_self() {}
