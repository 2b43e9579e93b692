//! The cost of a page.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use taskrun_benches::percentile;
use taskrun_journal::list::{ListFilter, Scope};
use taskrun_journal::status::Status;
use taskrun_journal::store::Store;
use taskrun_journal::time::Timestamp;

use crate::Watch;
use crate::fill::{self, BASE_MS, SESSION, TREES};
use crate::host::TENANT;

const PAGE: usize = 50;

/// Milliseconds for the first page with each filter, and for one in the middle without any.
pub(crate) async fn measure(store: &Arc<dyn Store>, runs: u64, pages: usize) -> Value {
    let scope = || Scope::tenant(TENANT);
    let none = ListFilter::default;
    let status = |status| ListFilter { status: vec![status], ..none() };
    let since = |n: u64| ListFilter { since: Some(Timestamp(BASE_MS + n)), ..none() };
    let labels = BTreeMap::from([("team".to_owned(), "team-7".to_owned())]);
    let tree = runs / 2 / SESSION / TREES * TREES;
    let root = fill::id(tree * SESSION);
    let table = [
        ("none", scope(), none()),
        ("status_completed", scope(), status(Status::Completed)),
        ("status_failed_none_are", scope(), status(Status::Failed)),
        ("agent", scope(), ListFilter { agent_name: Some("agent-3".to_owned()), ..none() }),
        ("session", scope().session(&format!("session-{tree}")), none()),
        ("owner", scope().owner("owner-7"), none()),
        ("owner_and_status", scope().owner("owner-7"), status(Status::Completed)),
        ("label", scope(), ListFilter { labels, ..none() }),
        ("parent", scope(), ListFilter { parent_run_id: Some(root.clone()), ..none() }),
        ("root", scope(), ListFilter { root_run_id: Some(root), ..none() }),
        ("since_half_of_all", scope(), since(runs / 2)),
        ("since_the_last_hundred", scope(), since(runs.saturating_sub(100))),
    ];
    let mut report = Map::new();
    for (name, scope, filter) in table {
        let mut times = Vec::new();
        let mut found = 0;
        for _ in 0..pages {
            let watch = Watch::start();
            let page = store.list(&scope, &filter, None, PAGE).await.expect("a page");
            times.push(watch.ms());
            found = page.runs.len();
        }
        report.insert(name.to_owned(), row(&times, found));
    }
    let mut times = Vec::new();
    let mut after = None;
    for _ in 0..pages {
        let watch = Watch::start();
        let page = store.list(&scope(), &none(), after.as_ref(), PAGE).await.expect("a page");
        times.push(watch.ms());
        after = page.next;
    }
    report.insert("page_after_page".to_owned(), row(&times, PAGE));
    Value::Object(report)
}

fn row(times: &[f64], found: usize) -> Value {
    json!({ "p50": percentile(times, 50), "p99": percentile(times, 99), "found": found })
}
