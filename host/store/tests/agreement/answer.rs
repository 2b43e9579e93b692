//! The answers of a store, in words.

use taskrun_journal::delivery::{Conversation, Delivery, ReportState, ReportsTaken, Strategy};
use taskrun_journal::dispatch::{AttemptOutcome, DispatchState, Subscription, TaskEvent};
use taskrun_journal::ids::RunId;
use taskrun_journal::list::{Cursor, EndedRun, ListFilter, Scope, TreeQuery};
use taskrun_journal::machine;
use taskrun_journal::run::Run;
use taskrun_journal::spec::{RunSpec, TreeBounds};
use taskrun_journal::store::{
    Append, BatchOutcome, DispatchClaim, DispatchQuery, Host, NewBatch, Prospect, ReportQuery,
    Session, SessionKey, Stay, TaskKey,
};
use taskrun_journal::time::Timestamp;

use crate::common::*;
use crate::steps::{
    Batch, ClaimStep, Create, ReportsOf, Settled, Step, agent, artifact, ended_for, host, id,
    named_in, one_of, pin, subscriber,
};

/// The part of a store's answers that later steps refer to.
#[derive(Default)]
pub(crate) struct AnswerMemory {
    /// The append that may be repeated.
    last: Option<Append>,
    /// Runs in the order in which they were accepted; removed ones too.
    pub(crate) accepted: Vec<RunId>,
    /// The runs that the last claim took.
    pub(crate) claimed: Vec<RunId>,
    /// A run that comes with a claim is kept, and then claimed in another request.
    pub(crate) in_two: bool,
}

fn key(session: u8, owner: Option<u8>) -> SessionKey {
    let owner_user_id = owner.map(|owner| format!("o-{owner}"));
    SessionKey { id: format!("s-{session}"), owner_user_id, ..session_key() }
}

/// Does a step; `None` if it cannot be done.
pub(crate) async fn answer(
    store: &dyn Both,
    step: &Step,
    now: u64,
    told: &mut AnswerMemory,
) -> Option<String> {
    let said = match step {
        Step::Create(create) => created(store, create, now, told).await,
        Step::Claim(wish) => {
            let claim = wish.at(now);
            let prospect = store.prospect(&claim).await.expect("answers");
            let runs = store.claim(claim).await.expect("claims");
            assert!(prospect == Prospect::Claim || runs.is_empty(), "{prospect:?} {runs:?}");
            told.claimed = runs.iter().map(|run| run.id().clone()).collect();
            format!("{runs:?}")
        }
        Step::Append(change) => {
            let run = one_of(&told.accepted, change.run)?;
            let mut run = store.get(&run).await.expect("gets")?;
            if change.stale {
                run.state.head = run.state.head.saturating_sub(1).max(1);
            }
            let events = change.events(&run, now, &told.accepted)?;
            let artifacts = named_in(&events);
            let mut append = next(&run, change.event_id, now, events);
            append.artifacts = artifacts;
            append.reports = change.reports.as_ref().map(|(are_told, runs)| {
                let runs = runs.iter().filter_map(|run| one_of(&told.accepted, *run)).collect();
                if *are_told { ReportsTaken::Told(runs) } else { ReportsTaken::Awaited(runs) }
            });
            append.epoch += u64::from(change.wrong_epoch);
            told.last = Some(append.clone());
            format!("{:?}", store.append(append).await)
        }
        Step::RunToEnd(reason) => {
            let mut runs = store.claim(ClaimStep::of_one().at(now)).await.expect("claims");
            let run = runs.pop()?;
            let events = ended_for(*reason, &run, now)?;
            format!("{:?}", store.append(next(&run, now, now, events)).await)
        }
        Step::Batch(batch) => batched(store, batch, now, told).await?,
        Step::Entries { agent: a, limit } => {
            format!("{:?}", store.entries(&agent(*a), *limit).await)
        }
        Step::Repeat => format!("{:?}", store.append(told.last.clone()?).await),
        Step::List { owner, status, stop_reason, tree, name, since, limit } => {
            let mut scope = Scope::tenant("acme");
            scope.owner_user_id = owner.map(|owner| format!("o-{owner}"));
            let filter = ListFilter {
                status: status.clone(),
                stop_reason: stop_reason.clone(),
                root_run_id: tree.and_then(|tree| one_of(&told.accepted, tree)),
                name: name.map(|name| format!("n-{name}")),
                since: since.map(Timestamp),
                ..ListFilter::default()
            };
            let mut said = all_pages(store, &scope, &filter, *limit).await;
            if let Some(root) = filter.root_run_id {
                let tenant = scope.tenant;
                let all = TreeQuery { tenant, root_run_id: root, counted_only: false };
                said.push_str(&format!("{:?}\n", runs_of_tree(store, &all, *limit).await));
                let counted = TreeQuery { counted_only: true, ..all };
                said.push_str(&format!("{:?}\n", runs_of_tree(store, &counted, *limit).await));
            }
            said
        }
        Step::Ended { owner, session, status, limit } => {
            let mut scope = Scope::tenant("acme");
            scope.owner_user_id = owner.map(|owner| format!("o-{owner}"));
            scope.parent_session_id = session.map(|session| format!("s-{session}"));
            let filter = ListFilter { status: status.clone(), ..ListFilter::default() };
            all_ends(store, &scope, &filter, *limit).await
        }
        Step::Read { id: run, after, limit } => {
            format!("{:?}", store.read(&id(*run), *after, *limit).await)
        }
        Step::Artifact { run, number } => {
            let run = one_of(&told.accepted, *run)?;
            let artifact = artifact(*number);
            format!("{:?}", store.artifact(&run, &artifact.reference().hash).await)
        }
        Step::Remove(removal) => format!("{:?}", store.remove(removal.clone()).await),
        Step::OpenSession { session, owner } => {
            let key = key(*session, *owner);
            let session = Session { key, created_at: Timestamp(now), ended_at: None };
            let before = store.session(&session.key).await;
            format!("{before:?} {:?}", store.open_session(session).await)
        }
        Step::EndSession { session, owner } => {
            format!("{:?}", store.end_session(&key(*session, *owner), Timestamp(now)).await)
        }
        Step::ReadSession { session, owner, limit } => {
            whole_session(store, &key(*session, *owner), *limit).await
        }
        Step::Register { host: h, pin: p, slots } => {
            let host = Host { slots: *slots, ..host_of(&host(*h), &pin(*p)) };
            format!("{:?}", store.register(host).await)
        }
        Step::Retire { host: h } => {
            let until = now.is_multiple_of(2).then_some(Timestamp(now));
            let stay = Stay { until, ..Stay::default() };
            let needed = store.is_needed(&host(*h), stay.clone()).await.expect("answers");
            let out = store.retire(&host(*h), stay).await.expect("retires");
            assert_ne!(needed, out, "whoever looks is told the same");
            format!("{out}")
        }
        Step::Held { host: h, after, limit } => {
            let after = after.map(id);
            format!("{:?}", store.held(&host(*h), after.as_ref(), *limit).await)
        }
        Step::Orphans => {
            let mut runs = store.orphans(100).await.expect("answers");
            runs.sort_by(|a, b| a.id().cmp(b.id()));
            format!("{runs:?} {:?}", store.hosts().await)
        }
        Step::Reports { query, after, limit } => {
            let query = match query {
                ReportsOf::Tree(run) => {
                    let run = store.get(&one_of(&told.accepted, *run)?).await.expect("gets")?;
                    ReportQuery::Tree(run.spec.root_run_id.clone())
                }
                ReportsOf::Conversation { session, owner } => ReportQuery::Conversation {
                    tenant: "acme".to_owned(),
                    owner_user_id: format!("o-{owner}"),
                    conversation: conversation(*session),
                },
                ReportsOf::Due => ReportQuery::Due,
                ReportsOf::DueTo(number) => ReportQuery::DueTo(agent(*number)),
                ReportsOf::All { owner } => {
                    let mut scope = Scope::tenant("acme");
                    scope.owner_user_id = owner.map(|owner| format!("o-{owner}"));
                    ReportQuery::Scope { scope, states: ReportState::ALL.to_vec() }
                }
            };
            format!("{:?}", store.reports(&query, *after, *limit).await)
        }
        Step::NextDispatch { subscribers } => {
            let subscribers = subscribers.iter().map(|one| subscriber(*one)).collect();
            format!("{:?}", store.next_dispatch(&subscribers, Timestamp(now)).await)
        }
        Step::TakeDispatches { subscriber: one, host: h, limit } => {
            let claim = DispatchClaim {
                host: host(*h),
                subscriber: subscriber(*one),
                now: Timestamp(now),
                until: Timestamp(now + 500),
                limit: *limit,
            };
            format!("{:?}", store.take_dispatches(claim).await)
        }
        Step::SettleDispatch { number, host: h, outcome } => {
            let outcome = match outcome {
                Settled::Delivered => AttemptOutcome::Delivered,
                Settled::Failed { pause_ms } => AttemptOutcome::Failed {
                    error: "no".to_owned(),
                    next: pause_ms.map(|pause| Timestamp(now + pause)),
                },
                Settled::Released => AttemptOutcome::Released,
            };
            format!("{:?}", store.settle_dispatch(*number, &host(*h), outcome).await)
        }
        Step::Dispatches { of, after, limit } => {
            let query = match of {
                Ok(run) => DispatchQuery::Run(one_of(&told.accepted, *run)?),
                Err(owner) => {
                    let mut scope = Scope::tenant("acme");
                    scope.owner_user_id = owner.map(|owner| format!("o-{owner}"));
                    DispatchQuery::Scope { scope, states: DispatchState::ALL.to_vec() }
                }
            };
            format!("{:?}", store.dispatches(&query, *after, *limit).await)
        }
        Step::ChangeDispatch { number, change } => {
            format!("{:?}", store.change_dispatch(*number, *change).await)
        }
        Step::ForgetDispatches { owner } => {
            let scope = Scope::tenant("acme").owner(&format!("o-{owner}"));
            format!("{:?}", store.forget_dispatches(&scope).await)
        }
        Step::ChangeReport { run, change } => {
            let run = one_of(&told.accepted, *run)?;
            format!("{:?}", store.change_report(&run, *change).await)
        }
    };
    Some(said)
}

fn conversation(session: u8) -> Conversation {
    Conversation { session: format!("s-{session}"), app: None, agent: agent(session) }
}

/// The delivery of an outcome, in a conversation of a session where there is one.
fn delivery(create: &Create, session: Option<u8>, above: Vec<RunId>) -> Delivery {
    let strategy = create.nudges.map_or(Strategy::ContextOnly, |buffer_ms| {
        let (buffer_ms, timeout_ms) = (u64::from(buffer_ms), 1_000);
        Strategy::WaitForIdle { buffer_ms, timeout_ms, interrupt: false }
    });
    let conversation = session.map(conversation);
    Delivery { above, conversation, strategy, ..Delivery::default() }
}

fn subscriptions(drawn: &[(u8, bool)]) -> Vec<Subscription> {
    let mut all: Vec<Subscription> = Vec::new();
    for (number, of_acceptance) in drawn {
        let events = if *of_acceptance { &TaskEvent::ALL[..] } else { &TaskEvent::ALL[1..] };
        let (subscriber, events) = (subscriber(*number), events.to_vec());
        let one = Subscription { subscriber, events, without_text: false };
        if all.iter().all(|known| known.subscriber != one.subscriber) {
            all.push(one);
        }
    }
    all
}

/// The runs above one, the nearest first.
async fn above_of(store: &dyn Both, spec: &RunSpec) -> Vec<RunId> {
    let (mut above, mut next) = (Vec::new(), spec.parent_run_id.clone());
    while let Some(id) = next {
        let run = store.get(&id).await.expect("gets");
        next = run.and_then(|run| run.spec.parent_run_id.clone());
        above.push(id);
    }
    above
}

/// The slots of a tree: all of its runs have the same number, or none.
fn slots_of(root: &RunId) -> Option<u32> {
    match root.as_str().bytes().last().unwrap_or_default() % 3 {
        0 => None,
        slots => Some(slots.into()),
    }
}

async fn created(store: &dyn Both, create: &Create, now: u64, told: &mut AnswerMemory) -> String {
    let mut spec = RunSpec {
        owner_user_id: format!("o-{}", create.owner),
        parent_session_id: format!("s-{}", create.session),
        priority: create.priority,
        agent_name: agent(create.agent),
        pin: pin(create.pin),
        serial: create.serial,
        durable: create.durable,
        finalizer: create.finalizer,
        name: create.name.map(|name| format!("n-{name}")),
        class: create.class,
        subscriptions: subscriptions(&create.subscribers),
        created_at: Timestamp(now),
        ..spec(id(create.id).as_str())
    };
    if let Some(parent) = create.parent.and_then(|parent| one_of(&told.accepted, parent)) {
        let found = store.get(&parent).await.expect("gets");
        if let Some(above) = found {
            spec.root_run_id = above.spec.root_run_id.clone();
            let root = above.spec.root_session_id.as_ref();
            let root = root.unwrap_or(&above.spec.parent_session_id);
            spec.root_session_id =
                Some(root.clone()).filter(|root| *root != spec.parent_session_id);
        } else {
            spec.root_run_id = parent.clone();
        }
        spec.parent_run_id = Some(parent);
        spec.attached = create.attached;
        if let Some(session) = create.delivery.filter(|_| !create.attached) {
            let above = above_of(store, &spec).await;
            spec.delivery = Some(delivery(create, session, above));
        }
    } else if let Some(run) = create.continues.and_then(|run| one_of(&told.accepted, run)) {
        let ended = store.get(&run).await.expect("gets");
        if ended.is_some_and(|run| run.status().is_terminal()) {
            let session = create.delivery;
            spec.delivery = session.map(|session| delivery(create, session, Vec::new()));
            spec.continues = Some(Box::new(continuation(run)));
        }
    } else if create.nudge_for > 0 {
        let due = store.reports(&ReportQuery::Due, 0, create.nudge_for.into()).await;
        spec.nudge_for = due.expect("answers").into_iter().map(|report| report.run).collect();
    }
    spec.tree.slots = slots_of(&spec.root_run_id);
    let mut new = new_run(spec);
    new.admission = create.admission.clone();
    // Where the request has no key, its task is looked for.
    let completed_since = create.completed_since.filter(|_| create.key.is_none()).map(Timestamp);
    new.task = Some(TaskKey { digest: "the same".to_owned(), completed_since });
    if let Some((key, fingerprint)) = create.key {
        new = keyed(new, &key.to_string(), &fingerprint.to_string());
    }
    if let Some(idempotency) = &mut new.idempotency {
        idempotency.completed_since = create.completed_since.map(Timestamp);
    }
    let (created, runs) = match &create.claim {
        None => (store.create(new).await.expect("answers"), None),
        Some(claim) if told.in_two => {
            let created = store.create(new).await.expect("answers");
            let runs = match created.is_new() {
                true => store.claim(claim.at(now)).await.expect("claims"),
                false => Vec::new(),
            };
            (created, Some(runs))
        }
        Some(claim) => {
            let (created, runs) = both(store, new, claim.at(now)).await;
            (created, Some(runs))
        }
    };
    if created.is_new() {
        told.accepted.retain(|known| *known != id(create.id));
        told.accepted.push(id(create.id));
    }
    format!("{created:?} {runs:?}")
}

async fn batched(
    store: &dyn Both,
    batch: &Batch,
    now: u64,
    told: &mut AnswerMemory,
) -> Option<String> {
    let groups = store.entries(&agent(batch.agent), batch.entries).await.expect("looks");
    let mut entries = Vec::new();
    for id in groups.first()? {
        entries.extend(store.get(id).await.expect("gets"));
    }
    let first = entries.first()?.spec.clone();
    let spec = RunSpec {
        entries: entries.iter().map(|entry| entry.id().clone()).collect(),
        owner_user_id: first.owner_user_id.clone(),
        parent_session_id: first.parent_session_id.clone(),
        agent_name: first.agent_name.clone(),
        created_at: Timestamp(now),
        ..spec(id(batch.id).as_str())
    };
    let key = format!("{} {}", first.agent_name, first.owner_user_id);
    let spec = RunSpec { tree: TreeBounds { slots: slots_of(&spec.id), ..spec.tree }, ..spec };
    let run = keyed(new_run(spec), &key, &batch.tick.to_string());
    let take = |entry: &Run| {
        let event = machine::decide::take(entry, &id(batch.id), &host(0), Timestamp(now));
        let mut append = next(entry, now, now, vec![event.expect("it waits")]);
        append.epoch += u64::from(batch.wrong_epoch);
        append
    };
    let new = NewBatch { entries: entries.iter().map(take).collect(), run };
    let answer = store.batch(new).await.expect("answers");
    if answer == BatchOutcome::New {
        told.accepted.retain(|known| *known != id(batch.id));
        told.accepted.push(id(batch.id));
    }
    Some(format!("{answer:?} {entries:?}"))
}

async fn all_pages(store: &dyn Both, scope: &Scope, filter: &ListFilter, limit: usize) -> String {
    let mut said = String::new();
    let mut cursor: Option<Cursor> = None;
    loop {
        let page = store.list(scope, filter, cursor.as_ref(), limit).await.expect("lists");
        said.push_str(&format!("{page:?}\n"));
        cursor = page.next;
        if cursor.is_none() {
            return said;
        }
    }
}

/// The runs that ended without their places, which are each store's own.
async fn all_ends(store: &dyn Both, scope: &Scope, filter: &ListFilter, limit: usize) -> String {
    let (mut said, mut before) = (String::new(), None);
    loop {
        let ended = store.ended(scope, filter, before, limit).await.expect("answers");
        let Some(last) = ended.last() else { return said };
        before = Some(last.place);
        for EndedRun { run, .. } in &ended {
            said.push_str(&format!("{run:?}\n"));
        }
    }
}

/// The events of a session without their places, which are each store's own.
async fn whole_session(store: &dyn Both, key: &SessionKey, limit: usize) -> String {
    let mut said = String::new();
    let mut after = 0;
    loop {
        let events = store.read_session(key, after, limit).await.expect("reads").events;
        let Some(last) = events.last() else { return said };
        assert!(last.place > after, "{events:?}");
        after = last.place;
        for event in &events {
            said.push_str(&format!("{} {:?}\n", event.run, event.recorded));
        }
    }
}
