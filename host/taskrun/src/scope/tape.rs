//! The record of a plan step whose host died, so that it can be given the same answers again.

use std::collections::{BTreeMap, VecDeque};

use taskrun_journal::event::{
    AccountEvent, ClockReading, DialogEvent, Event, EventView, HostAnswer, LifecycleEvent,
    StepPrefix, TapedEvent,
};
use taskrun_journal::time::Timestamp;
use taskrun_policy::Denial;

use super::digest::{DigestsSince, Named, named};

/// The source of lines that the host itself writes into the log of a run.
pub(crate) const HOST: &str = "host";
/// The last things that a step does.
pub(crate) const END: &str = "the end of the step";

/// The record of a plan step that did not come to its decision. Each kind is in the order
/// in which it happened; between the kinds no order is needed, as a step that does the same does
/// it in the same order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tape {
    emitted: VecDeque<Event>,
    clock: VecDeque<ClockReading>,
    answers: BTreeMap<u32, TapedAnswer>,
    /// Answers whose numbers other questions have got since.
    replaced: Vec<TapedAnswer>,
    /// True if the rules have changed since the step began: it may do something else then.
    other_rules: bool,
    /// True if it is that of a whole step: nothing but what is on it was asked or said.
    is_whole: bool,
}

/// An answer on the tape.
#[derive(Clone, Debug, PartialEq)]
struct TapedAnswer {
    /// The question's name.
    request: String,
    answer: Box<HostAnswer>,
    /// True if the question may have followed from an answer that was cut off; then it may be
    /// another one, and this answer is void if it is.
    doubtful: bool,
}

/// The outcome of looking for the answer to a question.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Lookup {
    /// Its answer.
    Answer(Box<HostAnswer>),
    /// Its answer, which was given under another number, as the rules were others.
    Moved(Box<HostAnswer>),
    /// Nothing: the step was cut off before there was an answer.
    Nothing,
    /// Another question was asked here; this one, in words.
    Other(String),
    /// No question was asked here in the whole step; the thing that is left of it, in words.
    Unrecorded(String),
}

/// The comparison of an event of a step with the tape.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Comparison {
    /// It is there: nothing is to be recorded.
    Same,
    /// The tape is at its end: it is new.
    New,
    /// Something else is there.
    Other(Box<Event>),
    /// The tape is that of a whole step, and at its end.
    Unrecorded,
}

impl Tape {
    /// Adds the next event of the journal.
    pub(crate) fn push(&mut self, event: &Event) {
        match event.view() {
            EventView::Taped(view) => match view {
                TapedEvent::HostAnswered { call, request, answer } => {
                    let (request, answer) = (request.to_owned(), Box::new(answer.clone()));
                    let answer = TapedAnswer { request, answer, doubtful: false };
                    self.replaced.extend(self.answers.insert(call, answer));
                }
                TapedEvent::ClockRead { readings } => self.clock.extend(readings),
                TapedEvent::StepRestarted { kept } => self.keep(kept),
                TapedEvent::AssistantChunk { .. }
                | TapedEvent::ToolCallArgsDelta { .. }
                | TapedEvent::ThinkingBlock { .. }
                | TapedEvent::PlannerNote { .. }
                | TapedEvent::PromptRendered { .. }
                | TapedEvent::PolicyDecision { .. }
                | TapedEvent::Log { .. } => self.emitted.push_back(event.clone()),
            },
            EventView::Dialog(view) => match view {
                DialogEvent::AssistantMessage { .. } => self.emitted.push_back(event.clone()),
                DialogEvent::HistoryCarried { .. }
                | DialogEvent::Reported { .. }
                | DialogEvent::Asked { .. }
                | DialogEvent::Answered { .. }
                | DialogEvent::Injected { .. }
                | DialogEvent::InboxShown { .. } => {}
            },
            EventView::Account(AccountEvent::RulesChanged { .. }) => self.change_rules(),
            EventView::Lifecycle(LifecycleEvent::Adopted { .. }) => self.change_rules(),
            EventView::Account(
                AccountEvent::FinalToolResult
                | AccountEvent::MemoryAppended
                | AccountEvent::MetricsRecorded { .. }
                | AccountEvent::ModelWait { .. }
                | AccountEvent::ContextWindowMet { .. },
            )
            | EventView::Lifecycle(_)
            | EventView::Step(_)
            | EventView::Call(_) => {}
        }
    }

    /// The same as the record of a whole step, which did nothing else.
    pub(crate) fn whole(self) -> Self {
        Self { is_whole: true, other_rules: false, ..self }
    }

    /// True if it is that of a whole step.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Takes away what the host itself noted in the log of the run, which no step says again.
    pub(crate) fn without_notes_of_host(mut self) -> Self {
        let is_the_hosts =
            |event: &Event| matches!(event, Event::Log { source, .. } if source == HOST);
        self.emitted.retain(|event| !is_the_hosts(event));
        self
    }

    /// The rules have changed since the step began. What is on record of it stands as far as it does
    /// the same; from there on it goes its own way.
    pub(super) fn change_rules(&mut self) {
        // Also where nothing is on record yet: it may have been allowed something, which leaves no
        // trace.
        self.other_rules = true;
    }

    /// True if the rules have changed since the step began.
    pub(crate) fn has_other_rules(&self) -> bool {
        self.other_rules
    }

    /// True if the step has done nothing that is on record.
    pub(crate) fn is_empty(&self) -> bool {
        let Self { emitted, clock, answers, replaced, other_rules: _, is_whole: _ } = self;
        emitted.is_empty() && clock.is_empty() && answers.is_empty() && replaced.is_empty()
    }

    /// True if nothing is left that the step has to do.
    pub(crate) fn is_over(&self) -> bool {
        self.emitted.is_empty()
            && self.clock.is_empty()
            && self.answers.values().all(|a| a.doubtful)
    }

    /// True if no answer is left to a question that the step has to ask.
    pub(crate) fn is_answered(&self) -> bool {
        self.answers.values().all(|answer| answer.doubtful)
    }

    /// The next thing that the step did before and that is left, in words. Times are not counted: a
    /// step that looked at the clock once more changed nothing by that.
    pub(super) fn left(&self) -> Option<String> {
        let event = self.emitted.front().map(|event| format!("{event:?}"));
        event.or_else(|| {
            let mut answers = self.answers.iter().filter(|(_, answer)| !answer.doubtful);
            answers.next().map(|(call, kept)| kept.question(*call))
        })
    }

    /// The same, where something is to be said also if nothing is left.
    pub(crate) fn next_left(&self) -> String {
        self.left().unwrap_or_else(|| END.to_owned())
    }

    /// The events that the step emitted and that are not played yet, in order.
    pub(crate) fn emitted(&self) -> impl Iterator<Item = &Event> {
        self.emitted.iter()
    }

    /// Compares an event with the next one.
    pub(super) fn play(&mut self, event: &Event) -> Comparison {
        match self.emitted.pop_front() {
            None if self.is_whole => Comparison::Unrecorded,
            None => Comparison::New,
            Some(recorded) if recorded == *event || is_same_refusal(&recorded, event) => {
                Comparison::Same
            }
            Some(recorded) => Comparison::Other(Box::new(recorded)),
        }
    }

    /// The refusal that comes next, if it is the one of this by a rule, and the rules have changed
    /// since.
    pub(super) fn refusal(&self, of: &str, about: &str) -> Option<Denial> {
        let next = self.emitted.front().filter(|_| self.other_rules)?;
        let Event::PolicyDecision { capability, subject, rule, told, decided: None } = next else {
            return None;
        };
        let (rule, for_guest) = (rule.clone(), told.clone()?);
        (capability == of && subject == about).then_some(Denial { for_guest, rule })
    }

    /// The next time that was told.
    pub(super) fn time(&mut self) -> Option<Timestamp> {
        let reading = self.clock.front_mut()?;
        let time = reading.at;
        reading.times = reading.times.saturating_sub(1);
        if reading.times == 0 {
            self.clock.pop_front();
        }
        Some(time)
    }

    /// True if the step was told no more times than those, as it is whole.
    pub(super) fn has_no_time(&self) -> bool {
        self.is_whole && self.clock.is_empty()
    }

    /// The recorded answer to a question, by its number and its digest; `since` a format digests are
    /// made as this one was. Of an answer that an earlier program recorded, to a question that it named
    /// in another way, the number alone counts: the same code that was told the same asks the same.
    pub(super) fn answer(&mut self, call: u32, digest: &str, since: DigestsSince) -> Lookup {
        let found = self.answers.get(&call);
        let named = found.map(|kept| (named(&kept.request, digest, since), kept.doubtful));
        match (found, named) {
            (_, Some((Named::Same, _))) => self.take(call),
            (_, Some((Named::Unknown, false))) if !self.other_rules => self.take(call),
            _ if self.other_rules => {
                self.moved(digest, since).map_or(Lookup::Nothing, Lookup::Moved)
            }
            (Some(kept), Some((Named::Other, false))) => Lookup::Other(kept.question(call)),
            (_, Some((Named::Other | Named::Unknown, _)) | None) => {
                self.answers.remove(&call);
                match self.is_whole {
                    true => Lookup::Unrecorded(self.next_left()),
                    false => Lookup::Nothing,
                }
            }
        }
    }

    fn take(&mut self, call: u32) -> Lookup {
        let kept = self.answers.remove(&call);
        kept.map_or(Lookup::Nothing, |kept| Lookup::Answer(kept.answer))
    }

    /// The first answer to this question, whatever its number: nothing is paid or done twice as the
    /// step goes another way.
    fn moved(&mut self, digest: &str, since: DigestsSince) -> Option<Box<HostAnswer>> {
        let is_it = |kept: &TapedAnswer| named(&kept.request, digest, since) == Named::Same;
        if let Some(at) = self.replaced.iter().position(is_it) {
            return Some(self.replaced.remove(at).answer);
        }
        let call = *self.answers.iter().find(|(_, kept)| is_it(kept))?.0;
        let kept = self.answers.remove(&call)?;
        Some(kept.answer)
    }

    /// Keeps this part of the step.
    fn keep(&mut self, part: StepPrefix) {
        self.emitted.truncate(part.events as usize);
        let mut left = part.readings;
        for reading in &mut self.clock {
            reading.times = left.min(reading.times);
            left -= reading.times;
        }
        self.clock.retain(|reading| reading.times > 0);
        // The answer that was cut off is the first that is missing; later questions were asked
        // while it was under way.
        let settled = |call: &u32| self.answers.get(call).is_some_and(|kept| !kept.doubtful);
        let missing = (0..).find(|call| !settled(call)).unwrap_or_default();
        for (_, later) in self.answers.range_mut(missing..) {
            later.doubtful = true;
        }
    }

    /// Gives up what is left, but for answers to the same questions; says whether there was any.
    pub(super) fn cut(&mut self) -> bool {
        let some = !self.is_over();
        self.emitted.clear();
        self.clock.clear();
        for answer in self.answers.values_mut() {
            answer.doubtful = true;
        }
        some
    }
}

/// True for two refusals of the same thing. The place of a rule moves with the lines above it, and the
/// rule may be another one by now.
fn is_same_refusal(one: &Event, other: &Event) -> bool {
    fn refused(event: &Event) -> Option<(&str, &str)> {
        let Event::PolicyDecision { capability, subject, rule: _, told: _, decided: None } = event
        else {
            return None;
        };
        Some((capability, subject))
    }
    refused(one).is_some_and(|one| refused(other) == Some(one))
}

impl TapedAnswer {
    /// The question in words.
    fn question(&self, call: u32) -> String {
        format!("question {call} ({}), {}", self.answer.question(), self.request)
    }
}
