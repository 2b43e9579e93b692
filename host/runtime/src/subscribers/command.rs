//! Commands: a program of this machine, which is given the event on its standard input.

use std::path::PathBuf;
use std::pin::pin;
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::{Either, select};
use rustix::process::{Pid, Signal, kill_process_group};
use taskrun::ports::transport::{News, Transport, TransportError, TransportKind};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Child;

/// Most bytes of what a command says on its standard error that are looked at.
const SAID_BYTES_MAX: u64 = 4 << 10;
/// Most characters of that which stand in an error.
const SAID_CHARS_MAX: usize = 200;
/// The time in which the rest of what a command said is read once it has ended.
const SAID_GRACE: Duration = Duration::from_millis(100);

/// A program with its arguments. It is started without a shell, in the folder of the policy, with an
/// empty environment, in a process group of its own.
pub(super) struct Command {
    pub(super) program: PathBuf,
    pub(super) args: Vec<String>,
    pub(super) folder: PathBuf,
    pub(super) timeout: Duration,
    pub(super) whole: bool,
}

/// A started program, which ends with whatever it started when this is dropped.
struct Group {
    child: Child,
    id: Option<Pid>,
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            // None of it may be left.
            kill_process_group(id, Signal::KILL).ok();
        }
    }
}

impl Command {
    fn start(&self) -> std::io::Result<Group> {
        let folder =
            if self.folder.as_os_str().is_empty() { ".".into() } else { self.folder.clone() };
        let child = tokio::process::Command::new(std::path::absolute(&self.program)?)
            .args(&self.args)
            .current_dir(folder)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let id = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Ok(Group { child, id })
    }

    async fn run(&self, body: &str) -> Result<(), TransportError> {
        let failed = |error: std::io::Error| TransportError(format!("it cannot be run: {error}"));
        let mut group = self.start().map_err(failed)?;
        let (stdin, stderr) = (group.child.stdin.take(), group.child.stderr.take());
        let give = async {
            if let Some(mut stdin) = stdin {
                // A program that reads nothing of it may be content all the same.
                stdin.write_all(body.as_bytes()).await.ok();
                stdin.write_all(b"\n").await.ok();
            }
        };
        let mut said = Vec::new();
        // The program's own end decides: whatever it started may keep its standard error open.
        let status = {
            let beside = pin!(async { tokio::join!(listen(stderr, &mut said), give) });
            let ended = pin!(group.child.wait());
            match select(ended, beside).await {
                Either::Left((Ok(status), beside)) if !status.success() => {
                    // Its last words may still be in the pipe.
                    tokio::time::timeout(SAID_GRACE, beside).await.ok();
                    Ok(status)
                }
                Either::Left((status, _)) => status,
                Either::Right((_, ended)) => ended.await,
            }
        };
        let status = status.map_err(failed)?;
        if status.success() {
            return Ok(());
        }
        let said = one_line(&said);
        Err(TransportError(match said.is_empty() {
            true => status.to_string(),
            false => format!("{status}: {said}"),
        }))
    }
}

/// Adds the beginning of what a program says to the bytes, each piece as it comes, so that it is there
/// when this is dropped. The rest is read and forgotten.
async fn listen(from: Option<impl AsyncRead + Unpin>, said: &mut Vec<u8>) {
    let Some(mut from) = from else { return };
    let mut beginning = (&mut from).take(SAID_BYTES_MAX);
    while let Ok(1..) = beginning.read_buf(said).await {}
    tokio::io::copy(&mut from, &mut tokio::io::sink()).await.ok();
}

fn one_line(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().filter(|c| !c.is_control()).take(SAID_CHARS_MAX).collect()
}

#[async_trait]
impl Transport for Command {
    fn kind(&self) -> TransportKind {
        TransportKind::Program
    }

    async fn idle(&self) {}

    async fn interrupt(&self, _reason: &str) {}

    async fn deliver(&self, news: &News) -> Result<(), TransportError> {
        let body = news.to_json(self.whole);
        match tokio::time::timeout(self.timeout, self.run(&body)).await {
            Ok(done) => done,
            Err(_) => Err(TransportError("it did not end in time".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn sh(script: &str, timeout: Duration) -> Command {
        Command {
            program: "/bin/sh".into(),
            args: vec!["-c".to_owned(), script.to_owned()],
            folder: PathBuf::new(),
            timeout,
            whole: false,
        }
    }

    const LONG: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn a_command_has_its_input_and_no_environment() {
        let folder = tempfile::tempdir().expect("a folder");
        let script = "cat > in; /usr/bin/env > env; test -z \"$HOME\"";
        let command = Command { folder: folder.path().to_owned(), ..sh(script, LONG) };
        command.run("{\"a\":1}").await.expect("it is content");
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("there");
        assert_eq!(read("in"), "{\"a\":1}\n");
        let set: Vec<String> = read("env").lines().map(str::to_owned).collect();
        // What the shell sets itself.
        let foreign = set.iter().filter(|line| {
            let own = ["PWD=", "SHLVL=", "_=", "OLDPWD="];
            !own.iter().any(|name| line.starts_with(name))
        });
        assert_eq!(foreign.count(), 0, "{set:?}");
    }

    #[tokio::test]
    async fn a_command_that_fails_says_why_and_not_for_ever() {
        let failed = sh("echo no  room >&2; exit 3", LONG).run("").await.expect_err("it fails");
        assert_eq!(failed.to_string(), "exit status: 3: no room");
        let loud = sh("head -c 1000000 /dev/zero | tr '\\\\0' x >&2; exit 1", LONG).run("").await;
        assert!(loud.expect_err("it fails").to_string().len() < 300);
        let missing = Command { program: "/no/such/program".into(), ..sh("", LONG) };
        let error = missing.run("").await.expect_err("it is not there").to_string();
        assert!(error.starts_with("it cannot be run"), "{error}");
    }

    #[tokio::test]
    async fn a_command_that_takes_too_long_ends_with_what_it_started() {
        let folder = tempfile::tempdir().expect("a folder");
        let pid = folder.path().join("pid");
        let script = format!("sleep 600 & echo $! > {}; wait", pid.display());
        let command = sh(&script, LONG);
        let mut group = command.start().expect("it starts");
        let written = async {
            while std::fs::read_to_string(&pid).unwrap_or_default().trim().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LONG, written).await.expect("it says whom it started");
        group.child.stdin.take();
        drop(group);
        gone(&pid).await;
    }

    /// Waits until the process is gone whose number stands in the file.
    async fn gone(pid: &Path) {
        let sleeper = std::fs::read_to_string(pid).expect("read").trim().to_owned();
        let gone = async {
            // A dead process that nobody waited for is still listed.
            let stat = format!("/proc/{sleeper}/stat");
            while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LONG, gone).await.expect("it is gone");
    }

    #[tokio::test]
    async fn a_command_has_ended_when_it_has_and_not_when_what_it_started_has() {
        let folder = tempfile::tempdir().expect("a folder");
        let pid = folder.path().join("pid");
        let script = format!("sleep 60 & echo $! > {}; exit 0", pid.display());
        let command = sh(&script, LONG);
        let ended = tokio::time::timeout(LONG, command.run("{}")).await.expect("in time");
        ended.expect("it has arrived");
        gone(&pid).await;
        let command = sh("echo no room >&2; sleep 60 & exit 3", LONG);
        let ended = tokio::time::timeout(LONG, command.run("{}")).await.expect("in time");
        assert_eq!(ended.expect_err("it fails").to_string(), "exit status: 3: no room");
    }
}
