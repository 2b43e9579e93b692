//! Models that are not to be asked for a while: the step that needs one waits without an instance,
//! its run without a slot, and nothing that was answered is asked again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::{StreamExt, stream};
use taskrun::agents::Agent;
use taskrun::controller::{PauseRequest, ResumeRequest};
use taskrun::scope::model::{Model, ModelStream};
use taskrun::scope::{CallScope, ModelSettings, Models};
use taskrun_journal::completion::{Chunk, CompletionRequest, CompletionStop, ModelError};
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::hold::Hold;
use taskrun_journal::list::Scope;
use taskrun_journal::media::MediaBytes;
use taskrun_journal::message::{Message, Role, Usage};
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::status::{BlockedOn, Status, StopReason};
use taskrun_journal::time::{Clock, Timestamp};

use super::common::{Handle, check_journal, named};
use super::dying::{Point, die_at_each, survive};
use crate::native::{ClosurePlanner, Native, Op, Side, World, answer, failed, request};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
/// Runs come late to a model that pushed them back, by at most half a minute.
const LATE: Duration = Duration::from_secs(30);

/// A model that refuses some questions, in their order, and answers all others with their text.
#[derive(Default)]
pub(crate) struct Busy {
    refusals: Mutex<VecDeque<Option<Duration>>>,
    asked: Mutex<Vec<String>>,
}

impl Busy {
    /// Refuses the questions for which a wait is given.
    pub(crate) fn new(refusals: &[Option<Duration>]) -> Arc<Self> {
        let refusals = Mutex::new(refusals.iter().copied().collect());
        Arc::new(Self { refusals, asked: Mutex::default() })
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("no panic").clone()
    }
}

#[async_trait]
impl Model for Busy {
    async fn stream(&self, request: CompletionRequest) -> Result<ModelStream, ModelError> {
        let text = request.messages.last().map(Message::joined_text).unwrap_or_default();
        self.asked.lock().expect("no panic").push(text.clone());
        if let Some(Some(wait)) = self.refusals.lock().expect("no panic").pop_front() {
            let retry_after_ms = Some(wait.as_millis().try_into().expect("small"));
            return Err(ModelError::RateLimited { retry_after_ms, said: None });
        }
        let usage = Usage {
            prompt_tokens: 20,
            completion_tokens: 10,
            total_tokens: 30,
            ..Usage::default()
        };
        let stop = Chunk::Stop { reason: CompletionStop::EndTurn, model: "m-1".to_owned() };
        let chunks = [Chunk::Text(text), Chunk::Usage(usage), stop];
        Ok(stream::iter(chunks.map(Ok)).boxed())
    }
}

fn question(text: &str) -> CompletionRequest {
    CompletionRequest {
        model: None,
        messages: vec![Message::text(Role::User, text)],
        tools: Vec::new(),
        max_tokens: None,
        temperature: None,
        tool_choice: taskrun_journal::completion::ToolChoice::Auto,
        stop_sequences: Vec::new(),
        response_schema: None,
        media: MediaBytes::default(),
        tokens_left: None,
    }
}

async fn ask(scope: &CallScope, text: &str) -> Result<String, ModelError> {
    scope.ask(question(text)).await.map(|answer| answer.message.joined_text())
}

/// Counts the steps that are under way.
struct UnderWay(Arc<AtomicU32>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A world with an agent that asks its model two things in one step, and the number of its steps
/// that are under way.
pub(crate) fn world(model: &Arc<Busy>, change: impl FnOnce(&mut Agent)) -> (World, Arc<AtomicU32>) {
    let (mut world, steps) = (World::new(), Arc::new(AtomicU32::new(0)));
    let counted = Arc::clone(&steps);
    let planner = ClosurePlanner::new(move |_, scope: Arc<CallScope>| {
        counted.fetch_add(1, Ordering::SeqCst);
        let under_way = UnderWay(Arc::clone(&counted));
        async move {
            let _under_way = under_way;
            for text in ["one", "two"] {
                scope.record(Event::AssistantChunk { text: format!("before {text}, ") });
                if let Err(error) = ask(&scope, text).await {
                    scope.record(Event::AssistantChunk { text: "never heard".to_owned() });
                    return failed(Some("rate-limited"), &error.to_string());
                }
            }
            answer("done")
        }
    });
    let own: Arc<dyn Model> = Arc::clone(model) as Arc<dyn Model>;
    world.agent_asking("a", planner, Some(own), change);
    (world, steps)
}

fn blocked_on(run: &Run) -> Option<BlockedOn> {
    RunView::from(run).blocked_on
}

/// The time at which a run that waits is wanted again.
fn wanted_at(run: &Run) -> u64 {
    let Hold::Wanted { not_before, .. } = run.state.hold else { panic!("{:?}", run.state.hold) };
    not_before.0
}

pub(crate) async fn reach_the_wait(host: &Native, id: &str) -> Run {
    host.until(id, "waits for its model", |run| {
        run.status() == Status::Blocked && blocked_on(run) == Some(BlockedOn::Schedule)
    })
    .await
}

fn chunks(journal: &[EventRecord]) -> Vec<String> {
    let text = |recorded: &EventRecord| {
        let Event::AssistantChunk { text } = &recorded.event else { return None };
        Some(text.clone())
    };
    journal.iter().filter_map(text).collect()
}

#[tokio::test]
async fn a_long_wait_holds_no_slot_and_no_instance_and_outlives_the_host() {
    let model = Busy::new(&[None, Some(600 * SECOND)]);
    let (mut world, steps) = world(&model, |_| {});
    world.settings.slots = 1;
    let first = world.start().await;
    let begun = world.clock.now();
    first.spawn(&named("1", "a")).await;
    let waiting = reach_the_wait(&first, "1").await;
    assert_eq!(steps.load(Ordering::SeqCst), 0, "the instance is gone");
    assert_eq!(waiting.state.ran_ms, 0, "the clocks of the run stand still");
    let at = wanted_at(&waiting);
    assert!((600_000..=630_000).contains(&(at - begun.0)), "{}", at - begun.0);
    // The one slot is free for a run of a tenant that was not pushed back.
    let client = first.controller.at(&Scope::tenant("other"));
    let other = client.spawn(&request("a", "x")).await.expect("accepted");
    let ended =
        client.wait_for(other.id().as_str(), Some(MINUTE), |run| run.status().is_terminal());
    assert_eq!(ended.await.expect("there").run.status(), Status::Completed);
    assert_eq!(model.asked(), ["one", "two", "one", "two"]);
    world.kill(first).await;
    let second = world.take_over().await;
    world.clock.advance(600 * SECOND - world_age(&world, begun) - SECOND);
    second.settle().await;
    assert_eq!(second.get("1").await.status(), Status::Blocked, "nobody comes too early");
    world.clock.advance(SECOND + LATE);
    let run = second.end("1").await;
    assert_eq!(run.status(), Status::Completed);
    assert_eq!(model.asked()[4..], ["two"], "only what was refused is asked again");
    assert_eq!(run.state.progress.total_tokens, 60);
    assert_eq!(run.state.pushed_back_ms, 600_000);
    let journal = second.journal("1").await;
    check_journal(&journal);
    assert_eq!(chunks(&journal), ["before one, ", "before two, "], "nothing is said twice");
    let kinds: Vec<_> = journal.iter().map(|recorded| recorded.event.kind()).collect();
    let at = kinds.iter().position(|kind| *kind == "pushed_back").expect("on record");
    assert_eq!(kinds[at + 1..at + 3], ["blocked", "resumed"]);
    assert_eq!(journal[at].at, journal[at + 1].at, "both in one append");
    let Event::PushedBack { model, until, reason, .. } = &journal[at].event else { unreachable!() };
    assert_eq!((model.as_str(), until.0 - begun.0), ("own", 600_000));
    assert_eq!(reason, "the provider limits the rate of requests");
}

/// The time that has passed since a moment.
fn world_age(world: &World, since: Timestamp) -> Duration {
    world.clock.now().since(since)
}

#[tokio::test]
async fn a_wait_of_a_minute_is_the_planners_to_handle() {
    let model = Busy::new(&[Some(MINUTE)]);
    let (mut world, _) = world(&model, |agent| agent.retry.attempts = 1);
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    let run = host.end("1").await;
    assert_eq!(run.status(), Status::Failed);
    assert_eq!(run.state.pushed_back_ms, 0);
    // The second attempt of another run waits for what is left of the minute in its place.
    host.spawn(&named("2", "a")).await;
    assert_eq!(world.next(MINUTE).await, MINUTE);
    assert_eq!(host.end("2").await.status(), Status::Completed);
    assert_eq!(model.asked(), ["one", "one", "two"]);
}

#[tokio::test]
async fn other_runs_of_the_tenant_wait_for_the_model_without_asking_it() {
    let model = Busy::new(&[Some(90 * SECOND)]);
    let (mut world, _) = world(&model, |_| {});
    let host = world.start().await;
    let begun = world.clock.now();
    host.spawn(&named("1", "a")).await;
    reach_the_wait(&host, "1").await;
    host.spawn(&named("2", "a")).await;
    let second = reach_the_wait(&host, "2").await;
    assert_eq!(model.asked(), ["one"], "the second run has not asked");
    assert!(wanted_at(&second) - begun.0 >= 90_000);
    assert_eq!(second.state.pushed_back_ms, 90_000);
    world.clock.advance(90 * SECOND + LATE);
    for id in ["1", "2"] {
        assert_eq!(host.end(id).await.status(), Status::Completed);
    }
    let mut asked = model.asked();
    asked.sort();
    assert_eq!(asked, ["one", "one", "one", "two", "two"]);
}

#[tokio::test]
async fn a_run_waits_for_at_most_its_patience() {
    let wait = Some(600 * SECOND);
    let model = Busy::new(&[wait, wait, wait, wait]);
    let (mut world, _) = world(&model, |agent| {
        let patient = ModelSettings { patience: 1_200 * SECOND, ..ModelSettings::default() };
        let of = Models {
            by_name: agent.models.by_name.clone(),
            prices: BTreeMap::new(),
            settings: BTreeMap::from([("own".to_owned(), patient)]),
            default: agent.models.default.clone(),
        };
        agent.models = Arc::new(of);
    });
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    for times in 1..=2 {
        let waits = |run: &Run| run.state.pushed_back_ms == times * 600_000;
        host.until("1", "waits again", waits).await;
        reach_the_wait(&host, "1").await;
        world.clock.advance(600 * SECOND + LATE);
    }
    let run = host.end("1").await;
    assert_eq!(run.state.pushed_back_ms, 1_200_000);
    let view = host.view("1").await;
    assert_eq!(view.stop_reason, Some(StopReason::RateLimited));
    assert_eq!(view.error.as_deref(), Some("the provider limits the rate of requests"));
    assert_eq!(model.asked().len(), 3, "no attempt of a few seconds follows");
}

#[tokio::test]
async fn a_run_that_waits_for_its_model_can_be_canceled_and_paused() {
    let model = Busy::new(&[Some(600 * SECOND), Some(600 * SECOND)]);
    let (mut world, _) = world(&model, |_| {});
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    reach_the_wait(&host, "1").await;
    host.client().cancel("1", None).await.expect("there");
    assert_eq!(host.end("1").await.status(), Status::Canceled);
    world.clock.advance(600 * SECOND);
    host.spawn(&named("2", "a")).await;
    let waiting = reach_the_wait(&host, "2").await;
    let at = wanted_at(&waiting);
    host.client().pause("2", &PauseRequest::default()).await.expect("there");
    world.clock.advance(60 * SECOND);
    host.client().resume("2", &ResumeRequest::default()).await.expect("paused");
    let resumed = host.get("2").await;
    assert_eq!((blocked_on(&resumed), wanted_at(&resumed)), (Some(BlockedOn::Schedule), at));
    world.clock.advance(600 * SECOND);
    assert_eq!(host.end("2").await.status(), Status::Completed);
}

#[tokio::test]
async fn a_message_to_a_run_that_waits_is_shown_where_its_step_had_done_nothing() {
    let model = Busy::new(&[Some(600 * SECOND)]);
    let (mut world, own) = (World::new(), Arc::clone(&model) as Arc<dyn Model>);
    let planner = ClosurePlanner::new(move |input, scope: Arc<CallScope>| async move {
        let texts: Vec<_> = input.messages.iter().map(Message::joined_text).collect();
        match ask(&scope, "go on").await {
            Ok(_) => answer(&texts.join("|")),
            Err(error) => failed(None, &error.to_string()),
        }
    });
    world.agent_asking("a", planner, Some(own), |_| {});
    let host = world.start().await;
    host.spawn(&request("a", "x")).await;
    let id = host.spawn(&named("2", "a")).await;
    let waiting = reach_the_wait(&host, &id).await;
    host.client().inject(&id, "be brief").await.expect("there");
    let told = host.get(&id).await;
    assert_eq!((told.state.hold, told.state.inbox.messages), (waiting.state.hold, 1));
    world.clock.advance(600 * SECOND + LATE);
    host.end(&id).await;
    let result = host.view(&id).await.result.expect("an answer");
    assert!(result.contains("be brief"), "{result}");
}

/// A host dies at a write of the whole way; gives how many died.
async fn play(point: Point) -> u32 {
    let model = Busy::new(&[None, Some(90 * SECOND)]);
    let (mut world, _) = world(&model, |_| {});
    let (door, clock) = (world.door().await, Arc::clone(&world.clock));
    let outside = async {
        door.spawn(&named("1", "a")).await;
        // Whose host dies before the refusal is on record asks again, and is answered.
        let waits = |run: &Run| blocked_on(run).is_some() || run.status().is_terminal();
        door.until("1", "waits for its model", waits).await;
        clock.advance(90 * SECOND + LATE);
        door.end("1").await
    };
    let (run, deaths) = survive(&mut world, &[point], &Handle::default(), outside).await;
    let journal = door.journal("1").await;
    let kinds: Vec<_> = journal.iter().map(|recorded| recorded.event.kind()).collect();
    let context = format!("{point:?}: {:?} {kinds:?}", model.asked());
    check_journal(&journal);
    assert_eq!(run.status(), Status::Completed, "{context}");
    assert_eq!(chunks(&journal), ["before one, ", "before two, "], "{context}");
    assert_eq!(run.state.progress.total_tokens, 60, "{context}");
    // Each death may cost the answer that was under way.
    assert!((3..=3 + deaths as usize).contains(&model.asked().len()), "{context}");
    deaths
}

#[tokio::test]
async fn a_host_may_die_at_every_write_of_a_wait_for_a_model() {
    for side in [Side::Before, Side::After] {
        die_at_each(Op::Claim, side, 2, play).await;
        die_at_each(Op::Append, side, 3, play).await;
    }
}
