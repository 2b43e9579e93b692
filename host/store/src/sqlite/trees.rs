//! The runs of a tree, in the order in which they were accepted.
//!
//! No index is in that order. For each page the numbers of all runs of the tree are read from the one
//! by which the tree is listed, without a look at a row: little beside the records of the page, also
//! in a tree that has left ten thousands of runs behind.

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params};
use taskrun_journal::ids::RunId;
use taskrun_journal::list::{TreePage, TreeQuery};
use taskrun_journal::status::Status;

use super::fault::Fault;
use super::row::run_by_number;
use super::schema::{int, status_code, unbits};

/// The number of a run that is alone in its tree.
const ALONE: &str = "SELECT no FROM runs WHERE id = ?1 AND tree IS NULL AND no > ?2 LIMIT ?3";

/// The number of the tree of a root; `None` if that is alone in it, or there is no such run.
pub(crate) fn find_number(db: &Connection, root: &RunId) -> Result<Option<i64>, Fault> {
    let mut sql = db.prepare_cached("SELECT no FROM trees WHERE root = ?1")?;
    Ok(sql.query_row([root.as_str()], |row| row.get(0)).optional()?)
}

/// A page; the connection is to be in a transaction, so that all is of one moment.
pub(crate) fn page(
    db: &Connection,
    query: &TreeQuery,
    after: Option<u64>,
    limit: usize,
) -> Result<TreePage, Fault> {
    let mut numbers = read_numbers(db, query, after.map_or(0, int), limit.saturating_add(1))?;
    let more = numbers.len() > limit;
    numbers.truncate(limit);
    let next = numbers.last().filter(|_| more).map(|no| unbits(*no));
    let mut runs = Vec::with_capacity(numbers.len());
    for no in numbers {
        let run = run_by_number(db, no)?;
        if run.spec.root_run_id != query.root_run_id {
            // The column that was asked is damaged, or the index.
            let detail = format!("run {}: its columns say something else", run.id());
            return Err(Fault::Damaged(detail));
        }
        // Of an earlier root of this id runs may be kept, which may be those of others.
        if run.spec.tenant == query.tenant {
            runs.push(run);
        }
    }
    Ok(TreePage { runs, next })
}

/// The numbers of the runs after one, in their order.
fn read_numbers(
    db: &Connection,
    query: &TreeQuery,
    after: i64,
    limit: usize,
) -> Result<Vec<i64>, Fault> {
    let (sql, key) = match find_number(db, &query.root_run_id)? {
        Some(tree) => (of_tree(query.counted_only), Value::Integer(tree)),
        None => (ALONE.to_owned(), Value::Text(query.root_run_id.to_string())),
    };
    let mut sql = db.prepare_cached(&sql)?;
    let numbers = sql.query_map(params![key, after, int(limit as u64)], |row| row.get(0))?;
    Ok(numbers.collect::<rusqlite::Result<_>>()?)
}

/// SQL for the numbers of the runs of a tree. Those that count in it no longer have its number less
/// than zero.
fn of_tree(counted_only: bool) -> String {
    let tree = if counted_only { "= ?1" } else { "IN (?1, -?1)" };
    let statuses: Vec<String> =
        Status::ALL.iter().map(|status| status_code(*status).to_string()).collect();
    format!(
        "SELECT no FROM runs INDEXED BY runs_by_tree
         WHERE status IN ({}) AND tree {tree} AND no > ?2 ORDER BY no LIMIT ?3",
        statuses.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::super::definition::{plan, tables_in_memory};
    use super::*;

    #[test]
    fn the_numbers_of_a_tree_are_read_without_a_look_at_its_rows() {
        let db = tables_in_memory();
        for counted_only in [true, false] {
            let plan = plan(&db, &of_tree(counted_only));
            let by = "USING COVERING INDEX runs_by_tree (status=? AND tree=?)";
            assert!(plan.contains(by), "{plan}");
        }
    }
}
