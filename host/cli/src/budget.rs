//! The rest of the budgets of runs. Tokens and money are spent together with the runs beneath one, for
//! which its tree is read.

use std::collections::HashMap;
use std::time::Duration;

use taskrun::controller::{Client, charged};
use taskrun_journal::ids::RunId;
use taskrun_journal::message::Usage;
use taskrun_journal::run::Run;
use taskrun_journal::time::{Clock, Timestamp, millis};
use taskrun_policy::{AgentPolicy, Budget, Policy};

use crate::failure::Outcome;

/// The time for which trees are read at a look, on average: with four looks a second 2 % of a core,
/// however many trees there are and however large they are.
const READING: Duration = Duration::from_millis(5);

/// The consumption of runs with those beneath them, as it was read last.
#[derive(Default)]
pub(crate) struct Trees {
    /// With the time at which it was read, as the clock of this process has it.
    known: HashMap<RunId, (Duration, Usage)>,
    /// The time that reading has taken and that no look has made up for.
    owed: Duration,
}

impl Trees {
    /// Reads the trees of these runs that may have runs beneath them, those first that were read
    /// longest ago, for as long as a look may take.
    ///
    /// # Errors
    /// Those of reading them.
    pub(crate) async fn look(
        &mut self,
        (client, clock): (&Client, &dyn Clock),
        policy: &Policy,
        runs: &[Run],
    ) -> Outcome<()> {
        self.owed = self.owed.saturating_sub(READING);
        self.known.retain(|id, _| runs.iter().any(|run| run.id() == id));
        let is_sharing = |run: &&Run| {
            let agent = policy.agents.get(&run.spec.agent_name);
            agent.is_some_and(|agent| {
                may_have_descendants(agent) && bounds_spending(&budget(run, agent))
            })
        };
        let mut sharing: Vec<_> = runs.iter().filter(is_sharing).collect();
        sharing.sort_by_key(|run| self.known.get(run.id()).map(|(at, _)| *at));
        for run in sharing {
            if self.owed >= READING {
                break;
            }
            let begun = clock.monotonic();
            let used = client.charged_with_descendants(run).await?;
            let at = clock.monotonic();
            self.owed = self.owed.saturating_add(at.saturating_sub(begun));
            self.known.insert(run.id().clone(), (at, used));
        }
        Ok(())
    }

    /// The consumption of a run with those beneath it, if its tree was read.
    pub(crate) fn used(&self, run: &RunId) -> Option<Usage> {
        self.known.get(run).map(|(_, used)| *used)
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

fn bounds_spending(budget: &Budget) -> bool {
    let tokens = [budget.tokens, budget.prompt_tokens, budget.completion_tokens];
    budget.cost_microusd.is_some() || tokens.iter().any(Option::is_some)
}

/// The part of its budget of which a run has the least left, in percent. Where it may have runs
/// beneath it whose consumption is not known, the text says `own`. `tree` is its consumption with
/// those, as it was read last.
pub(crate) fn scarcest(
    run: &Run,
    policy: &Policy,
    tree: Option<Usage>,
    now: Timestamp,
) -> Option<String> {
    let agent = policy.agents.get(&run.spec.agent_name)?;
    let (budget, state) = (budget(run, agent), &run.state);
    let own = charged(run).plus(state.step_usage);
    let under_way = state.uncounted.map_or(Duration::ZERO, |stretch| now.since(stretch.from));
    let ran = state.ran_ms.saturating_add(millis(under_way));
    // Turns are those of the present round.
    let turns = state.turns.saturating_sub(state.rounds.before.0);
    let rounds = run.spec.autonomy.as_ref().and_then(|autonomy| autonomy.rounds);
    let alone = |cap: Option<u64>, used: u64| {
        let cap = cap.filter(|cap| *cap > 0)?;
        Some((cap, cap.saturating_sub(used), false))
    };
    let shared = |cap: Option<u64>, used: fn(&Usage) -> u64| {
        // A tree that was read before the run itself was may have used less then.
        let all = tree.as_ref().map(used);
        let (cap, left, _) = alone(cap, used(&own).max(all.unwrap_or_default()))?;
        Some((cap, left, all.is_none() && may_have_descendants(agent)))
    };
    let kinds = [
        ("rounds", alone(rounds.map(u64::from), u64::from(state.rounds.ended))),
        ("turns", alone(budget.turns.map(u64::from), u64::from(turns))),
        ("tokens", shared(budget.tokens, |used| used.total_tokens)),
        ("prompt tokens", shared(budget.prompt_tokens, |used| used.prompt_tokens)),
        ("completion tokens", shared(budget.completion_tokens, |used| used.completion_tokens)),
        ("usd", shared(budget.cost_microusd, |used| used.cost_microusd)),
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
