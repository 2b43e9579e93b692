//! The decisions of policy engines and people about the calls of a turn.

use taskrun_journal::message::Labels;
use taskrun_journal::plan::ToolRequest;
use taskrun_journal::ruling::{Phase, ToolRuling};

use super::Work;
use crate::gate::consent::{CallQuestions, PriorConsent};
use crate::gate::engines::relabel;
use crate::gate::layer::call_id;

impl Work {
    pub(super) fn decide(&mut self, decided: &ToolRuling) {
        relabel(&mut self.labels, decided);
        match decided.before {
            Phase::Plan => self.decided = ToolRuling { labels: Labels::new(), ..decided.clone() },
            Phase::Calls => self.guarded.decided = Some(decided.clone()),
        }
    }

    /// Goes on with the engines of a host, which may be behind the rules already.
    pub(in crate::driver) fn guard(&mut self, is_behind: bool) {
        self.guarded.begin(is_behind);
    }

    /// True if other engines than those of now decided about the calls of the last turn.
    pub(in crate::driver) fn is_decided_by_others(&self) -> bool {
        self.guarded.is_by_others
    }

    /// The labels that engines are shown which decide about the calls of the last turn.
    pub(in crate::driver) fn labels_of_turn(&self) -> &Labels {
        &self.guarded.labels
    }

    /// True if the last decision on record about the calls of the last turn says the same.
    pub(in crate::driver) fn is_on_record(&self, decided: &ToolRuling) -> bool {
        let same =
            |one: &ToolRuling| *one == ToolRuling { labels: one.labels.clone(), ..decided.clone() };
        self.guarded.decided.as_ref().is_some_and(same)
    }

    /// The consent to a call of a turn that is on record. One that `is_open` may have been asked
    /// about; of one that was just decided on, only decisions about its function count.
    pub(in crate::driver) fn consent(&self, request: &ToolRequest, is_open: bool) -> PriorConsent {
        let standing = || match self.standing.get(&request.name) {
            Some((approved, by)) => PriorConsent::Standing { approved: *approved, by: by.clone() },
            None => PriorConsent::Nothing,
        };
        if !is_open {
            return standing();
        }
        let id = call_id(request);
        let (mut asked, mut last) = (CallQuestions::default(), None);
        for (one, digest) in self.asked.iter().filter_map(|one| Some((one, one.consent_to(id)?))) {
            asked = CallQuestions { times: asked.times + 1, digest: digest.map(str::to_owned) };
            last = Some(one);
        }
        if let Some(call) = self.open_calls().find(|call| call.id() == id && call.authorized) {
            return PriorConsent::Given { asked, consent: call.consent };
        }
        match last {
            Some(last) => {
                let answer = last.answer.clone().map(|answer| (answer, last.by.clone()));
                PriorConsent::Asked { asked, answer }
            }
            None => standing(),
        }
    }
}
