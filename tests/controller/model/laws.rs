//! Laws of every journal, whatever happened: semantics, section 1, and the checker of the
//! store's design.

use taskrun_journal::ending::EndStatus;
use taskrun_journal::event::{
    CallEvent, DialogEvent, Event, EventRecord, EventView, LifecycleEvent,
};
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;

/// # Errors
/// The law that a journal breaks.
pub(super) fn check(run: &Run, journal: &[EventRecord]) -> Result<(), String> {
    let broken = |law: &str, seq: u64| {
        let kinds: Vec<_> = journal.iter().map(|one| one.event.kind()).collect();
        Err(format!("journal of {}, at {seq}: {law}: {kinds:?}", run.id()))
    };
    let mut told = Told {
        status: Status::Queued,
        epoch: 0,
        finalizers: 0,
        held: false,
        paused: false,
        ending: None,
    };
    for (seq, recorded) in (1..).zip(journal) {
        if recorded.seq != seq {
            return broken("a gap", seq);
        }
        if (seq == 1) != matches!(recorded.event, Event::Queued { .. }) {
            return broken("begins with queued and has no other one", seq);
        }
        if let Err(law) = told.take(&recorded.event) {
            return broken(&law, seq);
        }
    }
    let last = journal.len() as u64;
    if told.status != run.status() || run.state.head != last || run.state.epoch != told.epoch {
        return broken("the record is another one than the journal tells", last);
    }
    Ok(())
}

/// The state that a journal tells so far.
struct Told {
    status: Status,
    epoch: u64,
    finalizers: u32,
    held: bool,
    paused: bool,
    ending: Option<EndStatus>,
}

impl Told {
    fn moves(&mut self, to: Status, from: &[Status]) -> Result<(), String> {
        if !from.contains(&self.status) {
            return Err(format!("{} -> {to}", self.status));
        }
        self.status = to;
        Ok(())
    }

    fn hands(&mut self, epoch: u64) -> Result<(), String> {
        if epoch != self.epoch + 1 {
            return Err(format!("epoch {} -> {epoch}", self.epoch));
        }
        self.epoch = epoch;
        Ok(())
    }

    fn take(&mut self, event: &Event) -> Result<(), String> {
        if self.status.is_terminal() {
            return Err("an event after the end".to_owned());
        }
        match event.view() {
            EventView::Lifecycle(view) => self.take_lifecycle(view),
            EventView::Dialog(view) => match view {
                DialogEvent::Asked { .. } => self.begins(event),
                DialogEvent::Answered { .. } | DialogEvent::Injected { .. } => Ok(()),
                DialogEvent::HistoryCarried { .. }
                | DialogEvent::Reported { .. }
                | DialogEvent::AssistantMessage { .. }
                | DialogEvent::InboxShown { .. } => self.works(event),
            },
            EventView::Call(view) => match view {
                CallEvent::ToolCallScheduled { .. } | CallEvent::ToolCallRepeated { .. }
                    if self.paused =>
                {
                    Err(format!("{} while it is paused", event.kind()))
                }
                CallEvent::ToolCallScheduled { .. } | CallEvent::ToolCallRepeated { .. } => {
                    self.begins(event)
                }
                CallEvent::Marked { .. }
                | CallEvent::ToolResult { .. }
                | CallEvent::ToolCallParked { .. }
                | CallEvent::ChildRunLinked { .. }
                | CallEvent::ToolCallUpdated { .. }
                | CallEvent::ToolAuthorization { .. } => self.works(event),
            },
            EventView::Step(_) | EventView::Taped(_) | EventView::Account(_) => self.works(event),
        }
    }

    /// Something begins outside of the journal, which only a run that is running may do.
    fn begins(&self, event: &Event) -> Result<(), String> {
        match self.status == Status::Running {
            true => Ok(()),
            false => Err(format!("{} in {}", event.kind(), self.status)),
        }
    }

    /// Something that only the host that holds the run says.
    fn works(&self, event: &Event) -> Result<(), String> {
        match self.held {
            true => Ok(()),
            false => Err(format!("{} by nobody", event.kind())),
        }
    }

    fn take_lifecycle(&mut self, event: LifecycleEvent<'_>) -> Result<(), String> {
        let (running, blocked) = (Status::Running, Status::Blocked);
        match event {
            LifecycleEvent::Queued { .. } => Ok(()),
            LifecycleEvent::Started { epoch, .. } => {
                self.held = true;
                self.hands(epoch)?;
                self.moves(running, &[Status::Queued])
            }
            LifecycleEvent::Resumed { epoch, .. } => {
                if std::mem::replace(&mut self.held, true) {
                    return Err("taken from a host that has it".to_owned());
                }
                self.hands(epoch)?;
                match self.status == blocked {
                    true => self.moves(running, &[blocked]),
                    false => Ok(()),
                }
            }
            LifecycleEvent::Lost { epoch, .. } => {
                if !std::mem::replace(&mut self.held, false) {
                    return Err("lost by nobody".to_owned());
                }
                self.hands(epoch)?;
                match self.paused && self.status == running {
                    true => self.moves(blocked, &[running]),
                    false => Ok(()),
                }
            }
            LifecycleEvent::Blocked { .. } => {
                self.held = false;
                self.moves(blocked, &[running])
            }
            LifecycleEvent::Adopted { .. } => {
                let is_under_way = match self.held {
                    true => self.status != running,
                    false => ![Status::Queued, blocked].contains(&self.status),
                };
                match is_under_way {
                    true => Err(format!("adopted in {}", self.status)),
                    false => Ok(()),
                }
            }
            LifecycleEvent::CancelRequested { .. } => {
                self.moves(Status::Canceling, &[Status::Queued, running, blocked])
            }
            LifecycleEvent::Finalizing { .. } if self.paused => {
                Err("ends while it is paused".to_owned())
            }
            LifecycleEvent::Finalizing { ending } => {
                self.ending = Some(ending.status);
                self.moves(Status::Finalizing, &[running, Status::Canceling])
            }
            LifecycleEvent::FinalizerStarted => {
                self.finalizers += 1;
                match self.finalizers == 1 && self.status == Status::Finalizing {
                    true => Ok(()),
                    false => Err("the finalizer begins twice, or too early".to_owned()),
                }
            }
            LifecycleEvent::Finished { .. } => {
                let to = match self.ending {
                    Some(EndStatus::Completed) => Status::Completed,
                    Some(EndStatus::Failed) => Status::Failed,
                    Some(EndStatus::Canceled) => Status::Canceled,
                    None => return Err("ends without an outcome".to_owned()),
                };
                self.moves(to, &[Status::Finalizing])
            }
            LifecycleEvent::PauseRequested { .. } => {
                if std::mem::replace(&mut self.paused, true) {
                    return Err("paused twice".to_owned());
                }
                // What nobody has waits from here on.
                match self.status == running && !self.held {
                    true => self.moves(blocked, &[running]),
                    false => Ok(()),
                }
            }
            LifecycleEvent::PauseEnded { .. } => match std::mem::replace(&mut self.paused, false) {
                true => Ok(()),
                false => Err("the end of no pause".to_owned()),
            },
        }
    }
}
