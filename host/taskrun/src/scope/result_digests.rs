//! Digests of results of tools, by which a plan step reads one that its conversation leaves out.
//! Next to no result is ever read so: a digest is taken when a step looks for one.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use taskrun_journal::artifact::digest;
use taskrun_journal::ids::Seq;
use taskrun_journal::tool::{ToolOutcome, ToolOutput};

use super::digest::PIECE_BYTES;

/// Least bytes that a result counts for among those that are hashed: to keep its digest takes about
/// as long as to hash so many.
const RESULT_BYTES_MIN: usize = 1 << 10;

/// The digests of the results of a conversation, as far as a step has looked for one. Copies share
/// what they know, and are of one list of results, which only grows.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResultDigests(Arc<Mutex<KnownDigests>>);

/// The digests of the first results of a conversation.
#[derive(Debug, Default)]
struct KnownDigests {
    /// The number of those results.
    results: usize,
    /// The positions in the run's journal of those that stand there, by their digests.
    places: BTreeMap<String, Seq>,
}

impl ResultDigests {
    fn lock(&self) -> MutexGuard<'_, KnownDigests> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The results of tools that the conversation of a plan step has, which the step reads by the
/// digests of their bytes. The default is none.
#[derive(Clone, Debug, Default)]
pub struct StepResults {
    outputs: Arc<Vec<ToolOutput>>,
    places: Arc<Vec<Option<Seq>>>,
    digests: ResultDigests,
}

impl StepResults {
    /// These results, with the position of each in the run's journal, if it stands there, and the
    /// digests that are known of them.
    pub(crate) fn new(
        outputs: Arc<Vec<ToolOutput>>,
        places: Arc<Vec<Option<Seq>>>,
        digests: ResultDigests,
    ) -> Self {
        Self { outputs, places, digests }
    }

    /// The position in the run's journal of a result with this digest; `None` if none has it. Each
    /// result is hashed once, whatever a guest looks for, and others have their turn meanwhile.
    ///
    /// # Cancel safety
    /// Dropping the future loses no digest that was taken.
    pub(crate) async fn place(&self, hash: &str) -> Option<Seq> {
        loop {
            match self.look(hash) {
                ControlFlow::Break(place) => return place,
                ControlFlow::Continue(()) => tokio::task::yield_now().await,
            }
        }
    }

    /// Looks among the digests that are known, and then at some more results.
    fn look(&self, hash: &str) -> ControlFlow<Option<Seq>> {
        let mut known = self.digests.lock();
        if let Some(place) = known.places.get(hash) {
            return ControlFlow::Break(Some(*place));
        }
        let mut bytes = 0;
        while let Some(output) = self.outputs.get(known.results) {
            if bytes >= PIECE_BYTES {
                return ControlFlow::Continue(());
            }
            let place = self.places.get(known.results).copied().flatten();
            known.results += 1;
            let (Some(place), ToolOutcome::Value(value)) = (place, &output.outcome) else {
                continue;
            };
            bytes += value.len().max(RESULT_BYTES_MIN);
            // A value that is left out was named then.
            let name = match &output.artifact {
                Some(named) => named.hash.clone(),
                None => digest(value.as_bytes()),
            };
            let is_it = name == hash;
            known.places.insert(name, place);
            if is_it {
                return ControlFlow::Break(Some(place));
            }
        }
        ControlFlow::Break(None)
    }
}

#[cfg(test)]
mod tests {
    use taskrun_journal::artifact::ArtifactRef;
    use taskrun_journal::message::ToolError;
    use taskrun_journal::tool::ToolFailure;

    use super::*;

    fn output(value: &str) -> ToolOutput {
        ToolOutput::plain("t/f", "c", "{}", ToolOutcome::Value(value.to_owned()))
    }

    /// These results, at the positions from 1 on.
    fn results(values: &[&str]) -> StepResults {
        let outputs = Arc::new(values.iter().map(|value| output(value)).collect::<Vec<_>>());
        let places = Arc::new((1..).map(Some).take(values.len()).collect());
        StepResults::new(outputs, places, ResultDigests::default())
    }

    fn hash(value: &str) -> String {
        digest(value.as_bytes())
    }

    fn hashed(results: &StepResults) -> usize {
        results.digests.lock().results
    }

    #[tokio::test]
    async fn no_result_is_hashed_before_somebody_looks_for_one_and_none_twice() {
        let some = results(&["1", "2", "3"]);
        assert_eq!(hashed(&some), 0);
        assert_eq!(some.place(&hash("2")).await, Some(2));
        assert_eq!(hashed(&some), 2, "as far as it looked");
        assert_eq!(some.place(&hash("1")).await, Some(1));
        assert_eq!(hashed(&some), 2);
        for number in 0..1_000 {
            assert_eq!(some.place(&hash(&format!("nobody's {number}"))).await, None);
            assert_eq!(hashed(&some), 3);
        }
        // The next step has one more, and what this one knows.
        let more = results(&["1", "2", "3", "4"]);
        let next = StepResults::new(more.outputs, more.places, some.digests.clone());
        assert_eq!(next.place(&hash("3")).await, Some(3));
        assert_eq!(hashed(&next), 3);
        assert_eq!(next.place(&hash("4")).await, Some(4));
        assert_eq!(hashed(&some), 4);
    }

    #[tokio::test]
    async fn one_that_was_named_is_found_by_its_name_and_nothing_else_by_what_stands_there() {
        let named = ArtifactRef { hash: hash("whole"), size: 5 };
        let left_out = ToolOutput { artifact: Some(named), ..output("null") };
        let error = ToolError::coded("x", "no");
        let failure = ToolOutcome::Failure(ToolFailure { error, retry_hint: None });
        let failed = ToolOutput::plain("t/f", "c", "{}", failure);
        let outputs = Arc::new(vec![output("theirs"), failed, left_out]);
        let places = Arc::new(vec![None, Some(2), Some(3)]);
        let results = StepResults::new(outputs, places, ResultDigests::default());
        assert_eq!(results.place(&hash("whole")).await, Some(3));
        for other in ["null", "no", "theirs", ""] {
            assert_eq!(results.place(&hash(other)).await, None, "{other}");
        }
        assert_eq!(StepResults::default().place(&hash("whole")).await, None);
    }

    #[tokio::test]
    async fn others_have_their_turn_while_many_results_are_hashed() {
        let large = "x".repeat(PIECE_BYTES);
        let some = results(&[large.as_str(), large.as_str(), "1"]);
        let unknown = hash("nobody's");
        let mut looked = Box::pin(some.place(&unknown));
        for number in 1..3 {
            assert!(futures::poll!(&mut looked).is_pending(), "{number}");
            assert_eq!(hashed(&some), number);
        }
        assert_eq!(looked.await, None);
        let small = vec!["1"; 10 * PIECE_BYTES / RESULT_BYTES_MIN];
        let many = results(&small);
        let mut looked = Box::pin(many.place(&unknown));
        assert!(futures::poll!(&mut looked).is_pending());
        assert!(hashed(&many) < small.len() / 5);
        assert_eq!(looked.await, None);
    }
}
