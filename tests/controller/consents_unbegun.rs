//! Lasting consents and the calls that have not begun: what is revoked, other code, another policy
//! file, and what cannot be kept (C-033).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use taskrun::agents::Origin;
use taskrun::controller::{ConsentExtent, ConsentRequest};
use taskrun::error::ControllerError;
use taskrun_journal::consent::{
    ConsentOutcome, ConsentRecord, ConsentSubject, Consents, LastingConsent, Revocation,
};
use taskrun_journal::list::Scope;
use taskrun_journal::question::{Answer, Item};
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_journal::store::StoreError;
use taskrun_journal::time::Timestamp;
use taskrun_journal::tool::ToolHints;
use taskrun_policy::InterruptionPolicy;
use tokio::sync::Notify;

use super::common::{Call, Gates, check_journal, count, following, named};
use super::consent::{asks, story};
use crate::native::{ClosureTool, Native, OWNER, SESSION, World, in_time, value};

/// More calls than may be under way at once (16).
const CALLS: usize = 18;
const ALWAYS: ConsentRequest =
    ConsentRequest { approved: true, extent: ConsentExtent::Always, expires: None };

/// Adds an agent that calls `mail/f` so often in one turn, about which a person is asked, and whose
/// calls go through a gate; gives how many there were.
fn add(
    world: &mut World,
    digest: &'static str,
    calls: usize,
    gates: &Arc<Gates>,
) -> Arc<AtomicU32> {
    let called = Arc::new(AtomicU32::new(0));
    let (counted, inside) = (Arc::clone(&called), Arc::clone(gates));
    let tool = ClosureTool::new("f", ToolHints::default(), move |call, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        let gates = Arc::clone(&inside);
        async move {
            let _inside = gates.pass("mail").await;
            value(&call.payload)
        }
    });
    world.tool("mail", InterruptionPolicy::Fail, tool.with_digest(digest));
    let id = |number: usize| -> &'static str { format!("c{number}").leak() };
    let calls: Vec<Call> = (0..calls).map(|number| (id(number), "mail/f", "1")).collect();
    world.agent_with("a", following(vec![calls]), asks);
    called
}

fn lasting() -> LastingConsent {
    LastingConsent {
        subject: ConsentSubject {
            tenant: "default".to_owned(),
            owner_user_id: OWNER.to_owned(),
            parent_app_name: None,
            policy: "policy".to_owned(),
            agent_name: "a".to_owned(),
            function: "mail/f".to_owned(),
        },
        session: None,
        approved: true,
        digest: "one".to_owned(),
        by: "mia".to_owned(),
        at: Timestamp(1),
        until: None,
    }
}

/// The ids of the questions that are open, once there are so many.
async fn open(host: &Native, id: &str, wanted: usize) -> Vec<String> {
    let open = |run: &Run| -> Vec<String> {
        run.state.awaits.iter().filter(|one| !one.answered).map(|one| one.id.clone()).collect()
    };
    open(&host.until(id, "it asks", |run| open(run).len() == wanted).await)
}

async fn accept(host: &Native, id: &str, items: &[&str]) {
    for item in items {
        let mia = host.client().named("mia");
        mia.answer(id, Some(item), Answer::Confirmed(true)).await.expect("taken");
    }
}

#[tokio::test]
async fn c_033_what_is_revoked_while_calls_wait_for_a_place_reaches_them() {
    let (mut world, gates) = (World::new(), Gates::new());
    let called = add(&mut world, "one", CALLS, &gates);
    world.consents.keep_consent(lasting()).await.expect("kept");
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    gates.have_come(16).await;
    host.client().named("bob").revoke_consent(1).await.expect("written").expect("it is there");
    gates.open("mail");
    let asked = ["confirm:1:c16", "confirm:1:c17"];
    assert_eq!(open(&host, "1", 2).await, asked);
    assert_eq!(called.load(Ordering::SeqCst), 16, "those that had begun");
    accept(&host, "1", &asked).await;
    let run = host.end("1").await;
    assert_eq!((run.status(), run.state.tool_calls), (Status::Completed, 18));
    let journal = host.journal("1").await;
    check_journal(&journal);
    assert_eq!((count(&journal, "tool_call_scheduled"), called.load(Ordering::SeqCst)), (18, 18));
    let story = story(&journal);
    for line in ["c16 true by mia in consent 1", "c16 true by mia"] {
        assert!(story.contains(&line.to_owned()), "{story:?}");
    }
}

#[tokio::test]
async fn c_033_calls_that_waited_for_a_place_are_asked_about_where_their_code_is_other_code() {
    for (digest, wanted) in [("one", 0), ("two", 2)] {
        let (mut world, gates) = (World::new(), Gates::new());
        add(&mut world, "one", CALLS, &gates);
        world.consents.keep_consent(lasting()).await.expect("kept");
        let host = world.start().await;
        host.spawn(&named("1", "a")).await;
        gates.have_come(16).await;
        world.kill(host).await;
        let gates = Gates::new();
        gates.open("mail");
        world.forget_tools();
        let called = add(&mut world, digest, CALLS, &gates);
        let host = world.take_over().await;
        if wanted > 0 {
            let asked = open(&host, "1", wanted).await;
            assert_eq!((asked.len(), called.load(Ordering::SeqCst)), (2, 0), "{digest}");
            accept(&host, "1", &asked.iter().map(String::as_str).collect::<Vec<_>>()).await;
        }
        assert_eq!(host.end("1").await.status(), Status::Completed);
        let journal = host.journal("1").await;
        check_journal(&journal);
        assert_eq!((count(&journal, "asked"), called.load(Ordering::SeqCst)), (wanted, 2));
    }
}

#[tokio::test]
async fn c_033_consent_to_code_is_none_to_what_came_in_its_place_meanwhile() {
    let (mut world, gates) = (World::new(), Gates::new());
    gates.open("mail");
    add(&mut world, "one", 1, &gates);
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    assert_eq!(open(&host, "1", 1).await, ["confirm:1:c0"]);
    world.kill(host).await;
    world.forget_tools();
    let called = add(&mut world, "two", 1, &gates);
    let host = world.start().await;
    accept(&host, "1", &["confirm:1:c0"]).await;
    let again = |run: &Run| run.state.awaits.iter().any(|one| one.id == "confirm:1.2:c0");
    let run = host.until("1", "it asks again", again).await;
    let prompt = run.state.awaits.last().map(|one| one.prompt.clone()).unwrap_or_default();
    assert!(prompt.contains("its code has changed"), "{prompt}");
    assert_eq!(called.load(Ordering::SeqCst), 0);
    accept(&host, "1", &["confirm:1.2:c0"]).await;
    assert_eq!(host.end("1").await.status(), Status::Completed);
    let journal = host.journal("1").await;
    check_journal(&journal);
    let decided: Vec<String> =
        story(&journal).into_iter().filter(|line| line != "blocked").collect();
    let expected = ["asked confirm:1:c0", "asked confirm:1.2:c0", "c0 true by mia", "c0 begins"];
    assert_eq!((decided, called.load(Ordering::SeqCst)), (expected.map(String::from).into(), 1));
}

#[tokio::test]
async fn c_033_a_consent_is_for_the_policy_file_whose_agent_asked() {
    let (mut world, gates) = (World::new(), Gates::new());
    gates.open("mail");
    add(&mut world, "one", 1, &gates);
    world.consents.keep_consent(lasting()).await.expect("kept");
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    assert_eq!(host.end("1").await.status(), Status::Completed);
    world.kill(host).await;
    // Runs of another file on the same host.
    world.agent_with("a", following(vec![vec![("c", "mail/f", "1")]]), |agent| {
        asks(agent);
        agent.origin = Some(Origin { policy: "/other/taskrun.toml".to_owned(), now: None });
    });
    let host = world.start().await;
    host.spawn(&named("2", "a")).await;
    host.reach("2", Status::Blocked).await;
    let item: Item = host.client().asks("2").await.expect("can be read").remove(0);
    let kept = host.client().named("mia").consent("2", &item, ALWAYS).await.expect("taken").kept;
    assert_eq!(kept.expect("kept").consent.subject.policy, "/other/taskrun.toml");
    host.end("2").await;
    host.spawn(&named("3", "a")).await;
    assert_eq!(host.end("3").await.status(), Status::Completed);
    assert!(story(&host.journal("3").await).contains(&"c true by mia in consent 2".to_owned()));
}

/// Keeps consents, and says that it is not known, or has no room for any. While it is locked no run
/// can look for one.
struct Failing {
    inner: Arc<dyn Consents>,
    is_full: bool,
    is_locked: AtomicBool,
    /// Told of each look at it.
    looks: Notify,
}

impl Failing {
    fn new(inner: &Arc<dyn Consents>, is_full: bool, is_locked: bool) -> Arc<Self> {
        let (inner, is_locked) = (Arc::clone(inner), AtomicBool::new(is_locked));
        Arc::new(Self { inner, is_full, is_locked, looks: Notify::new() })
    }
}

#[async_trait]
impl Consents for Failing {
    async fn keep_consent(&self, consent: LastingConsent) -> Result<ConsentOutcome, StoreError> {
        if self.is_full {
            return Ok(ConsentOutcome::Full);
        }
        self.inner.keep_consent(consent).await?;
        Err(StoreError::Unknown { detail: "torn off".to_owned() })
    }

    async fn consents_about(
        &self,
        subject: &ConsentSubject,
        session: Option<&str>,
    ) -> Result<Vec<ConsentRecord>, StoreError> {
        self.looks.notify_one();
        match self.is_locked.load(Ordering::SeqCst) {
            true => Err(StoreError::Locked { path: "consents".to_owned() }),
            false => self.inner.consents_about(subject, session).await,
        }
    }

    async fn consents(
        &self,
        scope: &Scope,
        after: u64,
        limit: usize,
    ) -> Result<Vec<ConsentRecord>, StoreError> {
        self.inner.consents(scope, after, limit).await
    }

    async fn revoke_consent(
        &self,
        scope: &Scope,
        number: u64,
        revocation: Revocation,
    ) -> Result<Option<ConsentRecord>, StoreError> {
        self.inner.revoke_consent(scope, number, revocation).await
    }

    async fn remove_consents(
        &self,
        scope: &Scope,
        over_before: Option<Timestamp>,
        dry_run: bool,
    ) -> Result<u64, StoreError> {
        self.inner.remove_consents(scope, over_before, dry_run).await
    }
}

#[tokio::test]
async fn c_033_the_run_has_its_answer_where_the_consent_is_not_kept() {
    for is_full in [true, false] {
        let (mut world, gates) = (World::new(), Gates::new());
        gates.open("mail");
        add(&mut world, "one", 1, &gates);
        world.consents = Failing::new(&world.consents, is_full, false);
        let host = world.start().await;
        host.spawn(&named("1", "a")).await;
        host.reach("1", Status::Blocked).await;
        let item = host.client().asks("1").await.expect("can be read").remove(0);
        let kept =
            host.client().named("mia").consent("1", &item, ALWAYS).await.expect("taken").kept;
        let says_why = match &kept {
            Err(ControllerError::Limit { kind: "consents", .. }) => is_full,
            Err(ControllerError::Storage(StoreError::Unknown { .. })) => !is_full,
            Ok(_) | Err(_) => false,
        };
        assert!(says_why, "{kept:?}");
        assert_eq!(host.end("1").await.status(), Status::Completed);
        let listed = host.client().consents(0, 200).await.expect("can be read");
        assert_eq!(listed.len(), usize::from(!is_full), "what is not known may be kept");
    }
}

#[tokio::test]
async fn c_033_who_sees_a_part_of_the_runs_is_told_of_consents_to_those_alone() {
    let (mut world, gates) = (World::new(), Gates::new());
    add(&mut world, "one", 1, &gates);
    world.consents.keep_consent(lasting()).await.expect("kept");
    let host = world.start().await;
    let subject = lasting().subject;
    let all = host.scope.clone();
    for (scope, is_told) in [
        (all.clone(), true),
        (all.clone().session(SESSION), true),
        (all.clone().session("elsewhere"), false),
        (Scope { parent_app_name: Some("desk".to_owned()), ..all.clone() }, false),
        (all.owner("bob"), false),
    ] {
        let client = host.controller.at(&scope);
        let found = client.consent_about(&subject, Some(SESSION), "one").await;
        assert_eq!(found.expect("can be read").is_some(), is_told, "{scope:?}");
    }
}

#[tokio::test]
async fn c_033_nobody_is_asked_where_the_host_ends_while_consents_cannot_be_read() {
    let (mut world, gates) = (World::new(), Gates::new());
    gates.open("mail");
    let called = add(&mut world, "one", 1, &gates);
    world.consents.keep_consent(lasting()).await.expect("kept");
    let failing = Failing::new(&world.consents, false, true);
    world.consents = failing.clone();
    let first = world.start().await;
    first.spawn(&named("1", "a")).await;
    in_time(failing.looks.notified()).await;
    let closed = in_time(first.controller.hand_over(Duration::ZERO)).await;
    assert_eq!(closed.stragglers, []);
    failing.is_locked.store(false, Ordering::SeqCst);
    let second = world.take_over().await;
    assert_eq!(second.end("1").await.status(), Status::Completed);
    let journal = second.journal("1").await;
    check_journal(&journal);
    assert_eq!((count(&journal, "asked"), called.load(Ordering::SeqCst)), (0, 1));
}
