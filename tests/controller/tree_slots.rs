//! A tree of three levels on four slots, its steps in a random order: each level starts the next one
//! by `spawn_task` and waits for it by `await_tasks`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use taskrun::error::ControllerError;
use taskrun::ports::planner::PlanInput;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::list::ListFilter;
use taskrun_journal::spec::TreeBounds;
use taskrun_journal::status::Status;
use tokio::sync::oneshot;

use super::common::soon;
use super::host_tools::{Next, leader_that, step};
use crate::native::{ClosurePlanner, Native, World, answer, request};

/// Names the variable with the number of interleavings.
const CASES: &str = "TASKRUN_TREE_CASES";
/// Interleavings unless [`CASES`] says otherwise.
const CASES_DEFAULT: u64 = 20;
const CHILDREN: usize = 8;
/// A root, its children, and theirs.
const RUNS: usize = 1 + CHILDREN + CHILDREN * CHILDREN;
const SLOTS: usize = 4;

/// Steps that wait until the test lets them go.
#[derive(Default)]
struct Turnstile(Mutex<Vec<oneshot::Sender<()>>>);

impl Turnstile {
    fn waiting(&self) -> MutexGuard<'_, Vec<oneshot::Sender<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn pass(&self) {
        let (go, goes) = oneshot::channel();
        self.waiting().push(go);
        goes.await.ok();
    }

    /// Lets one of those that wait go; false if there is none.
    fn let_go(&self, random: &mut Random) -> bool {
        let mut waiting = self.waiting();
        if waiting.is_empty() {
            return false;
        }
        let chosen = random.below(waiting.len());
        waiting.swap_remove(chosen).send(()).ok();
        true
    }
}

/// Numbers from a seed: xorshift64*.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(number).expect("31 bits") % bound
    }
}

/// Starts its children in one turn and waits for those that began.
fn starts(agent: &'static str) -> Vec<(&'static str, Value)> {
    vec![("spawn_task", json!({ "agent": agent, "message": "m" })); CHILDREN]
}

fn waits(said: &[Value]) -> Vec<(&'static str, Value)> {
    let ids: Vec<_> = said.iter().filter_map(|said| said.get("task_id")).collect();
    match ids.is_empty() {
        true => Vec::new(),
        false => vec![("await_tasks", json!({ "task_ids": ids }))],
    }
}

fn root_calls(_: &str, said: &[Value]) -> Vec<(&'static str, Value)> {
    match said.len() {
        0 => starts("middle"),
        CHILDREN => waits(said),
        _ => Vec::new(),
    }
}

fn middle_calls(_: &str, said: &[Value]) -> Vec<(&'static str, Value)> {
    match said.len() {
        0 => starts("leaf"),
        CHILDREN => waits(said),
        _ => Vec::new(),
    }
}

fn gated(turnstile: &Arc<Turnstile>, next: Next) -> ClosurePlanner {
    let turnstile = Arc::clone(turnstile);
    ClosurePlanner::new(move |input: PlanInput, _| {
        let turnstile = Arc::clone(&turnstile);
        async move {
            turnstile.pass().await;
            step(&input, next)
        }
    })
}

fn world(turnstile: &Arc<Turnstile>, slots: usize, bounds: TreeBounds) -> World {
    let mut world = World::new();
    world.settings.slots = slots;
    let tree = |agent: &mut taskrun::agents::Agent| agent.tree = bounds;
    leader_that(&mut world, ("root", &["middle"]), gated(turnstile, root_calls), tree);
    leader_that(&mut world, ("middle", &["leaf"]), gated(turnstile, middle_calls), tree);
    let turnstile = Arc::clone(turnstile);
    world.agent(
        "leaf",
        ClosurePlanner::new(move |_, _| {
            let turnstile = Arc::clone(&turnstile);
            async move {
                turnstile.pass().await;
                answer("done")
            }
        }),
    );
    world
}

/// Runs that hold a slot; those that wait hold none.
async fn running(host: &Native) -> usize {
    let filter = ListFilter { status: vec![Status::Running], ..ListFilter::default() };
    let page = host.client().list(&filter, None, RUNS).await.expect("lists");
    page.runs.len()
}

/// Plays one tree to its end; gives the most runs that were running at once.
async fn play(host: &Native, turnstile: &Turnstile, random: &mut Random) -> (String, usize) {
    play_as(&request("root", "x"), host, turnstile, random).await
}

async fn play_as(
    request: &SpawnRequest,
    host: &Native,
    turnstile: &Turnstile,
    random: &mut Random,
) -> (String, usize) {
    let id = host.spawn(request).await;
    let mut most = 0;
    let played = async {
        loop {
            // As many of the others come as the seed says, before the next one goes.
            for _ in 0..random.below(24) {
                tokio::task::yield_now().await;
            }
            most = running(host).await.max(most);
            if !turnstile.let_go(random) {
                if host.get(&id).await.status().is_terminal() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
    };
    soon("the tree ends", played).await;
    (id, most)
}

#[expect(clippy::disallowed_methods, reason = "tests are told by the environment how long to go")]
fn cases() -> u64 {
    let text = std::env::var(CASES).ok();
    text.map_or(CASES_DEFAULT, |text| text.parse().expect("a number"))
}

#[tokio::test]
async fn m_13_a_tree_of_three_levels_ends_on_four_slots_in_whatever_order() {
    let bounds = TreeBounds { depth: Some(2), runs: Some(128), slots: None };
    for seed in 0..cases() {
        let turnstile = Arc::new(Turnstile::default());
        // The host has no more slots than a tree, or twice as many.
        let slots = if seed % 2 == 0 { SLOTS } else { 2 * SLOTS };
        let host = world(&turnstile, slots, bounds).start().await;
        let (id, most) = play(&host, &turnstile, &mut Random::new(seed)).await;
        assert_eq!(most, SLOTS, "seed {seed}");
        let tree = host.client().tree(&id).await.expect("there");
        assert_eq!(tree.descendants.len() + 1, RUNS, "seed {seed}");
        let unfinished = tree.descendants.iter().find(|run| run.status() != Status::Completed);
        assert!(unfinished.is_none(), "seed {seed}: {unfinished:?}");
        assert_eq!(host.get(&id).await.status(), Status::Completed, "seed {seed}");
    }
}

#[tokio::test]
async fn m_13_with_the_defaults_the_runs_beyond_the_64th_are_refused_and_the_rest_end() {
    let turnstile = Arc::new(Turnstile::default());
    let host = world(&turnstile, SLOTS, TreeBounds::default()).start().await;
    let (id, most) = play(&host, &turnstile, &mut Random::new(1)).await;
    assert_eq!(most, SLOTS);
    let tree = host.client().tree(&id).await.expect("there");
    assert_eq!(tree.descendants.len() + 1, 64);
    assert!(tree.descendants.iter().all(|run| run.status() == Status::Completed));
    assert_eq!(host.get(&id).await.status(), Status::Completed);
    let said: String = tree.descendants.iter().filter_map(|run| run.state.reply.result()).collect();
    assert_eq!(said.matches("limit met: tree (64)").count(), RUNS - 64, "{said}");
}

#[tokio::test]
async fn m_14_a_tree_has_the_slots_of_its_first_agent_and_a_request_takes_some_away() {
    let all = TreeBounds { runs: Some(128), ..TreeBounds::default() };
    let of = |slots: u32| TreeBounds { slots: Some(slots), ..all };
    let asked = |slots: u32| TreeBounds { slots: Some(slots), ..TreeBounds::default() };
    let cases = [
        (of(2), TreeBounds::default(), 2),
        (of(9), TreeBounds::default(), 9),
        (of(9), asked(1), 1),
        (of(2), asked(64), 2),
        (all, asked(64), SLOTS),
    ];
    for (bounds, tree, most) in cases {
        let turnstile = Arc::new(Turnstile::default());
        let host = world(&turnstile, 16, bounds).start().await;
        let request = SpawnRequest { tree, ..request("root", "x") };
        let mut random = Random::new(1);
        let (id, played) = play_as(&request, &host, &turnstile, &mut random).await;
        assert_eq!(played, most, "{bounds:?} {tree:?}");
        assert_eq!(host.get(&id).await.status(), Status::Completed);
        let beneath = host.client().tree(&id).await.expect("there").descendants;
        assert_eq!(beneath.len() + 1, RUNS, "{bounds:?} {tree:?}");
    }
}

#[tokio::test]
async fn m_13_a_request_bounds_depth_and_size_of_its_tree_and_only_its_own() {
    let turnstile = Arc::new(Turnstile::default());
    let host = world(&turnstile, 16, TreeBounds::default()).start().await;
    let cases = [
        (
            TreeBounds { depth: Some(1), ..TreeBounds::default() },
            1 + CHILDREN,
            "nested task runs are not supported",
        ),
        (TreeBounds { runs: Some(12), ..TreeBounds::default() }, 12, "limit met: tree (12)"),
    ];
    for (tree, runs, refusal) in cases {
        let request = SpawnRequest { tree, ..request("root", "x") };
        let (id, _) = play_as(&request, &host, &turnstile, &mut Random::new(1)).await;
        let beneath = host.client().tree(&id).await.expect("there").descendants;
        assert_eq!(beneath.len() + 1, runs, "{tree:?}");
        let said: String = beneath.iter().filter_map(|run| run.state.reply.result()).collect();
        assert!(said.contains(refusal), "{tree:?}: {said}");
    }
    for tree in [
        TreeBounds { slots: Some(0), ..TreeBounds::default() },
        TreeBounds { runs: Some(0), ..TreeBounds::default() },
    ] {
        let refused = host.client().spawn(&SpawnRequest { tree, ..request("root", "x") }).await;
        assert!(matches!(refused, Err(ControllerError::Invalid { field: "tree", .. })), "{tree:?}");
    }
}
