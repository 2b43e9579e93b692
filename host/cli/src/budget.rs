//! The rest of the budgets of runs. Tokens and money are spent together with the runs beneath one, for
//! which its tree is read.

use std::collections::HashMap;
use std::time::Duration;

use taskrun::controller::Client;
use taskrun_journal::ids::RunId;
use taskrun_journal::message::Usage;
use taskrun_journal::run::Run;
use taskrun_journal::time::{Clock, Timestamp, millis};
use taskrun_policy::{AgentPolicy, Budget, Policy};

use crate::failure::Outcome;

/// The time for which trees are read at a look, on average: with four looks a second 2 % of a core,
/// however many trees there are and however large they are.
const READING: Duration = Duration::from_millis(5);

/// The tokens and the money, in millionths of a US dollar, that a run has left together with what is
/// beneath it.
pub(super) type TreeLeft = (Option<u64>, Option<u64>);

/// The rest of the budgets that runs spend together with those beneath them, as it was read last.
#[derive(Default)]
pub(super) struct Trees {
    /// With the time at which it was read, as the clock of this process has it.
    known: HashMap<RunId, (Duration, TreeLeft)>,
    /// The time that reading has taken and that no look has made up for.
    owed: Duration,
}

impl Trees {
    /// Reads the trees of these runs that may have runs beneath them, those first that were read
    /// longest ago, for as long as a look may take.
    ///
    /// # Errors
    /// Those of reading them.
    pub(super) async fn look(
        &mut self,
        (client, clock): (&Client, &dyn Clock),
        policy: &Policy,
        runs: &[Run],
    ) -> Outcome<()> {
        self.owed = self.owed.saturating_sub(READING);
        self.known.retain(|id, _| runs.iter().any(|run| run.id() == id));
        let sharing = runs.iter().filter_map(|run| {
            let agent = policy.agents.get(&run.spec.agent_name)?;
            may_have_descendants(agent).then(|| (run, budget(run, agent)))
        });
        let mut sharing: Vec<_> = sharing.collect();
        sharing.sort_by_key(|(run, _)| self.known.get(run.id()).map(|(at, _)| *at));
        for (run, budget) in sharing {
            if self.owed >= READING {
                break;
            }
            let begun = clock.monotonic();
            let left = client.left_with_descendants(run, &budget).await?;
            let at = clock.monotonic();
            self.owed = self.owed.saturating_add(at.saturating_sub(begun));
            self.known.insert(run.id().clone(), (at, left));
        }
        Ok(())
    }

    /// The rest of a run, if its tree was read.
    pub(super) fn left(&self, run: &RunId) -> Option<TreeLeft> {
        self.known.get(run).map(|(_, left)| *left)
    }
}

fn may_have_descendants(agent: &AgentPolicy) -> bool {
    !agent.members.is_empty() || !agent.callees.is_empty()
}

/// The budget of a run: of the policy as it is now, as the request narrowed it.
fn budget(run: &Run, agent: &AgentPolicy) -> Budget {
    let mut budget = agent.budget.clone();
    budget.narrow(&run.spec.narrow);
    budget
}

/// The consumption of a run by itself and of the runs that it has left behind.
fn used_by_itself(run: &Run) -> Usage {
    let state = &run.state;
    state.progress.usage().plus(state.step_usage).plus(state.rounds.settled)
}

/// The part of its budget of which a run has the least left, in percent. Where it may have runs
/// beneath it whose consumption is not known, the text says `own`.
pub(super) fn scarcest(
    run: &Run,
    policy: &Policy,
    tree: Option<TreeLeft>,
    now: Timestamp,
) -> Option<String> {
    let agent = policy.agents.get(&run.spec.agent_name)?;
    let (budget, state, used) = (budget(run, agent), &run.state, used_by_itself(run));
    let under_way = state.uncounted.map_or(Duration::ZERO, |stretch| now.since(stretch.from));
    let ran = state.ran_ms.saturating_add(millis(under_way));
    // Turns are those of the present round.
    let turns = state.turns.saturating_sub(state.rounds.before.0);
    let rounds = run.spec.autonomy.as_ref().and_then(|autonomy| autonomy.rounds);
    let alone = |cap: Option<u64>, used: u64| {
        let cap = cap.filter(|cap| *cap > 0)?;
        Some((cap, cap.saturating_sub(used), false))
    };
    let shared = |cap: Option<u64>, used: u64, left: Option<u64>| {
        let (cap, own, _) = alone(cap, used)?;
        // A tree that was read before the run itself was may have had more left.
        let left = left.map(|left| (cap, left.min(own), false));
        Some(left.unwrap_or((cap, own, may_have_descendants(agent))))
    };
    let (tokens, cost_microusd) = tree.unwrap_or_default();
    let kinds = [
        ("rounds", alone(rounds.map(u64::from), u64::from(state.rounds.ended))),
        ("turns", alone(budget.turns.map(u64::from), u64::from(turns))),
        ("tokens", shared(budget.tokens, used.total_tokens, tokens)),
        ("prompt tokens", shared(budget.prompt_tokens, used.prompt_tokens, None)),
        ("completion tokens", shared(budget.completion_tokens, used.completion_tokens, None)),
        ("usd", shared(budget.cost_microusd, used.cost_microusd, cost_microusd)),
        ("time", alone(budget.wall.map(millis), ran)),
    ];
    let left = kinds.into_iter().filter_map(|(kind, left)| {
        let (cap, left, is_own) = left?;
        Some((u128::from(left) * 100 / u128::from(cap), kind, is_own))
    });
    let (left, kind, is_own) = left.min()?;
    let own = if is_own { "own " } else { "" };
    Some(format!("{left}% {own}{kind}"))
}
