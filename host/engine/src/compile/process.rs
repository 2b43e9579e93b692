//! One run of a compile worker.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use super::CompileWorker;
use crate::error::LoadError;
use crate::worker::{INVALID, OK, PANICKED, THREADS_MAX, Task};

/// Longest compilation, as a clock on the wall sees it: its processor time is bounded, and it stands
/// behind everything else on the machine.
const WALL_MAX: Duration = Duration::from_secs(300);
/// Most native code of one component.
const CODE_BYTES_MAX: u64 = 1 << 30;
/// Longest outline: its names take 2 MiB at most, and each of their characters up to six in JSON.
const OUTLINE_BYTES_MAX: u64 = 16 << 20;

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

/// Has a worker do a task with a component.
///
/// # Errors
/// [`LoadError::Worker`] if it does not start; [`LoadError::CompileLimit`] if it was ended from outside
/// or took too long, both of which may be otherwise the next time.
///
/// # Cancel safety
/// Dropping the future ends the worker.
pub(super) async fn run_worker(
    worker: &CompileWorker,
    task: Task,
    component: &[u8],
) -> Result<Answer, LoadError> {
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
        stdin.write_all(&task.header(component.len() as u64)).await.ok();
        stdin.write_all(component).await.ok();
        stdin.flush().await.ok();
    };
    let mut answer = Vec::new();
    let mut stdout = stdout.take(answer_bytes_max(task));
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
            if met_limit(status) { Ok(Answer::OverLimit) } else { Err(LoadError::CompileLimit) }
        }
    }
}

fn answer_bytes_max(task: Task) -> u64 {
    match task {
        Task::Compile => CODE_BYTES_MAX,
        Task::Outline => OUTLINE_BYTES_MAX,
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
