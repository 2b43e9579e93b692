//! Following a run by its journal: what it says, calls and comes to.

mod attendance;
mod lines;
mod pin_files;
mod progress;
mod rounds;
mod screen;
mod supervisor;

use std::cell::Cell;
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::pin::pin;
use std::time::Duration;

use taskrun::controller::{Client, Controller};
use taskrun_journal::event::EventRecord;
use taskrun_journal::hold::Await;
use taskrun_journal::ids::RunId;
use taskrun_journal::run::Run;
use taskrun_journal::time::Timestamp;
use taskrun_runtime::{Supervisor, asking_run};

pub(crate) use self::attendance::{Attendance, Lack, Outlook, beats, due_later, next_beat};
pub(crate) use self::pin_files::PinFiles;
pub(crate) use self::supervisor::{supervisor, supervisor_at_hand, supervisor_telling};
pub(crate) use lines::{Line, Lines, refusal};
pub(crate) use rounds::RoundLines;
pub(crate) use screen::{Notes, Screen};

use crate::args::Target;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::{Printer, status_text};
use crate::signals::Interrupts;

/// Events read at once.
const PAGE: usize = 1_000;
/// The pause between two attempts to keep runs going that are waited for.
pub(crate) const ATTEND_EVERY: Duration = Duration::from_millis(500);
/// The time for the second Ctrl-C.
const SECOND_CTRL_C: Duration = Duration::from_secs(3);
/// The time that the store has to say how a run stands that is left: longer than one that another
/// program has locked is waited for.
const LEFT_WITHIN: Duration = Duration::from_secs(15);

/// A run and its supervisor while the run is followed.
pub(crate) struct Follow {
    /// The controller as the one who follows has it.
    pub client: Client,
    /// The run that is followed.
    pub id: RunId,
    /// Sees to it that it goes on.
    pub supervisor: Supervisor,
    /// The printer of warnings, and of what is shown.
    pub printer: Printer,
    /// Position up to which events are known.
    pub after: u64,
    /// Where following ends, at the latest with the run.
    pub target: Target,
}

/// The end of following a run.
#[derive(Debug)]
pub(crate) enum FollowEnd {
    /// The run ended.
    Ended(Box<Run>),
    /// The run is in the status that was waited for, and goes on.
    Reached(Box<Run>),
    /// The run waits for an answer that cannot be given here.
    Blocked(Box<Run>),
    /// The time was up.
    TimedOut,
    /// Ctrl-C: the run goes on without a follower.
    Detached,
}

/// The effect of Ctrl-C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CtrlC {
    /// Leaves; once more cancels the run.
    Detaches,
    /// Leaves at once, and says how to cancel: what is typed next is meant for something else.
    DetachesAtOnce,
    /// Leaves the run as it is.
    Leaves,
}

impl Follow {
    /// Follows `id` from its first event.
    #[must_use]
    pub(crate) fn new(
        context: &Context,
        controller: &Controller,
        id: RunId,
        supervisor: Supervisor,
    ) -> Self {
        let (client, printer) = (context.client(controller), context.printer.clone());
        Self { client, id, supervisor, printer, after: 0, target: Target::Terminal }
    }

    /// Shows events as they come until the run has ended, the time is up, or Ctrl-C.
    ///
    /// # Errors
    /// If the store fails, no host can be started to execute the run, or what is shown cannot be
    /// written.
    pub(crate) async fn follow(
        &mut self,
        timeout: Option<Duration>,
        ctrl_c: CtrlC,
        mut show: impl FnMut(&EventRecord),
    ) -> Outcome<FollowEnd> {
        let mut time_is_up = pin!(async {
            match timeout {
                Some(timeout) => tokio::time::sleep(timeout).await,
                None => std::future::pending().await,
            }
        });
        let Self { client, id, supervisor, printer, after, target } = self;
        let journal = Journal { client, id, target: *target };
        let is_leaving = Cell::new(false);
        let mut leave = pin!(journal.leave(printer, ctrl_c, &is_leaving));
        // All are polled at all times: none waits for another one to be done with the store.
        let blocked = tokio::select! {
            biased;
            left = &mut leave => return left.map(|()| FollowEnd::Detached),
            followed = journal.show(after, &mut show) => return followed,
            failure = printer.fails() => return Err(failure),
            blocked = attend(supervisor, id) => blocked?,
            () = &mut time_is_up => return Ok(FollowEnd::TimedOut),
        };
        // Its record may have been read before the events that led there.
        tokio::select! {
            biased;
            left = &mut leave => return left.map(|()| FollowEnd::Detached),
            shown = journal.show_up_to(blocked.state.head, after, &mut show) => shown?,
            () = &mut time_is_up => return Ok(FollowEnd::TimedOut),
        }
        if !is_leaving.get() {
            return Ok(FollowEnd::Blocked(blocked));
        }
        // Whoever has pressed Ctrl-C is asked nothing.
        tokio::select! {
            biased;
            left = &mut leave => left.map(|()| FollowEnd::Detached),
            followed = journal.show(after, &mut show) => followed,
            failure = printer.fails() => Err(failure),
            Err(failure) = supervise(supervisor, id) => Err(failure),
            () = &mut time_is_up => Ok(FollowEnd::TimedOut),
        }
    }

    /// Shows events as they come, and sees to it that the run goes on, while something else is done,
    /// and gives its outcome; or the end of following, if the run ends before that or Ctrl-C detaches
    /// from it, which it does at once.
    ///
    /// # Errors
    /// As [`Self::follow`], and those of what is done.
    pub(crate) async fn show_during<T>(
        &mut self,
        mut show: impl FnMut(&EventRecord),
        doing: impl Future<Output = Outcome<T>>,
    ) -> Outcome<ControlFlow<FollowEnd, T>> {
        let Self { client, id, supervisor, printer, after, target } = self;
        let journal = Journal { client, id, target: *target };
        let is_leaving = Cell::new(false);
        tokio::select! {
            biased;
            left = journal.leave(printer, CtrlC::DetachesAtOnce, &is_leaving) => {
                left.map(|()| ControlFlow::Break(FollowEnd::Detached))
            }
            followed = journal.show(after, &mut show) => followed.map(ControlFlow::Break),
            failure = printer.fails() => Err(failure),
            Err(failure) = supervise(supervisor, id) => Err(failure),
            done = doing => done.map(ControlFlow::Continue),
        }
    }
}

/// The run that is followed, as far as it is only read.
struct Journal<'a> {
    client: &'a Client,
    id: &'a RunId,
    target: Target,
}

impl Journal<'_> {
    /// Shows events until the run is where following ends.
    async fn show(
        &self,
        after: &mut u64,
        show: &mut impl FnMut(&EventRecord),
    ) -> Outcome<FollowEnd> {
        let Self { client, id, .. } = self;
        let mut stream = client.follow(id.as_str(), *after).await?;
        loop {
            let events = stream.next(PAGE).await?;
            if events.is_empty() {
                let run = client.get(id.as_str()).await?;
                return Ok(FollowEnd::Ended(Box::new(run)));
            }
            show_each(&events, after, show).await;
            if let Some(run) = self.reached().await? {
                return Ok(FollowEnd::Reached(Box::new(run)));
            }
        }
    }

    /// Shows the events that there are up to a position.
    async fn show_up_to(
        &self,
        head: u64,
        after: &mut u64,
        show: &mut impl FnMut(&EventRecord),
    ) -> Outcome<()> {
        while *after < head {
            let events = self.client.events(self.id.as_str(), *after, PAGE).await?;
            if events.is_empty() {
                break;
            }
            show_each(&events, after, show).await;
        }
        Ok(())
    }

    /// The run, if it is where following is to end before its end.
    async fn reached(&self) -> Outcome<Option<Run>> {
        if self.target == Target::Terminal {
            return Ok(None);
        }
        let run = self.client.get(self.id.as_str()).await?;
        Ok(Some(run).filter(|run| self.target.is_reached(run.status())))
    }

    /// Returns when Ctrl-C says to leave; from the first one on somebody `is_leaving`. Where that
    /// detaches it says first how to cancel, and cancels if it is pressed again soon.
    async fn leave(
        &self,
        printer: &Printer,
        ctrl_c: CtrlC,
        is_leaving: &Cell<bool>,
    ) -> Outcome<()> {
        let mut interrupts = Interrupts::new();
        interrupts.pressed().await;
        is_leaving.set(true);
        let id = self.id;
        match ctrl_c {
            CtrlC::Leaves => return Ok(()),
            CtrlC::DetachesAtOnce => {
                let text = format!("\nthe run goes on; `taskrun cancel {id}` cancels it");
                printer.say(printer.completed(&text));
                return Ok(());
            }
            CtrlC::Detaches => printer.say(printer.completed(&format!(
                "\nthe run goes on; Ctrl-C again cancels it, and so does `taskrun cancel {id}`"
            ))),
        }
        if tokio::time::timeout(SECOND_CTRL_C, interrupts.pressed()).await.is_err() {
            return Ok(());
        }
        printer.say("canceling; Ctrl-C once more leaves at once");
        tokio::select! {
            biased;
            () = interrupts.pressed() => return Ok(()),
            canceled = self.client.cancel(id.as_str(), None) => canceled?,
        };
        interrupts.pressed().await;
        Ok(())
    }
}

/// Shows events, between which Ctrl-C is heard. Where that ends it, those that were shown are known.
async fn show_each(events: &[EventRecord], after: &mut u64, show: &mut impl FnMut(&EventRecord)) {
    for event in events {
        show(event);
        *after = event.seq;
        tokio::task::yield_now().await;
    }
}

/// Supervises a run until it needs an answer from outside.
async fn attend(supervisor: &mut Supervisor, id: &RunId) -> Outcome<Box<Run>> {
    let mut again = every();
    loop {
        again.tick().await;
        if let Some(run) = supervisor.attend(id).await? {
            return Ok(Box::new(run));
        }
    }
}

/// Supervises a run, whatever it needs.
async fn supervise(supervisor: &mut Supervisor, id: &RunId) -> Outcome<Infallible> {
    let mut again = every();
    loop {
        again.tick().await;
        supervisor.attend(id).await?;
    }
}

/// The beat of looking after runs.
pub(crate) fn every() -> tokio::time::Interval {
    let mut again = tokio::time::interval(ATTEND_EVERY);
    again.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    again
}

/// The words about a run that is left: it goes on, unless it, or a run that it waits for, waits for an
/// answer.
pub(crate) async fn run_left(client: &Client, id: &RunId, now: Timestamp) -> String {
    let asking = async {
        let run = client.get(id.as_str()).await.ok()?;
        let asking = asking_run(client, &run, now).await.ok()??;
        let asks = asking.state.awaits.iter().any(|one| !one.answered);
        asks.then(|| asking.id().clone())
    };
    match tokio::time::timeout(LEFT_WITHIN, asking).await {
        Ok(Some(asking)) => {
            format!("left {id} waiting; `taskrun answer {asking}` answers what is asked")
        }
        Ok(None) | Err(_) => format!("left {id} running; `taskrun wait {id}` waits for it"),
    }
}

/// The failure of a command that waits for a run which needs an answer.
#[must_use]
pub(crate) fn run_blocked(run: &Run) -> Box<Failure> {
    let id = run.id();
    let open: Vec<&Await> = run.state.awaits.iter().filter(|one| !one.answered).collect();
    let nobody = if open.is_empty() { "" } else { " and nobody here can answer" };
    let message = format!("run {id} is {}{nobody}", status_text(run));
    let mut failure = Failure::new(Exit::Blocked, "run-blocked", message).about(id);
    failure.causes = open.iter().map(|one| format!("it asks {}: {}", one.id, one.prompt)).collect();
    failure.hint(if run.state.pause.is_some() {
        format!("let it go on with `taskrun resume {id}`, or end it with `taskrun cancel {id}`")
    } else if open.is_empty() {
        format!("see what it did with `taskrun events {id}`, or end it with `taskrun cancel {id}`")
    } else {
        format!(
            "see what it asks with `taskrun inbox`, answer with `taskrun answer {id}`, or end it \
             with `taskrun cancel {id}`"
        )
    })
}

/// The failure of a command whose wait was too short, with the prospect of the run where that is
/// another one than that it goes on.
#[must_use]
pub(crate) fn wait_timed_out(id: &RunId, outlook: Option<&Outlook>) -> Box<Failure> {
    let words = outlook.map_or("it goes on", |outlook| outlook.words.as_str());
    let hint = match outlook.and_then(|outlook| outlook.stranded.as_ref()) {
        Some(one) => format!(
            "see what it needs with `taskrun get {one}`, or end it with `taskrun cancel {one}`"
        ),
        None => {
            format!("wait again with `taskrun wait {id}`, or end it with `taskrun cancel {id}`")
        }
    };
    let message = format!("run {id} has not ended in time; {words}");
    Failure::new(Exit::WaitTimedOut, "wait-timed-out", message).about(id).hint(hint)
}
