//! The rest of what a run may spend: of its own budget, together with what is beneath it, and of
//! those of the runs above it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use taskrun_journal::event::Event;
use taskrun_journal::ids::RunId;
use taskrun_journal::message::Usage;
use taskrun_journal::narrowing::Narrowing;
use taskrun_journal::plan::{TerminationReason, ToolRequest};
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::Store;
use taskrun_policy::{Budget, Reserve};
use tokio::sync::OnceCell;

use super::missing;
use super::parts::Parts;
use super::recorder::Recorder;
use super::stop::Halt;
use super::subtree::{ContinuedRun, Subtree, charged};
use crate::scope::{BudgetReading, BudgetSource, Remaining};

/// The rest of the money and tokens that all runs of a tree spend together; `None` is not bounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TreeRemainder {
    pub(super) tokens: Option<u64>,
    pub(super) prompt_tokens: Option<u64>,
    pub(super) completion_tokens: Option<u64>,
    pub(super) cost_microusd: Option<u64>,
}

impl TreeRemainder {
    /// Of each amount nothing.
    const NOTHING: Self = Self {
        tokens: Some(0),
        prompt_tokens: Some(0),
        completion_tokens: Some(0),
        cost_microusd: Some(0),
    };

    /// This rest, with that of everything else.
    fn beside(self, counts: Remaining) -> Remaining {
        let Self { tokens, prompt_tokens, completion_tokens, cost_microusd } = self;
        Remaining { tokens, prompt_tokens, completion_tokens, cost_microusd, ..counts }
    }

    /// The rest of a budget after so much was used, without what is `kept` of it.
    pub(crate) fn of(budget: &Budget, used: Usage, kept: Reserve) -> Self {
        let rest = |cap: u64, used: u64, kept: u64| cap.saturating_sub(used).saturating_sub(kept);
        Self {
            tokens: budget.tokens.map(|cap| rest(cap, used.total_tokens, kept.tokens)),
            prompt_tokens: budget.prompt_tokens.map(|cap| rest(cap, used.prompt_tokens, 0)),
            completion_tokens: budget
                .completion_tokens
                .map(|cap| rest(cap, used.completion_tokens, 0)),
            cost_microusd: budget
                .cost_microusd
                .map(|cap| rest(cap, used.cost_microusd, kept.cost_microusd)),
        }
    }

    /// Of each amount the smaller.
    pub(crate) fn least(self, other: Self) -> Self {
        let least = |one: Option<u64>, other: Option<u64>| match (one, other) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        Self {
            tokens: least(self.tokens, other.tokens),
            prompt_tokens: least(self.prompt_tokens, other.prompt_tokens),
            completion_tokens: least(self.completion_tokens, other.completion_tokens),
            cost_microusd: least(self.cost_microusd, other.cost_microusd),
        }
    }

    /// The limit that is met.
    pub(crate) fn met(self) -> Option<TerminationReason> {
        match self {
            Self { prompt_tokens: Some(0), .. }
            | Self { completion_tokens: Some(0), .. }
            | Self { tokens: Some(0), .. } => Some(TerminationReason::TokenCap),
            Self { cost_microusd: Some(0), .. } => Some(TerminationReason::CostCap),
            Self { .. } => None,
        }
    }

    /// Takes away from a run what is more than this.
    pub(crate) fn bound(self, narrow: &mut Narrowing) {
        let bounds = self.least(Self {
            tokens: narrow.tokens,
            prompt_tokens: narrow.prompt_tokens,
            completion_tokens: narrow.completion_tokens,
            cost_microusd: narrow.cost_microusd,
        });
        narrow.tokens = bounds.tokens;
        narrow.prompt_tokens = bounds.prompt_tokens;
        narrow.completion_tokens = bounds.completion_tokens;
        narrow.cost_microusd = bounds.cost_microusd;
    }
}

/// True if a budget has a bound of money or tokens.
pub(crate) fn bounds_spending(budget: &Budget) -> bool {
    let tokens = [budget.tokens, budget.prompt_tokens, budget.completion_tokens];
    budget.cost_microusd.is_some() || tokens.iter().any(Option::is_some)
}

/// The tree of a run as it stood when it was first asked for: others spend meanwhile, so it is read
/// anew for what is decided after a step or a call.
#[derive(Default)]
pub(super) struct TreeSnapshot(OnceCell<Subtree>);

impl TreeSnapshot {
    async fn of(&self, parts: &Parts, run: &Run) -> Result<&Subtree, Halt> {
        let store = &*parts.env.store;
        let read = || Subtree::with_continued(store, &run.spec);
        self.0.get_or_try_init(read).await.map_err(Halt::Read)
    }
}

/// The money and tokens that a run spends.
enum Spending {
    /// By itself, or without a bound: this is left.
    Known(TreeRemainder),
    /// Together with others.
    Shared(Box<SharedSpending>),
}

/// The spending of a run that shares budgets with others: the rest follows from their tree.
struct SharedSpending {
    spec: Arc<RunSpec>,
    own: Budget,
    /// The budgets above it, the first run's first.
    ancestors: Vec<Budget>,
    /// The part that the run used itself.
    used: Usage,
    kept: Reserve,
}

impl SharedSpending {
    /// The rest of each budget, and the run whose it is: that of the run itself first.
    fn budgets<'s>(
        &'s self,
        tree: &'s Subtree,
    ) -> impl Iterator<Item = (&'s RunId, &'s Budget, TreeRemainder)> {
        let id = &self.spec.id;
        // What the step under way is on record with is counted by the step itself.
        let of_others = move |of| tree.usage_of_others(of, id);
        let own = TreeRemainder::of(&self.own, of_others(id).plus(self.used), self.kept);
        let above = tree.above(id).into_iter().zip(self.ancestors.iter().rev());
        let above = above.map(move |(above, budget)| {
            let used = of_others(above).plus(self.used.counted());
            (above, budget, TreeRemainder::of(budget, used, budget.reserve))
        });
        std::iter::once((id, &self.own, own)).chain(above)
    }

    fn left(&self, tree: &Subtree) -> TreeRemainder {
        let all = self.budgets(tree).map(|(.., left)| left);
        all.fold(TreeRemainder::default(), TreeRemainder::least)
    }
}

/// The rest of budgets that are shared, as a call reads it.
struct SharedBudget {
    store: Arc<dyn Store>,
    spending: Box<SharedSpending>,
    /// The rest of everything but money and tokens.
    counts: Remaining,
}

#[async_trait]
impl BudgetSource for SharedBudget {
    async fn read(&self) -> Remaining {
        let spec = &self.spending.spec;
        let left = match Subtree::with_continued(&*self.store, spec).await {
            Ok(tree) => self.spending.left(&tree),
            Err(error) => {
                let run = &spec.id;
                tracing::warn!(%run, %error, "a call is told that no budget is left");
                TreeRemainder::NOTHING
            }
        };
        left.beside(self.counts)
    }
}

/// The rest of the budgets that bound a run, as it stands.
pub(super) struct Allowance<'a> {
    parts: &'a Parts,
    recorder: &'a Recorder,
    tree: &'a TreeSnapshot,
}

impl<'a> Allowance<'a> {
    pub(super) fn new(parts: &'a Parts, recorder: &'a Recorder, tree: &'a TreeSnapshot) -> Self {
        Self { parts, recorder, tree }
    }

    /// The rest before another question to a model. `more` was used and is not on record;
    /// `last` says whether the reserve is to be spent, which is each run's own.
    pub(super) async fn left(&self, more: Usage, last: bool) -> Result<TreeRemainder, Halt> {
        let spending = match self.spending(more, last) {
            Spending::Known(left) => return Ok(left),
            Spending::Shared(spending) => spending,
        };
        let tree = self.tree.of(self.parts, self.recorder.run()).await?;
        Ok(spending.left(tree))
    }

    /// The budgets of tokens and money that bound the run, each with the run whose it is and the
    /// rest of it; that of the run itself first.
    pub(super) async fn budgets(&self) -> Result<Vec<(RunId, Budget, TreeRemainder)>, Halt> {
        let run = self.recorder.run();
        match self.spending(Usage::default(), false) {
            Spending::Known(left) => {
                Ok(vec![(run.id().clone(), self.parts.agent.budget.clone(), left)])
            }
            Spending::Shared(spending) => {
                let all = spending.budgets(self.tree.of(self.parts, run).await?);
                Ok(all.map(|(of, budget, left)| (of.clone(), budget.clone(), left)).collect())
            }
        }
    }

    /// The part of that which the run knows by itself.
    fn spending(&self, more: Usage, last: bool) -> Spending {
        let (run, own) = (self.recorder.run(), &self.parts.agent.budget);
        let ancestors = &self.parts.bounds.ancestors;
        if !bounds_spending(own) && !ancestors.iter().any(bounds_spending) {
            return Spending::Known(TreeRemainder::default());
        }
        let kept = if last { Reserve::default() } else { own.reserve };
        let used = charged(run).plus(more);
        // Nobody spends together with a run that is alone.
        let may_share = self.parts.may_have_started_runs(run) || ContinuedRun::of(run).is_some();
        if run.spec.depth == 0 && !may_share {
            return Spending::Known(TreeRemainder::of(own, used, kept));
        }
        let (spec, own) = (Arc::clone(&run.spec), own.clone());
        let ancestors = ancestors.clone();
        Spending::Shared(Box::new(SharedSpending { spec, own, ancestors, used, kept }))
    }

    /// The limit, beside that of time, that forbids another ordinary step.
    pub(super) async fn cap_before_step(&self) -> Result<Option<TerminationReason>, Halt> {
        let run = &self.recorder.run().state;
        // None of them keeps a run from its first step: without it there is nothing that could be
        // told of.
        if run.turns == 0 {
            return Ok(None);
        }
        let kept = self.parts.agent.budget.reserve.turns;
        let had = run.turns.saturating_sub(self.turns_before());
        let turns = self.parts.agent.budget.turns;
        if turns.is_some_and(|turns| had >= turns.saturating_sub(kept)) {
            return Ok(Some(TerminationReason::TurnCap));
        }
        if let Some(reason) = self.cap_with(&[]).await? {
            return Ok(Some(reason));
        }
        let failed = run.failures.are_too_many(Some(self.parts.agent.limits.tool_failures));
        let lacks = missing::ends_run(self.parts, self.recorder.work());
        Ok((failed || lacks).then_some(TerminationReason::FailureCap))
    }

    /// The turns before those that count: in a run that goes on by itself those of its present round
    /// do.
    fn turns_before(&self) -> u32 {
        self.recorder.run().state.rounds.before.0
    }

    /// The limit that forbids another round; `pending` is what of the present one is still to be
    /// written.
    pub(super) async fn cap_after_round(
        &self,
        pending: &[Event],
    ) -> Result<Option<TerminationReason>, Halt> {
        if self.recorder.is_out_of_time() {
            return Ok(Some(TerminationReason::TimeBudget));
        }
        self.cap_with(pending).await
    }

    /// The limit of money or tokens that is met, or of which the last step had too little left for
    /// a question to a model; `pending` is what is still to be written.
    pub(super) async fn cap_with(
        &self,
        pending: &[Event],
    ) -> Result<Option<TerminationReason>, Halt> {
        let used = pending.iter().fold(Usage::default(), |sum, event| sum.plus(used(event)));
        let met = self.left(used, false).await?.met();
        Ok(met.or(self.recorder.shortage.map(|shortage| shortage.limit)))
    }

    /// The limit that forbids to execute what was just decided; `pending` is what of the step is
    /// still to be written.
    pub(super) async fn cap_before_calls(
        &self,
        pending: &[Event],
        requests: &[ToolRequest],
    ) -> Result<Option<TerminationReason>, Halt> {
        let tool = |request: &ToolRequest| self.parts.code.tools.get(&request.name);
        let counts = |request: &ToolRequest| !tool(request).is_some_and(|tool| tool.is_own);
        if self.parts.tool_calls_left(self.recorder.run()) == Some(0) && requests.iter().any(counts)
        {
            return Ok(Some(TerminationReason::ToolCap));
        }
        if self.recorder.is_out_of_time() {
            return Ok(Some(TerminationReason::TimeBudget));
        }
        // A call that ends the run costs nothing more.
        let ends =
            |request: &ToolRequest| tool(request).is_some_and(|tool| tool.spec.hints.terminal);
        if requests.iter().all(ends) {
            return Ok(None);
        }
        self.cap_with(pending).await
    }

    /// The rest for a step.
    pub(super) async fn remaining(&self, turn: u32, last: bool) -> Result<Remaining, Halt> {
        let left = self.left(Usage::default(), last).await?;
        Ok(left.beside(self.counts(turn, last)))
    }

    /// The rest for calls of a turn that begin. Few of them ask for it: the tree is read when the
    /// first one does, and that it cannot be read is no matter of the others.
    pub(super) fn for_calls(&self, turn: u32) -> BudgetReading {
        let counts = self.counts(turn, false);
        let spending = match self.spending(Usage::default(), false) {
            Spending::Known(left) => return BudgetReading::new(left.beside(counts)),
            Spending::Shared(spending) => spending,
        };
        let store = Arc::clone(&self.parts.env.store);
        BudgetReading::new(SharedBudget { store, spending, counts })
    }

    /// The rest of everything but money and tokens.
    fn counts(&self, turn: u32, last: bool) -> Remaining {
        let kept = if last { 0 } else { self.parts.agent.budget.reserve.turns };
        let turns = self.parts.agent.budget.turns;
        let failures = &self.recorder.run().state.failures;
        Remaining {
            turns: turns.map(|cap| cap.saturating_sub(turn - self.turns_before() + kept)),
            tool_calls: self.parts.tool_calls_left(self.recorder.run()),
            tool_failures: Some(failures.left(self.parts.agent.limits.tool_failures)),
            states_cost: self.parts.bounds.states_cost,
            ..Remaining::default()
        }
    }

    /// The time that the run may work in all: that of its own budget, and at most the rest of those
    /// of the runs to which it is attached, which wait for it or end it with them.
    pub(super) async fn wall(&self) -> Result<Option<Duration>, Halt> {
        let (mut wall, ancestors) = (self.parts.agent.budget.wall, &self.parts.bounds.ancestors);
        if ancestors.iter().any(|budget| budget.wall.is_some()) {
            let mut spec = Arc::clone(&self.recorder.run().spec);
            for budget in ancestors.iter().rev() {
                let Some(id) = spec.parent_run_id.as_ref().filter(|_| spec.attached) else { break };
                let parent = self.parts.env.store.get(id).await.map_err(Halt::Read)?;
                let Some(parent) = parent else { break };
                let spent = Duration::from_millis(parent.state.ran_ms);
                let left = budget.wall.map(|wall| wall.saturating_sub(spent));
                wall = match (wall, left) {
                    (Some(wall), Some(left)) => Some(wall.min(left)),
                    (wall, left) => wall.or(left),
                };
                spec = parent.spec;
            }
        }
        Ok(wall)
    }
}

/// The usage that an event reports.
fn used(event: &Event) -> Usage {
    if let Event::AssistantMessage { usage: Some(usage), .. } | Event::Usage { usage } = event {
        return *usage;
    }
    Usage::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m_50_the_least_of_all_budgets_is_left_and_a_reserve_is_not() {
        let budget = |tokens, cost_microusd| Budget { tokens, cost_microusd, ..Budget::default() };
        let used = Usage { total_tokens: 30, cost_microusd: 7, ..Usage::default() };
        let kept = Reserve { turns: 0, tokens: 10, cost_microusd: 1 };
        let left = TreeRemainder::of(&budget(Some(100), Some(10)), used, kept);
        assert_eq!(
            left,
            TreeRemainder { tokens: Some(60), cost_microusd: Some(2), ..TreeRemainder::default() }
        );
        let other = TreeRemainder::of(&budget(Some(40), None), used, kept);
        assert_eq!(
            other,
            TreeRemainder { tokens: Some(0), cost_microusd: None, ..TreeRemainder::default() }
        );
        assert_eq!(
            left.least(other),
            TreeRemainder { tokens: Some(0), cost_microusd: Some(2), ..TreeRemainder::default() }
        );
        assert_eq!(left.met(), None);
        assert_eq!(other.met(), Some(TerminationReason::TokenCap));
        let spent =
            TreeRemainder { tokens: Some(1), cost_microusd: Some(0), ..TreeRemainder::default() };
        assert_eq!(spent.met(), Some(TerminationReason::CostCap));
        assert_eq!(TreeRemainder::default().met(), None);
    }
}
