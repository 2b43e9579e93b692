//! Whatever is done to them, both stores answer alike, and claims take what the rules say.

#[path = "agreement/answer.rs"]
mod answer;
mod common;
#[path = "agreement/rules.rs"]
mod rules;
#[path = "agreement/steps.rs"]
mod steps;

use answer::{AnswerMemory, answer};
use common::*;
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use rules::{check_promises, to_be_claimed};
use steps::{Step, steps, steps_to_ends};
use taskrun_store::StoreThreads;

/// Milliseconds from one step to the next, so that pauses after crashes end within a few.
const STEP_MS: u64 = 100;

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn both_stores_answer_alike(steps in steps()) {
        are_alike(&steps)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn both_stores_list_alike_by_the_reasons_for_which_runs_end(steps in steps_to_ends()) {
        are_alike(&steps)?;
    }
}

/// Does the same to both stores.
fn are_alike(steps: &[Step]) -> TestCaseResult {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (memory, sqlite) = (Fixture::memory(), Fixture::sqlite(StoreThreads::Own));
        let (mut told, mut told_too) = (AnswerMemory::default(), AnswerMemory::default());
        for (step, number) in steps.iter().zip(1_u64..) {
            let now = number * STEP_MS;
            let expected = match step {
                Step::Claim(claim) => {
                    Some(to_be_claimed(&*memory.store, &told.accepted, &claim.at(now)).await)
                }
                Step::Create(_)
                | Step::Append(_)
                | Step::RunToEnd(_)
                | Step::Batch(_)
                | Step::Entries { .. }
                | Step::Repeat
                | Step::List { .. }
                | Step::Ended { .. }
                | Step::Read { .. }
                | Step::Artifact { .. }
                | Step::Remove(_)
                | Step::OpenSession { .. }
                | Step::EndSession { .. }
                | Step::ReadSession { .. }
                | Step::Register { .. }
                | Step::Retire { .. }
                | Step::Held { .. }
                | Step::Orphans
                | Step::Reports { .. }
                | Step::ChangeReport { .. }
                | Step::NextDispatch { .. }
                | Step::TakeDispatches { .. }
                | Step::SettleDispatch { .. }
                | Step::Dispatches { .. }
                | Step::ChangeDispatch { .. }
                | Step::ForgetDispatches { .. } => None,
            };
            // A claim that comes with a run takes what it would take after it.
            (told.in_two, told_too.in_two) = (number % 2 == 0, number % 2 == 1);
            let one = answer(&*memory.store, step, now, &mut told).await;
            let other = answer(&*sqlite.store, step, now, &mut told_too).await;
            prop_assert_eq!(one, other, "{:?}", step);
            if let Some(expected) = expected {
                prop_assert_eq!(&told.claimed, &expected, "{:?}", step);
            }
            if matches!(step, Step::Create(_) | Step::Append(_) | Step::RunToEnd(_)) {
                check_promises(&*memory.store, &told.accepted).await;
            }
        }
        Ok(())
    })
}
