//! A run, as the model knows it.

use taskrun_journal::status::{BlockedOn, Status, StopReason};

/// The work of an agent of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Answers.
    Quick,
    /// Answers when its gate is open.
    Gate,
    /// The same, hearing that it is to stop and caring nothing for it.
    Stubborn,
    /// A [`Kind::Gate`] with a finalizer.
    Final,
    /// A [`Kind::Gate`] that is not continued after a crash.
    Mortal,
    /// Calls a tool that answers when the gate is open and may be called again.
    Again,
    /// The same with a tool that may be called once.
    Once,
    /// Asks a person, and answers with what that one says.
    Ask,
    /// Waits for other runs, and answers with how they stand.
    Await,
    /// Returns an error.
    Fail,
    /// Answers, and has a finalizer that ends when the gate is open.
    Slow,
}

impl Kind {
    pub(super) fn agent(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Gate => "gate",
            Self::Stubborn => "stubborn",
            Self::Final => "final",
            Self::Mortal => "mortal",
            Self::Again => "again",
            Self::Once => "once",
            Self::Ask => "ask",
            Self::Await => "await",
            Self::Fail => "fail",
            Self::Slow => "slow",
        }
    }
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) status: Status,
    pub(super) reason: StopReason,
    /// The result; `None` where it is not told here.
    pub(super) result: Option<String>,
}

/// An end without a result.
pub(super) fn end(status: Status, reason: StopReason) -> End {
    End { status, reason, result: None }
}

/// The end of a run that gave its answer.
pub(super) fn answered(text: &str) -> End {
    let result = Some(text.to_owned());
    End { result, ..end(Status::Completed, StopReason::FinalResponse) }
}

/// Where a run stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    Queued,
    /// A host, perhaps a dead one, has it.
    Running {
        host: usize,
        since: u64,
    },
    /// It ran, and nobody has it.
    Adrift {
        not_before: u64,
    },
    Blocked {
        on: BlockedOn,
        until: Option<u64>,
        answered: bool,
    },
    Canceling {
        host: usize,
        by: StopReason,
        since: u64,
    },
    /// Its finalizer is still to be heard, by whoever takes it up.
    Finalizing(End),
    /// Its finalizer is being heard.
    InFinalizer {
        host: usize,
        end: End,
        since: u64,
    },
    Ended {
        end: End,
        at: u64,
    },
}

/// A run.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) kind: Kind,
    pub(super) parent: Option<String>,
    pub(super) root: String,
    pub(super) depth: u32,
    pub(super) owner: usize,
    pub(super) session: usize,
    /// The session of the first run of its tree, to which all of the tree belongs.
    pub(super) root_session: usize,
    pub(super) key: Option<u8>,
    pub(super) serial: bool,
    pub(super) timeout_ms: Option<u64>,
    /// Longest wait of what it waits for.
    pub(super) wait_ms: Option<u64>,
    pub(super) awaited: Vec<String>,
    pub(super) any: bool,
    pub(super) state: State,
    /// The time that it ran before, at most; what a dead host did not record may be forgotten.
    pub(super) ran_ms: u64,
    pub(super) in_tool: bool,
    pub(super) crashes: (u32, u32),
    pub(super) answer: Option<String>,
    /// Somebody paused it: nobody may have it, and nothing more of it begins.
    pub(super) paused: bool,
    /// Its pause is over, and it is to look whether what it waits for is there.
    pub(super) looks: bool,
    /// Its tool answered while it was paused.
    pub(super) tool_answered: bool,
    /// True if its finalizer was heard to its end.
    pub(super) told: bool,
}

impl Known {
    pub(super) fn status(&self) -> Status {
        match &self.state {
            State::Queued => Status::Queued,
            State::Running { .. } | State::Adrift { .. } => Status::Running,
            State::Blocked { .. } => Status::Blocked,
            State::Canceling { .. } => Status::Canceling,
            State::Finalizing(_) | State::InFinalizer { .. } => Status::Finalizing,
            State::Ended { end, .. } => end.status,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        !self.status().is_terminal()
    }

    pub(super) fn host(&self) -> Option<usize> {
        match &self.state {
            State::Running { host, .. }
            | State::Canceling { host, .. }
            | State::InFinalizer { host, .. } => Some(*host),
            State::Queued
            | State::Adrift { .. }
            | State::Blocked { .. }
            | State::Finalizing(_)
            | State::Ended { .. } => None,
        }
    }

    pub(super) fn end(&self) -> Option<&End> {
        match &self.state {
            State::Finalizing(end) | State::InFinalizer { end, .. } | State::Ended { end, .. } => {
                Some(end)
            }
            State::Queued
            | State::Running { .. }
            | State::Adrift { .. }
            | State::Blocked { .. }
            | State::Canceling { .. } => None,
        }
    }
}
