//! The runs for which a run waits, and what keeps it from going on.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use taskrun::controller::Client;
use taskrun::error::ControllerError;
use taskrun_journal::hold::{Hold, WaitMode};
use taskrun_journal::ids::RunId;
use taskrun_journal::list::Scope;
use taskrun_journal::run::Run;
use taskrun_journal::time::Timestamp;

use super::needs_answer;

/// The whole tree of a run, also the parts that the caller may not see: nothing of it is shown.
pub(super) async fn tree_of(
    client: &Client,
    run: &Run,
) -> Result<HashMap<RunId, Run>, ControllerError> {
    let client = client.controller().at(&Scope::tenant(&run.spec.tenant));
    let mut all = HashMap::from([(run.id().clone(), run.clone())]);
    // Without its first run, which somebody may have removed, it is looked at from here.
    let tree = match client.tree(run.spec.root_run_id.as_str()).await {
        Ok(tree) => tree,
        Err(ControllerError::NotFound { .. }) => client.tree(run.id().as_str()).await?,
        Err(error) => return Err(error),
    };
    let runs = std::iter::once(tree.run).chain(tree.descendants);
    all.extend(runs.map(|run| (run.id().clone(), run)));
    Ok(all)
}

/// The run, or one that it waits for, that needs an answer from outside and without which the run
/// does not go on. The caller may be one who does not see that run.
///
/// # Errors
/// Those of reading the tree of the run.
///
/// # Cancel safety
/// It only looks.
pub async fn asking_run(
    client: &Client,
    run: &Run,
    now: Timestamp,
) -> Result<Option<Run>, ControllerError> {
    match run.state.hold {
        Hold::Runs { .. } => {
            let tree = tree_of(client, run).await?;
            Ok(asking(run, &tree, now).cloned())
        }
        Hold::Nobody | Hold::Beat | Hold::Wanted { .. } | Hold::Host { .. } => {
            Ok(needs_answer(run, now).then(|| run.clone()))
        }
    }
}

/// The runs for which a run waits in the end, as they wait for no other ones, or the run itself
/// where it does not. The caller may be one who does not see them.
///
/// # Errors
/// Those of reading the tree of the run.
///
/// # Cancel safety
/// It only looks.
pub async fn awaited_runs(client: &Client, run: &Run) -> Result<Vec<Run>, ControllerError> {
    match run.state.hold {
        Hold::Runs { .. } => {
            let tree = tree_of(client, run).await?;
            Ok(awaited(run, &tree).into_iter().cloned().collect())
        }
        Hold::Nobody | Hold::Beat | Hold::Wanted { .. } | Hold::Host { .. } => {
            Ok(vec![run.clone()])
        }
    }
}

/// The finding about a run, or about those that it waits for, without which it does not go on.
/// `find` finds something about a run by itself, and tells if that weighs much: of runs that have to
/// end all, the first counts that weighs most; of those of which one is enough, the first that weighs
/// least, and none where one of them goes on.
///
/// # Errors
/// Those of reading the tree of the run.
///
/// # Cancel safety
/// It only looks.
pub async fn hindrance_of<T>(
    client: &Client,
    run: &Run,
    find: impl Fn(&Run) -> Option<(bool, T)>,
) -> Result<Option<T>, ControllerError> {
    let tree = match run.state.hold {
        Hold::Runs { .. } => tree_of(client, run).await?,
        Hold::Nobody | Hold::Beat | Hold::Wanted { .. } | Hold::Host { .. } => HashMap::new(),
    };
    Ok(hindrance(run, &tree, &find).map(|(_, found)| found))
}

/// The open runs for which a run waits in the end, or the run itself where it waits for none.
pub(super) fn awaited<'t>(run: &'t Run, tree: &'t HashMap<RunId, Run>) -> Vec<&'t Run> {
    let (mut open, mut seen, mut found) = (vec![run], HashSet::new(), Vec::new());
    while let Some(run) = open.pop() {
        match &run.state.hold {
            Hold::Runs { runs, .. } => {
                let runs = runs.iter().filter_map(|id| tree.get(id));
                open.extend(
                    runs.filter(|one| !one.status().is_terminal() && seen.insert(one.id())),
                );
            }
            Hold::Nobody | Hold::Beat | Hold::Wanted { .. } | Hold::Host { .. } => found.push(run),
        }
    }
    found
}

/// The run that needs an answer from outside and without which this one does not go on.
pub(super) fn asking<'t>(
    run: &'t Run,
    tree: &'t HashMap<RunId, Run>,
    now: Timestamp,
) -> Option<&'t Run> {
    let find = |run: &'t Run| needs_answer(run, now).then_some((false, run));
    hindrance(run, tree, &find).map(|(_, run)| run)
}

/// The finding of [`hindrance_of`] in a tree. A run that goes on at a time in any case is looked at
/// by itself.
fn hindrance<'t, T>(
    run: &'t Run,
    tree: &'t HashMap<RunId, Run>,
    find: &impl Fn(&'t Run) -> Option<(bool, T)>,
) -> Option<(bool, T)> {
    let Hold::Runs { runs, mode, until: None } = &run.state.hold else { return find(run) };
    // The store lets no run wait for one that waits for it, so this comes to an end.
    let found = runs.iter().map(|id| tree.get(id).and_then(|run| hindrance(run, tree, find)));
    match mode {
        WaitMode::All => found.flatten().min_by_key(|(is_grave, _)| !is_grave),
        WaitMode::Any => {
            let all: Vec<_> = found.collect::<Option<_>>()?;
            all.into_iter().min_by_key(|(is_grave, _)| *is_grave)
        }
    }
}
