//! Hosts and the runs they leave.

use super::*;

pub(crate) async fn a_host_retires_only_without_runs_and_queued_work(f: &Fixture) {
    let host = host_id("h");
    f.store.register(host_of(&host, POLICY)).await.expect("registers");
    create(&*f.store, RunSpec { policy_digest: "other".to_owned(), ..spec("theirs") }).await;
    create(&*f.store, spec("ours")).await;
    assert!(!f.store.retire(&host).await.expect("answers"), "work waits");
    let run = claim_one(&*f.store, "h").await;
    assert!(!f.store.retire(&host).await.expect("answers"), "it holds a run");
    assert_eq!(f.store.hosts().await.expect("lists"), [host_of(&host, POLICY)]);
    append(&*f.store, next(&run, 50, 3_000, end())).await;
    assert!(f.store.retire(&host).await.expect("answers"));
    assert_eq!(f.store.hosts().await.expect("lists"), []);
    assert!(f.store.retire(&host).await.expect("answers"), "it is out");
}

pub(crate) async fn hosts_are_listed_from_registration_to_retirement(f: &Fixture) {
    let (a, b) = (host_of(&host_id("a"), POLICY), host_of(&host_id("b/../:"), "other"));
    f.store.register(a.clone()).await.expect("registers");
    f.store.register(b.clone()).await.expect("registers");
    assert_eq!(f.store.hosts().await.expect("lists"), [a.clone(), b.clone()]);
    assert!(f.store.retire(&a.id).await.expect("answers"));
    assert_eq!(f.store.hosts().await.expect("lists"), [b]);
}

pub(crate) async fn runs_of_dead_hosts_are_orphans(f: &Fixture) {
    for id in ["a", "b", "c", "d"] {
        create(&*f.store, spec(id)).await;
    }
    let lives = host_id("lives");
    f.store.register(host_of(&lives, POLICY)).await.expect("registers");
    let dead = host_id("dead");
    f.let_die(&dead).await;
    assert_eq!(f.store.hosts().await.expect("lists"), [host_of(&lives, POLICY)]);
    for host in ["lives", "dead", "never-registered", "dead"] {
        claim_one(&*f.store, host).await;
    }
    let orphans = f.store.orphans(10).await.expect("answers");
    let found: BTreeSet<&str> = ids(&orphans).into_iter().collect();
    assert_eq!(found, BTreeSet::from(["b", "c", "d"]));
    assert_eq!(f.store.orphans(2).await.expect("answers").len(), 2);
    for (run, id) in orphans.iter().zip(1_000..) {
        append(&*f.store, next(run, id * 10, 5_000, machine::decide::interrupt(run))).await;
    }
    assert_eq!(f.store.orphans(10).await.expect("answers"), []);
}

pub(crate) async fn runs_that_need_no_host_are_no_orphans(f: &Fixture) {
    for id in ["blocked", "ended", "queued"] {
        create(&*f.store, spec(id)).await;
    }
    let runs = f.store.claim(wish("nobody", 2, 2_000)).await.expect("claims");
    let on = BlockedOn::Input;
    append(&*f.store, next(&runs[0], 50, 3_000, vec![Event::Blocked { on }])).await;
    append(&*f.store, next(&runs[1], 60, 3_000, end())).await;
    assert_eq!(f.store.orphans(10).await.expect("answers"), []);
}
