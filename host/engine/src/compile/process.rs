//! One run of a compile worker.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};

use super::CompileWorker;
use crate::error::LoadError;
use crate::worker::{
    HELLO_BEGINNING, INVALID, OK, PANICKED, THREADS_MAX, Task, WORKER_VARIABLE, hello,
};

/// Longest compilation, as a clock on the wall sees it: its processor time is bounded, and it stands
/// behind everything else on the machine.
const WALL_MAX: Duration = Duration::from_secs(300);
/// Most native code of one component.
const CODE_BYTES_MAX: u64 = 1 << 30;
/// Longest outline: its names take 2 MiB at most, and each of their characters up to six in JSON.
const OUTLINE_BYTES_MAX: u64 = 16 << 20;

/// Longest wait until a worker says what it is, which takes it 2 ms: any other program may be
/// silent.
const HELLO_MAX: Duration = Duration::from_secs(10);
/// The program that this process executes, as Linux tells it.
const OWN_FILE: &str = "/proc/self/exe";
/// Most bytes of the version that a worker says.
const VERSION_BYTES_MAX: u64 = 256;
/// Longest wait for the end of a program that closed its output.
const END_MAX: Duration = Duration::from_secs(1);

/// The answer of a worker about a component.
pub(super) enum Answer {
    /// Native code, or whatever else the task is to make.
    Made(Vec<u8>),
    /// The component is not valid, and why.
    Invalid(String),
    /// It took more than it may, and always will.
    OverLimit,
    /// The compiler panicked at it, with these words.
    Panicked(String),
}

/// The reason for which the end of a worker is not waited for.
enum Unheard {
    /// Its pipes fail.
    Pipe(io::Error),
    /// It is no worker: its output ended before it said that it is one.
    Closed,
    /// It is no worker: it says something else.
    Other,
    /// It is a worker of another version.
    OtherVersion,
    /// It is no worker: it says nothing.
    Silent,
}

/// Has a worker do a task with a component.
///
/// # Errors
/// [`LoadError::Worker`] if it does not start, or is no worker of this version;
/// [`LoadError::NoAnswer`] if it was ended from outside or took too long, both of which may be
/// otherwise the next time.
///
/// # Cancel safety
/// Dropping the future ends the worker.
pub(super) async fn run_worker(
    worker: &CompileWorker,
    task: Task,
    component: &[u8],
) -> Result<Answer, LoadError> {
    let mut child = Command::new(file_of(&worker.program))
        .arg0(&worker.program)
        .args(&worker.args)
        .env_clear()
        .env("RAYON_NUM_THREADS", threads().to_string())
        .env(WORKER_VARIABLE, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|source| LoadError::Worker { source })?;
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(LoadError::internal("the compile worker has no pipes"));
    };
    let mut stdout = BufReader::new(stdout);
    let feed = async {
        // A worker that ends early closes the pipe; its status says why.
        stdin.write_all(&task.header(component.len() as u64)).await.ok();
        stdin.write_all(component).await.ok();
        stdin.flush().await.ok();
        Ok::<(), Unheard>(())
    };
    let mut answer = Vec::new();
    let hear = async {
        hear_hello(&mut stdout).await?;
        let mut stdout = stdout.take(answer_bytes_max(task));
        stdout.read_to_end(&mut answer).await.map_err(Unheard::Pipe)
    };
    let exchange = async {
        // One that is no worker need not read.
        let ((), read) = tokio::try_join!(feed, hear)?;
        // One that goes on writing does not end.
        match read as u64 == answer_bytes_max(task) {
            true => Ok(None),
            false => child.wait().await.map(Some).map_err(Unheard::Pipe),
        }
    };
    let exchanged = tokio::time::timeout(WALL_MAX, exchange).await;
    let status = match exchanged {
        Ok(Ok(status)) => status,
        Ok(Err(unheard)) => return Err(no_worker(worker, &mut child, unheard).await),
        // The machine may have been busy; it is not remembered.
        Err(_) => {
            let detail = format!("{} s went by", WALL_MAX.as_secs());
            return Err(LoadError::NoAnswer { detail });
        }
    };
    // More is made of the component than is taken, each time.
    let Some(status) = status else { return Ok(Answer::OverLimit) };
    // Closed only here: its end tells the worker that its host is gone.
    drop(stdin);
    match answer.split_first() {
        Some((&OK, _)) if status.success() => {
            answer.remove(0);
            Ok(Answer::Made(answer))
        }
        Some((&INVALID, text)) if status.success() => {
            Ok(Answer::Invalid(String::from_utf8_lossy(text).into_owned()))
        }
        Some((&PANICKED, words)) if status.success() => {
            Ok(Answer::Panicked(String::from_utf8_lossy(words).into_owned()))
        }
        _ => {
            tracing::warn!(%status, "the compile worker gave no answer");
            match met_limit(status) {
                true => Ok(Answer::OverLimit),
                false => Err(LoadError::NoAnswer { detail: status.to_string() }),
            }
        }
    }
}

/// Waits for what a worker says first, after it has limited itself.
async fn hear_hello(stdout: &mut BufReader<ChildStdout>) -> Result<(), Unheard> {
    match tokio::time::timeout(HELLO_MAX, hear_line(stdout)).await {
        Ok(heard) => heard,
        Err(_) => Err(Unheard::Silent),
    }
}

async fn hear_line(stdout: &mut BufReader<ChildStdout>) -> Result<(), Unheard> {
    // Not as a line, of which a program that is no worker may say none.
    let mut beginning = [0; HELLO_BEGINNING.len()];
    match stdout.read_exact(&mut beginning).await {
        Ok(_) if beginning == HELLO_BEGINNING.as_bytes() => {}
        Ok(_) => return Err(Unheard::Other),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(Unheard::Closed),
        Err(error) => return Err(Unheard::Pipe(error)),
    }
    let mut said = beginning.to_vec();
    let mut version = stdout.take(VERSION_BYTES_MAX);
    version.read_until(b'\n', &mut said).await.map_err(Unheard::Pipe)?;
    if said == hello().as_bytes() {
        Ok(())
    } else if said.ends_with(b"\n") {
        Err(Unheard::OtherVersion)
    } else {
        Err(Unheard::Closed)
    }
}

/// The error of a program that is no worker of this version. Nothing of it is the component's.
async fn no_worker(worker: &CompileWorker, child: &mut Child, unheard: Unheard) -> LoadError {
    let fault = match unheard {
        Unheard::Pipe(source) => return LoadError::Worker { source },
        Unheard::OtherVersion => {
            "is a compile worker of another version: it was replaced, so start this program again"
                .to_owned()
        }
        Unheard::Other => no_worker_for("it says something else"),
        Unheard::Silent => no_worker_for(&format!("it said nothing for {} s", HELLO_MAX.as_secs())),
        Unheard::Closed => match tokio::time::timeout(END_MAX, child.wait()).await {
            // By the system when memory is short, or by somebody: that says nothing of the program.
            Ok(Ok(status)) if was_killed(status) => {
                return LoadError::NoAnswer { detail: status.to_string() };
            }
            Ok(Ok(status)) => no_worker_for(&status.to_string()),
            Ok(Err(_)) | Err(_) => no_worker_for("it closed its output"),
        },
    };
    let args = worker.args.iter().map(|arg| format!(" {}", arg.display()));
    let command = format!("{}{}", worker.program.display(), args.collect::<String>());
    let text = format!("{command} {fault}");
    tracing::warn!("{text}");
    LoadError::Worker { source: io::Error::other(text) }
}

fn no_worker_for(reason: &str) -> String {
    format!("is no compile worker ({reason}): its main must call compile_worker_main")
}

fn answer_bytes_max(task: Task) -> u64 {
    match task {
        Task::Compile => CODE_BYTES_MAX,
        Task::Outline => OUTLINE_BYTES_MAX,
    }
}

/// The file to execute of a worker's program. For the program of this process it is the one that this
/// process executes, also where another one has taken its place since: an upgrade beside a host that
/// goes on must not take its workers from it.
fn file_of(program: &Path) -> PathBuf {
    let own = Path::new(OWN_FILE);
    match std::fs::read_link(own) {
        Ok(path) if is_or_was(&path, program) => own.to_owned(),
        Ok(_) | Err(_) => program.to_owned(),
    }
}

/// True if an executed file has the path of the program, or had it before the file was removed, which
/// Linux says behind the path.
fn is_or_was(path: &Path, program: &Path) -> bool {
    let path = path.as_os_str().as_bytes();
    path.strip_suffix(b" (deleted)").unwrap_or(path) == program.as_os_str().as_bytes()
}

/// Half of the machine: guests are served meanwhile, and another compilation may be under way.
fn threads() -> usize {
    let all = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    (all / 2).clamp(1, THREADS_MAX)
}

/// True if a worker that had limited itself met one of its limits, as it would each time: of
/// processor time, of memory or of its stack. One that was killed from outside, such as by the
/// system when memory was short, did not.
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

#[cfg(unix)]
fn was_killed(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;

    status.signal() == Some(rustix::process::Signal::KILL.as_raw())
}

#[cfg(not(unix))]
fn was_killed(_: ExitStatus) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_was_replaced_is_executed_as_it_was() {
        let own = std::env::current_exe().expect("this test");
        assert_eq!(file_of(&own), Path::new(OWN_FILE));
        assert_eq!(file_of(Path::new("/bin/sh")), Path::new("/bin/sh"));
        assert!(is_or_was(Path::new("/bin/taskrun (deleted)"), Path::new("/bin/taskrun")));
        assert!(!is_or_was(Path::new("/bin/taskrun2"), Path::new("/bin/taskrun")));
    }
}
