//! Whatever is done to them, both stores answer alike.

mod common;

use common::*;
use proptest::prelude::*;
use taskrun::event::Event;
use taskrun::list::{Cursor, ListFilter, Scope};
use taskrun::machine;
use taskrun::ports::store::{Append, Claim};
use taskrun::run::{Run, RunSpec};
use taskrun::status::{BlockedOn, Status};
use taskrun::time::Timestamp;

/// One thing done to a store.
#[derive(Clone, Debug)]
enum Step {
    Create { id: u8, key: Option<(u8, u8)>, owner: u8, priority: i32, policy: u8, label: bool },
    Claim { host: u8, policy: u8, limit: usize },
    Append { id: u8, what: u8, event_id: u64, stale: bool, wrong_epoch: bool },
    Repeat,
    List { owner: Option<u8>, status: Vec<Status>, label: bool, since: Option<u64>, limit: usize },
    Read { id: u8, after: u64, limit: usize },
    Register { host: u8, policy: u8 },
    Retire { host: u8 },
    Orphans,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = proptest::option::of((0..3_u8, 0..2_u8));
    let create = (0..8_u8, key, 0..2_u8, -1..2_i32, 0..2_u8, any::<bool>()).prop_map(
        |(id, key, owner, priority, policy, label)| Step::Create {
            id,
            key,
            owner,
            priority,
            policy,
            label,
        },
    );
    let claim = (0..3_u8, 0..2_u8, 0..3_usize).prop_map(|(host, policy, limit)| Step::Claim {
        host,
        policy,
        limit,
    });
    let flags = (proptest::bool::weighted(0.1), proptest::bool::weighted(0.1));
    let append = (0..8_u8, 0..5_u8, any::<u64>(), flags).prop_map(
        |(id, what, event_id, (stale, wrong_epoch))| Step::Append {
            id,
            what,
            event_id: event_id / 2,
            stale,
            wrong_epoch,
        },
    );
    let status = proptest::sample::subsequence(Status::ALL.to_vec(), 0..3);
    let owner = proptest::option::of(0..2_u8);
    let since = proptest::option::of(0..60_u64);
    let list = (owner, status, proptest::bool::weighted(0.3), since, 0..5_usize).prop_map(
        |(owner, status, label, since, limit)| Step::List { owner, status, label, since, limit },
    );
    let read = (0..8_u8, 0..6_u64, 0..6_usize).prop_map(|(id, after, limit)| Step::Read {
        id,
        after,
        limit,
    });
    let register = (0..3_u8, 0..2_u8).prop_map(|(host, policy)| Step::Register { host, policy });
    let step = prop_oneof![
        4 => create,
        3 => claim,
        6 => append,
        1 => Just(Step::Repeat),
        3 => list,
        1 => read,
        1 => register,
        1 => (0..3_u8).prop_map(|host| Step::Retire { host }),
        1 => Just(Step::Orphans),
    ];
    proptest::collection::vec(step, 1..60)
}

/// The events that `what` stands for, if they can happen to the run.
fn events(what: u8, run: &Run) -> Option<Vec<Event>> {
    let events = match what {
        0 => vec![note("n")],
        1 => vec![cancel()],
        2 => end(),
        3 => vec![Event::Blocked { on: BlockedOn::Children }],
        _ => vec![Event::Unblocked],
    };
    let mut state = run.state.clone();
    for event in &events {
        let (seq, event) = (state.head + 1, event.clone());
        let recorded = taskrun::event::Recorded { seq, id: 0, at: Timestamp(0), event };
        state = machine::apply(state, &recorded).ok()?;
    }
    Some(events)
}

/// What a store answers, in words, and the append that may be repeated.
async fn answer(
    store: &dyn Both,
    step: &Step,
    now: u64,
    last: &mut Option<Append>,
) -> Option<String> {
    let policy = |policy: u8| format!("p-{policy}");
    let host = |host: u8| host_id(&format!("h-{host}"));
    let id = |id: u8| run_id(&format!("r-{id}"));
    let said = match step {
        Step::Create { id, key, owner, priority, policy: p, label } => {
            let mut spec = RunSpec {
                owner_user_id: format!("o-{owner}"),
                priority: *priority,
                policy_digest: policy(*p),
                created_at: Timestamp(now),
                ..spec(&format!("r-{id}"))
            };
            if *label {
                spec.labels.insert("team".to_owned(), "blue".to_owned());
            }
            let mut new = new_run(spec);
            if let Some((key, fingerprint)) = key {
                new = keyed(new, &key.to_string(), &fingerprint.to_string());
            }
            format!("{:?}", store.create(new).await)
        }
        Step::Claim { host: h, policy: p, limit } => {
            let claim = Claim {
                host: host(*h),
                policy_digest: policy(*p),
                limit: *limit,
                now: Timestamp(now),
            };
            format!("{:?}", store.claim(claim).await)
        }
        Step::Append { id: run, what, event_id, stale, wrong_epoch } => {
            let mut run = store.get(&id(*run)).await.expect("gets")?;
            if *stale {
                run.state.head = run.state.head.saturating_sub(1).max(1);
            }
            let mut append = next(&run, *event_id, now, events(*what, &run)?);
            append.epoch += u64::from(*wrong_epoch);
            *last = Some(append.clone());
            format!("{:?}", store.append(append).await)
        }
        Step::Repeat => format!("{:?}", store.append(last.clone()?).await),
        Step::List { owner, status, label, since, limit } => {
            let mut scope = Scope::tenant("acme");
            scope.owner_user_id = owner.map(|owner| format!("o-{owner}"));
            let mut filter = ListFilter { status: status.clone(), ..ListFilter::default() };
            filter.since = since.map(Timestamp);
            if *label {
                filter.labels.insert("team".to_owned(), "blue".to_owned());
            }
            all_pages(store, &scope, &filter, *limit).await
        }
        Step::Read { id: run, after, limit } => {
            format!("{:?}", store.read(&id(*run), *after, *limit).await)
        }
        Step::Register { host: h, policy: p } => {
            format!("{:?}", store.register(host_of(&host(*h), &policy(*p))).await)
        }
        Step::Retire { host: h } => format!("{:?}", store.retire(&host(*h)).await),
        Step::Orphans => {
            let mut runs = store.orphans(100).await.expect("answers");
            runs.sort_by(|a, b| a.id().cmp(b.id()));
            format!("{runs:?} {:?}", store.hosts().await)
        }
    };
    Some(said)
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn both_stores_answer_alike(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()
            .expect("a runtime");
        runtime.block_on(async {
            let (memory, sqlite) = (Fixture::memory(), Fixture::sqlite());
            let (mut last, mut last_too) = (None, None);
            for (step, now) in steps.iter().zip(1..) {
                let one = answer(&*memory.store, step, now, &mut last).await;
                let other = answer(&*sqlite.store, step, now, &mut last_too).await;
                prop_assert_eq!(one, other, "{:?}", step);
            }
            Ok(())
        })?;
    }
}
