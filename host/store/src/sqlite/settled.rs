//! Runs that count no longer in their tree: their column `tree` is the number of it, less than zero.

use rusqlite::{Connection, params};
use taskrun_journal::ids::RunId;

use super::fault::Fault;
use super::schema::TERMINAL;
use super::trees;

/// Has runs that ended count no longer in the tree of this root.
pub(super) fn settle(db: &Connection, root: &RunId, runs: &[RunId]) -> Result<(), Fault> {
    if runs.is_empty() {
        return Ok(());
    }
    let Some(tree) = trees::find_number(db, root)? else { return Ok(()) };
    let mut leave = db.prepare_cached(
        "UPDATE runs SET tree = -tree WHERE id = ?1 AND tree = ?2 AND status >= ?3",
    )?;
    let mut left = 0;
    for run in runs {
        left += leave.execute(params![run.as_str(), tree, TERMINAL])?;
    }
    let left = i64::try_from(left).unwrap_or(i64::MAX);
    db.prepare_cached("UPDATE trees SET runs = runs - ?2 WHERE no = ?1")?.execute([tree, left])?;
    Ok(())
}

/// Takes a run out of its tree that is removed, with the tree if nothing is left of it.
pub(super) fn leave_tree(db: &Connection, no: i64, root: &RunId) -> Result<(), Fault> {
    let mut sql = db.prepare_cached("SELECT tree FROM runs WHERE no = ?1")?;
    let Some(tree): Option<i64> = sql.query_row([no], |row| row.get(0))? else { return Ok(()) };
    let counted = i64::from(tree > 0);
    let tree = tree.abs();
    let left = "UPDATE trees SET runs = runs - ?3 WHERE no = ?1 AND root = ?2";
    db.prepare_cached(left)?.execute(params![tree, root.as_str(), counted])?;
    // Its number would be that of another tree, in which those would be found that it has still.
    let gone = "DELETE FROM trees WHERE no = ?1 AND runs <= 0 AND NOT EXISTS (
        SELECT 1 FROM runs INDEXED BY runs_by_tree
        WHERE status IN (5, 6, 7) AND tree = -?1 AND no <> ?2)";
    db.prepare_cached(gone)?.execute([tree, no])?;
    Ok(())
}
