//! Names of open runs, and the place that an autonomous one has alone.

use taskrun_journal::history::History;
use taskrun_journal::ids::RunId;

use super::*;

fn called(id: &str, name: &str) -> RunSpec {
    RunSpec { name: Some(name.to_owned()), ..spec(id) }
}

/// The holder of the name for which a run is refused; `None` if it is kept.
async fn holder(f: &Fixture, spec: RunSpec) -> Option<RunId> {
    match f.store.create(new_run(spec)).await.expect("answers") {
        CreateOutcome::New => None,
        CreateOutcome::NameTaken(id) => Some(id),
        other @ (CreateOutcome::Repeated(_)
        | CreateOutcome::Taken(_)
        | CreateOutcome::Full(_)
        | CreateOutcome::SessionEnded
        | CreateOutcome::ParentEnded
        | CreateOutcome::Locked(_)
        | CreateOutcome::ReportsGone) => panic!("{other:?}"),
    }
}

pub(crate) async fn a_name_belongs_to_one_open_run_of_its_owner_and_session(f: &Fixture) {
    create(&*f.store, called("a", "report")).await;
    assert_eq!(holder(f, called("b", "report")).await, Some(run_id("a")));
    assert_eq!(f.store.get(&run_id("b")).await.expect("gets"), None, "nothing is kept of it");
    let other = |id: &str| called(id, "report");
    let elsewhere = [
        called("name", "Report"),
        RunSpec { tenant: "zeta".to_owned(), ..other("tenant") },
        RunSpec { owner_user_id: "bob".to_owned(), ..other("owner") },
        RunSpec { parent_session_id: "s-2".to_owned(), ..other("session") },
        spec("none"),
    ];
    for spec in elsewhere {
        let id = spec.id.clone();
        assert_eq!(holder(f, spec).await, None, "{id}");
    }
    assert_eq!(holder(f, called("c", "report")).await, Some(run_id("a")));
}

pub(crate) async fn children_have_their_names_among_the_children_of_their_parent(f: &Fixture) {
    create(&*f.store, called("a", "report")).await;
    create(&*f.store, spec("b")).await;
    let below = |id: &str, parent: &str| RunSpec {
        name: Some("report".to_owned()),
        ..child(id, &spec(parent))
    };
    assert_eq!(holder(f, below("a1", "a")).await, None, "the parent's own name");
    assert_eq!(holder(f, below("b1", "b")).await, None);
    assert_eq!(holder(f, below("a2", "a")).await, Some(run_id("a1")));
    // Whoever they belong to.
    let foreign = RunSpec { parent_session_id: "s-2".to_owned(), ..below("b2", "b") };
    assert_eq!(holder(f, foreign).await, Some(run_id("b1")));
}

pub(crate) async fn a_name_is_free_again_with_the_end_of_its_run(f: &Fixture) {
    create(&*f.store, called("a", "report")).await;
    let a = claim_one(&*f.store, "h").await;
    let a = append(&*f.store, next(&a, 50, 3_000, vec![cancel()])).await;
    assert_eq!(holder(f, called("b", "report")).await, Some(run_id("a")), "it is on its way out");
    append(&*f.store, next(&a, 60, 4_000, end())).await;
    assert_eq!(holder(f, called("b", "report")).await, None);
    assert_eq!(holder(f, called("c", "report")).await, Some(run_id("b")));
    // In the queue too, and as often as one likes.
    let b = f.store.get(&run_id("b")).await.expect("gets").expect("it is there");
    let events = machine::decide::cancel(&b, StopReason::CanceledByOwner, None);
    append(&*f.store, next(&b, 70, 5_000, events)).await;
    assert_eq!(holder(f, called("c", "report")).await, None);
    let removal = Removal { scope: None, before: Timestamp(9_000), limit: 9, dry_run: false };
    assert_eq!(f.store.remove(removal).await.expect("removes").runs, 2);
    assert_eq!(holder(f, called("a", "report")).await, Some(run_id("c")));
}

pub(crate) async fn a_repeated_request_gets_its_run_though_that_has_the_name(f: &Fixture) {
    let new = |id| keyed(new_run(called(id, "report")), "k", "f");
    assert!(matches!(f.store.create(new("a")).await.expect("creates"), CreateOutcome::New));
    let again = f.store.create(new("b")).await.expect("answers");
    assert!(
        matches!(&again, CreateOutcome::Repeated(run) if run.id().as_str() == "a"),
        "{again:?}"
    );
    // And one that was refused for its name has not taken its key.
    let refused = keyed(new_run(called("c", "report")), "k-2", "f");
    let refused = f.store.create(refused).await.expect("answers");
    assert!(matches!(refused, CreateOutcome::NameTaken(_)), "{refused:?}");
    let other = f.store.create(keyed(new_run(spec("d")), "k-2", "f")).await.expect("answers");
    assert!(matches!(other, CreateOutcome::New), "{other:?}");
}

pub(crate) async fn runs_are_listed_by_name_in_any_status(f: &Fixture) {
    create(&*f.store, RunSpec { priority: 1, ..called("a", "report") }).await;
    let a = claim_one(&*f.store, "h").await;
    append(&*f.store, next(&a, 50, 3_000, end())).await;
    create(&*f.store, RunSpec { created_at: Timestamp(4_000), ..called("b", "report") }).await;
    create(&*f.store, called("c", "other")).await;
    create(&*f.store, spec("d")).await;
    let named = |name: &str| ListFilter { name: Some(name.to_owned()), ..ListFilter::default() };
    let list = async |scope: &Scope, filter: &ListFilter| {
        let page = f.store.list(scope, filter, None, 9).await.expect("lists");
        ids(&page.runs).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let acme = Scope::tenant("acme");
    assert_eq!(list(&acme, &named("report")).await, ["b", "a"]);
    let open = ListFilter { status: vec![Status::Queued], ..named("report") };
    assert_eq!(list(&acme, &open).await, ["b"]);
    let labelled = BTreeMap::from([("team".to_owned(), "blue".to_owned())]);
    let none = ListFilter { labels: labelled, ..named("report") };
    assert_eq!(list(&acme, &none).await, Vec::<String>::new());
    assert_eq!(list(&acme, &named("Report")).await, Vec::<String>::new());
    assert_eq!(list(&acme.clone().owner("bob"), &named("report")).await, Vec::<String>::new());
    assert_eq!(list(&Scope::tenant("zeta"), &named("report")).await, Vec::<String>::new());
}

/// An autonomous run that takes part in the conversation of its session.
pub(crate) fn autonomous(id: &str) -> RunSpec {
    let settings = serde_json::json!({ "mode": "standing", "continuation": "go on" });
    let autonomy = serde_json::from_value(settings).expect("settings");
    RunSpec { autonomy: Some(autonomy), history: History::Agent, ..spec(id) }
}

pub(crate) async fn of_an_agent_one_autonomous_run_of_a_conversation_is_open(f: &Fixture) {
    let locked_by = async |spec: RunSpec| match f.store.create(new_run(spec)).await {
        Ok(CreateOutcome::New) => None,
        Ok(CreateOutcome::Locked(run)) => Some(run.id().to_string()),
        other => panic!("{other:?}"),
    };
    let other = autonomous;
    assert_eq!(locked_by(autonomous("a")).await, None);
    assert_eq!(locked_by(autonomous("b")).await.as_deref(), Some("a"));
    let elsewhere = [
        RunSpec { tenant: "zeta".to_owned(), ..other("tenant") },
        RunSpec { owner_user_id: "bob".to_owned(), ..other("owner") },
        RunSpec { parent_app_name: Some("mail".to_owned()), ..other("app") },
        RunSpec { parent_session_id: "s-2".to_owned(), ..other("session") },
        RunSpec { agent_name: "another".to_owned(), ..other("agent") },
        RunSpec { history: History::None, ..other("apart") },
        RunSpec { autonomy: None, ..other("plain") },
    ];
    for spec in elsewhere {
        let id = spec.id.clone();
        assert_eq!(locked_by(spec).await, None, "{id}");
    }
    let a = f.store.get(&run_id("a")).await.expect("gets").expect("it is there");
    let events = machine::decide::cancel(&a, StopReason::CanceledByOwner, None);
    append(&*f.store, next(&a, 70, 5_000, events)).await;
    assert_eq!(locked_by(autonomous("b")).await, None, "it has ended");
}
