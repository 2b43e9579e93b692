//! Subscribers outside of the runs: each is told of each event of a run, at least once, however the
//! run ends and whatever host dies, and none of them holds a run up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use taskrun::clock::SystemClock;
use taskrun::controller::IDLE_WAIT;
use taskrun::error::ControllerError;
use taskrun::ports::transport::{
    Callback, News, Subscriber, Subscribers, Transport, TransportError, TransportKind,
};
use taskrun::spawn::SpawnRequest;
use taskrun_journal::dispatch::{Dispatch, DispatchState, PAUSES, TAKEN_FOR, TaskEvent};
use taskrun_journal::status::Status;
use taskrun_journal::store::ReportChange;

use super::common::{Gates, Handle, named, soon};
use super::dying::{Point, die_at_each, survive};
use crate::native::{ClosurePlanner, Native, Op, Side, World, answer, failed, request};

/// The news that reached somebody.
#[derive(Clone, Default)]
pub(crate) struct Heard(Arc<Mutex<Vec<News>>>);

impl Heard {
    fn hear(&self, news: &News) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(news.clone());
    }

    /// In the order of arrival.
    pub(crate) fn all(&self) -> Vec<News> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keys and statuses, in the order of arrival.
    pub(crate) fn told(&self) -> Vec<(String, Status)> {
        self.all().iter().map(|news| (news.key.to_string(), news.run.status)).collect()
    }
}

/// A callback that hears everything.
pub(crate) fn hears(heard: &Heard) -> Subscriber {
    let heard = heard.clone();
    Subscriber::new(Callback::new(move |news| {
        heard.hear(&news);
        async { Ok(()) }
    }))
}

pub(crate) fn registered<const N: usize>(all: [(&str, Subscriber); N]) -> Subscribers {
    Subscribers::of_program(all.map(|(name, one)| (name.to_owned(), one)).into())
}

/// A request whose run has these subscribers.
pub(crate) fn told(request: SpawnRequest, subscribers: &[&str]) -> SpawnRequest {
    let subscribers = subscribers.iter().map(|name| (*name).to_owned()).collect();
    SpawnRequest { subscribers, ..request }
}

/// Waits until the dispatches of a run are as wanted.
pub(crate) async fn rows(
    native: &Native,
    id: &str,
    fits: impl Fn(&[Dispatch]) -> bool,
) -> Vec<Dispatch> {
    soon("the dispatches are so", async {
        loop {
            let rows = native.client().dispatches_of(id).await.expect("it is there");
            if fits(&rows) {
                return rows;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

pub(crate) fn all_delivered(count: usize) -> impl Fn(&[Dispatch]) -> bool {
    move |rows| rows.len() == count && rows.iter().all(|row| row.state == DispatchState::Delivered)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_callback_hears_of_acceptance_and_end_each_under_its_own_key() {
    let (mut world, heard) = (World::new(), Heard::default());
    world.agent_with("a", ClosurePlanner::new(|_, _| async { answer("42") }), |agent| {
        agent.subscribers = vec!["transport/audit".to_owned()];
    });
    world.subscribers = registered([("audit", hears(&heard))]);
    let host = world.start().await;
    host.spawn(&named("r", "a")).await;
    host.end("r").await;
    rows(&host, "r", all_delivered(2)).await;
    let mut told = heard.told();
    told.sort();
    let key = |event: TaskEvent| format!("r/{event}/transport/audit");
    let expected = [
        (key(TaskEvent::Completed), Status::Completed),
        (key(TaskEvent::Delegated), Status::Queued),
    ];
    assert_eq!(told, expected);
    let all = heard.all();
    let end = all.iter().find(|news| news.key.event == TaskEvent::Completed).expect("it ended");
    assert!(end.text.contains("a r: completed") && end.text.contains("42"), "{}", end.text);
    let json: serde_json::Value = serde_json::from_str(&end.to_json(false)).expect("JSON");
    assert_eq!(json["type"], "on_task_completed");
    assert_eq!((&json["data"]["id"], &json["data"]["status"]), (&"r".into(), &"completed".into()));
    assert!(json["data"].get("result").is_none() && json["data"].get("task").is_none(), "{json}");
    let json: serde_json::Value = serde_json::from_str(&end.to_json(true)).expect("JSON");
    assert_eq!(json["data"]["result"], "42");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rs_29_a_cancelled_run_is_told_once_as_canceled() {
    let (mut world, gates, heard) = (World::new(), Gates::new(), Heard::default());
    world.agent("a", gates.planner());
    world.subscribers = registered([("audit", hears(&heard))]);
    let host = world.start().await;
    host.spawn(&told(named("running", "a"), &["transport/audit"])).await;
    gates.have_come(1).await;
    host.client().cancel("running", None).await.expect("can be canceled");
    host.end("running").await;
    host.client().cancel("running", None).await.expect("can be asked again");
    // One that nobody ever executed.
    host.controller.hand_over(Duration::from_secs(1)).await;
    let door = world.door().await;
    door.spawn(&told(named("queued", "a"), &["transport/audit"])).await;
    door.client().cancel("queued", None).await.expect("can be canceled");
    let host = world.start().await;
    for id in ["running", "queued"] {
        rows(&host, id, all_delivered(2)).await;
        let key = format!("{id}/on_task_completed/transport/audit");
        let ends: Vec<_> = heard.told().into_iter().filter(|(told, _)| *told == key).collect();
        assert_eq!(ends, [(key, Status::Canceled)]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rs_23_a_subscriber_that_fails_hangs_or_panics_holds_no_run_up() {
    let mut world = World::new();
    world.agent("a", ClosurePlanner::new(|_, _| async { answer("done") }));
    let fails = Callback::new(|_| async { Err(TransportError("no".to_owned())) });
    let hangs = Callback::new(|_| std::future::pending());
    let panics = Callback::new(|_| async { panic!("it breaks") });
    let heard = Heard::default();
    world.subscribers = registered([
        ("fails", Subscriber::new(fails)),
        ("hangs", Subscriber::new(hangs)),
        ("panics", Subscriber::new(panics)),
        ("hears", hears(&heard)),
    ]);
    let host = world.start().await;
    let names = ["fails", "hangs", "panics", "hears"].map(|name| format!("transport/{name}"));
    let names = names.each_ref().map(String::as_str);
    host.spawn(&told(named("r", "a"), &names)).await;
    let run = host.end("r").await;
    assert_eq!(run.status(), Status::Completed);
    let of = |rows: &[Dispatch], name: &str| -> Vec<(DispatchState, u32)> {
        let mine = rows.iter().filter(|row| row.key.subscriber.ends_with(name));
        mine.map(|row| (row.state, row.attempts)).collect()
    };
    let known = rows(&host, "r", |rows| {
        let failed = [(DispatchState::Pending, 1); 2];
        of(rows, "hears") == [(DispatchState::Delivered, 0); 2]
            && of(rows, "fails") == failed
            && of(rows, "panics") == failed
            && of(rows, "hangs") == [(DispatchState::Taken, 0); 2]
    })
    .await;
    let words = |name: &str| {
        let row = known.iter().find(|row| row.key.subscriber.ends_with(name)).expect("there");
        row.error.clone()
    };
    assert_eq!(words("fails").as_deref(), Some("no"));
    assert_eq!(words("panics").as_deref(), Some("the transport failed"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_are_made_again_after_pauses_and_end_in_a_dead_letter() {
    let mut world = World::new();
    world.agent("a", ClosurePlanner::new(|_, _| async { answer("done") }));
    let (works, tries) = (Arc::new(Mutex::new(false)), Arc::new(AtomicUsize::new(0)));
    let (is_well, tried) = (Arc::clone(&works), Arc::clone(&tries));
    let mut subscriber = Subscriber::new(Callback::new(move |_| {
        tried.fetch_add(1, Ordering::SeqCst);
        let is_well = *is_well.lock().unwrap_or_else(PoisonError::into_inner);
        async move { is_well.then_some(()).ok_or_else(|| TransportError("down".to_owned())) }
    }));
    subscriber.events = vec![TaskEvent::Completed];
    world.subscribers = registered([("ci", subscriber)]);
    let host = world.start().await;
    host.spawn(&told(named("r", "a"), &["transport/ci"])).await;
    host.end("r").await;
    for (attempt, pause) in (1..).zip(PAUSES) {
        let is_put_off = |rows: &[Dispatch]| {
            rows[0].state == DispatchState::Pending && rows[0].attempts == attempt
        };
        rows(&host, "r", |rows| !rows.is_empty() && is_put_off(rows)).await;
        // A host that looked while the attempt was under way looks again before.
        let mut waited = Duration::ZERO;
        while waited < pause * 3 / 4 {
            waited += world.next(pause - waited).await;
            let tried = tries.load(Ordering::SeqCst);
            assert!(waited >= pause * 3 / 4 || tried == attempt as usize, "after {waited:?}");
        }
        assert!(waited <= pause, "{waited:?} after attempt {attempt}");
    }
    let dead = rows(&host, "r", |rows| rows[0].state == DispatchState::Dead).await;
    let attempts = PAUSES.len() + 1;
    assert_eq!((dead[0].attempts as usize, tries.load(Ordering::SeqCst)), (attempts, attempts));
    *works.lock().unwrap_or_else(PoisonError::into_inner) = true;
    let retry = ReportChange::Retry;
    assert_eq!(host.client().change_dispatches("r", None, retry).await.expect("there"), 1);
    rows(&host, "r", all_delivered(1)).await;
    assert_eq!(
        host.client().change_dispatches("r", Some("transport/ci"), retry).await.expect("there"),
        0
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_has_the_time_of_the_machine_however_fast_that_of_runs_passes() {
    let (mut world, gates) = (World::new(), Gates::new());
    world.machine = Arc::new(SystemClock::new());
    world.agent("a", ClosurePlanner::new(|_, _| async { answer("done") }));
    let theirs = Arc::clone(&gates);
    let mut slow = Subscriber::new(Callback::new(move |_| {
        let gates = Arc::clone(&theirs);
        async move {
            gates.pass("told").await;
            Ok(())
        }
    }));
    slow.events = vec![TaskEvent::Completed];
    world.subscribers = registered([("slow", slow)]);
    let host = world.start().await;
    host.spawn(&told(named_run("r"), &["transport/slow"])).await;
    host.end("r").await;
    gates.have_come(1).await;
    let is_taken = |rows: &[Dispatch]| rows.len() == 1 && rows[0].state == DispatchState::Taken;
    let mut due = rows(&host, "r", is_taken).await[0].due;
    for _ in 0..3 {
        // Another host might take it by now. This one keeps it.
        let kept = rows(&host, "r", |rows| is_taken(rows) && rows[0].due > due);
        let (kept, _) = world.run_until(2 * TAKEN_FOR, kept).await;
        due = kept[0].due;
    }
    gates.open("told");
    let told = rows(&host, "r", all_delivered(1)).await;
    assert_eq!((told[0].attempts, gates.came().len()), (0, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_names_only_subscribers_that_there_are() {
    let mut world = World::new();
    world.agent("a", ClosurePlanner::new(|_, _| async { failed(None, "it broke") }));
    let heard = Heard::default();
    world.subscribers = registered([("audit", hears(&heard))]);
    let host = world.start().await;
    let unknown = host.client().submit(&told(request("a", "x"), &["webhook/nobody"])).await;
    let named = matches!(&unknown, Err(ControllerError::Invalid { field: "subscribers", .. }));
    assert!(named, "{unknown:?}");
    // One that another program may have waits for it.
    host.spawn(&told(named_run("r"), &["transport/elsewhere", "transport/audit"])).await;
    host.end("r").await;
    rows(&host, "r", |rows| {
        rows.len() == 4
            && rows.iter().all(|row| match row.key.subscriber.as_str() {
                "transport/audit" => row.state == DispatchState::Delivered,
                _ => row.state == DispatchState::Pending && row.attempts == 0,
            })
    })
    .await;
    assert!(heard.told().iter().any(|told| told.1 == Status::Failed), "{:?}", heard.told());
    let many: Vec<String> = (0..17).map(|nth| format!("transport/t{nth}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let refused = host.client().submit(&told(request("a", "x"), &many)).await;
    assert!(matches!(refused, Err(ControllerError::Invalid { .. })), "{refused:?}");
}

fn named_run(id: &str) -> SpawnRequest {
    named(id, "a")
}

/// Each event of a run arrives at least once, whichever host dies before or after whichever of these
/// writes.
async fn play(point: Point) -> u32 {
    let (mut world, heard) = (World::new(), Heard::default());
    world.agent("a", ClosurePlanner::new(|_, _| async { answer("done") }));
    world.subscribers = registered([("audit", hears(&heard))]);
    let door = world.door().await;
    let handle = Handle::default();
    let outside = async {
        door.spawn(&told(named("r", "a"), &["transport/audit"])).await;
        door.end("r").await;
        rows(&door, "r", all_delivered(2)).await
    };
    let (_, deaths) = survive(&mut world, &[point], &handle, outside).await;
    let told = heard.told();
    let keys: BTreeSet<&str> = told.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys.len(), 2, "{told:?}");
    assert!(told.len() <= 2 + 2 * deaths as usize, "{told:?}");
    deaths
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_events_arrive_whenever_the_host_dies() {
    for side in [Side::Before, Side::After] {
        die_at_each(Op::Dispatch, side, 2, play).await;
        die_at_each(Op::Append, side, 1, play).await;
    }
}

/// A transport that reaches people, as a program may register it.
pub(crate) struct People {
    kind: TransportKind,
    /// Open while nothing is said.
    silence: Arc<Gates>,
    acts: Arc<Mutex<Vec<String>>>,
}

impl People {
    pub(crate) fn listening(
        kind: TransportKind,
    ) -> (Arc<Gates>, Arc<Mutex<Vec<String>>>, Subscriber) {
        let (silence, acts) = (Gates::new(), Arc::<Mutex<Vec<String>>>::default());
        let one = Self { kind, silence: Arc::clone(&silence), acts: Arc::clone(&acts) };
        (silence, acts, Subscriber::new(one))
    }

    fn act(&self, what: String) {
        self.acts.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }
}

#[async_trait]
impl Transport for People {
    fn kind(&self) -> TransportKind {
        self.kind
    }

    async fn idle(&self) {
        let _inside = self.silence.pass("silence").await;
    }

    async fn interrupt(&self, reason: &str) {
        self.act(format!("interrupted: {reason}"));
    }

    async fn deliver(&self, news: &News) -> Result<(), TransportError> {
        self.act(format!("said: {}", news.text.lines().next().unwrap_or_default()));
        Ok(())
    }
}

pub(crate) fn acts(of: &Mutex<Vec<String>>) -> Vec<String> {
    of.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Only the end is told.
fn of_end(mut subscriber: Subscriber, interrupts: bool) -> Subscriber {
    subscriber.events = vec![TaskEvent::Completed];
    Subscriber { interrupts, ..subscriber }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rs_22_a_voice_is_waited_for_or_interrupted_and_a_mail_is_sent_at_once() {
    let said = "said: a r: completed".to_owned();
    for (kind, interrupts, expected) in [
        (TransportKind::Text, false, vec![said.clone()]),
        (TransportKind::Text, true, vec![said.clone()]),
        (TransportKind::Voice, true, vec!["interrupted: task_delivery".to_owned(), said.clone()]),
    ] {
        let (silence, done, subscriber) = People::listening(kind);
        let mut world = World::new();
        world.agent("a", ClosurePlanner::new(|_, _| async { answer("done") }));
        world.subscribers = registered([("one", of_end(subscriber, interrupts))]);
        let host = world.start().await;
        host.spawn(&told(named("r", "a"), &["transport/one"])).await;
        rows(&host, "r", all_delivered(1)).await;
        assert_eq!(acts(&done), expected, "{kind:?}");
        assert_eq!(silence.came(), [] as [&str; 0], "nobody waited");
    }
    for is_silent_in_time in [true, false] {
        let (silence, done, subscriber) = People::listening(TransportKind::Voice);
        let mut world = World::new();
        world.agent("a", ClosurePlanner::new(|_, _| async { answer("done") }));
        world.subscribers = registered([("phone", of_end(subscriber, false))]);
        let host = world.start().await;
        host.spawn(&told(named("r", "a"), &["transport/phone"])).await;
        silence.have_come(1).await;
        assert!(acts(&done).is_empty(), "somebody speaks");
        if is_silent_in_time {
            silence.open("silence");
        } else {
            assert_eq!(world.next(IDLE_WAIT * 2).await, IDLE_WAIT);
        }
        rows(&host, "r", all_delivered(1)).await;
        assert_eq!(acts(&done), std::slice::from_ref(&said), "one message");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rs_20_of_several_transports_the_one_that_speaks_is_chosen() {
    let table = [
        (vec![("sms", TransportKind::Text), ("voice", TransportKind::Voice)], Some("voice")),
        (vec![("sms", TransportKind::Text)], Some("sms")),
        (vec![("bot", TransportKind::Program)], None),
    ];
    for (there, chosen) in table {
        let mut world = World::new();
        world.agent("a", ClosurePlanner::new(|_, _| async { answer("done") }));
        let (mut all, mut done) = (BTreeMap::new(), Vec::new());
        for (name, kind) in there {
            let (silence, acts, subscriber) = People::listening(kind);
            silence.open("silence");
            all.insert(name.to_owned(), of_end(subscriber, false));
            done.push((name, acts));
        }
        world.subscribers = Subscribers::of_program(all);
        let host = world.start().await;
        host.spawn(&told(named("r", "a"), &["transport/*"])).await;
        host.end("r").await;
        match chosen {
            Some(_) => rows(&host, "r", all_delivered(1)).await,
            // Without one that reaches somebody it stays where it is (M-57).
            None => {
                let waits = |row: &Dispatch| row.state == DispatchState::Pending;
                rows(&host, "r", |rows| rows.len() == 2 && rows.iter().all(waits)).await
            }
        };
        for (name, done) in done {
            assert_eq!(acts(&done).len(), usize::from(Some(name) == chosen), "{name}");
        }
    }
}
