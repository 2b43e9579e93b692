//! The engines that decided about the calls of a turn: those of the policy as it is, or of one before.

use taskrun_journal::message::Labels;
use taskrun_journal::ruling::ToolRuling;

/// The policy of those engines, and their decision.
#[derive(Clone, Default)]
pub(super) struct Guarded {
    /// True if the rules may be others than those that the host at work has its engines of. A host
    /// knows it; of one before it is known that they changed at some time, which is enough: engines
    /// that are asked once more say the same.
    is_behind: bool,
    /// True if engines of other rules than those of now decided about the calls of the last turn.
    pub(super) is_by_others: bool,
    /// The labels that were shown to them: without those of their decision about these calls.
    pub(super) labels: Labels,
    /// The decision about them that was recorded last.
    pub(super) decided: Option<ToolRuling>,
}

impl Guarded {
    /// Goes on with the engines of a host, which may be behind the rules already.
    pub(super) fn begin(&mut self, is_behind: bool) {
        self.is_behind = is_behind;
    }

    /// A turn's calls were decided on, and engines that are shown these labels decide about them.
    pub(super) fn decide_turn(&mut self, labels: &Labels) {
        self.is_by_others = self.is_behind;
        self.labels.clone_from(labels);
        self.decided = None;
    }

    /// The rules are others from now on.
    pub(super) fn change(&mut self) {
        self.is_behind = true;
        self.is_by_others = true;
    }
}
