//! The journal of a run that others pause is read for that once, from its last fold on, whichever
//! executions of them pause it.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use taskrun::ports::planner::PlanInput;
use taskrun::scope::RunsQuestion;
use taskrun_journal::autonomy::AutonomyMode;
use taskrun_journal::event::EventRecord;
use taskrun_journal::ids::{RunId, Seq};
use taskrun_journal::layer::Layer;
use taskrun_journal::question::Answer;
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_journal::store::{Store, StoreError};
use taskrun_journal::tool::ToolHints;
use taskrun_policy::{AutonomySettings, InterruptionPolicy};
use taskrun_store::MemoryStore;

use super::common::{beneath, following, named, task_tools};
use crate::native::{ClosurePlanner, ClosureTool, Gate, Native, World, answer, call_of, value};

/// So much is written in the first round that a fold of the journal is kept at its end.
const LONG: usize = 80 << 10;

/// The positions after which somebody read the journal of the run `2`.
type Places = Arc<Mutex<Vec<Seq>>>;

/// A store that notes these.
struct Noting {
    inner: Arc<MemoryStore>,
    places: Places,
}

#[async_trait]
impl Layer for Noting {
    fn behind(&self) -> &dyn Store {
        &*self.inner
    }

    async fn read(
        &self,
        id: &RunId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<EventRecord>, StoreError> {
        if id.as_str() == "2" {
            self.places.lock().expect("unharmed").push(after);
        }
        self.inner.read(id, after, limit).await
    }
}

/// The answer to a question of the run `1`, once that waits for it in this turn.
async fn answered(host: &Native, turn: u32) {
    let asks = |run: &Run| (run.status(), run.state.turns) == (Status::Blocked, turn);
    host.until("1", "asks", asks).await;
    host.client().answer("1", None, Answer::Text("yes".to_owned())).await.expect("taken");
}

#[tokio::test]
async fn a_pause_reads_of_a_journal_what_follows_on_its_fold_and_nothing_twice() {
    let (memory, places) = (Arc::new(MemoryStore::new()), Places::default());
    let store = Noting { inner: Arc::clone(&memory), places: Arc::clone(&places) };
    let mut world = World::over(Arc::new(store), memory.clone(), memory);
    let long = ClosureTool::new("f", ToolHints::default(), |_, _| async {
        value(&format!("\"{}\"", "x".repeat(LONG)))
    });
    world.tool("long", InterruptionPolicy::Fail, long);
    let pauses = ClosureTool::new("f", ToolHints::default(), |_, scope| async move {
        let paused = scope.ask(RunsQuestion::pause("2".to_owned(), None, None)).await;
        assert!(paused.expect("it is paused").changed);
        let resumed = scope.ask(RunsQuestion::resume("2".to_owned(), None)).await;
        assert!(resumed.expect("it goes on").changed);
        value("1")
    });
    world.tool("pause", InterruptionPolicy::Fail, pauses);
    let handle = task_tools(&mut world);
    let gate = Gate::new();
    let at = gate.clone();
    let child = ClosurePlanner::new(move |input: PlanInput, _| {
        let at = at.clone();
        async move {
            match input.run.turn {
                1 => call_of(&[("1", "long/f", "{}")]),
                2 => answer("a round"),
                3 => call_of(&[("2", "long/f", "{}")]),
                _ => {
                    at.pass().await;
                    answer("done")
                }
            }
        }
    });
    world.agent_with("child", child, |agent| {
        let (mode, rounds) = (Some(AutonomyMode::Standing), Some(2));
        agent.autonomous = Some(AutonomySettings { mode, rounds, ..Default::default() });
    });
    let ask = |id: &'static str| vec![(id, "ask/f", "\"Go on?\"")];
    let pause = |id: &'static str| vec![(id, "pause/f", "{}")];
    world.agent("a", following(vec![ask("q1"), pause("p1"), ask("q2"), pause("p2")]));
    let host = world.start().await;
    handle.set(&host);
    host.spawn(&named("1", "a")).await;
    host.reach("1", Status::Blocked).await;
    host.spawn(&beneath("1", "2", "child")).await;
    gate.reached_by(1).await;
    let fold = host.get("2").await.state.rounds.fold.expect("it is kept").seq;
    places.lock().expect("unharmed").clear();
    answered(&host, 1).await;
    answered(&host, 3).await;
    assert_eq!(host.end("1").await.status(), Status::Completed);
    let places = places.lock().expect("unharmed").clone();
    assert!(places.iter().all(|place| *place >= fold), "{places:?} and not before {fold}");
    assert_eq!(places.iter().filter(|place| **place == fold).count(), 1, "{places:?}");
}
