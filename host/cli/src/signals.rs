//! Wishes that come as signals.
//!
//! Ctrl-C is heard by a thread of its own, and passed on to the command under way. If that does not
//! take it up, as it hangs, or if none is under way that would, the thread ends the program.

use std::sync::OnceLock;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::exit::Exit;

/// The time that a command has to take up a Ctrl-C: longer than a store that is busy lets it wait.
const HEARD_WITHIN: Duration = Duration::from_secs(6);
/// The same if it is pressed again meanwhile: what a command that is merely slow needs.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The pause between two looks whether there is still a command that would take it up.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The presses of Ctrl-C, and those that were taken up, counted.
#[derive(Debug)]
struct Presses {
    pressed: watch::Sender<u64>,
    heard: watch::Sender<u64>,
}

static PRESSES: OnceLock<Option<Presses>> = OnceLock::new();

/// Ctrl-C, from now on: none that is pressed while no command waits is lost.
#[derive(Debug)]
pub(crate) struct Interrupts(Option<(&'static Presses, watch::Receiver<u64>)>);

impl Interrupts {
    /// Takes Ctrl-C over from the system. Where that is not to be had, it ends the program as
    /// ever.
    #[must_use]
    pub(crate) fn new() -> Self {
        let presses = PRESSES.get_or_init(|| listen().ok()).as_ref();
        Self(presses.map(|presses| (presses, presses.pressed.subscribe())))
    }

    /// Returns when Ctrl-C is pressed, or was since the last time.
    pub(crate) async fn pressed(&mut self) {
        if let Some((presses, pressed)) = &mut self.0
            && pressed.changed().await.is_ok()
        {
            presses.heard.send_replace(*pressed.borrow_and_update());
            return;
        }
        std::future::pending::<()>().await;
    }
}

impl Default for Interrupts {
    fn default() -> Self {
        Self::new()
    }
}

/// Starts the thread; Ctrl-C is its business when this returns.
fn listen() -> std::io::Result<Presses> {
    let presses = || Presses { pressed: watch::Sender::new(0), heard: watch::Sender::new(0) };
    let (ready, answer) = std::sync::mpsc::channel();
    let ours = presses();
    let theirs = Presses { pressed: ours.pressed.clone(), heard: ours.heard.clone() };
    // A runtime of its own: the program's may be what hangs.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("taskrun-signal".to_owned()).spawn(move || {
        runtime.block_on(async move {
            let mut signals = match signal(SignalKind::interrupt()) {
                Ok(signals) => signals,
                Err(error) => {
                    ready.send(Err(error)).ok();
                    return;
                }
            };
            ready.send(Ok(())).ok();
            while signals.recv().await.is_some() {
                pass_on(&theirs, &mut signals).await;
            }
        });
    })?;
    answer.recv().unwrap_or_else(|_| Err(std::io::Error::other("the thread is gone")))?;
    Ok(ours)
}

/// Passes a Ctrl-C on, and ends the program if no command takes it up.
async fn pass_on(presses: &Presses, signals: &mut Signal) {
    let mut heard = presses.heard.subscribe();
    presses.pressed.send_modify(|count| *count += 1);
    let count = *presses.pressed.borrow();
    let taken_up = async {
        while *heard.borrow_and_update() < count && presses.pressed.receiver_count() > 0 {
            // One that goes away without a word is seen at the next look.
            tokio::time::timeout(LOOK_AGAIN, heard.changed()).await.ok();
        }
        *presses.heard.borrow() >= count
    };
    let pressed_again = async {
        tokio::time::sleep(AGAIN_AFTER).await;
        signals.recv().await;
    };
    let is_heard = tokio::select! {
        biased;
        is_heard = taken_up => is_heard,
        () = pressed_again => false,
        () = tokio::time::sleep(HEARD_WITHIN) => false,
    };
    if !is_heard {
        std::process::exit(i32::from(Exit::Interrupted.code()));
    }
}

/// Ctrl-C and SIGTERM, from now on: one that comes before [`Endings::next`] is heard there. Ctrl-C that
/// nobody hears for long ends this process, and so does one that comes when this value is gone.
#[derive(Debug)]
pub(crate) struct Endings {
    interrupts: Interrupts,
    terminate: Option<Signal>,
}

impl Endings {
    /// Takes both over from the system, inside a runtime. Where they are not to be had, they end the
    /// program as ever.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self { interrupts: Interrupts::new(), terminate: signal(SignalKind::terminate()).ok() }
    }

    /// Returns when this process is asked to end, or was before, with the name of the request.
    pub(crate) async fn next(&mut self) -> &'static str {
        let terminate = async {
            if let Some(terminate) = &mut self.terminate
                && terminate.recv().await.is_some()
            {
                return;
            }
            std::future::pending().await
        };
        tokio::select! {
            () = self.interrupts.pressed() => "interrupted",
            () = terminate => "terminated",
        }
    }
}

/// SIGHUP, from now on: it does not end this process any more.
#[derive(Debug)]
pub(crate) struct Hangups(Option<Signal>);

impl Hangups {
    /// Takes SIGHUP over from the system, inside a runtime. Where that is not to be had, it ends the
    /// program as ever.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self(signal(SignalKind::hangup()).ok())
    }

    /// Returns when the signal comes, or came since the last time.
    pub(crate) async fn next(&mut self) {
        if let Some(hangups) = &mut self.0
            && hangups.recv().await.is_some()
        {
            return;
        }
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    /// Tells the process of a test that it is the one to be interrupted, and how it behaves.
    const CHILD: &str = "TASKRUN_TEST_SIGNALS";

    /// The test itself in a process of its own, which says when it is ready; then it is
    /// interrupted, and this is how it ends.
    fn interrupted(test: &str, behaviour: &str) -> Option<i32> {
        let mut child = Command::new(std::env::current_exe().expect("the test is a program"))
            .args(["--exact", test, "--nocapture"])
            .env(CHILD, behaviour)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let ready = lines.find(|line| line.as_ref().is_ok_and(|line| line.ends_with("ready")));
        assert!(ready.is_some(), "it is ready");
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it lives");
        child.wait().expect("it ends").code()
    }

    /// The part that this process plays, if it is the one of a test that is interrupted.
    #[expect(
        clippy::disallowed_methods,
        reason = "the process of a test knows by this that it is one"
    )]
    fn behaviour() -> Option<String> {
        std::env::var(CHILD).ok()
    }

    fn ready() {
        println!("\nready");
    }

    #[test]
    fn a_command_that_hangs_is_ended_by_ctrl_c() {
        if behaviour().is_none() {
            let ends = interrupted("signals::tests::a_command_that_hangs_is_ended_by_ctrl_c", "x");
            return assert_eq!(ends, Some(130));
        }
        // Neither polled nor dropped, on a thread that does nothing else.
        let _interrupts = Interrupts::new();
        ready();
        loop {
            std::thread::park();
        }
    }

    #[test]
    fn ctrl_c_ends_the_program_where_no_command_takes_it_up() {
        const NAME: &str = "signals::tests::ctrl_c_ends_the_program_where_no_command_takes_it_up";
        if behaviour().is_none() {
            return assert_eq!(interrupted(NAME, "x"), Some(130));
        }
        drop(Interrupts::new());
        ready();
        loop {
            std::thread::park();
        }
    }

    #[test]
    fn a_command_that_takes_it_up_goes_on() {
        const NAME: &str = "signals::tests::a_command_that_takes_it_up_goes_on";
        if behaviour().is_none() {
            return assert_eq!(interrupted(NAME, "x"), Some(7));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let mut interrupts = Interrupts::new();
            ready();
            interrupts.pressed().await;
            // Longer than one that is merely slow may take.
            tokio::time::sleep(AGAIN_AFTER * 2).await;
        });
        std::process::exit(7);
    }
}
