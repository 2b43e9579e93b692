//! Reports of ended runs, as they are asked for.

use rusqlite::types::Value;
use rusqlite::{Connection, Row, params_from_iter};
use taskrun_journal::delivery::{DeadReason, Report, ReportState};
use taskrun_journal::store::ReportQuery;
use taskrun_journal::time::Timestamp;

use super::{run_id, state_code, tree_key};
use crate::sqlite::fault::Fault;
use crate::sqlite::schema::{KeyKind, int, unbits};

/// The columns of a report, of its run and of the run that was told.
const COLUMNS: &str = "SELECT r.id, o.place, o.state, o.attempts, t.id, o.reason, o.due, o.agent";
const JOINS: &str = "JOIN runs r ON r.no = o.run LEFT JOIN runs t ON t.no = o.taken_by";

pub(crate) fn reports(
    db: &Connection,
    query: &ReportQuery,
    after: u64,
    limit: usize,
) -> Result<Vec<Report>, Fault> {
    let (sql, values) = sql_of(query);
    let last = [int(after), int(limit as u64)].map(Value::from);
    let sql = format!(
        "{COLUMNS} FROM outbox o {sql} AND o.place > ?{} ORDER BY o.place LIMIT ?{}",
        values.len() + 1,
        values.len() + 2,
    );
    let mut sql = db.prepare_cached(&sql)?;
    let mut rows = sql.query(params_from_iter(values.into_iter().chain(last)))?;
    let mut reports = Vec::new();
    while let Some(row) = rows.next()? {
        reports.push(report(row)?);
    }
    Ok(reports)
}

/// The part of a question that says which reports, and its values.
fn sql_of(query: &ReportQuery) -> (String, Vec<Value>) {
    match query {
        ReportQuery::Tree(root) => (
            format!("INDEXED BY outbox_by_tree {JOINS} WHERE o.tree = ?1 AND o.state = 0"),
            vec![tree_key(root).into()],
        ),
        ReportQuery::Conversation { tenant, owner_user_id, conversation } => (
            format!(
                "INDEXED BY outbox_by_session {JOINS} WHERE o.session_key = ?1 AND o.state = 0
                   AND o.session = ?2 AND r.tenant = ?3 AND r.owner = ?4 AND o.agent = ?5
                   AND o.app IS ?6"
            ),
            vec![
                KeyKind::Session.key(tenant, &conversation.session).into(),
                conversation.session.clone().into(),
                tenant.clone().into(),
                owner_user_id.clone().into(),
                conversation.agent.clone().into(),
                conversation.app.clone().into(),
            ],
        ),
        ReportQuery::Run(run) => {
            (format!("{JOINS} WHERE r.id = ?1"), vec![run.as_str().to_owned().into()])
        }
        ReportQuery::Due => {
            (format!("INDEXED BY outbox_due {JOINS} WHERE o.due IS NOT NULL"), Vec::new())
        }
        ReportQuery::DueTo(agent) => (
            format!("INDEXED BY outbox_due_to {JOINS} WHERE o.due IS NOT NULL AND o.agent = ?1"),
            vec![agent.clone().into()],
        ),
        ReportQuery::Scope { scope, states } => {
            let codes: Vec<_> = states.iter().map(|state| state_code(*state).to_string()).collect();
            (
                format!(
                    "INDEXED BY outbox_by_place {JOINS} WHERE r.tenant = ?1
                       AND (?2 IS NULL OR r.owner = ?2)
                       AND (?3 IS NULL OR r.session = ?3 OR r.root_session = ?3)
                       AND (?4 IS NULL OR r.app = ?4) AND o.state IN ({})",
                    codes.join(", ")
                ),
                vec![
                    scope.tenant.clone().into(),
                    scope.owner_user_id.clone().into(),
                    scope.parent_session_id.clone().into(),
                    scope.parent_app_name.clone().into(),
                ],
            )
        }
    }
}

fn report(row: &Row<'_>) -> Result<Report, Fault> {
    let id = |text: String| run_id(&text);
    let run = id(row.get(0)?)?;
    let damaged = |detail: &str| Fault::Damaged(format!("report of run {run}: {detail}"));
    let code: i64 = row.get(2)?;
    let state = ReportState::ALL.into_iter().find(|state| state_code(*state) == code);
    let reason: Option<String> = row.get(5)?;
    let reason = reason.map(|word| {
        let known = DeadReason::ALL.into_iter().find(|reason| reason.as_str() == word);
        known.ok_or_else(|| damaged("an unknown reason"))
    });
    Ok(Report {
        place: unbits(row.get(1)?),
        state: state.ok_or_else(|| damaged("an unknown state"))?,
        attempts: row.get(3)?,
        taken_by: row.get::<_, Option<String>>(4)?.map(id).transpose()?,
        reason: reason.transpose()?,
        due: row.get::<_, Option<i64>>(6)?.map(|due| Timestamp(unbits(due))),
        notify: row.get(7)?,
        run,
    })
}

#[cfg(test)]
mod tests {
    use taskrun_journal::delivery::Conversation;
    use taskrun_journal::ids::RunId;
    use taskrun_journal::list::Scope;

    use super::*;
    use crate::sqlite::definition::{plan, tables_in_memory};
    use crate::sqlite::outbox::IS_DUE_TO;

    #[test]
    fn every_question_is_answered_by_an_index_alone() {
        let db = tables_in_memory();
        let run = || RunId::new("r").expect("an id");
        let conversation = Conversation { session: String::new(), app: None, agent: String::new() };
        let (tenant, owner_user_id) = (String::new(), String::new());
        let questions = [
            (ReportQuery::Tree(run()), "outbox_by_tree (tree=? AND place>?)"),
            (
                ReportQuery::Conversation { tenant, owner_user_id, conversation },
                "outbox_by_session (session_key=? AND place>?)",
            ),
            (ReportQuery::Run(run()), "sqlite_autoindex_runs_1 (id=?)"),
            (ReportQuery::Due, "outbox_due (place>?)"),
            (ReportQuery::DueTo(String::new()), "outbox_due_to (agent=? AND place>?)"),
            (
                ReportQuery::Scope { scope: Scope::tenant("t"), states: vec![ReportState::Dead] },
                "outbox_by_place (place>?)",
            ),
        ];
        for (question, index) in questions {
            let (part, values) = sql_of(&question);
            let at = values.len();
            let sql = format!(
                "{COLUMNS} FROM outbox o {part} AND o.place > ?{} ORDER BY o.place LIMIT ?{}",
                at + 1,
                at + 2
            );
            let plan = plan(&db, &sql);
            assert!(plan.contains(index) && !plan.contains("SCAN"), "{question:?}: {plan}");
            assert!(!plan.contains("B-TREE") || matches!(question, ReportQuery::Run(_)), "{plan}");
        }
        let settled = "SELECT run FROM outbox INDEXED BY outbox_taken
                       WHERE taken_by = ?1 AND state = 1";
        assert!(plan(&db, settled).contains("outbox_taken (taken_by=?)"));
        let waiting = "SELECT run, tree FROM outbox INDEXED BY outbox_waiting WHERE waits_for = ?1";
        assert!(plan(&db, waiting).contains("outbox_waiting (waits_for=?)"));
        let plan = plan(&db, IS_DUE_TO);
        assert!(plan.contains("USING INDEX outbox_due_to (agent=?)"), "{plan}");
    }
}
