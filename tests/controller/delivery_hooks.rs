//! Hooks around the delivery of outcomes (R-044, M-56): what they let pass, change, keep back and hear.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use taskrun::ports::delivery_hook::{
    DeliveryHook, DeliveryHookEntry, DeliveryVerdict, OutcomeDelivery,
};
use taskrun::ports::hook::{HOOK_TIMEOUT, HookError, Hooks};
use taskrun_journal::delivery::{DeadReason, DeliverySettings, ReportState, Strategy};
use taskrun_journal::event::Event;
use taskrun_journal::list::{ListFilter, PAGE_MAX};
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::store::ReportChange;

use super::common::{Handle, check_journal};
use super::delivery::{children, coordinator, leader, line, say, states, worker};
use super::dying::{Point, die_at_each, survive};
use super::nudges::{delivering, nudged};
use crate::native::{Native, Op, Side, World};

type Decide = dyn Fn(&str) -> Result<DeliveryVerdict, HookError> + Send + Sync;

/// A hook that is a closure over the words of an outcome, and what it has heard.
struct Filter {
    decide: Box<Decide>,
    heard: Mutex<Vec<String>>,
}

impl Filter {
    fn new(
        decide: impl Fn(&str) -> Result<DeliveryVerdict, HookError> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { decide: Box::new(decide), heard: Mutex::default() })
    }

    fn note(&self, what: &str, delivery: &OutcomeDelivery<'_>) {
        let OutcomeDelivery { to, ended, .. } = delivery;
        let line = format!("{what} {} {}", ended.spec.task, to.task);
        self.heard.lock().expect("nobody panics with it").push(line);
    }

    fn heard(&self) -> Vec<String> {
        self.heard.lock().expect("nobody panics with it").clone()
    }
}

#[async_trait]
impl DeliveryHook for Filter {
    async fn before(&self, delivery: &OutcomeDelivery<'_>) -> Result<DeliveryVerdict, HookError> {
        self.note("before", delivery);
        (self.decide)(delivery.words)
    }

    async fn after(&self, delivery: &OutcomeDelivery<'_>) {
        self.note("after", delivery);
    }
}

/// Never decides, and never returns.
struct Hangs;

#[async_trait]
impl DeliveryHook for Hangs {
    async fn before(&self, _: &OutcomeDelivery<'_>) -> Result<DeliveryVerdict, HookError> {
        std::future::pending().await
    }

    async fn after(&self, _: &OutcomeDelivery<'_>) {
        std::future::pending().await
    }
}

/// Blocks what is said of `one`, and tells of `two` in other words.
fn censor() -> Arc<Filter> {
    Filter::new(|words| {
        Ok(match words {
            words if words.contains("did one") => DeliveryVerdict::Block,
            words if words.contains("did two") => {
                DeliveryVerdict::Rewrite { text: "```\nsecret".to_owned() }
            }
            _ => DeliveryVerdict::Go,
        })
    })
}

fn world_with(hooks: Vec<(&str, Arc<dyn DeliveryHook>)>) -> World {
    let mut world = World::new();
    let hooks = hooks.into_iter().map(|(name, hook)| DeliveryHookEntry::new(name, hook));
    world.hooks = Hooks::default().with_deliveries(hooks.collect());
    world.agent("worker", worker());
    leader(&mut world, "lead", coordinator());
    world
}

/// A line that starts these runs, all of which have ended; gives their ids in the order of the words.
async fn started(host: &Native, words: &str) -> Vec<String> {
    let first = host.spawn(&line("lead", &format!("start {words}"))).await;
    host.end(&first).await;
    let mut children = children(host, &first).await;
    let mut tasks = BTreeMap::new();
    for id in &children {
        tasks.insert(id.clone(), host.end(id).await.spec.task.clone());
    }
    children.sort_by_key(|id| words.find(tasks[id].as_str()));
    children
}

/// The stages of the reports of these runs.
async fn states_of(host: &Native, runs: &[String]) -> Vec<ReportState> {
    let mut states = Vec::new();
    for id in runs {
        let report = host.client().report(id).await.expect("answers");
        states.push(report.expect("there is one").state);
    }
    states
}

#[tokio::test]
async fn r_044_a_hook_blocks_one_outcome_changes_another_and_hears_what_was_told() {
    let hook = censor();
    let mut world = world_with(vec![("censor", hook.clone())]);
    let host = world.start().await;
    let children = started(&host, "one two three").await;
    let told = say(&world, &host, &line("lead", "news?")).await;
    assert!(!told.contains(&children[0]) && !told.contains("did one"), "{told}");
    // Fenced as whatever a run says.
    let two = format!("worker {}: completed\nresult:\n````\n```\nsecret\n````", children[1]);
    assert!(told.contains(&two) && !told.contains("did two"), "{told}");
    assert!(told.contains("did three"), "{told}");
    let [dead, two, three] = [ReportState::Dead, ReportState::Delivered, ReportState::Delivered];
    assert_eq!(states_of(&host, &children).await, [dead, two, three]);
    let report = host.client().report(&children[0]).await.expect("answers").expect("there");
    assert_eq!((report.reason, report.attempts), (Some(DeadReason::Blocked), 0));
    let mut heard = hook.heard();
    heard.sort();
    let expected = ["after three", "after two", "before one", "before three", "before two"];
    assert_eq!(heard, expected.map(|words| format!("{words} news?")));
    // Whoever retries it is asked again.
    let retried = host.client().change_report(&children[0], ReportChange::Retry).await;
    assert!(retried.expect("answers"));
    let later = say(&world, &host, &line("lead", "and now?")).await;
    assert!(!later.contains(&format!("worker {}", children[0])), "{later}");
    assert_eq!(states_of(&host, &children).await, [dead, two, three]);
}

#[tokio::test]
async fn rs_23_a_hook_that_fails_panics_or_hangs_keeps_nothing_back() {
    let fails = Filter::new(|_| Err("no".into()));
    let panics = Filter::new(|_| panic!("a hook's own fault"));
    let rewrites = Filter::new(|words| {
        assert!(words.contains("did one"));
        Ok(DeliveryVerdict::Rewrite { text: "in other words".to_owned() })
    });
    let last = Filter::new(|words| {
        assert!(words.contains("in other words"), "{words}");
        Ok(DeliveryVerdict::Go)
    });
    let mut world = world_with(vec![
        ("fails", fails),
        ("panics", panics),
        ("hangs", Arc::new(Hangs)),
        ("rewrites", rewrites),
        ("last", last.clone()),
    ]);
    let host = world.start().await;
    started(&host, "one").await;
    // Lines of the same millisecond are ordered by id.
    world.clock.advance(Duration::from_millis(1));
    let second = host.spawn(&line("lead", "news?")).await;
    for _ in ["before", "after"] {
        assert_eq!(world.next(10 * HOOK_TIMEOUT).await, HOOK_TIMEOUT);
    }
    let run = host.end(&second).await;
    assert_eq!(run.status(), Status::Completed);
    let told = run.state.reply.result().unwrap_or_default();
    assert!(told.contains("in other words") && !told.contains("did one"), "{told}");
    assert_eq!(last.heard(), ["before one news?", "after one news?"]);
    assert_eq!(states(&host).await, [ReportState::Delivered]);
}

#[tokio::test]
async fn a_nudge_whose_outcome_is_blocked_asks_no_model_and_starts_no_other() {
    let mut world = world_with(vec![("censor", censor())]);
    let strategy = Some(Strategy::Immediate);
    let settings = DeliverySettings { strategy, ..DeliverySettings::default() };
    delivering(&mut world, "lead", coordinator(), settings);
    let host = world.start().await;
    started(&host, "one").await;
    let nudges = nudged(&host, 1).await;
    let [nudge] = &nudges[..] else { panic!("{nudges:?}") };
    assert_eq!(nudge.ending().map(|end| end.stop_reason), Some(StopReason::NaturalEnd));
    assert_eq!((nudge.status(), nudge.state.turns), (Status::Completed, 0));
    assert_eq!(states(&host).await, [ReportState::Dead]);
}

/// One that starts three runs and a later line, whatever host dies at these writes.
async fn play(point: Point) -> u32 {
    let mut world = world_with(vec![("censor", censor())]);
    let door = world.door().await;
    let clock = Arc::clone(&world.clock);
    let outside = async {
        let children = started(&door, "one two three").await;
        clock.advance(Duration::from_millis(1));
        let second = door.spawn(&line("lead", "news?")).await;
        door.end(&second).await;
        clock.advance(Duration::from_millis(1));
        // What the first line took when it was open for longer is told with the next.
        let third = door.spawn(&line("lead", "and now?")).await;
        door.end(&third).await;
        children
    };
    let (children, deaths) = survive(&mut world, &[point], &Handle::default(), outside).await;
    let [dead, two, three] = [ReportState::Dead, ReportState::Delivered, ReportState::Delivered];
    assert_eq!(states_of(&door, &children).await, [dead, two, three], "{point:?}");
    let page = door.client().list(&ListFilter::default(), None, PAGE_MAX).await;
    let (mut told, mut texts) = (0, String::new());
    for run in page.expect("lists").runs {
        let journal = door.journal(run.id().as_str()).await;
        check_journal(&journal);
        for one in journal {
            if let Event::Reported { runs, text } = one.event {
                told += runs.len();
                texts.push_str(&text);
            }
        }
    }
    assert_eq!(told, 2, "{point:?}");
    assert!(!texts.contains("did one") && !texts.contains("did two"), "{point:?}: {texts}");
    deaths
}

#[tokio::test]
async fn a_host_that_dies_before_it_records_anything_tells_nothing_that_is_blocked() {
    die_at_each(Op::Append, Side::Before, 2, play).await;
}

#[tokio::test]
async fn a_host_that_dies_after_it_recorded_anything_tells_nothing_that_is_blocked() {
    die_at_each(Op::Append, Side::After, 2, play).await;
}
