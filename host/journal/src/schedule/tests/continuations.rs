//! The need of open runs for those that they continue.

use std::cell::Cell;
use std::convert::Infallible;

use super::super::{ContinuationNeeds, Successor, continuation_key};
use super::id;
use crate::machine::tests::spec;
use crate::spec::RunSpec;

/// The request of a run that is the first of its tree, by its place in a chain.
fn nth(n: usize) -> RunSpec {
    RunSpec { id: id(&format!("c{n}")), root_run_id: id(&format!("c{n}")), ..spec() }
}

/// Asks about the run at a place of a chain, of which each one continues the one before.
fn ask(
    needs: &mut ContinuationNeeds,
    chain: &[Successor],
    n: usize,
    wanted: (bool, bool),
    looks: &Cell<usize>,
) -> bool {
    let next = |key: String| -> Result<_, Infallible> {
        looks.set(looks.get() + 1);
        let before = (0..chain.len()).find(|n| continuation_key(&nth(*n).id) == key);
        Ok(before.and_then(|before| chain.get(before + 1)).cloned())
    };
    let Ok(is_needed) = needs.is_needed(&nth(n), wanted, next);
    is_needed
}

fn chain(has_usage: &[bool], is_last_open: bool) -> Vec<Successor> {
    let last = has_usage.len() - 1;
    let one = |(n, has_usage): (usize, &bool)| Successor {
        id: nth(n).id,
        is_open: is_last_open && n == last,
        has_usage: *has_usage,
    };
    has_usage.iter().enumerate().map(one).collect()
}

const WANTED: [(bool, bool); 4] = [(false, false), (false, true), (true, false), (true, true)];

#[test]
fn what_a_chain_needs_does_not_depend_on_what_was_asked_before() {
    for bits in 0..16_u32 {
        let has_usage: Vec<bool> = (0..4).map(|n| bits & (1 << n) != 0).collect();
        for is_last_open in [false, true] {
            let chain = chain(&has_usage, is_last_open);
            let looks = Cell::new(0);
            let questions: Vec<_> = (0..4).flat_map(|n| WANTED.map(|wanted| (n, wanted))).collect();
            let alone = |&(n, wanted): &(usize, (bool, bool))| {
                ask(&mut ContinuationNeeds::default(), &chain, n, wanted, &looks)
            };
            let expected: Vec<bool> = questions.iter().map(alone).collect();
            for ((n, (stays, counts)), answer) in questions.iter().zip(&expected) {
                let is_continued = is_last_open && *n < 3;
                let counts = *counts && !has_usage[n + 1..].contains(&true);
                assert_eq!(*answer, is_continued && (*stays || counts), "{chain:?}, {n}");
            }
            let forwards: Vec<usize> = (0..questions.len()).collect();
            let backwards = forwards.iter().rev().copied().collect();
            for order in [forwards, backwards] {
                let mut needs = ContinuationNeeds::default();
                for at in order {
                    let (n, wanted) = questions[at];
                    let answer = ask(&mut needs, &chain, n, wanted, &looks);
                    assert_eq!(answer, expected[at], "{chain:?}, {n}, {wanted:?}");
                }
            }
        }
    }
}

#[test]
fn each_run_of_a_chain_is_looked_at_twice_at_most() {
    for is_last_open in [false, true] {
        let chain = chain(&[false; 100], is_last_open);
        let (looks, mut needs) = (Cell::new(0), ContinuationNeeds::default());
        for n in 0..chain.len() {
            for wanted in WANTED {
                ask(&mut needs, &chain, n, wanted, &looks);
            }
        }
        assert!((100..=200).contains(&looks.get()), "{} looks", looks.get());
    }
}

#[test]
fn a_circle_that_the_rows_of_a_store_say_ends() {
    let chain = [Successor { id: nth(0).id, is_open: false, has_usage: false }];
    let next = |_: String| -> Result<_, Infallible> { Ok(chain.first().cloned()) };
    let Ok(is_needed) = ContinuationNeeds::default().is_needed(&nth(0), (true, true), next);
    assert!(!is_needed);
}
