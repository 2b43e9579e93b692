//! Operations on controllers, at random.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::{Just, Strategy, any, prop_oneof};

use super::known::Kind;

/// A case: its bounds, and what is done.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) slots: usize,
    pub(super) tree_slots: u32,
    pub(super) ops: Vec<Op>,
}

/// A run to spawn. Numbers name runs by the order in which they were asked for, counted back from
/// the last one.
#[derive(Clone, Debug)]
pub(super) struct Spawn {
    pub(super) kind: Kind,
    pub(super) parent: Option<u8>,
    /// The id of this run instead of one of its own.
    pub(super) id_of: Option<u8>,
    /// Counted from that of the parent, if there is one.
    pub(super) owner: usize,
    pub(super) session: usize,
    pub(super) priority: i32,
    pub(super) serial: bool,
    pub(super) key: Option<u8>,
    pub(super) refuse: bool,
    pub(super) timeout_ms: Option<u64>,
    pub(super) wait_ms: Option<u64>,
    /// 0 is the run itself.
    pub(super) awaited: Vec<u8>,
    pub(super) any: bool,
}

/// A way in which something is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    Right,
    Blank,
    OfAnotherKind,
    ToAnotherItem,
}

/// One thing that is done.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Spawn(Spawn),
    /// The same request as for this run once more.
    Repeat(u8),
    /// A request that cannot be accepted.
    Bad(u8),
    Cancel {
        run: u8,
        tree: bool,
    },
    Answer {
        run: u8,
        said: Said,
    },
    Pause(u8),
    Resume(u8),
    Release(u8),
    Advance(u64),
    /// The first or second worker, if it lives.
    Kill(usize),
    /// Those that were killed were not dead and go on.
    Revive,
    HandOver(usize),
    Close(usize),
    /// A worker, unless there are two.
    Start,
    Sweep,
    Wait(u8),
    List {
        status: u8,
        owner: Option<usize>,
        parent: Option<u8>,
        limit: usize,
    },
    GetAs {
        run: u8,
        owner: usize,
        session: Option<usize>,
    },
    EndSession(usize),
    Gc(u64),
}

impl Op {
    /// True if the world may go on before everything is at rest.
    pub(super) fn leaves_unrest(&self) -> bool {
        matches!(self, Self::Spawn(_) | Self::Cancel { .. } | Self::Repeat(_) | Self::Bad(_))
    }
}

fn spawn() -> impl Strategy<Value = Spawn> {
    let kind = prop_oneof![
        3 => Just(Kind::Gate),
        2 => Just(Kind::Quick),
        2 => Just(Kind::Await),
        2 => Just(Kind::Ask),
        1 => Just(Kind::Again),
        1 => Just(Kind::Once),
        1 => Just(Kind::Fail),
        1 => Just(Kind::Mortal),
        1 => Just(Kind::Final),
        1 => Just(Kind::Stubborn),
        1 => Just(Kind::Slow),
    ];
    let rare = |of| option::weighted(0.07, of);
    let who = (
        prop_oneof![5 => Just(0_usize), 1 => Just(1)],
        0_usize..2,
        option::weighted(0.5, 0_u8..4),
        rare(0_u8..6),
    );
    let how = (-1_i32..=1, prop_oneof![4 => Just(false), 1 => Just(true)], rare(0_u8..2));
    let refuse = prop_oneof![7 => Just(false), 1 => Just(true)];
    let times = (option::weighted(0.3, Just(2_000_u64)), option::weighted(0.3, Just(1_000_u64)));
    let waits = (vec(0_u8..4, 1..4), any::<bool>());
    (kind, who, how, refuse, times, waits).prop_map(|(kind, who, how, refuse, times, waits)| {
        let hears = kind == Kind::Stubborn;
        Spawn {
            kind,
            owner: who.0,
            session: who.1,
            parent: who.2,
            id_of: who.3,
            priority: how.0,
            serial: how.1,
            key: how.2,
            refuse,
            // One that hears is given its grace then, and is neither here nor there.
            timeout_ms: times.0.filter(|_| !hears),
            wait_ms: times.1,
            awaited: waits.0,
            any: waits.1,
        }
    })
}

fn op() -> impl Strategy<Value = Op> {
    let said = prop_oneof![
        4 => Just(Said::Right),
        1 => Just(Said::Blank),
        1 => Just(Said::OfAnotherKind),
        1 => Just(Said::ToAnotherItem),
    ];
    let times = prop_oneof![
        Just(1_u64),
        Just(499),
        Just(500),
        Just(1_000),
        Just(2_000),
        Just(5_000),
        Just(60_000)
    ];
    let list = (0_u8..9, option::of(0_usize..2), option::weighted(0.3, 0_u8..8), 1_usize..5);
    prop_oneof![
        16 => spawn().prop_map(Op::Spawn),
        1 => (0_u8..8).prop_map(Op::Repeat),
        1 => (0_u8..5).prop_map(Op::Bad),
        6 => (0_u8..6, any::<bool>()).prop_map(|(run, tree)| Op::Cancel { run, tree }),
        4 => (0_u8..8, said).prop_map(|(run, said)| Op::Answer { run, said }),
        4 => (0_u8..6).prop_map(Op::Pause),
        4 => (0_u8..8).prop_map(Op::Resume),
        6 => (0_u8..8).prop_map(Op::Release),
        4 => times.prop_map(Op::Advance),
        2 => (0_usize..2).prop_map(Op::Kill),
        1 => Just(Op::Revive),
        1 => (0_usize..2).prop_map(Op::HandOver),
        1 => (0_usize..2).prop_map(Op::Close),
        3 => Just(Op::Start),
        1 => Just(Op::Sweep),
        1 => (0_u8..8).prop_map(Op::Wait),
        1 => list.prop_map(|(status, owner, parent, limit)| {
            Op::List { status, owner, parent, limit }
        }),
        1 => (0_u8..8, 0_usize..2, option::of(0_usize..2)).prop_map(|(run, owner, session)| {
            Op::GetAs { run, owner, session }
        }),
        1 => (0_usize..8).prop_map(|session| Op::EndSession(session.min(1))),
        1 => prop_oneof![Just(0_u64), Just(1_000)].prop_map(Op::Gc),
    ]
}

/// All cases.
pub(super) fn cases() -> impl Strategy<Value = Case> {
    (1_usize..=3, 1_u32..=2, vec(op(), 1..30)).prop_map(|(slots, tree_slots, ops)| Case {
        slots,
        tree_slots,
        ops,
    })
}
