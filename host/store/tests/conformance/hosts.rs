//! Hosts and the runs they leave.

use super::*;
use std::collections::BTreeSet;
use taskrun_journal::store::PresentHost;

pub(crate) async fn a_host_retires_beside_what_it_cannot_execute(f: &Fixture) {
    let host = host_id("h");
    f.store.register(host_of(&host, PIN)).await.expect("registers");
    create(&*f.store, RunSpec { pin: "other".to_owned(), ..spec("theirs") }).await;
    create(&*f.store, spec("ours")).await;
    assert!(!f.store.retire(&host, Stay::default()).await.expect("answers"), "work waits");
    let run = claim_one(&*f.store, "h").await;
    assert!(!f.store.retire(&host, Stay::default()).await.expect("answers"), "it holds a run");
    assert_eq!(f.store.hosts().await.expect("lists"), [host_of(&host, PIN)]);
    append(&*f.store, next(&run, 50, 3_000, end())).await;
    assert!(f.store.retire(&host, Stay::default()).await.expect("answers"));
    assert_eq!(f.store.hosts().await.expect("lists"), []);
    assert!(f.store.retire(&host, Stay::default()).await.expect("answers"), "it is out");
}

pub(crate) async fn hosts_are_listed_from_registration_to_retirement(f: &Fixture) {
    let a = host_of(&host_id("a"), PIN);
    let b = host_of(&host_id("b/../:"), "other");
    let b = Host { slots: 2, lease: Duration::from_millis(12_345), ..b };
    f.store.register(a.clone()).await.expect("registers");
    f.store.register(b.clone()).await.expect("registers");
    assert_eq!(f.store.hosts().await.expect("lists"), [a.clone(), b.clone()]);
    let present = f.store.present_hosts().await.expect("lists");
    let lives = |host: &Host| PresentHost { host: host.clone(), silence: None };
    assert_eq!(present, [lives(&a), lives(&b)]);
    assert!(f.store.retire(&a.id, Stay::default()).await.expect("answers"));
    assert_eq!(f.store.hosts().await.expect("lists"), [b]);
}

pub(crate) async fn a_host_that_leaves_keeps_its_runs_and_is_not_listed(f: &Fixture) {
    create(&*f.store, spec("a")).await;
    let host = host_of(&host_id("leaves"), PIN);
    f.store.register(host.clone()).await.expect("registers");
    claim_one(&*f.store, "leaves").await;
    let leaving = Host { slots: 0, ..host };
    f.store.register(leaving.clone()).await.expect("registers");
    assert_eq!(f.store.hosts().await.expect("lists"), []);
    let present = f.store.present_hosts().await.expect("lists");
    assert_eq!(present, [PresentHost { host: leaving, silence: None }]);
    assert!(f.store.orphans(10).await.expect("answers").is_empty(), "it lives");
}

pub(crate) async fn a_host_that_is_abandoned_is_dead_at_once(f: &Fixture) {
    create(&*f.store, spec("a")).await;
    let (lives, gone) = (host_id("lives"), host_id("gone"));
    for host in [&lives, &gone] {
        f.store.register(host_of(host, PIN)).await.expect("registers");
    }
    claim_one(&*f.store, "gone").await;
    f.store.abandon(&gone);
    assert_eq!(f.store.hosts().await.expect("lists"), [host_of(&lives, PIN)]);
    assert_eq!(f.store.silence(&gone), None);
    assert_eq!(ids(&f.store.orphans(10).await.expect("answers")), ["a"]);
}

pub(crate) async fn runs_of_dead_hosts_are_orphans(f: &Fixture) {
    for id in ["a", "b", "c", "d"] {
        create(&*f.store, spec(id)).await;
    }
    let lives = host_id("lives");
    f.store.register(host_of(&lives, PIN)).await.expect("registers");
    let dead = host_id("dead");
    f.let_die(&dead).await;
    assert_eq!(f.store.hosts().await.expect("lists"), [host_of(&lives, PIN)]);
    for host in ["lives", "dead", "never-registered", "dead"] {
        claim_one(&*f.store, host).await;
    }
    let orphans = f.store.orphans(10).await.expect("answers");
    let found: BTreeSet<&str> = ids(&orphans).into_iter().collect();
    assert_eq!(found, BTreeSet::from(["b", "c", "d"]));
    assert_eq!(f.store.orphans(2).await.expect("answers").len(), 2);
    for (run, id) in orphans.iter().zip(1_000..) {
        append(
            &*f.store,
            next(run, id * 10, 5_000, machine::decide::lose(run, Timestamp(5_000), None)),
        )
        .await;
    }
    assert_eq!(f.store.orphans(10).await.expect("answers"), []);
}

pub(crate) async fn runs_that_need_no_host_are_no_orphans(f: &Fixture) {
    for id in ["blocked", "ended", "queued"] {
        create(&*f.store, spec(id)).await;
    }
    let runs = f.store.claim(wish("nobody", 2, 2_000)).await.expect("claims");
    append(&*f.store, next(&runs[0], 50, 3_000, vec![blocked(Wait::Word)])).await;
    append(&*f.store, next(&runs[1], 60, 3_000, end())).await;
    assert_eq!(f.store.orphans(10).await.expect("answers"), []);
}

pub(crate) async fn a_host_stays_for_work_that_cannot_be_had_yet(f: &Fixture) {
    let host = host_id("h");
    f.store.register(host_of(&host, PIN)).await.expect("registers");
    let out = async || f.store.retire(&host, Stay::default()).await.expect("answers");
    // For a time to come,
    create(&*f.store, spec("later")).await;
    let run = claim_one(&*f.store, "other").await;
    let pause = machine::decide::lose(&run, Timestamp(9_000), None);
    append(&*f.store, next(&run, 50, 9_000, pause)).await;
    assert!(!out().await);
    let runs = f.store.claim(wish("other", 9, 90_000)).await.expect("claims");
    append(&*f.store, next(&runs[0], 60, 90_000, end())).await;
    // for a slot of its tree, and for its turn.
    create(&*f.store, spec("root")).await;
    create(&*f.store, child("parked", &spec("root"))).await;
    create(&*f.store, RunSpec { serial: true, pin: "p".to_owned(), ..spec("first") }).await;
    create(&*f.store, RunSpec { serial: true, ..spec("second") }).await;
    let one = Claim { tree_slots: 1, ..wish("other", 9, 90_000) };
    let runs = f.store.claim(one.clone()).await.expect("claims");
    assert_eq!(ids(&runs), ["root"]);
    assert!(!out().await);
    append(&*f.store, next(&runs[0], 70, 90_000, end())).await;
    let runs = f.store.claim(one).await.expect("claims");
    assert_eq!(ids(&runs), ["parked"]);
    assert!(!out().await);
    let theirs = Claim { ready: Ready::only(["p"]), ..wish("other", 9, 90_000) };
    let first = f.store.claim(theirs).await.expect("claims").remove(0);
    append(&*f.store, next(&first, 80, 90_000, end())).await;
    f.store.claim(wish("other", 9, 90_000)).await.expect("claims");
    assert!(out().await, "all of it is held by others");
}

pub(crate) async fn a_host_stays_for_a_time_only_if_it_comes_soon(f: &Fixture) {
    let host = host_id("h");
    f.store.register(host_of(&host, PIN)).await.expect("registers");
    create(&*f.store, spec("deferred")).await;
    let run = claim_one(&*f.store, "other").await;
    let at = Timestamp(100_000);
    append(&*f.store, next(&run, 50, 3_000, vec![blocked(Wait::Time { at })])).await;
    let stay = |until: Option<u64>| Stay { until: until.map(Timestamp), ..Stay::default() };
    for (until, needed) in [(None, true), (Some(99_999), false), (Some(100_000), true)] {
        let found = f.store.is_needed(&host, stay(until)).await.expect("answers");
        assert_eq!(found, needed, "{until:?}");
    }
    assert!(!f.store.retire(&host, stay(Some(100_000))).await.expect("answers"));
    assert!(f.store.retire(&host, stay(Some(99_999))).await.expect("answers"));
    assert_eq!(f.store.hosts().await.expect("lists"), []);
}

pub(crate) async fn who_looks_is_told_whether_a_claim_finds_something(f: &Fixture) {
    let prospect = async |ready: &[&str], now| {
        let claim = Claim { ready: Ready::only(ready.iter().copied()), ..wish("h", 9, now) };
        f.store.prospect(&claim).await.expect("answers")
    };
    assert_eq!(prospect(&[PIN], 2_000).await, Prospect::Nothing);
    create(&*f.store, spec("a")).await;
    assert_eq!(prospect(&[PIN], 2_000).await, Prospect::Claim);
    assert_eq!(prospect(&["other"], 2_000).await, Prospect::Unready);
    let run = claim_one(&*f.store, "h").await;
    assert_eq!(prospect(&[PIN], 2_000).await, Prospect::Nothing, "it is held");
    let at = Timestamp(100_000);
    append(&*f.store, next(&run, 50, 3_000, vec![blocked(Wait::Time { at })])).await;
    assert_eq!(prospect(&[PIN], 99_999).await, Prospect::Nothing);
    assert_eq!(prospect(&[PIN], 100_000).await, Prospect::Claim);
    let runs = f.store.claim(wish("h", 9, 100_000)).await.expect("claims");
    assert_eq!(ids(&runs), ["a"]);
    assert_eq!(prospect(&[PIN], 100_000).await, Prospect::Nothing);
    // Behind one of its tree it can be had no sooner than a slot is free.
    create(&*f.store, child("b", &spec("a"))).await;
    let one = Claim { tree_slots: 1, ..wish("h", 9, 100_000) };
    assert_eq!(f.store.claim(one.clone()).await.expect("claims"), []);
    assert_ne!(f.store.prospect(&one).await.expect("answers"), Prospect::Claim);
    assert_eq!(prospect(&[PIN], 100_000).await, Prospect::Claim, "who allows more may have it");
}

pub(crate) async fn a_host_need_not_stay_for_runs_that_wait_for_somebody(f: &Fixture) {
    let host = host_id("h");
    f.store.register(host_of(&host, PIN)).await.expect("registers");
    for id in ["a", "b", "c"] {
        create(&*f.store, spec(id)).await;
    }
    let runs = f.store.claim(wish("h", 9, 2_000)).await.expect("claims");
    append(&*f.store, next(&runs[0], 50, 3_000, vec![for_runs(&["b"], WaitMode::All)])).await;
    append(&*f.store, next(&runs[2], 50, 3_000, vec![blocked(Wait::Word)])).await;
    let b = append(&*f.store, next(&runs[1], 50, 3_000, vec![blocked(Wait::Word)])).await;
    assert!(f.store.retire(&host, Stay::default()).await.expect("answers"));
    f.store.register(host_of(&host, PIN)).await.expect("registers");
    let events = machine::decide::cancel(&b, StopReason::CanceledByOwner, None);
    append(&*f.store, next(&b, 60, 4_000, events)).await;
    assert!(!f.store.retire(&host, Stay::default()).await.expect("answers"), "the first is wanted");
}

pub(crate) async fn the_runs_of_a_host_are_listed_by_id(f: &Fixture) {
    let held = async |host: &str, after: Option<&str>, limit| {
        let after = after.map(run_id);
        let runs = f.store.held(&host_id(host), after.as_ref(), limit).await.expect("lists");
        ids(&runs).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    for id in ["c", "a", "d", "b"] {
        create(&*f.store, spec(id)).await;
    }
    assert_eq!(held("h", None, 9).await, [""; 0]);
    let runs = f.store.claim(wish("h", 3, 2_000)).await.expect("claims");
    f.store.claim(wish("other", 3, 2_000)).await.expect("claims");
    assert_eq!(held("h", None, 9).await, ["a", "c", "d"]);
    assert_eq!(held("h", None, 2).await, ["a", "c"]);
    assert_eq!(held("h", Some("a"), 9).await, ["c", "d"]);
    assert_eq!(held("h", Some("b"), 1).await, ["c"]);
    assert_eq!(held("h", Some("d"), 9).await, [""; 0]);
    assert_eq!(held("h", None, 0).await, [""; 0]);
    // One that is being canceled is still held; one that waits or ended is not.
    let c = append(&*f.store, next(&runs[0], 50, 3_000, vec![cancel()])).await;
    append(&*f.store, next(&runs[1], 50, 3_000, end())).await;
    append(&*f.store, next(&runs[2], 50, 3_000, vec![blocked(Wait::Word)])).await;
    let found = f.store.held(&host_id("h"), None, 9).await.expect("lists");
    assert_eq!(found, [c]);
    assert_eq!(held("other", None, 9).await, ["b"]);
}

pub(crate) async fn the_silence_of_a_host_is_known_while_it_is_registered(f: &Fixture) {
    let host = host_id("h");
    assert_eq!(f.store.silence(&host), None);
    f.store.register(host_of(&host, PIN)).await.expect("registers");
    let silence = f.store.silence(&host).expect("it is of this process");
    assert!(silence < LEASE, "{silence:?}");
    assert_eq!(f.store.silence(&host_id("other")), None);
    assert!(f.store.retire(&host, Stay::default()).await.expect("answers"));
    assert_eq!(f.store.silence(&host), None);
}

pub(crate) async fn a_host_that_lost_a_run_writes_no_more(f: &Fixture) {
    create(&*f.store, spec("r")).await;
    let theirs = claim_one(&*f.store, "first").await;
    let mine =
        append(&*f.store, next(&theirs, 50, 3_000, vec![lost("first", 2, Timestamp(0))])).await;
    assert_eq!(f.store.held(&host_id("first"), None, 9).await.expect("lists"), []);
    let late = next(&theirs, 60, 3_500, vec![note("late")]);
    assert_eq!(f.store.append(late.clone()).await.expect("answers"), AppendOutcome::Fenced(2));
    let resumed = claim_one(&*f.store, "second").await;
    assert_eq!(f.store.append(late).await.expect("answers"), AppendOutcome::Fenced(3));
    assert_eq!(resumed.state.epoch, 3);
    assert_eq!(
        f.store.held(&host_id("second"), None, 9).await.expect("lists"),
        std::slice::from_ref(&resumed)
    );
    journal_is(&*f.store, &resumed).await;
    let late = next(&mine, 70, 3_600, vec![cancel()]);
    assert_eq!(f.store.append(late).await.expect("answers"), AppendOutcome::Fenced(3));
}
