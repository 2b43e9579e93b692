//! Steps, drawn at random.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use taskrun_journal::hold::WaitMode;
use taskrun_journal::list::Scope;
use taskrun_journal::spec::RunClass;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::store::{Admission, Removal, ReportChange};
use taskrun_journal::time::Timestamp;

use super::{
    ARTIFACTS, Batch, Change, ChangeKind, ClaimStep, Create, REASONS, ReportsOf, Settled, Step,
};

fn creations() -> impl Strategy<Value = Create> {
    let key = (option::of((0..3_u8, 0..2_u8)), option::weighted(0.3, 0..3_000_u64));
    let place = (0..24_u8, option::weighted(0.6, any::<u8>()), 0..2_u8, 0..2_u8);
    let kind = (-1..2_i32, 0..2_u8, prop_oneof![4 => Just(0_u8), 1 => Just(1)]);
    let class = prop_oneof![3 => Just(RunClass::Task), 1 => Just(RunClass::Heartbeat)];
    let flags = (proptest::bool::weighted(0.3), proptest::bool::weighted(0.8), class);
    let delivery = option::weighted(0.5, option::weighted(0.7, 0..2_u8));
    let nudge = (option::weighted(0.6, 0..300_u16), prop_oneof![3 => Just(0_u8), 2 => 1..4_u8]);
    let continues = option::weighted(0.3, any::<u8>());
    let ends = (
        proptest::bool::weighted(0.2),
        option::weighted(0.4, 0..3_u8),
        any::<bool>(),
        (delivery, nudge, continues),
    );
    let bound = |max| prop_oneof![4 => Just(u64::MAX), 1 => 0..max];
    let admission = (bound(4_u64), bound(5_u64), option::weighted(0.2, 0..3_u32));
    let subscribers = vec((0..3_u8, any::<bool>()), 0..3);
    let claim = option::weighted(0.3, claim_steps());
    (place, key, kind, (flags, ends), (admission, subscribers, claim)).prop_map(
        |(
            (id, parent, owner, session),
            (key, completed_since),
            (priority, agent, pin),
            ((serial, durable, class), (finalizer, name, attached, (delivery, nudge, continues))),
            ((queue_max, tree_max, at_once), subscribers, claim),
        )| Create {
            id,
            parent,
            key,
            completed_since,
            owner,
            session,
            priority,
            agent,
            pin,
            serial,
            durable,
            finalizer,
            name,
            attached,
            delivery,
            nudges: nudge.0,
            nudge_for: nudge.1,
            continues,
            class,
            subscribers,
            admission: Admission { queue_max, tree_max, at_once },
            claim,
        },
    )
}

fn changes() -> impl Strategy<Value = Change> {
    let mode = prop_oneof![Just(WaitMode::All), Just(WaitMode::Any)];
    let until = option::weighted(0.4, 0..800_u64);
    let runs = (vec(0..64_u8, 0..4), mode, until)
        .prop_map(|(runs, mode, until_ms)| ChangeKind::WaitForRuns { runs, mode, until_ms });
    let what = prop_oneof![
        2 => Just(ChangeKind::Note),
        2 => Just(ChangeKind::Reported),
        2 => Just(ChangeKind::Decided),
        1 => Just(ChangeKind::Fail),
        1 => Just(ChangeKind::AskToCancel),
        1 => Just(ChangeKind::Cancel),
        1 => Just(ChangeKind::Finalize),
        2 => Just(ChangeKind::End),
        2 => (0..ARTIFACTS).prop_map(ChangeKind::EndWith),
        5 => runs,
        1 => (0..800_u64).prop_map(|until_ms| ChangeKind::WaitForTime { until_ms }),
        1 => Just(ChangeKind::Pause),
        3 => option::weighted(0.4, 0..800_u64).prop_map(|until_ms| ChangeKind::PauseOver { until_ms }),
        3 => Just(ChangeKind::Resume),
        2 => Just(ChangeKind::Lose),
        1 => Just(ChangeKind::Release),
        3 => (0..3_u8).prop_map(ChangeKind::Adopt),
    ];
    let flags = (proptest::bool::weighted(0.05), proptest::bool::weighted(0.05));
    let kinds = vec(what, 3..8);
    let reports = option::weighted(0.3, (any::<bool>(), vec(any::<u8>(), 1..4)));
    let change = (any::<u8>(), kinds, reports, any::<u64>(), flags);
    change.prop_map(|(run, kinds, reports, event_id, flags)| Change {
        run,
        kinds,
        reports,
        event_id: event_id / 2,
        stale: flags.0,
        wrong_epoch: flags.1,
    })
}

fn removals() -> impl Strategy<Value = Removal> {
    let session = option::weighted(0.3, (0..2_u8).prop_map(|session| format!("s-{session}")));
    let owner = option::weighted(0.3, (0..2_u8).prop_map(|owner| format!("o-{owner}")));
    let tenant = prop_oneof![Just("acme"), Just("nobody")];
    let scope = (tenant, owner, session).prop_map(|(tenant, owner, session)| Scope {
        owner_user_id: owner,
        parent_session_id: session,
        ..Scope::tenant(tenant)
    });
    let scope = option::weighted(0.5, scope);
    (scope, 0..8_000_u64, 0..4_usize, any::<bool>()).prop_map(|(scope, before, limit, dry_run)| {
        Removal { scope, before: Timestamp(before), limit, dry_run }
    })
}

fn lists() -> impl Strategy<Value = Step> {
    let status = proptest::sample::subsequence(Status::ALL.to_vec(), 0..3);
    let (owner, tree) = (option::of(0..2_u8), option::weighted(0.3, any::<u8>()));
    let (name, since) = (option::weighted(0.3, 0..3_u8), option::of(0..6_000_u64));
    (owner, status, tree, (name, since), 0..5_usize).prop_map(
        |(owner, status, tree, (name, since), limit)| {
            let stop_reason = Vec::new();
            Step::List { owner, status, stop_reason, tree, name, since, limit }
        },
    )
}

/// Lists of runs by the reasons for which they ended. Each has one word more at most: runs are looked
/// for in another way with each, and with two of them there is seldom one to be found.
fn lists_of_ended() -> impl Strategy<Value = Step> {
    // With those of answers and cancellations, and one that no run ends for.
    let others = [StopReason::FinalResponse, StopReason::CanceledByOwner, StopReason::Wallclock];
    let reasons = vec(proptest::sample::select([&REASONS[..], &others].concat()), 1..4);
    let words = (0..5_u8, 0..2_u8, any::<u8>(), 0..3_u8, 0..6_000_u64);
    (reasons, words, 1..5_usize).prop_map(
        |(stop_reason, (word, owner, tree, name, since), limit)| Step::List {
            owner: (word == 1).then_some(owner),
            status: Vec::new(),
            stop_reason,
            tree: (word == 2).then_some(tree),
            name: (word == 3).then_some(name),
            since: (word == 4).then_some(since),
            limit,
        },
    )
}

/// Runs in the order of their ends.
fn ended() -> impl Strategy<Value = Step> {
    let status = proptest::sample::subsequence(Status::ALL.to_vec(), 0..3);
    (option::of(0..2_u8), option::of(0..2_u8), status, 1..5_usize)
        .prop_map(|(owner, session, status, limit)| Step::Ended { owner, session, status, limit })
}

fn claim_steps() -> impl Strategy<Value = ClaimStep> {
    let slots = prop_oneof![1..4_u32, Just(u32::MAX)];
    let kind = prop_oneof![4 => Just(0_u8), 1 => Just(1)];
    let also = option::weighted(0.3, 0..2_u8);
    let drawn = (0..3_u8, kind, 0..6_usize, slots, also, 0..5_usize);
    drawn.prop_map(|(host, pin, limit, tree_slots, also, resumes)| ClaimStep {
        host,
        pin,
        limit,
        tree_slots,
        also,
        resumes,
    })
}

fn claims() -> impl Strategy<Value = Step> {
    claim_steps().prop_map(Step::Claim)
}

fn ends() -> impl Strategy<Value = Step> {
    proptest::sample::select(REASONS.to_vec()).prop_map(Step::RunToEnd)
}

/// Steps by which most runs end, for different reasons, and lists of them: among all steps few lists by
/// a reason have a run.
pub(crate) fn steps_to_ends() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => creations().prop_map(Step::Create),
        2 => claims(),
        8 => ends(),
        1 => changes().prop_map(Step::Append),
        1 => removals().prop_map(Step::Remove),
        8 => lists_of_ended(),
        4 => ended(),
    ];
    vec(step, 40..120)
}

/// Some steps, one after another.
pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let read = (0..24_u8, 0..6_u64, 0..6_usize);
    let held = (0..3_u8, option::of(0..24_u8), 0..5_usize);
    let batch = (0..24_u8, 0..2_u8, 0..4_u8, 1..4_usize, proptest::bool::weighted(0.1)).prop_map(
        |(id, agent, tick, entries, wrong_epoch)| {
            Step::Batch(Batch { id, agent, tick, entries, wrong_epoch })
        },
    );
    let entries = (0..2_u8, 0..4_usize).prop_map(|(agent, limit)| Step::Entries { agent, limit });
    let query = prop_oneof![
        any::<u8>().prop_map(ReportsOf::Tree),
        (0..2_u8, 0..2_u8).prop_map(|(session, owner)| ReportsOf::Conversation { session, owner }),
        option::of(0..2_u8).prop_map(|owner| ReportsOf::All { owner }),
        Just(ReportsOf::Due),
        (0..2_u8).prop_map(ReportsOf::DueTo),
    ];
    let reports = (query, prop_oneof![Just(0_u64), 0..200_u64], 0..6_usize)
        .prop_map(|(query, after, limit)| Step::Reports { query, after, limit });
    let changes_of =
        [ReportChange::Retry, ReportChange::Drop, ReportChange::Quiet, ReportChange::Block];
    let change = proptest::sample::select(changes_of.to_vec());
    let settled = prop_oneof![
        2 => Just(Settled::Delivered),
        3 => option::weighted(0.8, 0..800_u64).prop_map(|pause_ms| Settled::Failed { pause_ms }),
        1 => Just(Settled::Released),
    ];
    let of = prop_oneof![any::<u8>().prop_map(Ok), option::of(0..2_u8).prop_map(Err)];
    let dispatch = prop_oneof![
        2 => vec(0..3_u8, 0..3).prop_map(|subscribers| Step::NextDispatch { subscribers }),
        4 => (0..3_u8, 0..3_u8, 0..5_usize).prop_map(|(subscriber, host, limit)| {
            Step::TakeDispatches { subscriber, host, limit }
        }),
        4 => (1..30_u64, 0..3_u8, settled)
            .prop_map(|(number, host, outcome)| Step::SettleDispatch { number, host, outcome }),
        2 => (of, 0..20_u64, 0..9_usize)
            .prop_map(|(of, after, limit)| Step::Dispatches { of, after, limit }),
        1 => (1..30_u64, change.clone())
            .prop_map(|(number, change)| Step::ChangeDispatch { number, change }),
    ];
    let dispatch = prop_oneof![
        30 => dispatch,
        1 => (0..2_u8).prop_map(|owner| Step::ForgetDispatches { owner }),
    ];
    let step = prop_oneof![
        4 => batch,
        1 => entries,
        8 => creations().prop_map(Step::Create),
        10 => claims(),
        14 => changes().prop_map(Step::Append),
        2 => ends(),
        1 => Just(Step::Repeat),
        2 => lists(),
        2 => lists_of_ended(),
        1 => ended(),
        1 => read.prop_map(|(id, after, limit)| Step::Read { id, after, limit }),
        3 => (any::<u8>(), 0..ARTIFACTS).prop_map(|(run, number)| Step::Artifact { run, number }),
        2 => removals().prop_map(Step::Remove),
        1 => (0..2_u8, option::of(0..2_u8))
            .prop_map(|(session, owner)| Step::OpenSession { session, owner }),
        // Rarely, as nothing is created after it.
        1 => (0..40_u8, option::of(0..2_u8))
            .prop_map(|(session, owner)| Step::EndSession { session, owner }),
        1 => (0..2_u8, option::of(0..2_u8), 1..6_usize)
            .prop_map(|(session, owner, limit)| Step::ReadSession { session, owner, limit }),
        1 => (0..3_u8, 0..2_u8, 0..4_u32)
            .prop_map(|(host, pin, slots)| Step::Register { host, pin, slots }),
        1 => (0..3_u8).prop_map(|host| Step::Retire { host }),
        1 => held.prop_map(|(host, after, limit)| Step::Held { host, after, limit }),
        1 => Just(Step::Orphans),
        4 => reports,
        8 => dispatch,
        2 => (any::<u8>(), change).prop_map(|(run, change)| Step::ChangeReport { run, change }),
    ];
    vec(step, 1..120)
}
