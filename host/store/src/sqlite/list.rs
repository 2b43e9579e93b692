//! Listing.
//!
//! Whatever is asked for, one index is walked in the order of the page: the most selective thing
//! that was named, for each wanted status, merged. Times of acceptance have no such index: where
//! few runs fit, those are looked at, and else the walk passes over the runs that do not fit.
//! Only a wish for two things that are each frequent and hardly ever come together makes a long
//! walk.

use std::collections::BTreeSet;

use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};
use taskrun_journal::ids::RunId;
use taskrun_journal::list::{Cursor, ENDS_MAX, EndedRun, ListFilter, Page, Scope};
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_journal::time::Timestamp;

use super::fault::Fault;
use super::row::run_by_number;
use super::schema::{KeyKind, int, label_key, status_code, time, unbits};
use super::trees;

/// So many runs are few enough to look at each.
const FEW: i64 = 1_000;

/// Place of a run in the order of a page, its number, and the place of its last event among all; 0
/// where its row has none.
type PageRow = (u64, String, i64, u64);

/// The columns of a [`PageRow`].
const PAGE_ROW: &str = "r.updated_at, r.id, r.no, r.last_pos";

/// SQL with the values of its parameters.
#[derive(Clone, Default)]
struct Conditions {
    sql: String,
    values: Vec<Value>,
}

impl Conditions {
    /// Adds one; each `?` stands for the next of the values.
    fn and(&mut self, sql: &str, values: impl IntoIterator<Item = Value>) {
        if !self.sql.is_empty() {
            self.sql.push_str(" AND ");
        }
        self.sql.push_str(sql);
        self.values.extend(values);
    }
}

/// An index that is in the order of pages.
struct Walk {
    /// The SQL to select from, up to the condition on its key.
    from: String,
    key: Value,
    /// The alias under which the index has status and time.
    alias: &'static str,
}

impl Walk {
    /// SQL for the first runs of one status, which comes after the key.
    fn sql(&self, conditions: &Conditions, wanted: usize) -> String {
        format!(
            "SELECT {PAGE_ROW} FROM {from} AND {alias}.status = ? AND {conditions}
             ORDER BY {alias}.updated_at DESC, r.id DESC LIMIT {wanted}",
            from = self.from,
            alias = self.alias,
            conditions = conditions.sql,
            wanted = int(wanted as u64),
        )
    }
}

/// A page; the connection is to be in a transaction, so that all is of one moment.
pub(crate) fn page(
    db: &Connection,
    scope: &Scope,
    filter: &ListFilter,
    after: Option<&Cursor>,
    limit: usize,
) -> Result<Page, Fault> {
    let mut found = find_first(db, scope, filter, after, limit.saturating_add(1))?;
    let more = found.len() > limit;
    found.truncate(limit);
    let next = match found.last() {
        Some((updated_at, id, ..)) if more => {
            let id =
                RunId::new(id).map_err(|error| Fault::Damaged(format!("run {id}: {error}")))?;
            Some(Cursor { updated_at: Timestamp(*updated_at), id })
        }
        Some(_) | None => None,
    };
    let runs = found.iter().map(|(_, id, no, _)| admitted(db, scope, filter, (id.as_str(), *no)));
    Ok(Page { runs: runs.collect::<Result<_, _>>()?, next })
}

/// The runs that ended last, by the places of their ends; the connection is to be in a transaction.
///
/// No index is in that order, as it would cost every end an entry. So the places of those that
/// changed last by the time of day are looked up, far more than are ever wanted.
pub(crate) fn ended(
    db: &Connection,
    scope: &Scope,
    filter: &ListFilter,
    before: Option<u64>,
    limit: usize,
) -> Result<Vec<EndedRun>, Fault> {
    let Some(filter) = filter.of_ended() else { return Ok(Vec::new()) };
    let mut ends = Vec::new();
    for (_, id, no, last_pos) in find_first(db, scope, &filter, None, ENDS_MAX)? {
        let place = if last_pos > 0 { last_pos } else { last_place(db, &id, no)? };
        ends.push((place, id, no));
    }
    ends.sort_unstable_by(|a, b| b.cmp(a));
    let earlier =
        ends.into_iter().filter(|(place, ..)| before.is_none_or(|before| *place < before));
    let runs = earlier.take(limit).map(|(place, id, no)| {
        Ok(EndedRun { place, run: admitted(db, scope, &filter, (id.as_str(), no))? })
    });
    runs.collect()
}

/// The place of the last event of a run that was kept as it had ended.
fn last_place(db: &Connection, id: &str, no: i64) -> Result<u64, Fault> {
    let mut sql = db.prepare_cached("SELECT max(pos) FROM events WHERE run = ?1")?;
    let place: Option<i64> = sql.query_row([no], |row| row.get(0))?;
    place.map(unbits).ok_or_else(|| Fault::Damaged(format!("run {id}: its events are missing")))
}

/// The first runs that fit, in the order of a page.
fn find_first(
    db: &Connection,
    scope: &Scope,
    filter: &ListFilter,
    after: Option<&Cursor>,
    wanted: usize,
) -> Result<Vec<PageRow>, Fault> {
    let tree = tree(db, filter)?;
    let mut found = match few(db, scope, filter)? {
        Some((source, value)) => {
            let conditions = conditions(scope, filter, tree.as_ref(), after, "r");
            among_few(db, &source, value, &conditions, filter, wanted)?
        }
        None => {
            let mut found = Vec::new();
            for walk in walks(scope, filter, tree.as_ref()) {
                let conditions = conditions(scope, filter, tree.as_ref(), after, walk.alias);
                found.extend(along(db, &walk, &conditions, filter, wanted)?);
            }
            found
        }
    };
    found.sort_unstable_by(|a, b| b.cmp(a));
    found.truncate(wanted);
    Ok(found)
}

/// The run of a row that was found.
fn admitted(
    db: &Connection,
    scope: &Scope,
    filter: &ListFilter,
    (id, no): (&str, i64),
) -> Result<Run, Fault> {
    let run = run_by_number(db, no)?;
    // The columns that were asked are damaged, or the index; nobody is to see by that what is not
    // his.
    if run.id().as_str() != id || !scope.admits(&run) || !filter.admits(&run) {
        return Err(Fault::Damaged(format!("run {id}: its columns say something else")));
    }
    Ok(run)
}

/// The key by which the runs of a tree are found.
enum Tree {
    /// The number of the tree, which is less than zero in runs that count there no longer.
    Number(i64),
    /// A run that is alone in its tree.
    Root(RunId),
}

impl Tree {
    fn condition(&self) -> (&'static str, Value) {
        match self {
            Self::Number(no) => ("abs(r.tree) = ?", Value::Integer(*no)),
            // A run further down in a tree is the root of none.
            Self::Root(id) => ("r.tree IS NULL AND r.id = ?", text(id.as_str())),
        }
    }
}

fn tree(db: &Connection, filter: &ListFilter) -> Result<Option<Tree>, Fault> {
    let Some(root) = &filter.root_run_id else { return Ok(None) };
    let number = trees::find_number(db, root)?;
    Ok(Some(number.map_or_else(|| Tree::Root(root.clone()), Tree::Number)))
}

/// The words that have an index, most selective first.
fn words<'a>(scope: &'a Scope, filter: &'a ListFilter) -> Vec<(KeyKind, &'a str)> {
    let optional = [
        (KeyKind::Parent, filter.parent_run_id.as_ref().map(RunId::as_str)),
        (KeyKind::Name, filter.name.as_deref()),
        (KeyKind::Session, scope.parent_session_id.as_deref()),
        (KeyKind::Owner, scope.owner_user_id.as_deref()),
        (KeyKind::Agent, filter.agent_name.as_deref()),
        (KeyKind::App, scope.parent_app_name.as_deref()),
        (KeyKind::Tenant, Some(scope.tenant.as_str())),
    ];
    optional.into_iter().filter_map(|(by, word)| Some((by, word?))).collect()
}

/// The most selective index. A tree comes after the run above and before the rest, a stop reason
/// after run, name and session, a label after that and the owner. A run is in the session from which it was asked for and in that of
/// its tree, and is found by one of them.
fn walks(scope: &Scope, filter: &ListFilter, tree: Option<&Tree>) -> Vec<Walk> {
    if let (Some(tree), None) = (tree, &filter.parent_run_id) {
        let along = |no: i64| Walk {
            from: "runs r INDEXED BY runs_by_tree WHERE r.tree = ?".to_owned(),
            key: Value::Integer(no),
            alias: "r",
        };
        return match tree {
            Tree::Number(no) => vec![along(*no), along(-no)],
            Tree::Root(_) => {
                let (condition, key) = tree.condition();
                vec![Walk { from: format!("runs r WHERE {condition}"), key, alias: "r" }]
            }
        };
    }
    let words = words(scope, filter);
    let is_few = |kind: &KeyKind| {
        matches!(kind, KeyKind::Parent | KeyKind::Name | KeyKind::Session | KeyKind::Root)
    };
    if !filter.stop_reason.is_empty() && !words.iter().any(|(kind, _)| is_few(kind)) {
        let key = KeyKind::Tenant.key(&scope.tenant, &scope.tenant);
        let along = |reason: &str| Walk {
            from: format!(
                "runs r INDEXED BY runs_by_stop WHERE r.tenant_key = {key} AND r.stop = ?"
            ),
            key: text(reason),
            alias: "r",
        };
        let reasons: BTreeSet<&str> = filter.stop_reason.iter().map(|one| one.as_str()).collect();
        return reasons.into_iter().map(along).collect();
    }
    let (by, word) = words.first().copied().unwrap_or((KeyKind::Tenant, scope.tenant.as_str()));
    let along = |by: KeyKind| {
        let (_, column, index) = by.names();
        Walk {
            from: format!("runs r INDEXED BY {index} WHERE r.{column} = ?"),
            key: Value::Integer(by.key(&scope.tenant, word)),
            alias: "r",
        }
    };
    match (by, filter.labels.first_key_value()) {
        (KeyKind::Agent | KeyKind::App | KeyKind::Tenant, Some((name, value))) => vec![Walk {
            from: "labels f CROSS JOIN runs r ON r.no = f.run WHERE f.key = ?".to_owned(),
            key: Value::Integer(label_key(&scope.tenant, name, value)),
            alias: "f",
        }],
        (KeyKind::Session, _) => vec![along(KeyKind::Session), along(KeyKind::Root)],
        (KeyKind::Parent | KeyKind::Name | KeyKind::Owner | KeyKind::Root, Some(_)) | (_, None) => {
            vec![along(by)]
        }
    }
}

fn conditions(
    scope: &Scope,
    filter: &ListFilter,
    tree: Option<&Tree>,
    after: Option<&Cursor>,
    alias: &str,
) -> Conditions {
    let mut all = Conditions::default();
    for (by, word) in words(scope, filter) {
        match by {
            KeyKind::Session => {
                all.and("(r.session = ? OR r.root_session = ?)", [text(word), text(word)]);
            }
            KeyKind::Tenant
            | KeyKind::Owner
            | KeyKind::App
            | KeyKind::Agent
            | KeyKind::Parent
            | KeyKind::Name
            | KeyKind::Root => {
                all.and(&format!("r.{} = ?", by.names().0), [text(word)]);
            }
        }
    }
    if !filter.stop_reason.is_empty() {
        let places = vec!["?"; filter.stop_reason.len()].join(", ");
        let reasons = filter.stop_reason.iter().map(|reason| text(reason.as_str()));
        all.and(&format!("r.stop IN ({places})"), reasons);
    }
    for (name, value) in &filter.labels {
        let key = Value::Integer(label_key(&scope.tenant, name, value));
        all.and(
            "EXISTS (SELECT 1 FROM labels l WHERE l.key = ? AND l.status = r.status
               AND l.updated_at = r.updated_at AND l.run = r.no AND l.name = ? AND l.value = ?)",
            [key, text(name), text(value)],
        );
    }
    if let Some(tree) = tree {
        let (condition, value) = tree.condition();
        all.and(condition, [value]);
    }
    if let Some(since) = filter.since {
        all.and("r.created_at >= ?", [Value::Integer(time(since))]);
    }
    if let Some(after) = after {
        let at = Value::Integer(time(after.updated_at));
        all.and(
            &format!("{alias}.updated_at <= ? AND ({alias}.updated_at < ? OR r.id < ?)"),
            [at.clone(), at, text(after.id.as_str())],
        );
    }
    all
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

fn statuses(filter: &ListFilter) -> Vec<i64> {
    let wanted = if filter.status.is_empty() { Status::ALL } else { &filter.status };
    let mut codes: Vec<i64> = wanted.iter().map(|status| status_code(*status)).collect();
    codes.sort_unstable();
    codes.dedup();
    codes
}

/// Where to find the runs that the time of acceptance admits, if they are few: what to select
/// from, with one parameter.
fn few(
    db: &Connection,
    scope: &Scope,
    filter: &ListFilter,
) -> Result<Option<(String, Value)>, Fault> {
    let Some(since) = filter.since else { return Ok(None) };
    let key = KeyKind::Tenant.key(&scope.tenant, &scope.tenant);
    let from = format!(
        "runs r INDEXED BY runs_by_created WHERE r.tenant_key = {key} AND r.created_at >= ?"
    );
    let value = Value::Integer(time(since));
    let sql = format!("SELECT count(*) FROM (SELECT 1 FROM {from} LIMIT {})", FEW + 1);
    let count: i64 = db.prepare_cached(&sql)?.query_row([&value], |row| row.get(0))?;
    Ok((count <= FEW).then_some((from, value)))
}

fn among_few(
    db: &Connection,
    source: &str,
    value: Value,
    conditions: &Conditions,
    filter: &ListFilter,
    wanted: usize,
) -> Result<Vec<PageRow>, Fault> {
    let codes: Vec<String> = statuses(filter).iter().map(i64::to_string).collect();
    let sql = format!(
        "SELECT {PAGE_ROW} FROM {source} AND {} AND r.status IN ({})
         ORDER BY r.updated_at DESC, r.id DESC LIMIT {}",
        conditions.sql,
        codes.join(", "),
        int(wanted as u64),
    );
    let values = std::iter::once(value).chain(conditions.values.iter().cloned());
    select(db, &sql, values)
}

fn along(
    db: &Connection,
    walk: &Walk,
    conditions: &Conditions,
    filter: &ListFilter,
    wanted: usize,
) -> Result<Vec<PageRow>, Fault> {
    let sql = walk.sql(conditions, wanted);
    let mut found = Vec::new();
    for status in statuses(filter) {
        let first = [walk.key.clone(), Value::Integer(status)];
        found.extend(select(db, &sql, first.into_iter().chain(conditions.values.iter().cloned()))?);
    }
    Ok(found)
}

fn select(
    db: &Connection,
    sql: &str,
    values: impl Iterator<Item = Value>,
) -> Result<Vec<PageRow>, Fault> {
    let mut sql = db.prepare_cached(sql)?;
    let rows = sql.query_map(params_from_iter(values), |row| {
        Ok((unbits(row.get(0)?), row.get(1)?, row.get(2)?, unbits(row.get(3)?)))
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

#[cfg(test)]
mod tests {
    use taskrun_journal::status::StopReason;

    use super::super::definition::{plan, tables_in_memory};
    use super::*;

    #[test]
    fn runs_that_ended_for_a_reason_are_found_by_it_whoever_asks() {
        let db = tables_in_memory();
        let filter = ListFilter {
            stop_reason: vec![StopReason::Deferred, StopReason::MaxCost, StopReason::Deferred],
            labels: [("team".to_owned(), "blue".to_owned())].into(),
            agent_name: Some("writer".to_owned()),
            ..ListFilter::default()
        };
        let after = Cursor { updated_at: Timestamp(1), id: RunId::new("a").expect("an id") };
        for scope in [Scope::tenant("acme"), Scope::tenant("acme").owner("bob")] {
            let walks = walks(&scope, &filter, None);
            assert_eq!(walks.len(), 2, "one for each reason");
            for walk in walks {
                let conditions = conditions(&scope, &filter, None, Some(&after), walk.alias);
                let plan = plan(&db, &walk.sql(&conditions, 17));
                let by = "runs_by_stop (status=? AND tenant_key=? AND stop=? AND updated_at<?)";
                assert!(plan.contains(by), "{plan}");
            }
        }
        // What is rarer still comes first.
        let of_session = Scope::tenant("acme").session("s");
        assert!(
            walks(&of_session, &filter, None).iter().all(|walk| !walk.from.contains("by_stop"))
        );
    }
}
