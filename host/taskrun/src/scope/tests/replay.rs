//! A step that runs again, wherever it was cut off, goes on as if it had never been.

use taskrun_journal::outside::OutsideAnswer;
use taskrun_journal::time::{Timestamp, random_u64};
use taskrun_policy::{CallRules, Policy, Use};

use super::super::*;
use super::fixtures::{Host, POLICY, question};
use super::outside::Told;
use crate::clock::SeededRandom;
use crate::scope::AnswerStream;

/// The things that a guest was told and did, in order.
#[derive(Debug, Default, PartialEq)]
struct Story {
    times: Vec<Timestamp>,
    emitted: Vec<Event>,
    heard: Vec<String>,
    /// The things that it was told from outside of its run.
    outside: Vec<String>,
}

/// A guest that does what its seed says, and lets everything that it is told decide what it does
/// next: whoever tells it something else sees it do something else.
struct Guest<'a> {
    scope: &'a CallScope,
    story: Story,
    mind: u64,
    /// True if times may change its mind.
    minds_time: bool,
    open: Vec<AnswerStream>,
}

impl Guest<'_> {
    fn hear(&mut self, what: &impl fmt::Debug) {
        let text = format!("{what:?}");
        let hash = blake3::hash(format!("{} {text}", self.mind).as_bytes());
        self.mind = random_u64(&SeededRandom::new(
            hash.as_bytes()[..8].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
        ));
        self.story.heard.push(text);
    }

    fn emit(&mut self) {
        let event = Event::AssistantChunk { text: format!("{:x}", self.mind) };
        self.scope.record(event.clone());
        self.story.emitted.push(event);
    }

    fn look_at_the_clock(&mut self) {
        let time = self.scope.now();
        self.story.times.push(time);
        if self.minds_time {
            self.hear(&time);
        }
    }

    async fn read(&mut self, at: usize) {
        let answer = &mut self.open[at];
        let batch = self.scope.next_chunks(answer, 3).await;
        let over = batch.as_ref().map_or(true, Vec::is_empty);
        self.hear(&batch);
        if over {
            drop(self.open.remove(at));
        }
    }

    /// Files and servers answer each host, and each time, otherwise, unless models answer alike.
    async fn look_outside(&mut self) {
        let asked = self.mind.to_string();
        let now = self.scope.parts.clock.now();
        let told = if self.minds_time { format!("{now:?}") } else { asked.clone() };
        let request = OutsideRequest { what: "reads", asked, changes: self.mind.is_multiple_of(2) };
        let told = self.scope.ask_outside(request, async { Told(told) }).await;
        self.hear(&told);
        self.story.outside.extend(told.map(|told| told.0));
    }

    async fn act(&mut self) {
        let roll = SeededRandom::new(self.mind);
        let die = |sides: u64| random_u64(&roll) % sides;
        match (die(10), die(4)) {
            (0 | 1, _) => self.look_at_the_clock(),
            (2 | 3, _) => self.emit(),
            (9, _) => self.look_outside().await,
            (4, _) => {
                let answer = self.scope.ask(question(&self.mind.to_string())).await;
                self.hear(&answer);
            }
            (5, _) if self.open.len() < 2 => {
                match self.scope.stream(question(&self.mind.to_string())).await {
                    Ok(answer) => {
                        self.open.push(answer);
                        self.hear(&"a stream");
                    }
                    Err(error) => self.hear(&error),
                }
            }
            (6, 0) if !self.open.is_empty() => {
                let answer = self.open.remove(0);
                self.scope.abandon(answer);
            }
            (7, 0) => {
                let slept = self.scope.sleep(Duration::from_millis(5)).await;
                self.hear(&slept);
            }
            (5..=8, n) if !self.open.is_empty() => {
                let at = usize::try_from(n).unwrap_or(0) % self.open.len();
                self.read(at).await;
            }
            _ => self.hear(&"nothing"),
        }
        self.hear(&"next");
    }
}

/// The acts of a guest before it ends.
const ACTS: u32 = 24;

/// The acts of a guest; `before` is called before each act, with its number.
async fn guest(
    scope: &CallScope,
    seed: u64,
    minds_time: bool,
    mut before: impl FnMut(&mut Guest<'_>, u32),
) -> Story {
    let story = Story::default();
    let mut guest = Guest { scope, story, mind: seed, minds_time, open: Vec::new() };
    for act in 0..ACTS {
        before(&mut guest, act);
        guest.act().await;
    }
    // What is still open is given up, so that all of it is in the journal.
    for answer in guest.open.drain(..) {
        scope.abandon(answer);
    }
    guest.emit();
    guest.story
}

/// Runs the step on one host to just before its decision is recorded; gives what the guest says of
/// itself, the journal afterwards and how often a model was asked.
async fn run(journal: &[Event], host: u64, seed: u64, alike: bool) -> (Story, Vec<Event>, u32) {
    // Hosts that are alike have models that answer alike; their clocks never agree.
    let host = Host::new(journal, host, if alike { 0 } else { host });
    let story = host.run(guest(&host.scope, seed, !alike, |_, _| {})).await;
    let end = host.scope.finish();
    assert_eq!(end.divergence, None, "seed {seed}, cut at {}", journal.len());
    assert_eq!(end.events, [], "everything was written");
    let journal = host.journal();
    (story, journal, host.model.asked.load(Ordering::Relaxed))
}

/// The things that the step was told from outside, by its journal: the first so many.
fn outside(journal: &[Event], count: usize) -> Vec<String> {
    let mut by_number = BTreeMap::new();
    for event in journal {
        if let Event::OutsideAnswered { number, answer: Some(answer), .. } = event {
            let told = Told::given(OutsideAnswer::clone(answer)).expect("a text");
            by_number.insert(*number, told.0);
        }
    }
    by_number.into_values().take(count).collect()
}

/// Holds the journal of the step against the guest's own account.
fn check(journal: &[Event], story: &Story, place: &str) {
    let mut tape = Tape::default();
    journal.iter().for_each(|event| tape.push(event));
    let emitted: Vec<_> = tape.emitted().cloned().collect();
    assert_eq!(emitted, story.emitted, "{place}");
    let times: Vec<_> = std::iter::from_fn(|| tape.time()).collect();
    assert_eq!(times, story.times, "{place}");
    assert_eq!(outside(journal, story.outside.len()), story.outside, "{place}");
}

const SEEDS: std::ops::Range<u64> = 0..60;

#[tokio::test]
async fn a_step_that_is_cut_off_anywhere_is_told_the_same_again() {
    for seed in SEEDS {
        let (first, journal, _) = run(&[], 1, seed, false).await;
        check(&journal, &first, "live");
        for cut in 0..=journal.len() {
            let (second, longer, _) = run(&journal[..cut], 2, seed, false).await;
            let place = format!("seed {seed}, cut at {cut}");
            check(&longer, &second, &place);
            if cut == journal.len() {
                assert_eq!(second, first, "{place}");
                assert_eq!(longer, journal, "{place}: something is recorded twice");
            }
        }
    }
}

#[tokio::test]
async fn a_step_that_is_cut_off_twice_is_told_the_same_again() {
    for seed in SEEDS.step_by(4) {
        let (_, journal, _) = run(&[], 1, seed, false).await;
        for cut in 0..journal.len() {
            let (second, longer, _) = run(&journal[..cut], 2, seed, false).await;
            for again in cut..=longer.len() {
                let (third, last, asked) = run(&longer[..again], 3, seed, false).await;
                let place = format!("seed {seed}, cut at {cut} and {again}");
                check(&last, &third, &place);
                if again == longer.len() {
                    assert_eq!(third, second, "{place}");
                    assert_eq!(last, longer, "{place}: something is recorded twice");
                    assert_eq!(asked, 0, "{place}: something is paid for twice");
                }
            }
        }
    }
}

#[tokio::test]
async fn where_models_answer_alike_nobody_sees_that_a_step_was_cut_off() {
    for seed in SEEDS {
        let (whole, journal, _) = run(&[], 1, seed, true).await;
        for cut in 0..journal.len() {
            let (again, _, _) = run(&journal[..cut], 2, seed, true).await;
            let place = format!("seed {seed}, cut at {cut}");
            assert_eq!((&again.emitted, &again.heard), (&whole.emitted, &whole.heard), "{place}");
        }
    }
}

/// The same of a step under other rules. It may end with times left that it was told before: no event
/// says how many it looked at then, and nobody is told them.
fn check_but_for_times_left(journal: &[Event], story: &Story, place: &str) {
    let mut tape = Tape::default();
    journal.iter().for_each(|event| tape.push(event));
    let emitted: Vec<_> = tape.emitted().cloned().collect();
    assert_eq!(emitted, story.emitted, "{place}");
    let times: Vec<_> = std::iter::from_fn(|| tape.time()).collect();
    assert!(times.starts_with(&story.times), "{place}: {times:?}, {:?}", story.times);
    assert_eq!(outside(journal, story.outside.len()), story.outside, "{place}");
}

/// Runs the step under rules that refuse something to it, or no more; gives what `run` gives.
async fn run_on(
    journal: &[Event],
    host: u64,
    seed: u64,
    refused_at: Option<u32>,
) -> (Story, Vec<Event>, u32) {
    let host = Host::new(journal, host, host);
    let refuse = |guest: &mut Guest<'_>, act| {
        if refused_at == Some(act) {
            guest.hear(&"refused");
        }
    };
    let story = host.run(guest(&host.scope, seed, true, refuse)).await;
    let end = host.scope.finish();
    assert_eq!(end.divergence, None, "seed {seed}, cut at {}, {refused_at:?}", journal.len());
    let mut journal = host.journal();
    journal.extend(end.events);
    (story, journal, host.model.asked.load(Ordering::Relaxed))
}

/// The digests of the questions that are answered in a journal.
fn answered(journal: &[Event]) -> Vec<&str> {
    let mut requests = Vec::new();
    for event in journal {
        if let Event::HostAnswered { request, .. } = event {
            requests.push(request.as_str());
        }
    }
    requests
}

#[tokio::test]
async fn a_step_under_other_rules_goes_on_wherever_it_was_cut_off_and_pays_nothing_twice() {
    for seed in SEEDS {
        let (_, journal, _) = run(&[], 1, seed, false).await;
        for cut in 0..=journal.len() {
            let refused_at = Some(u32::try_from(cut).unwrap_or_default() * 7 % ACTS);
            let mut changed = journal[..cut].to_vec();
            changed.push(Event::RulesChanged { pins: vec!["a@2".to_owned()] });
            let (second, longer, asked) = run_on(&changed, 2, seed, refused_at).await;
            let place = format!("seed {seed}, cut at {cut}");
            check_but_for_times_left(&longer, &second, &place);
            let before = answered(&changed);
            let new = answered(&longer[changed.len()..]).into_iter();
            let new = new.filter(|request| !before.contains(request)).count();
            assert!(asked as usize <= new, "{place}: asked {asked} for {new}");
            // Another host, and then one under which nothing is refused any more.
            let (third, last, asked) = run_on(&longer, 3, seed, refused_at).await;
            assert_eq!((&third, &last, asked), (&second, &longer, 0), "{place}");
            for again in [longer.len(), usize::midpoint(changed.len(), longer.len())] {
                let mut back = longer[..again].to_vec();
                back.push(Event::RulesChanged { pins: vec!["a@1".to_owned()] });
                let (fourth, last, asked) = run_on(&back, 4, seed, None).await;
                let place = format!("{place} and {again}");
                check_but_for_times_left(&last, &fourth, &place);
                let before = answered(&back);
                let new = answered(&last[back.len()..]).into_iter();
                let new = new.filter(|request| !before.contains(request)).count();
                assert!(asked as usize <= new, "{place}: asked {asked} for {new}");
            }
        }
    }
}

/// The pins of the policy under which a journal says that the step goes on.
fn pins_of(journal: &[Event]) -> Vec<String> {
    let mut pins = journal.iter().rev().filter_map(|event| {
        let Event::RulesChanged { pins } = event else { return None };
        Some(pins.clone())
    });
    pins.next().unwrap_or_else(|| vec!["a@1".to_owned()])
}

/// Takes a step up under a policy, which is replaced by the other one before an act; the guest asks
/// its rules before each. Gives what [`run`] gives.
async fn run_under(
    journal: &[Event],
    (host, seed): (u64, u64),
    begins_under: u32,
    switched_at: Option<u32>,
) -> (Story, Vec<Event>, u32) {
    let under = |policy: u32| (rules(policy), vec![format!("a@{policy}")]);
    let (allowed, pins) = under(begins_under);
    let mut journal = journal.to_vec();
    // As the driver does it when it takes the run up.
    if pins_of(&journal) != pins {
        journal.push(Event::RulesChanged { pins: pins.clone() });
    }
    let current = Arc::new(CurrentRules::new(allowed, pins.clone()));
    let host = Host::under(&journal, (host, host), (Arc::clone(&current), pins));
    let ask = |guest: &mut Guest<'_>, act| {
        if switched_at == Some(act) {
            let (allowed, pins) = under(3 - begins_under);
            current.replace(allowed, pins);
        }
        let allows = guest.scope.rules().allows(&Use::Metric("m"));
        guest.hear(&allows);
    };
    let story = host.run(guest(&host.scope, seed, true, ask)).await;
    let end = host.scope.finish();
    let place = format!("seed {seed}, {} events, {begins_under}, {switched_at:?}", journal.len());
    assert_eq!(end.divergence, None, "{place}");
    let mut journal = host.journal();
    journal.extend(end.events);
    (story, journal, host.model.asked.load(Ordering::Relaxed))
}

#[tokio::test]
async fn a_step_whose_rules_are_replaced_under_it_goes_on_wherever_it_is_cut_off() {
    for seed in SEEDS {
        let act = |of: usize| Some(u32::try_from(of).unwrap_or_default() * 5 % ACTS);
        let switched_at = act(usize::try_from(seed).unwrap_or_default());
        let (first, journal, _) = run_under(&[], (1, seed), 1, switched_at).await;
        check(&journal, &first, "live");
        assert_eq!(pins_of(&journal), ["a@2"], "seed {seed}: it is on record");
        for cut in 0..=journal.len() {
            for (begins_under, switched_at) in [(2, None), (1, act(cut)), (2, act(cut)), (1, None)]
            {
                let place = format!("seed {seed}, cut at {cut}, {begins_under}, {switched_at:?}");
                let before = &journal[..cut];
                let taken_up = (2, seed);
                let (second, longer, asked) =
                    run_under(before, taken_up, begins_under, switched_at).await;
                check_but_for_times_left(&longer, &second, &place);
                let known = answered(before);
                let new = answered(&longer[cut..]).into_iter();
                let new = new.filter(|request| !known.contains(request)).count();
                assert!(asked as usize <= new, "{place}: asked {asked} for {new}");
                let now = if switched_at.is_some() { 3 - begins_under } else { begins_under };
                assert_eq!(pins_of(&longer), [format!("a@{now}")], "{place}");
            }
        }
    }
}

#[tokio::test]
async fn a_step_whose_rules_changed_before_anything_of_it_is_on_record_may_say_something_else() {
    let under = |policy: u32, journal: &[Event]| {
        let pins = vec![format!("a@{policy}")];
        let current = Arc::new(CurrentRules::new(rules(policy), pins.clone()));
        let number = u64::from(policy);
        (Host::under(journal, (number, number), (Arc::clone(&current), pins)), current)
    };
    let may = |scope: &CallScope| scope.rules().allows(&Use::Metric("m"));
    let say = |scope: &CallScope, first: bool| {
        let text = format!("{first} {}", may(scope));
        scope.record(Event::AssistantChunk { text });
    };
    let (host, current) = under(1, &[]);
    let first = may(&host.scope);
    current.replace(rules(2), vec!["a@2".to_owned()]);
    say(&host.scope, first);
    host.flush();
    let (again, _) = under(2, &host.journal());
    let first = may(&again.scope);
    say(&again.scope, first);
    assert_eq!(again.scope.finish().divergence, None);
}

/// Rules of which only those of the policy 1 allow the metric `m`.
fn rules(policy: u32) -> CallRules {
    let allow = if policy == 1 { "\"metrics: m\"" } else { "" };
    let text = format!("{POLICY}allow = [{allow}]");
    let policy = Policy::parse(&text, "taskrun.toml".as_ref()).expect("a valid policy");
    CallRules::new(Arc::clone(&policy.agents["a"].grants), None)
}
