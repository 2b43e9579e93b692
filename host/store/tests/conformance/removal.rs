//! Removing what ended long ago.

use taskrun_journal::schedule;

use super::names::autonomous;
use super::outbox::{held, round_ended};
use super::*;

fn removal(before: u64) -> Removal {
    all_before(before)
}

async fn remove(f: &Fixture, removal: Removal) -> RemovalOutcome {
    f.store.remove(removal).await.expect("removes")
}

/// Runs and kept ones.
fn counts(removed: RemovalOutcome) -> (u64, u64) {
    (removed.runs, removed.kept)
}

/// Keeps a run and lets it end at a time.
async fn ended(f: &Fixture, spec: RunSpec, at: u64) -> Run {
    let id = spec.id.clone();
    create(&*f.store, spec).await;
    end_at(f, id.as_str(), at).await
}

async fn end_at(f: &Fixture, id: &str, at: u64) -> Run {
    let run = f.store.get(&run_id(id)).await.expect("gets").expect("it is there");
    let run = match run.status() {
        Status::Queued => {
            let events = machine::decide::cancel(&run, StopReason::CanceledByOwner, None);
            next(&run, 50, at, events)
        }
        Status::Running => next(&run, 50, at, end()),
        status @ (Status::Blocked
        | Status::Canceling
        | Status::Finalizing
        | Status::Completed
        | Status::Failed
        | Status::Canceled) => panic!("the run is {status}"),
    };
    append(&*f.store, run).await
}

async fn left(f: &Fixture) -> BTreeSet<String> {
    let mut left = BTreeSet::new();
    for tenant in ["acme", "zeta"] {
        let page = f.store.list(&Scope::tenant(tenant), &ListFilter::default(), None, 100).await;
        left.extend(page.expect("lists").runs.iter().map(|run| run.id().to_string()));
    }
    left
}

fn names<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.into_iter().map(str::to_owned).collect()
}

pub(crate) async fn a_removed_run_leaves_nothing_behind(f: &Fixture) {
    let labelled = || RunSpec {
        labels: BTreeMap::from([("team".to_owned(), "blue".to_owned())]),
        parent_app_name: Some("mail".to_owned()),
        ..spec("r")
    };
    let new = keyed(new_run(labelled()), "k", "same");
    assert!(matches!(f.store.create(new).await.expect("creates"), CreateOutcome::New));
    create(&*f.store, spec("other")).await;
    let run = end_at(f, "r", 5_000).await;
    let journal = f.store.read(run.id(), 0, 100).await.expect("reads");
    let removed = remove(f, removal(5_001)).await;
    assert_eq!((removed.runs, removed.events, removed.kept), (1, journal.len() as u64, 0));
    assert!(removed.bytes > 0);
    assert_eq!(f.store.get(run.id()).await.expect("gets"), None);
    assert_eq!(f.store.read(run.id(), 0, 100).await.expect("reads"), []);
    let events = f.store.read_session(&session_key(), 0, 100).await.expect("reads").events;
    assert!(events.iter().all(|event| event.run.as_str() == "other"), "{events:?}");
    let late = next(&run, 70, 6_000, vec![]);
    assert_eq!(f.store.append(late).await.expect("answers"), AppendOutcome::Missing);
    let blue = ListFilter { labels: labelled().labels, ..ListFilter::default() };
    let tree = ListFilter { root_run_id: Some(run_id("r")), ..ListFilter::default() };
    for filter in [ListFilter::default(), blue.clone(), tree] {
        let page = f.store.list(&Scope::tenant("acme"), &filter, None, 9).await.expect("lists");
        assert!(page.runs.iter().all(|run| run.id().as_str() == "other"), "{page:?}");
    }
    // Its id and its key are free, and nothing of it comes back with them.
    let new = keyed(new_run(labelled()), "k", "something else");
    let run = new.run.clone();
    assert!(matches!(f.store.create(new).await.expect("creates"), CreateOutcome::New));
    journal_is(&*f.store, &run).await;
    let page = f.store.list(&Scope::tenant("acme"), &blue, None, 9).await.expect("lists");
    assert_eq!(page.runs, [run]);
}

pub(crate) async fn only_what_ended_before_the_time_is_removed(f: &Fixture) {
    ended(f, spec("old"), 4_999).await;
    ended(f, spec("young"), 5_000).await;
    create(&*f.store, spec("queued")).await;
    create(&*f.store, RunSpec { priority: 9, ..spec("running") }).await;
    claim_one(&*f.store, "h").await;
    assert_eq!(counts(remove(f, removal(5_000)).await), (1, 0));
    assert_eq!(left(f).await, names(["young", "queued", "running"]));
    assert_eq!(counts(remove(f, removal(u64::MAX)).await), (1, 0));
    assert_eq!(left(f).await, names(["queued", "running"]));
    assert_eq!(remove(f, removal(u64::MAX)).await, RemovalOutcome::default());
}

pub(crate) async fn the_oldest_are_removed_first(f: &Fixture) {
    for (id, at) in [("a", 3_000), ("b", 1_000), ("c", 4_000), ("d", 2_000)] {
        ended(f, spec(id), at).await;
    }
    let two = Removal { limit: 2, ..removal(9_000) };
    assert_eq!(counts(remove(f, Removal { limit: 0, ..two.clone() }).await), (0, 0));
    assert_eq!(counts(remove(f, two.clone()).await), (2, 0));
    assert_eq!(left(f).await, names(["a", "c"]));
    assert_eq!(counts(remove(f, two).await), (2, 0));
    assert_eq!(left(f).await, names([]));
}

pub(crate) async fn removal_is_narrowed_to_what_somebody_sees(f: &Fixture) {
    let session = |id, session: &str| RunSpec { parent_session_id: session.to_owned(), ..spec(id) };
    let foreign = |spec| RunSpec { tenant: "zeta".to_owned(), ..spec };
    let of = |owner: &str, spec| RunSpec { owner_user_id: owner.to_owned(), ..spec };
    ended(f, session("a-1", "s-1"), 1_000).await;
    ended(f, session("a-2", "s-2"), 1_000).await;
    ended(f, of("bob", session("b-1", "s-1")), 1_000).await;
    let app = Some("mail".to_owned());
    ended(f, RunSpec { parent_app_name: app.clone(), ..session("a-3", "s-1") }, 1_000).await;
    ended(f, foreign(session("z-1", "s-1")), 1_000).await;
    ended(f, foreign(session("z-2", "s-2")), 1_000).await;
    let only = |scope: Scope| Removal { scope: Some(scope), ..all_before(9_000) };
    let zeta = Scope::tenant("zeta");
    assert_eq!(counts(remove(f, only(zeta.clone().session("s-1"))).await), (1, 0));
    assert_eq!(left(f).await, names(["a-1", "a-2", "a-3", "b-1", "z-2"]));
    let acme = Scope::tenant("acme");
    let bobs = acme.clone().owner("bob");
    assert_eq!(counts(remove(f, only(bobs.clone().session("s-2"))).await), (0, 0));
    assert_eq!(counts(remove(f, only(bobs.clone().session("s-1"))).await), (1, 0));
    assert_eq!(counts(remove(f, only(bobs)).await), (0, 0));
    let mail = Scope { parent_app_name: app, ..acme.clone() };
    assert_eq!(counts(remove(f, only(mail)).await), (1, 0));
    assert_eq!(left(f).await, names(["a-1", "a-2", "z-2"]));
    assert_eq!(counts(remove(f, only(acme.owner("ann"))).await), (2, 0));
    assert_eq!(counts(remove(f, only(zeta)).await), (1, 0));
}

pub(crate) async fn what_is_beneath_a_run_of_a_session_goes_with_it(f: &Fixture) {
    let beneath = |id| RunSpec {
        parent_session_id: "session of the root".to_owned(),
        root_session_id: Some("s-1".to_owned()),
        ..child(id, &spec("root"))
    };
    create(&*f.store, spec("root")).await;
    for (id, at) in [("one", 1_000), ("two", 2_000)] {
        ended(f, beneath(id), at).await;
    }
    let elsewhere = RunSpec { parent_session_id: "s-2".to_owned(), ..spec("elsewhere") };
    ended(f, elsewhere, 1_000).await;
    end_at(f, "root", 3_000).await;
    let scope = Some(Scope::tenant("acme").session("s-1"));
    let listed = f.store.list(scope.as_ref().expect("one"), &ListFilter::default(), None, 2).await;
    let page = listed.expect("lists");
    assert_eq!(ids(&page.runs), ["root", "two"], "also in pages, in the order of all pages");
    assert!(page.next.is_some());
    assert_eq!(counts(remove(f, Removal { scope, ..all_before(9_000) }).await), (3, 0));
    assert_eq!(left(f).await, names(["elsewhere"]));
}

pub(crate) async fn a_dry_run_removes_nothing_and_says_what_would_be(f: &Fixture) {
    ended(f, spec("a"), 1_000).await;
    ended(f, spec("b"), 2_000).await;
    create(&*f.store, spec("root")).await;
    create(&*f.store, child("open", &spec("root"))).await;
    end_at(f, "root", 3_000).await;
    let run = f.store.get(&run_id("a")).await.expect("gets").expect("it is there");
    let told = remove(f, Removal { dry_run: true, ..removal(9_000) }).await;
    assert_eq!(counts(told), (2, 1));
    let one = Removal { dry_run: true, limit: 1, ..removal(9_000) };
    assert_eq!(counts(remove(f, one).await), (1, 0));
    journal_is(&*f.store, &run).await;
    assert_eq!(left(f).await, names(["a", "b", "root", "open"]));
    assert_eq!(remove(f, removal(9_000)).await, told);
}

pub(crate) async fn a_run_above_an_open_one_stays(f: &Fixture) {
    create(&*f.store, spec("root")).await;
    let middle = child("middle", &spec("root"));
    create(&*f.store, middle.clone()).await;
    create(&*f.store, child("open", &middle)).await;
    create(&*f.store, child("beside", &spec("root"))).await;
    create(&*f.store, child("under", &child("beside", &spec("root")))).await;
    for (id, at) in [("under", 1_000), ("root", 2_000), ("middle", 3_000), ("beside", 4_000)] {
        end_at(f, id, at).await;
    }
    // Those that stay are in nobody's way, however small the limit.
    let one = Removal { limit: 1, ..removal(9_000) };
    assert_eq!(counts(remove(f, one.clone()).await), (1, 0));
    assert_eq!(left(f).await, names(["root", "middle", "open", "beside"]));
    assert_eq!(counts(remove(f, one.clone()).await), (1, 2));
    assert_eq!(left(f).await, names(["root", "middle", "open"]));
    assert_eq!(counts(remove(f, one).await), (0, 2));
    end_at(f, "open", 5_000).await;
    assert_eq!(counts(remove(f, removal(5_000)).await), (2, 0));
    assert_eq!(counts(remove(f, removal(5_001)).await), (1, 0));
    assert_eq!(left(f).await, names([]));
}

pub(crate) async fn what_is_beneath_an_open_run_stays_until_that_leaves_it_behind(f: &Fixture) {
    let root = held(f, spec("root")).await;
    let middle = child("middle", &root.spec);
    create(&*f.store, middle.clone()).await;
    create(&*f.store, child("under", &middle)).await;
    for (id, at) in [("under", 3_000), ("middle", 4_000)] {
        end_at(f, id, at).await;
    }
    assert_eq!(counts(remove(f, removal(9_000)).await), (0, 2));
    assert_eq!(left(f).await, names(["root", "middle", "under"]));
    let left_behind = vec![round_ended(&["under", "middle"])];
    append(&*f.store, next(&root, 80, 5_000, left_behind)).await;
    assert_eq!(counts(remove(f, removal(9_000)).await), (2, 0));
    assert_eq!(left(f).await, names(["root"]));
}

pub(crate) async fn removed_runs_count_no_more_in_their_tree(f: &Fixture) {
    let (root, open) = (spec("root"), child("open", &spec("root")));
    create(&*f.store, root.clone()).await;
    create(&*f.store, open.clone()).await;
    let three = Admission { tree_max: 3, ..Admission::UNBOUNDED };
    let bounded = |id, parent| NewRun { admission: three.clone(), ..new_run(child(id, parent)) };
    f.store.create(bounded("a", &root)).await.expect("creates");
    end_at(f, "a", 1_000).await;
    end_at(f, "root", 2_000).await;
    let full = f.store.create(bounded("b", &open)).await.expect("answers");
    assert!(matches!(full, CreateOutcome::Full(AdmissionBound::Tree)), "{full:?}");
    assert_eq!(counts(remove(f, removal(9_000)).await), (1, 1));
    let created = f.store.create(bounded("b", &open)).await.expect("answers");
    assert!(matches!(created, CreateOutcome::New), "{created:?}");
}

pub(crate) async fn a_key_that_was_given_on_stays_when_its_first_run_goes(f: &Fixture) {
    let new = |id| keyed(new_run(spec(id)), "k", "same");
    f.store.create(new("old")).await.expect("creates");
    let mut again = new("young");
    if let Some(idempotency) = &mut again.idempotency {
        idempotency.completed_since = Some(Timestamp(0));
    }
    let created = f.store.create(again).await.expect("creates");
    assert!(matches!(created, CreateOutcome::New), "{created:?}");
    end_at(f, "old", 1_000).await;
    assert_eq!(counts(remove(f, removal(9_000)).await), (1, 0));
    let known = f.store.create(new("third")).await.expect("answers");
    assert!(
        matches!(&known, CreateOutcome::Repeated(run) if run.id().as_str() == "young"),
        "{known:?}"
    );
}

pub(crate) async fn the_end_of_a_removed_run_still_counts(f: &Fixture) {
    create(&*f.store, spec("waits")).await;
    let run = claim_one(&*f.store, "h").await;
    ended(f, spec("gone"), 1_000).await;
    remove(f, removal(9_000)).await;
    let wait = for_runs(&["gone"], WaitMode::All);
    append(&*f.store, next(&run, 50, 9_000, vec![wait])).await;
    assert_eq!(ids(&f.store.claim(wish("h", 9, 9_000)).await.expect("claims")), ["waits"]);
}

pub(crate) async fn pins_are_those_of_open_runs_and_of_those_that_ended_since(f: &Fixture) {
    let pinned = |id: &str, pin: &str| RunSpec { pin: pin.to_owned(), ..spec(id) };
    for (id, pin, at) in [("a", "w@1", 5_000), ("b", "w@2", 6_000), ("c", "w@2", 7_000)] {
        ended(f, pinned(id, pin), at).await;
    }
    let above = Ancestor {
        agent_name: "boss".to_owned(),
        pin: "boss@9".to_owned(),
        narrow: Narrowing::default(),
        autonomous: false,
    };
    let beneath = RunSpec { ancestors: vec![above], ..pinned("d", "w@3") };
    create(&*f.store, beneath).await;
    create(&*f.store, pinned("e", "w@4")).await;
    create(&*f.store, pinned("e2", "w@4")).await;
    let claimed =
        f.store.claim(Claim { ready: Ready::All, ..wish("h", 1, 8_000) }).await.expect("claims");
    assert_eq!(claimed.len(), 1, "a run that is under way is open, too");
    let pins = async |since: Option<u64>| -> Vec<String> {
        let pins = f.store.pins(since.map(Timestamp)).await.expect("reads");
        pins.iter().map(|pins| pins.as_str().to_owned()).collect()
    };
    let open = ["w@3 boss@9", "w@4"];
    assert_eq!(pins(None).await, open);
    assert_eq!(pins(Some(7_001)).await, open);
    assert_eq!(pins(Some(7_000)).await, ["w@2", "w@3 boss@9", "w@4"]);
    assert_eq!(pins(Some(0)).await, ["w@1", "w@2", "w@3 boss@9", "w@4"]);
    remove(f, removal(5_001)).await;
    assert_eq!(pins(Some(0)).await, ["w@2", "w@3 boss@9", "w@4"]);
}

pub(crate) async fn what_an_open_run_continues_stays(f: &Fixture) {
    let continues = async |id: &str, before: &str| {
        let key = schedule::continuation_key(&run_id(before));
        let new = keyed(new_run(autonomous(id)), &key, "");
        assert!(matches!(f.store.create(new).await.expect("creates"), CreateOutcome::New));
    };
    ended(f, autonomous("a"), 1_000).await;
    continues("b", "a").await;
    end_at(f, "b", 2_000).await;
    continues("c", "b").await;
    ended(f, spec("other"), 2_500).await;
    assert_eq!(counts(remove(f, removal(9_000)).await), (1, 2));
    assert_eq!(left(f).await, names(["a", "b", "c"]));
    end_at(f, "c", 3_000).await;
    assert_eq!(counts(remove(f, removal(9_000)).await), (3, 0));
}
