//! Listing.

use super::*;

async fn listed(f: &Fixture, scope: &Scope, filter: &ListFilter) -> Vec<String> {
    let page = f.store.list(scope, filter, None, 100).await.expect("lists");
    assert_eq!(page.next, None);
    page.runs.iter().map(|run| run.id().to_string()).collect()
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

pub(crate) async fn lists_begin_with_the_run_that_changed_last(f: &Fixture) {
    for (id, at) in [("a", 10), ("b", 30), ("c", 20)] {
        create(&*f.store, RunSpec { created_at: Timestamp(at), ..spec(id) }).await;
    }
    let all = (Scope::tenant("acme"), ListFilter::default());
    assert_eq!(listed(f, &all.0, &all.1).await, ["b", "c", "a"]);
    let a = claim_one(&*f.store, "h").await;
    assert_eq!(a.id().as_str(), "a");
    assert_eq!(listed(f, &all.0, &all.1).await, ["a", "b", "c"]);
    // Work does not move a run; only another status does.
    let b = f.store.claim(wish("h", 1, 3_000)).await.expect("claims").remove(0);
    let a = append(&*f.store, next(&a, 50, 9_000, vec![note("n")])).await;
    assert_eq!(listed(f, &all.0, &all.1).await, ["b", "a", "c"]);
    let a = append(&*f.store, next(&a, 60, 9_500, end())).await;
    assert_eq!(listed(f, &all.0, &all.1).await, ["a", "b", "c"]);
    let head = f.store.head(&all.0, a.id()).await.expect("reads");
    assert_eq!(head, Some(Head { seq: a.state.head, has_ended: true }));
    assert_eq!(b.id().as_str(), "b");
}

pub(crate) async fn runs_of_one_millisecond_are_listed_by_id(f: &Fixture) {
    for id in ["m", "z", "a", "B"] {
        create(&*f.store, spec(id)).await;
    }
    let scope = Scope::tenant("acme");
    assert_eq!(listed(f, &scope, &ListFilter::default()).await, ["z", "m", "a", "B"]);
    let first = f.store.list(&scope, &ListFilter::default(), None, 2).await.expect("lists");
    assert_eq!(ids(&first.runs), ["z", "m"]);
    let next = first.next.as_ref();
    let second = f.store.list(&scope, &ListFilter::default(), next, 2).await.expect("lists");
    assert_eq!(ids(&second.runs), ["a", "B"]);
    assert_eq!(second.next, None);
}

pub(crate) async fn filters_and_scopes_admit_what_they_say(f: &Fixture) {
    let at = |ms| Timestamp(ms);
    let base = |id: &str, ms| RunSpec { created_at: at(ms), ..spec(id) };
    let all = [
        RunSpec { labels: labels(&[("team", "blue"), ("kind", "x")]), ..base("a", 1) },
        RunSpec {
            owner_user_id: "bob".to_owned(),
            labels: labels(&[("team", "red")]),
            ..base("b", 2)
        },
        RunSpec { parent_session_id: "s-2".to_owned(), ..base("c", 3) },
        RunSpec { parent_app_name: Some("mail".to_owned()), ..base("d", 4) },
        RunSpec {
            agent_name: "writer".to_owned(),
            labels: labels(&[("team", "blue")]),
            ..base("e", 5)
        },
        RunSpec { created_at: at(6), ..child("f", &spec("a")) },
        RunSpec { tenant: "zeta".to_owned(), labels: labels(&[("team", "blue")]), ..base("g", 7) },
        RunSpec { pin: "p".to_owned(), ..base("h", 8) },
    ];
    for spec in all {
        create(&*f.store, spec).await;
    }
    let theirs = Claim { ready: Ready::only(["p"]), ..wish("host", 1, 100) };
    f.store.claim(theirs).await.expect("claims");

    let tenant = Scope::tenant("acme");
    let none = ListFilter::default;
    let app = Scope { parent_app_name: Some("mail".to_owned()), ..tenant.clone() };
    let agent = |agent: &str| ListFilter { agent_name: Some(agent.to_owned()), ..none() };
    let label = |pairs: &[_]| ListFilter { labels: labels(pairs), ..none() };
    let status = |all: &[Status]| ListFilter { status: all.to_vec(), ..none() };
    let under = ListFilter { parent_run_id: Some(run_id("a")), ..none() };
    let tree = ListFilter { root_run_id: Some(run_id("a")), ..none() };
    let both_trees = ListFilter { root_run_id: Some(run_id("b")), ..under.clone() };
    let since = ListFilter { since: Some(at(5)), ..none() };
    let both = ListFilter { agent_name: Some("writer".to_owned()), ..label(&[("team", "blue")]) };
    let table: &[(&Scope, ListFilter, &[&str])] = &[
        (&tenant, none(), &["h", "f", "e", "d", "c", "b", "a"]),
        (&Scope::tenant("zeta"), none(), &["g"]),
        (&Scope::tenant("nobody"), none(), &[]),
        (&tenant.clone().owner("bob"), none(), &["b"]),
        (&tenant.clone().session("s-2"), none(), &["c"]),
        (&tenant.clone().owner("bob").session("s-2"), none(), &[]),
        (&app, none(), &["d"]),
        (&tenant, agent("writer"), &["e"]),
        (&tenant.clone().owner("bob"), agent("writer"), &[]),
        (&tenant, label(&[("team", "blue")]), &["e", "a"]),
        (&tenant, label(&[("team", "blue"), ("kind", "x")]), &["a"]),
        (&tenant, label(&[("team", "green")]), &[]),
        (&tenant, both, &["e"]),
        (&tenant, status(&[Status::Running]), &["h"]),
        (&tenant, status(&[Status::Running, Status::Failed]), &["h"]),
        (&tenant.clone().owner("bob"), status(&[Status::Queued, Status::Queued]), &["b"]),
        (&tenant, status(&[Status::Completed]), &[]),
        (&tenant, under.clone(), &["f"]),
        (&Scope::tenant("zeta"), under, &[]),
        (&tenant, tree.clone(), &["f", "a"]),
        (&tenant.clone().session("s-2"), tree.clone(), &[]),
        (&tenant, ListFilter { status: vec![Status::Running], ..tree.clone() }, &[]),
        (&Scope::tenant("zeta"), tree, &[]),
        (&tenant, both_trees, &[]),
        // A run under another one is not the first of a tree.
        (&tenant, ListFilter { root_run_id: Some(run_id("f")), ..none() }, &[]),
        (&tenant, since.clone(), &["h", "f", "e"]),
        (&tenant.clone().owner("bob"), since, &[]),
    ];
    for (scope, filter, expected) in table {
        assert_eq!(listed(f, scope, filter).await, *expected, "{scope:?} {filter:?}");
    }
    let ids = ["a", "b", "c", "d", "e", "f", "g", "h", "nobody"].map(run_id);
    for scope in table.iter().map(|(scope, ..)| *scope).chain([&tenant.clone().session("s-1")]) {
        for id in &ids {
            let run = f.store.get(id).await.expect("gets").filter(|run| scope.admits(run));
            let head = f.store.head(scope, id).await.expect("reads");
            assert_eq!(head, run.as_ref().map(Head::from), "{scope:?} {id}");
        }
    }
}

pub(crate) async fn runs_are_listed_by_the_reason_for_which_they_ended(f: &Fixture) {
    let ends = [
        ("a", StopReason::Done),
        ("b", StopReason::MaxCost),
        ("c", StopReason::Deferred),
        ("d", StopReason::MaxCost),
    ];
    for (at, (id, reason)) in ends.into_iter().enumerate() {
        let at = Timestamp(at as u64 + 1);
        let owner_user_id = if id == "b" { "bob" } else { "ann" }.to_owned();
        create(&*f.store, RunSpec { created_at: at, owner_user_id, ..spec(id) }).await;
        let run = claim_one(&*f.store, "h").await;
        append(&*f.store, next(&run, 100 + at.0, at.0, end_for(reason))).await;
    }
    create(&*f.store, spec("open")).await;
    let tenant = Scope::tenant("acme");
    let stopped =
        |reasons: &[_]| ListFilter { stop_reason: reasons.to_vec(), ..ListFilter::default() };
    let (cost, deferred) = (StopReason::MaxCost, StopReason::Deferred);
    let failed = ListFilter { status: vec![Status::Failed], ..stopped(&[cost]) };
    let open = ListFilter { status: vec![Status::Queued], ..stopped(&[cost]) };
    for (scope, filter, expected) in [
        (&tenant, stopped(&[cost]), &["d", "b"][..]),
        (&tenant, stopped(&[deferred, cost, deferred]), &["d", "c", "b"]),
        (&tenant.clone().owner("bob"), stopped(&[cost]), &["b"]),
        (&tenant.clone().owner("bob"), stopped(&[deferred]), &[]),
        (&tenant, stopped(&[StopReason::AgentTrap]), &[]),
        (&tenant, failed, &[]),
        (&tenant, open, &[]),
    ] {
        assert_eq!(listed(f, scope, &filter).await, *expected, "{scope:?} {filter:?}");
    }
    let page = f.store.list(&tenant, &stopped(&[deferred, cost]), None, 2).await.expect("lists");
    assert_eq!(ids(&page.runs), ["d", "c"]);
    let page = f.store.list(&tenant, &stopped(&[deferred, cost]), page.next.as_ref(), 2).await;
    let page = page.expect("lists");
    assert_eq!((ids(&page.runs), page.next), (vec!["b"], None));
}

pub(crate) async fn pages_join_without_gaps_while_runs_change(f: &Fixture) {
    for n in 0..30 {
        create(&*f.store, RunSpec { created_at: Timestamp(n / 4), ..spec(&format!("r-{n:02}")) })
            .await;
    }
    let (scope, filter) = (Scope::tenant("acme"), ListFilter::default());
    let mut cursor: Option<Cursor> = None;
    let mut seen = Vec::new();
    loop {
        let page = f.store.list(&scope, &filter, cursor.as_ref(), 4).await.expect("lists");
        seen.extend(page.runs.iter().map(|run| run.id().clone()));
        let Some(next) = page.next else { break };
        assert_eq!(next.to_string().parse(), Ok(next.clone()));
        cursor = Some(next);
        // One that was not shown moves to the front, and is not on a later page.
        f.store.claim(wish("h", 1, 5_000)).await.expect("claims");
    }
    let shown: BTreeSet<_> = seen.iter().cloned().collect();
    assert_eq!(shown.len(), seen.len(), "no run is shown twice: {seen:?}");
    let now = f.store.list(&scope, &filter, None, 100).await.expect("lists").runs;
    assert_eq!(now.len(), 30);
    for run in now {
        let moved = run.status() == Status::Running;
        assert!(shown.contains(run.id()) || moved, "{} was passed over", run.id());
    }
}

pub(crate) async fn a_tree_is_read_whole_while_all_of_its_runs_change(f: &Fixture) {
    let root = create(&*f.store, spec("root")).await;
    let names: Vec<String> = (0..200).map(|n| format!("r-{n:03}")).collect();
    for name in names.iter().rev() {
        create(&*f.store, child(name, &root.spec)).await;
    }
    for query in [TreeQuery::of(&root.spec), TreeQuery::counted(&root.spec)] {
        let first = f.store.tree(&query, None, 100).await.expect("reads");
        let (mut runs, mut after) = (first.runs, first.next);
        assert_eq!(runs.len(), 100);
        let mut changed = 0;
        while after.is_some() {
            // One that was not shown changes, and those that were: they come first in a listing.
            changed += f.store.claim(wish("h", 60, 5_000)).await.expect("claims").len();
            let page = f.store.tree(&query, after, 50).await.expect("reads");
            runs.extend(page.runs);
            after = page.next;
        }
        assert!(changed >= 60 || query.counted_only, "{changed} runs changed meanwhile");
        let in_order = ["root"].into_iter().chain(names.iter().rev().map(String::as_str));
        assert!(ids(&runs).into_iter().eq(in_order), "each once: {:?}", ids(&runs));
    }
}

pub(crate) async fn a_tree_is_that_of_its_first_run_and_tenant(f: &Fixture) {
    let root = create(&*f.store, spec("root")).await;
    let alone = create(&*f.store, spec("alone")).await;
    let inner = create(&*f.store, child("inner", &root.spec)).await;
    create(&*f.store, child("low", &inner.spec)).await;
    let of_root = TreeQuery::of(&root.spec);
    let table: [(TreeQuery, &[&str]); 5] = [
        (of_root.clone(), &["root", "inner", "low"]),
        (TreeQuery::of(&inner.spec), &["root", "inner", "low"]),
        (TreeQuery::of(&alone.spec), &["alone"]),
        (TreeQuery { root_run_id: run_id("inner"), ..of_root.clone() }, &[]),
        (TreeQuery { tenant: "other".to_owned(), ..of_root }, &[]),
    ];
    for (all, expected) in table {
        let counted = TreeQuery { counted_only: true, ..all.clone() };
        for query in [all, counted] {
            assert_eq!(ids(&runs_of_tree(&*f.store, &query, 2).await), expected, "{query:?}");
        }
    }
}

pub(crate) async fn a_page_that_is_just_full_has_no_next(f: &Fixture) {
    for id in ["a", "b"] {
        create(&*f.store, spec(id)).await;
    }
    let (scope, filter) = (Scope::tenant("acme"), ListFilter::default());
    let page = f.store.list(&scope, &filter, None, 2).await.expect("lists");
    assert_eq!((page.runs.len(), page.next), (2, None));
}

pub(crate) async fn ends_come_in_the_order_of_their_durability_whatever_the_clock_said(
    f: &Fixture,
) {
    for (id, at) in [("a", 9_000), ("b", 3_000), ("c", 5_000)] {
        create(&*f.store, spec(id)).await;
        let run = claim_one(&*f.store, "h").await;
        append(&*f.store, next(&run, 50, at, end())).await;
    }
    // One that is kept as it has ended.
    let mut new = new_run(spec("kept"));
    let canceled = machine::decide::cancel(&new.run, StopReason::CanceledByOwner, None);
    let Append { run, events, .. } = next(&new.run, 60, 4_000, canceled);
    new.events.extend(events.into_records().iter().cloned());
    new.run = Arc::unwrap_or_clone(run);
    let created = f.store.create(new).await.expect("answers");
    assert!(created.is_new(), "{created:?}");
    create(&*f.store, RunSpec { created_at: Timestamp(10_000), ..spec("open") }).await;
    let ended = async |scope: &Scope, status: &[Status], before, limit| {
        let filter = ListFilter { status: status.to_vec(), ..ListFilter::default() };
        let ended = f.store.ended(scope, &filter, before, limit).await.expect("answers");
        let ids: Vec<_> = ended.iter().map(|one| one.run.id().to_string()).collect();
        (ids, ended.last().map(|last| last.place))
    };
    let tenant = Scope::tenant("acme");
    let session = tenant.clone().session("s-1");
    for scope in [&tenant, &session] {
        let (ids, place) = ended(scope, &[], None, 2).await;
        assert_eq!(ids, ["kept", "c"]);
        assert_eq!(ended(scope, &[], place, 9).await.0, ["b", "a"]);
    }
    let (completed, queued) = (Status::Completed, Status::Queued);
    assert_eq!(ended(&session, &[queued, completed], None, 9).await.0, ["c", "b", "a"]);
    assert_eq!(ended(&session, &[queued], None, 9).await, (Vec::new(), None));
    assert_eq!(ended(&session, &[Status::Failed], None, 9).await, (Vec::new(), None));
    assert_eq!(ended(&tenant.session("s-2"), &[], None, 9).await, (Vec::new(), None));
}
