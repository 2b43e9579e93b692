//! Every state that a few runs can come to: a breadth-first search over the state machine and the
//! schedule, through the store in memory.
//!
//! `cargo test -p taskrun-store explore` looks at a smaller instance; with the variable
//! `TASKRUN_EXPLORE=full` it looks at all of it, which is for `--release`. States count as one if
//! they differ in positions, epochs, ids and times alone, as long as the times have one order.

mod world;

use std::collections::HashMap;

use self::world::{Edge, Shape, World};

/// The instance that is explored.
#[derive(Clone, Copy, Debug)]
struct Instance {
    shape: Shape,
    /// Hosts that die, at most.
    crashes: u8,
    /// Requests of each kind: to cancel, to pause, to resume, to answer.
    requests: u8,
}

/// The states that were found, and the edges between them.
struct Graph {
    states: usize,
    /// By state: those from which one step of work leads to it.
    before: Vec<Vec<u32>>,
    /// States in which nothing is left to do.
    settled: Vec<u32>,
    /// By state: the one from which it was found first, and the step.
    found: Vec<Option<(u32, String)>>,
}

impl Graph {
    /// The steps that lead to a state.
    fn way_to(&self, state: usize) -> Vec<&str> {
        let mut steps = Vec::new();
        let mut found = &self.found[state];
        while let Some((from, step)) = found {
            steps.push(step.as_str());
            found = &self.found[*from as usize];
        }
        steps.reverse();
        steps
    }
}

/// # Panics
/// With the steps that lead there, if a state is found that must not be.
fn explore(instance: Instance) -> Graph {
    let mut graph = Graph { states: 0, before: vec![], settled: vec![], found: vec![] };
    let first = World::new(instance.shape, instance.crashes, instance.requests);
    let mut known = HashMap::from([(first.key(), 0_u32)]);
    let mut level = vec![(0_u32, first)];
    graph.before.push(Vec::new());
    graph.found.push(None);
    while !level.is_empty() {
        let mut next_level = Vec::new();
        for (number, world) in level {
            if let Err(wrong) = world.check() {
                let way = graph.way_to(number as usize);
                panic!("{wrong}, after {way:#?}\n{}", world.key());
            }
            if world.is_settled() {
                graph.settled.push(number);
            }
            for (edge, step, next) in world.steps() {
                let key = next.key();
                let to = known.get(&key).copied().unwrap_or_else(|| {
                    let to = u32::try_from(known.len()).expect("states fit into memory");
                    known.insert(key, to);
                    graph.before.push(Vec::new());
                    graph.found.push(Some((number, step.clone())));
                    next_level.push((to, next.clone()));
                    to
                });
                if let Err(wrong) = world.check_step(&next) {
                    panic!("{wrong}, by {step} after {:#?}", graph.way_to(number as usize));
                }
                match edge {
                    Edge::Work => graph.before[to as usize].push(number),
                    Edge::Request | Edge::Crash => {}
                }
            }
        }
        level = next_level;
    }
    graph.states = known.len();
    graph
}

/// The states from which no work leads to one in which nothing is left to do.
fn stuck(graph: &Graph) -> Vec<usize> {
    let mut ends = vec![false; graph.states];
    let mut open = graph.settled.clone();
    while let Some(state) = open.pop() {
        if !std::mem::replace(&mut ends[state as usize], true) {
            open.extend(&graph.before[state as usize]);
        }
    }
    (0..graph.states).filter(|state| !ends[*state]).collect()
}

fn assert_all_is_well(instance: Instance) {
    let graph = explore(instance);
    let stuck = stuck(&graph);
    let way = stuck.first().map(|state| graph.way_to(*state));
    assert!(stuck.is_empty(), "{} states lead nowhere; the first: {way:#?}", stuck.len());
    println!("{instance:?}: {} states, {} settled", graph.states, graph.settled.len());
}

#[test]
#[expect(clippy::disallowed_methods, reason = "how far a test looks is no setting of the product")]
fn no_state_of_three_runs_and_two_hosts_is_wrong_or_leads_nowhere() {
    let is_full = std::env::var("TASKRUN_EXPLORE").is_ok_and(|size| size == "full");
    let (crashes, requests) = if is_full { (2, 1) } else { (1, 0) };
    for shape in [Shape::Chain, Shape::Siblings] {
        assert_all_is_well(Instance { shape, crashes, requests });
    }
    if !is_full {
        assert_all_is_well(Instance { shape: Shape::Pair, crashes: 1, requests: 1 });
    }
}
