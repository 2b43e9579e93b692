//! A model of the controller agrees with the real one over random operations.
//!
//! The real controllers share a store in memory and one runtime whose own time is paused: it moves
//! only when nobody can do anything, so "at rest" is a fact and not a guess, and a case takes
//! milliseconds. The time that the controllers see stands still until an operation moves it.
//!
//! A case that fails is shrunk, and printed with its seed.

mod accept;
mod act;
mod bench;
mod guests;
mod known;
mod laws;
mod ops;
mod process;
mod queue;
mod reference;

use std::hash::{BuildHasher, RandomState};

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use self::bench::{Bench, within};
use self::ops::{Case, cases};

/// Cases unless [`CASES`] says otherwise.
const CASES_DEFAULT: u32 = 500;
/// Names the variable with the number of cases.
const CASES: &str = "TASKRUN_MODEL_CASES";
/// Names the variable with the seed, to see a failure again.
const SEED: &str = "TASKRUN_MODEL_SEED";

#[expect(clippy::disallowed_methods, reason = "tests are told by the environment how long to go")]
fn setting<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, which is no number")))
}

#[test]
fn the_model_and_the_controller_agree_over_random_operations() {
    let seed = setting(SEED).unwrap_or_else(|| RandomState::new().hash_one(0));
    let config = Config {
        cases: setting(CASES).unwrap_or(CASES_DEFAULT),
        failure_persistence: None,
        max_shrink_iters: 4_000,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&u64::to_le_bytes(seed));
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let ran = runner.run(&cases(), |case| run(&case).map_err(TestCaseError::fail));
    match ran {
        Ok(()) => {}
        Err(TestError::Fail(why, case)) => {
            let ops: Vec<String> = case.ops.iter().map(|op| format!("  {op:?}")).collect();
            let (slots, tree_slots, ops) = (case.slots, case.tree_slots, ops.join("\n"));
            panic!(
                "{why}\nwith {slots} slots, {tree_slots} of a tree, after\n{ops}\n\
                 see it again with {SEED}={seed}"
            )
        }
        Err(TestError::Abort(why)) => panic!("{why}; {SEED}={seed}"),
    }
}

fn run(case: &Case) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let mut bench = Bench::new(case).await?;
        let mut at_rest = true;
        for (number, op) in case.ops.iter().enumerate() {
            let told = |error: String| format!("at operation {number}, {op:?}: {error}");
            if !at_rest && !op.leaves_unrest() {
                bench.rest().await.map_err(told)?;
            }
            within("the operation", bench.act(op)).await?.map_err(told)?;
            // What was taken goes on by itself.
            at_rest = !op.leaves_unrest() || bench.shared.has_claims();
            if at_rest {
                bench.rest().await.map_err(told)?;
            }
        }
        bench.rest().await.map_err(|error| format!("at the end: {error}"))
    })
}
