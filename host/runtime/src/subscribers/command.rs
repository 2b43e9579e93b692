//! Commands: a program of this machine, which is given the event on its standard input.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use rustix::process::{Pid, Signal, kill_process_group};
use taskrun::ports::transport::{News, Transport, TransportError, TransportKind};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Child;

/// Most bytes of what a command says on its standard error that are looked at.
const SAID_BYTES_MAX: u64 = 4 << 10;
/// Most characters of that which stand in an error.
const SAID_CHARS_MAX: usize = 200;

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
        let (status, said, ()) = tokio::join!(group.child.wait(), said(stderr), give);
        let status = status.map_err(failed)?;
        match (status.success(), said.is_empty()) {
            (true, _) => Ok(()),
            (false, true) => Err(TransportError(status.to_string())),
            (false, false) => Err(TransportError(format!("{status}: {said}"))),
        }
    }
}

/// The beginning of what a program says, in one line. The rest is read and forgotten.
async fn said(from: Option<impl AsyncRead + Unpin>) -> String {
    let Some(mut from) = from else { return String::new() };
    let mut bytes = Vec::new();
    (&mut from).take(SAID_BYTES_MAX).read_to_end(&mut bytes).await.ok();
    tokio::io::copy(&mut from, &mut tokio::io::sink()).await.ok();
    let text = String::from_utf8_lossy(&bytes);
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
        let sleeper = std::fs::read_to_string(&pid).expect("read").trim().to_owned();
        group.child.stdin.take();
        drop(group);
        let gone = async {
            // A dead process that nobody waited for is still listed.
            let stat = format!("/proc/{sleeper}/stat");
            while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LONG, gone).await.expect("it is gone");
    }
}
