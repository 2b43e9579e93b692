//! Following a run by its journal: what it says, calls and comes to.

mod care;
mod lines;
mod screen;

use std::time::Duration;

use taskrun::controller::Controller;
use taskrun::event::Recorded;
use taskrun::ids::RunId;
use taskrun::list::Scope;
use taskrun::run::{Await, Run};

pub(crate) use care::{Care, needs_somebody};
pub(crate) use lines::{Lines, refusal};
pub(crate) use screen::{Notes, Screen};

use crate::args::Target;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::{Printer, status_text};
use crate::signals::Interrupts;

/// Events read at once.
const PAGE: usize = 1_000;
/// How often it is made sure that runs which are waited for go on.
pub(crate) const ATTEND_EVERY: Duration = Duration::from_millis(500);
/// How long the second Ctrl-C is waited for.
const SECOND_CTRL_C: Duration = Duration::from_secs(3);

/// A run and who looks after it while somebody follows it.
pub(crate) struct Follow {
    /// Reads the journal.
    pub controller: Controller,
    /// Who follows.
    pub scope: Scope,
    /// The run.
    pub id: RunId,
    /// Sees to it that it goes on.
    pub care: Care,
    /// Where warnings go.
    pub printer: Printer,
    /// Position up to which events are known.
    pub after: u64,
    /// Where following ends, at the latest with the run.
    pub target: Target,
}

/// How following came to its end.
#[derive(Debug)]
pub(crate) enum Followed {
    /// The run ended.
    Ended(Box<Run>),
    /// The run is in the status that was waited for, and goes on.
    Reached(Box<Run>),
    /// The run waits for an answer that nobody here can give.
    Blocked(Box<Run>),
    /// The time was up.
    TimedOut,
    /// Ctrl-C: the run goes on without a follower.
    Detached,
}

/// What Ctrl-C does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CtrlC {
    /// Leaves; once more cancels the run.
    Detaches,
    /// Leaves.
    Leaves,
}

impl Follow {
    /// Follows `id` from its first event.
    #[must_use]
    pub(crate) fn new(context: &Context, controller: Controller, id: RunId, care: Care) -> Self {
        let (scope, printer) = (context.scope(), context.printer.clone());
        Self { controller, scope, id, care, printer, after: 0, target: Target::Terminal }
    }

    /// Shows events as they come until the run has ended, the time is up, or Ctrl-C.
    ///
    /// # Errors
    /// If the store fails, or nobody can be found to execute the run.
    pub(crate) async fn follow(
        &mut self,
        timeout: Option<Duration>,
        ctrl_c: CtrlC,
        mut show: impl FnMut(&Recorded),
    ) -> Outcome<Followed> {
        let time_is_up = async {
            match timeout {
                Some(timeout) => tokio::time::sleep(timeout).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(time_is_up);
        let mut canceled = false;
        let mut interrupts = Interrupts::new();
        let mut attend = tokio::time::interval(ATTEND_EVERY);
        attend.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let controller = self.controller.clone();
            let (scope, id) = (self.scope.clone(), self.id.clone());
            tokio::select! {
                biased;
                () = interrupts.pressed() => {
                    if ctrl_c == CtrlC::Leaves || canceled || !self.cancels(&mut interrupts).await? {
                        return Ok(Followed::Detached);
                    }
                    canceled = true;
                }
                events = controller.next_events(&scope, id.as_str(), self.after, PAGE) => {
                    let events = events?;
                    let Some(last) = events.last() else {
                        let run = self.controller.get(&self.scope, self.id.as_str()).await?;
                        return Ok(Followed::Ended(Box::new(run)));
                    };
                    self.after = last.seq;
                    events.iter().for_each(&mut show);
                    if let Some(run) = self.reached().await? {
                        return Ok(Followed::Reached(Box::new(run)));
                    }
                }
                _ = attend.tick() => {
                    if let Some(run) = self.care.attend(&self.id).await? {
                        return Ok(Followed::Blocked(Box::new(run)));
                    }
                }
                () = &mut time_is_up => return Ok(Followed::TimedOut),
            }
        }
    }

    /// The run, if it is where following is to end before its end.
    async fn reached(&self) -> Outcome<Option<Run>> {
        if self.target == Target::Terminal {
            return Ok(None);
        }
        let run = self.controller.get(&self.scope, self.id.as_str()).await?;
        Ok(Some(run).filter(|run| self.target.is_reached(run.status())))
    }

    /// Says how to cancel, and does so if Ctrl-C comes again soon.
    async fn cancels(&self, interrupts: &mut Interrupts) -> Outcome<bool> {
        let id = &self.id;
        self.printer.say(format!(
            "\nthe run goes on; Ctrl-C again cancels it, and so does `taskrun cancel {id}`"
        ));
        tokio::select! {
            () = interrupts.pressed() => {
                self.printer.say("canceling; Ctrl-C once more leaves at once");
                self.controller.cancel(&self.scope, id.as_str(), None).await?;
                Ok(true)
            }
            () = tokio::time::sleep(SECOND_CTRL_C) => Ok(false),
        }
    }
}

/// What is said of a run that could go on and for which no host lives.
#[must_use]
pub(crate) fn nobody_executes(id: &RunId) -> String {
    format!(
        "no host executes runs of the policy that {id} was accepted under; where that policy is, \
         `taskrun wait {id}` starts one, and if it has changed, `taskrun cancel {id}` and start it \
         anew"
    )
}

/// How a command fails that waits for a run which waits for somebody.
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
            "see what it asks with `taskrun inbox`, answer with `taskrun answer {id} ...`, or end \
             it with `taskrun cancel {id}`"
        )
    })
}

/// How a command fails whose wait was too short.
#[must_use]
pub(crate) fn wait_timed_out(id: &RunId) -> Box<Failure> {
    Failure::new(
        Exit::WaitTimedOut,
        "wait-timed-out",
        format!("run {id} has not ended in time; it goes on"),
    )
    .about(id)
    .hint(format!("wait again with `taskrun wait {id}`, or end it with `taskrun cancel {id}`"))
}
