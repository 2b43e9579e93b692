//! The record of a plan step whose host died, so that it can be given the same answers again.

mod series;

use std::collections::VecDeque;

use taskrun_journal::event::{
    AccountEvent, ClockReading, DialogEvent, Event, EventView, HostAnswer, LifecycleEvent,
    StepPrefix, TapedEvent,
};
use taskrun_journal::outside::OutsideAnswer;
use taskrun_journal::time::Timestamp;
use taskrun_policy::Denial;

use self::series::{Found, Series, Taped};
use super::digest::DigestsSince;
use super::log_line::is_cut_without_mark;
use super::record::json_of;

/// The source of lines that the host itself writes into the log of a run.
pub(crate) const HOST: &str = "host";
/// The last things that a step does.
pub(crate) const END: &str = "the end of the step";

/// The record of a plan step that did not come to its decision. Each kind is in the order
/// in which it happened; between the kinds no order is needed, as a step that does the same does
/// it in the same order.
#[derive(Clone, Debug, Default)]
#[cfg_attr(test, derive(PartialEq))]
pub struct Tape {
    emitted: VecDeque<Event>,
    clock: VecDeque<ClockReading>,
    answers: Series<Box<HostAnswer>>,
    /// Answers of files, servers and the host's account; `None` where one is not kept.
    outside: Series<Option<Box<OutsideAnswer>>>,
    /// True if the rules have changed since the step began: it may do something else then.
    other_rules: bool,
    /// True if the step's host may have died in it: the first thing that it asks for beyond what is
    /// on record may have been asked for before.
    is_cut_off: bool,
    /// True if it is that of a whole step: nothing but what is on it was asked or said.
    is_whole: bool,
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

/// The outcome of looking for the answer of what is outside of the run.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum OutsideLookup {
    /// The answer.
    Answer(Box<OutsideAnswer>),
    /// The answer, which was given under another number, as the rules were others.
    Moved(Box<OutsideAnswer>),
    /// It was asked for, and the answer is not kept.
    NotKept,
    /// Nothing: the step was cut off before there was an answer, or an earlier program kept none.
    Nothing,
    /// Something else was asked for here; this, in words.
    Other(String),
    /// Nothing was asked for here in the whole step; the thing that is left of it, in words.
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
    pub fn push(&mut self, event: &Event) {
        match event.view() {
            EventView::Taped(view) => match view {
                TapedEvent::HostAnswered { call, request, answer } => {
                    self.answers.push(call, request, Box::new(answer.clone()));
                }
                TapedEvent::OutsideAnswered { number, request, answer } => {
                    self.outside.push(number, request, answer.cloned().map(Box::new));
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
        Self { is_whole: true, other_rules: false, is_cut_off: false, ..self }
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

    /// The rules have changed since the step began, or what it is shown may have. What is on record of it
    /// stands as far as it does the same; from there on it goes its own way.
    pub(crate) fn change_rules(&mut self) {
        // Also where nothing is on record yet: it may have been allowed something, which leaves no
        // trace.
        self.other_rules = true;
    }

    /// True if the rules have changed since the step began.
    pub(crate) fn has_other_rules(&self) -> bool {
        self.other_rules
    }

    /// Notes that the host of the step has died.
    pub(crate) fn cut_off(&mut self) {
        self.is_cut_off = true;
    }

    /// Forgets all that is on record, as the step begins with something else than before. What it
    /// asks for first may have been asked for before all the same.
    pub(crate) fn begin_anew(&mut self) {
        *self = Self { is_cut_off: self.is_cut_off, ..Self::default() };
    }

    /// True if the step has done nothing that is on record.
    pub(crate) fn is_empty(&self) -> bool {
        let Self { emitted, clock, answers, outside, .. } = self;
        emitted.is_empty() && clock.is_empty() && answers.is_empty() && outside.is_empty()
    }

    /// True if nothing is left that the step has to do.
    pub(crate) fn is_over(&self) -> bool {
        self.emitted.is_empty() && self.clock.is_empty() && self.is_answered()
    }

    /// True if no answer is left to a question that the step has to ask.
    pub(crate) fn is_answered(&self) -> bool {
        self.answers.left().is_none() && self.outside.left().is_none()
    }

    /// The next thing that the step did before and that is left, in words. Times are not counted: a
    /// step that looked at the clock once more changed nothing by that.
    pub(super) fn left(&self) -> Option<String> {
        let event = self.emitted.front().map(json_of);
        event
            .or_else(|| self.answers.left().map(|(call, kept)| question(call, kept)))
            .or_else(|| self.outside.left().map(|(number, kept)| outside_request(number, kept)))
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
            Some(recorded) if is_same(&recorded, event) => Comparison::Same,
            Some(recorded) => Comparison::Other(Box::new(recorded)),
        }
    }

    /// True if an event is the next one.
    pub(super) fn is_next(&self, event: &Event) -> bool {
        self.emitted.front().is_some_and(|recorded| is_same(recorded, event))
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

    /// The recorded answer to a question.
    pub(super) fn answer(&mut self, call: u32, digest: &str, since: DigestsSince) -> Lookup {
        match self.answers.find(call, digest, since, self.other_rules) {
            Found::Answer(answer) => Lookup::Answer(answer),
            Found::Moved(answer) => Lookup::Moved(answer),
            Found::Other => {
                let kept = self.answers.at(call).map(|kept| question(call, kept));
                Lookup::Other(kept.unwrap_or_default())
            }
            Found::Nothing if self.is_whole => Lookup::Unrecorded(self.next_left()),
            Found::Nothing => Lookup::Nothing,
        }
    }

    /// The recorded answer to a request to what is outside of the run. In a whole step that has none
    /// an earlier program may have kept none.
    pub(super) fn outside(
        &mut self,
        number: u32,
        digest: &str,
        since: DigestsSince,
    ) -> OutsideLookup {
        let is_kept = number > 0 || !self.outside.is_empty();
        match self.outside.find(number, digest, since, self.other_rules) {
            Found::Answer(Some(answer)) => OutsideLookup::Answer(answer),
            Found::Moved(Some(answer)) => OutsideLookup::Moved(answer),
            Found::Answer(None) | Found::Moved(None) => OutsideLookup::NotKept,
            Found::Other => {
                let kept = self.outside.at(number).map(|kept| outside_request(number, kept));
                OutsideLookup::Other(kept.unwrap_or_default())
            }
            Found::Nothing if self.is_whole && is_kept => {
                OutsideLookup::Unrecorded(self.next_left())
            }
            Found::Nothing => OutsideLookup::Nothing,
        }
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
        self.answers.doubt_from(self.answers.first_missing());
        self.outside.doubt_from(part.outside);
        // It is on record by now.
        self.is_cut_off = false;
    }

    /// Gives up what is left, but for answers to the same questions; says whether there was any, or may
    /// have been any of which nothing is on record.
    pub(super) fn cut(&mut self) -> bool {
        let some = std::mem::take(&mut self.is_cut_off) || !self.is_over();
        self.emitted.clear();
        self.clock.clear();
        self.answers.doubt_from(0);
        self.outside.doubt_from(0);
        some
    }
}

/// True if an event is the one on record.
fn is_same(recorded: &Event, event: &Event) -> bool {
    recorded == event || is_same_refusal(recorded, event) || is_same_line(recorded, event)
}

/// True for two lines of a log of which the one on record was cut by an earlier program, which did
/// not say so.
fn is_same_line(recorded: &Event, event: &Event) -> bool {
    let Event::Log { level, source, message, fields } = recorded else { return false };
    let Event::Log { level: now, source: by, message: line, fields: with } = event else {
        return false;
    };
    (level, source, fields) == (now, by, with) && is_cut_without_mark(message, line)
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

/// A question in words.
fn question(call: u32, kept: &Taped<Box<HostAnswer>>) -> String {
    format!("question {call} ({}), {}", kept.answer.question(), kept.request)
}

/// A request to what is outside of the run in words.
fn outside_request(number: u32, kept: &Taped<Option<Box<OutsideAnswer>>>) -> String {
    let what = kept.answer.as_ref().map_or("not kept", |answer| answer.request());
    format!("request {number} ({what}), {}", kept.request)
}
