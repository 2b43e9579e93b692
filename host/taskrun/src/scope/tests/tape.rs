//! Cases of the tape one by one.

use std::sync::atomic::Ordering;

use taskrun_journal::completion::{Chunk, CompletionRequest, CompletionStop, ModelError};
use taskrun_journal::event::{ClockReading, HostAnswer, ModelAnswer, StepPrefix};
use taskrun_journal::format::JournalFormat;
use taskrun_journal::stop::StopCause;
use taskrun_journal::time::{Clock, Timestamp};
use taskrun_journal::tool::{ToolHints, ToolSpec};
use taskrun_policy::template::{Prompt, Prompts};

use super::super::*;
use super::fixtures::{Host, question};
use super::{parts, scope};
use crate::clock::SimulatedClock;

fn chunk(text: &str) -> Event {
    Event::AssistantChunk { text: text.to_owned() }
}

fn clock_read(readings: &[(u64, u32)]) -> Event {
    let reading = |(at, times): &(u64, u32)| ClockReading { at: Timestamp(*at), times: *times };
    Event::ClockRead { readings: readings.iter().map(reading).collect() }
}

fn answered(call: u32, request: &str, answer: ModelAnswer) -> Event {
    let answer = Box::new(HostAnswer::Model(answer));
    Event::HostAnswered { call, request: request.to_owned(), model: None, answer }
}

fn is_diverged(host: &Host) -> bool {
    host.scope.stop().cause() == Some(StopCause::Diverged) && host.scope.stop().is_forced()
}

#[tokio::test]
async fn another_event_than_on_the_tape_stops_the_step() {
    let host = Host::new(&[chunk("a"), chunk("b")], 1, 0);
    host.scope.record(chunk("a"));
    assert!(!is_diverged(&host));
    host.scope.record(chunk("c"));
    assert!(is_diverged(&host));
    let (recorded, found) = host.scope.finish().divergence.expect("it diverged");
    assert!(recorded.ends_with(r#":"b"}"#) && found.ends_with(r#":"c"}"#), "{recorded} {found}");
}

#[tokio::test]
async fn a_step_that_ends_earlier_than_on_the_tape_has_diverged() {
    let host = Host::new(&[chunk("a"), chunk("b")], 1, 0);
    host.scope.record(chunk("a"));
    let (recorded, found) = host.scope.finish().divergence.expect("it diverged");
    assert!(recorded.contains("\"b\""), "{recorded}");
    assert_eq!(found, "the end of the step");
    let answer = ModelAnswer::Error(ModelError::Timeout);
    let host = Host::new(&[answered(0, "q", answer)], 1, 0);
    assert!(host.scope.finish().divergence.is_some(), "a question is missing");
}

#[tokio::test]
async fn another_question_or_another_kind_of_question_stops_the_step() {
    let recorded = {
        let host = Host::new(&[], 1, 0);
        host.run(async { host.scope.ask(question("q")).await.expect("an answer") }).await;
        host.journal()
    };
    let other = Host::new(&recorded, 2, 0);
    assert_eq!(other.scope.ask(question("p")).await, Err(ModelError::Canceled));
    assert!(is_diverged(&other));
    let streamed = Host::new(&recorded, 2, 0);
    assert!(streamed.scope.stream(question("q")).await.is_err());
    assert!(is_diverged(&streamed));
    let same = Host::new(&recorded, 2, 0);
    same.scope.ask(question("q")).await.expect("the same answer");
    assert_eq!(same.scope.finish().divergence, None);
}

#[tokio::test]
async fn a_later_program_gives_what_was_answered_before_it_and_names_its_own_questions_otherwise() {
    let recorded = {
        let host = Host::new(&[], 1, 0);
        let ask = async {
            for text in ["q", "p"] {
                host.scope.ask(question(text)).await.ok();
            }
        };
        host.run(ask).await;
        host.journal()
    };
    let format = JournalFormat(JournalFormat::CURRENT.0 + 1);
    let services = Services { format, ..Services::default() };
    let rules = (Host::rules(), Vec::new());
    let later = Host::of_program(&recorded, (2, 0), rules, services);
    let ask = async {
        for text in ["q", "p", "r"] {
            later.scope.ask(question(text)).await.ok();
        }
    };
    later.run(ask).await;
    assert_eq!(later.model.asked.load(Ordering::Relaxed), 1, "the third question");
    assert!(!is_diverged(&later));
    assert_eq!(later.scope.finish().divergence, None);
    let name = |event: &Event| {
        if let Event::HostAnswered { request, .. } = event { Some(request.clone()) } else { None }
    };
    let names: Vec<String> = later.journal().iter().filter_map(name).collect();
    let (formats, digests): (Vec<_>, Vec<_>) =
        names.iter().map(|name| name.split_once(':').expect("a format and a digest")).unzip();
    let current = JournalFormat::CURRENT.to_string();
    assert_eq!(formats, [&current, &current, &format.to_string()]);
    // What it has recorded itself it finds, too.
    let mut tape = Tape::default();
    later.journal().iter().for_each(|event| tape.push(event));
    assert!(matches!(
        tape.answer(2, digests[2], DigestsSince::default()),
        super::super::tape::Lookup::Answer(_)
    ));
}

/// The journal of a step that said and asked these, before its host died and the rules changed.
async fn under_other_rules(texts: &[&str]) -> Vec<Event> {
    let host = Host::new(&[], 1, 0);
    let said = async {
        for text in texts {
            host.scope.record(chunk(text));
            host.scope.ask(question(text)).await.ok();
        }
    };
    host.run(said).await;
    let mut journal = host.journal();
    journal.push(Event::RulesChanged { pins: vec!["a@2".to_owned()] });
    journal
}

/// The words and questions of a step that runs again; gives the questions that its model was asked, and the
/// journal.
async fn again(journal: &[Event], texts: &[&str]) -> (u32, Vec<Event>) {
    let host = Host::new(journal, 2, 0);
    let said = async {
        for text in texts {
            host.scope.record(chunk(text));
            host.scope.ask(question(text)).await.ok();
        }
    };
    host.run(said).await;
    assert!(!is_diverged(&host));
    let end = host.scope.finish();
    assert_eq!(end.divergence, None);
    let mut journal = host.journal();
    journal.extend(end.events);
    (host.model.asked.load(Ordering::Relaxed), journal)
}

fn chunks_left(journal: &[Event]) -> Vec<String> {
    let mut tape = Tape::default();
    journal.iter().for_each(|event| tape.push(event));
    let text = |event: &Event| {
        let Event::AssistantChunk { text } = event else { panic!("{event:?}") };
        text.clone()
    };
    tape.emitted().map(text).collect()
}

#[tokio::test]
async fn a_step_under_other_rules_goes_its_own_way_and_asks_nothing_twice() {
    let journal = under_other_rules(&["a", "b", "c"]).await;
    // The same again: nothing is asked, nothing is written.
    let (asked, same) = again(&journal, &["a", "b", "c"]).await;
    assert_eq!((asked, same.len()), (0, journal.len()));
    // One question may not be asked any more: the next has its number and its own answer.
    let (asked, fewer) = again(&journal, &["a", "c"]).await;
    assert_eq!(asked, 0);
    assert_eq!(chunks_left(&fewer), ["a", "c"]);
    // Another one is asked instead, once.
    let (asked, other) = again(&journal, &["a", "x", "c"]).await;
    assert_eq!(asked, 1);
    assert_eq!(chunks_left(&other), ["a", "x", "c"]);
    // A host that dies after that, and one under the first rules, pay nothing again.
    for journal in [fewer, other] {
        let (asked, last) = again(&journal, &["a", "b", "c"]).await;
        assert_eq!(asked, 0);
        assert_eq!(chunks_left(&last), ["a", "b", "c"]);
    }
}

#[tokio::test]
async fn a_step_under_other_rules_that_ends_earlier_leaves_nothing_behind() {
    let journal = under_other_rules(&["a", "b"]).await;
    let (asked, ended) = again(&journal, &["a"]).await;
    assert_eq!(asked, 0);
    assert_eq!(chunks_left(&ended), ["a"]);
    assert_eq!(ended.last().map(Event::kind), Some("step_restarted"));
}

#[tokio::test]
async fn tools_that_a_policy_took_away_make_no_other_question() {
    let spec = ToolSpec {
        name: "t".to_owned(),
        title: None,
        description: String::new(),
        input_schema: "{}".to_owned(),
        output_schema: None,
        hints: ToolHints::default(),
        timeout: None,
        tags: Vec::new(),
        stated_tags: Vec::new(),
    };
    let with_tools = || CompletionRequest { tools: vec![spec.clone()], ..question("q") };
    let host = Host::new(&[], 1, 0);
    host.run(async { host.scope.ask(with_tools()).await.ok() }).await;
    let other = Host::new(&host.journal(), 2, 0);
    other.run(async { other.scope.ask(question("q")).await.ok() }).await;
    assert!(!is_diverged(&other));
    assert_eq!(other.model.asked.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn events_of_an_answer_that_was_cut_off_are_void_and_what_came_before_is_counted() {
    // Two events and two times before the question, one of each after it.
    let journal = [clock_read(&[(5, 2), (7, 1)]), chunk("a"), chunk("b"), chunk("of the answer")];
    let host = Host::new(&journal, 1, 0);
    host.scope.record(chunk("a"));
    assert_eq!((host.scope.now(), host.scope.now()), (Timestamp(5), Timestamp(5)));
    host.scope.record(chunk("b"));
    // The answer itself does not matter.
    host.run(async { host.scope.ask(question("q")).await.is_ok() }).await;
    let added = &host.journal()[journal.len()..];
    let context_turn = host.scope.context().turn;
    assert_eq!(
        added[0],
        Event::StepRestarted {
            turn: context_turn,
            kept: StepPrefix { events: 2, readings: 2, outside: 0 }
        }
    );
    assert_eq!(added[1].kind(), "host_answered");
}

#[tokio::test]
async fn times_of_an_answer_that_was_cut_off_are_void_even_without_events() {
    let journal = [clock_read(&[(5, 1), (7, 1)]), chunk("a")];
    let host = Host::new(&journal, 1, 0);
    host.scope.record(chunk("a"));
    assert_eq!(host.scope.now(), Timestamp(5));
    let later = host
        .run(async {
            host.scope.ask(question("q")).await.ok();
            let later = host.scope.now();
            host.scope.record(chunk("after"));
            later
        })
        .await;
    let again = Host::new(&host.journal(), 2, 0);
    again.scope.record(chunk("a"));
    assert_eq!(again.scope.now(), Timestamp(5));
    again.run(async { again.scope.ask(question("q")).await.ok() }).await;
    assert_eq!(again.scope.now(), later);
}

#[tokio::test]
async fn times_told_before_and_after_a_cut_stay_in_their_places() {
    let host = Host::new(&[chunk("a"), chunk("of the answer")], 1, 0);
    host.scope.record(chunk("a"));
    let before = [host.scope.now(), host.scope.now(), host.scope.now()];
    // The cut is on record before the question is put, with the times before it and none after it.
    let answer = host.run(host.scope.stream(question("q"))).await.expect("an answer begins");
    let after = [host.scope.now(), host.scope.now(), host.scope.now()];
    host.scope.abandon(answer);
    host.scope.record(chunk("after"));
    host.flush();
    let again = Host::new(&host.journal(), 2, 0);
    again.scope.record(chunk("a"));
    assert_eq!([again.scope.now(), again.scope.now(), again.scope.now()], before);
    drop(again.scope.stream(question("q")).await.expect("the same answer"));
    assert_eq!([again.scope.now(), again.scope.now(), again.scope.now()], after);
    again.scope.record(chunk("after"));
    assert_eq!(again.scope.finish().divergence, None);
    assert_eq!(again.journal(), host.journal());
}

#[tokio::test]
async fn a_question_that_followed_from_an_answer_that_was_cut_off_may_be_another_one() {
    // The first answer was still under way when the second question was asked and answered.
    let whole = ModelAnswer::Error(ModelError::Timeout);
    let journal = [answered(1, "followed from the first", whole)];
    let host = Host::new(&journal, 1, 0);
    let second = async {
        host.scope.ask(question("first")).await.ok();
        host.scope.ask(question("another second")).await
    };
    let second = host.run(second).await;
    assert!(!is_diverged(&host));
    let again = Host::new(&host.journal(), 2, 0);
    again.scope.ask(question("first")).await.ok();
    assert_eq!(again.scope.ask(question("another second")).await, second);
    assert_eq!(again.scope.finish().divergence, None);
}

#[tokio::test]
async fn tokens_of_an_answer_that_broke_are_counted_again() {
    let mut seen = 0;
    for n in 0..40 {
        let text = format!("question {n}");
        let host = Host::new(&[], 1, 0);
        let answer = host.run(async { host.scope.ask(question(&text)).await }).await;
        let again = Host::new(&host.journal(), 2, 0);
        assert_eq!(again.scope.ask(question(&text)).await, answer);
        let (usage, same) = (host.scope.finish().usage, again.scope.finish().usage);
        assert_eq!(usage, same, "{answer:?}");
        seen += u32::from(answer.is_err() && usage.is_some());
    }
    assert!(seen > 0, "no answer broke after tokens were spent");
}

fn is_answer(event: &Event) -> bool {
    matches!(event, Event::HostAnswered { .. })
}

#[tokio::test]
async fn an_answer_is_handed_over_when_it_is_durable_or_when_nobody_can_make_it_so() {
    for settles in [true, false] {
        let host = Host::new(&[], 1, 0);
        let asking = host.scope.ask(question("q"));
        tokio::pin!(asking);
        let mut taken = None;
        for _ in 0..100 {
            assert!(futures::poll!(&mut asking).is_pending(), "it is not durable");
            let now = host.scope.take_events();
            if now.events.iter().any(is_answer) {
                taken = Some(now);
                break;
            }
            tokio::task::yield_now().await;
        }
        let taken = taken.expect("the answer is recorded");
        assert!(futures::poll!(&mut asking).is_pending(), "taken is not durable");
        match settles {
            true => taken.waiting.release(),
            false => drop(taken.waiting),
        }
        assert!(futures::poll!(&mut asking).is_ready(), "settled: {settles}");
    }
}

#[tokio::test]
async fn a_forced_stop_ends_the_wait_for_the_disk() {
    let host = Host::new(&[], 1, 0);
    let asking = host.scope.ask(question("q"));
    let stop = async {
        while !host.scope.take_events().events.iter().any(is_answer) {
            tokio::task::yield_now().await;
        }
        host.scope.stop().force(StopCause::Canceled);
    };
    let (answer, ()) = tokio::join!(asking, stop);
    assert_eq!(answer, Err(ModelError::Canceled));
}

#[tokio::test]
async fn a_tool_is_told_the_time_and_nothing_of_it_is_recorded() {
    let scope = scope(10, 100);
    assert_eq!((scope.now(), scope.elapsed()), (Timestamp(0), Duration::ZERO));
    scope.record(chunk("a"));
    let taken = scope.take_events();
    assert_eq!(taken.events, [chunk("a")]);
    assert_eq!(scope.ask(question("q")).await.map(|_| ()), {
        Err(ModelError::Denied("tools have no models".to_owned()))
    });
    assert_eq!(scope.finish().events, []);
}

#[tokio::test]
async fn a_step_measures_the_same_time_again_and_never_backwards() {
    let clock = Arc::new(SimulatedClock::new(Timestamp(1_000)));
    let journal = Some(JournalRoom::default());
    let live = CallScope::new(CallScopeParts {
        clock: Arc::clone(&clock) as Arc<dyn Clock>,
        journal: journal.clone(),
        ..parts(10, 100)
    });
    let mut measured = vec![live.elapsed()];
    clock.advance(Duration::from_millis(30));
    measured.push(live.elapsed());
    clock.set_time_of_day(Timestamp(500));
    measured.push(live.elapsed());
    assert_eq!(measured, [0, 30, 30].map(Duration::from_millis));
    live.record(chunk("a"));
    let mut tape = Tape::default();
    live.take_events().events.iter().for_each(|event| tape.push(event));
    let again = CallScope::new(CallScopeParts { journal, tape: Some(tape), ..parts(10, 100) });
    let same: Vec<_> = (0..3).map(|_| again.elapsed()).collect();
    assert_eq!(same, measured);
}

#[tokio::test]
async fn a_stream_that_a_guest_gave_up_is_given_as_far_as_it_was_read() {
    let batches = vec![vec![Chunk::Text("a".to_owned())], vec![Chunk::Text("b".to_owned())]];
    let stop = Chunk::Stop { reason: CompletionStop::EndTurn, model: "m".to_owned() };
    let whole = [batches.clone(), vec![vec![stop]]].concat();
    let digest = {
        let host = Host::new(&[], 1, 0);
        let answer = host.scope.stream(question("q")).await.expect("an answer begins");
        host.scope.abandon(answer);
        let event = host.scope.finish().events.pop().expect("the answer");
        let Event::HostAnswered { request, answer, .. } = event else { panic!("{event:?}") };
        assert_eq!(*answer, HostAnswer::Model(ModelAnswer::Parts(Vec::new())));
        request
    };
    for parts in [batches, whole] {
        let journal = [answered(0, &digest, ModelAnswer::Parts(parts.clone()))];
        let host = Host::new(&journal, 1, 0);
        let mut answer = host.scope.stream(question("q")).await.expect("an answer");
        let mut heard = Vec::new();
        loop {
            // However many are wanted: the batches are those of the first time.
            let batch = host.scope.next_chunks(&mut answer, 100).await.expect("no error");
            if batch.is_empty() {
                break;
            }
            heard.push(batch);
        }
        assert_eq!(heard, parts);
        let end = host.scope.finish();
        assert_eq!((end.events, end.divergence), (Vec::new(), None));
    }
}

/// A step with this prompt, on what was recorded of it before.
fn prompted(template: &str, tape: Option<Tape>) -> CallScope {
    let prompt = Prompt { template: template.to_owned(), overrides: Vec::new() };
    let prompts = Prompts::new(BTreeMap::from([("p".to_owned(), prompt)]));
    let services = Services { prompts: Arc::new(prompts), ..Services::default() };
    CallScope::new(CallScopeParts {
        services,
        journal: Some(JournalRoom::default()),
        tape,
        ..parts(10, 1_000)
    })
}

#[test]
fn a_prompt_is_rendered_again_to_the_same_text_and_recorded_once() {
    let live = prompted("Hi {{ a }}", None);
    let data = r#"{"a": "x"}"#;
    assert_eq!(live.render_prompt("p", data).as_deref(), Ok("Hi x"));
    assert!(live.render_prompt("q", data).is_err());
    let recorded = live.take_events().events;
    assert_eq!(recorded.len(), 1, "what was not rendered leaves nothing: {recorded:?}");
    let mut tape = Tape::default();
    recorded.iter().for_each(|event| tape.push(event));
    let again = prompted("Hi {{ a }}", Some(tape.clone()));
    assert_eq!(again.render_prompt("p", data).as_deref(), Ok("Hi x"));
    let end = again.finish();
    assert_eq!((end.events, end.divergence), (Vec::new(), None));
    let other = prompted("Hello {{ a }}", Some(tape));
    other.render_prompt("p", data).expect("it renders");
    assert!(other.finish().divergence.is_some(), "another text is another step");
}
