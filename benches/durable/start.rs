//! A host begins over a large store in which a dead host left runs.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use taskrun_benches::percentile;
use taskrun_journal::list::ListFilter;
use taskrun_journal::status::Status;
use taskrun_journal::store::{Hosts, Store};
use taskrun_store::Durability;

use crate::host::{Host, open};
use crate::{Sizes, Watch, fill, say, store_dir};

/// Numbers of the runs that a round leaves behind begin here, and at each multiple.
const LEFT: u64 = 100_000_000;

/// Milliseconds since the process would have begun to open the store.
struct Begun {
    opened: f64,
    started: f64,
    served: f64,
    freed: f64,
    resumed: f64,
}

pub(crate) async fn measure(dir: &Path, sizes: &Sizes) -> Value {
    let runs = sizes.stores[sizes.stores.len() - 1];
    let dir = store_dir(dir, runs);
    let mut warm = Vec::new();
    for round in 1..=sizes.rounds as u64 {
        say(&format!("start, round {round} of {}", sizes.rounds));
        warm.push(start(&dir, sizes, round, false).await);
    }
    let cold = [start(&dir, sizes, sizes.rounds as u64 + 1, true).await];
    json!({
        "unit": "ms wall since the store was about to be opened",
        "runs": runs,
        "unfinished_of_a_dead_host": sizes.unfinished,
        "rounds": sizes.rounds,
        "goal_served": 1_000,
        "warm": row(&warm),
        "file_not_in_memory": row(&cold),
    })
}

fn row(rounds: &[Begun]) -> Value {
    let of = |pick: fn(&Begun) -> f64| {
        let figures: Vec<f64> = rounds.iter().map(pick).collect();
        percentile(&figures, 50)
    };
    json!({
        "opened": of(|begun| begun.opened),
        "started": of(|begun| begun.started),
        "served_get_and_list": of(|begun| begun.served),
        "all_freed": of(|begun| begun.freed),
        "all_resumed_and_ended": of(|begun| begun.resumed),
    })
}

async fn start(dir: &Path, sizes: &Sizes, round: u64, cold: bool) -> Begun {
    let left = open(dir, Durability::Power);
    let port = Arc::clone(&left) as Arc<dyn Store>;
    let mut first = LEFT * round;
    // A store of an earlier measurement has some.
    while port.get(&fill::id(first)).await.expect("can be read").is_some() {
        first += LEFT * 100;
    }
    fill::orphaned(&port, first, sizes.unfinished).await;
    left.close();
    drop((port, left));
    if cold {
        forget(&dir.join("taskrun.db"));
    }

    let watch = Watch::start();
    let host = Host::new(dir);
    let opened = watch.ms();
    host.controller.start().await.expect("starts");
    let started = watch.ms();
    let id = fill::id(0).to_string();
    host.client().get(&id).await.expect("is there");
    let all = ListFilter::default();
    let page = host.client().list(&all, None, 50).await.expect("a page");
    assert_eq!(page.runs.len(), 50);
    let served = watch.ms();

    while !host.store.orphans(1).await.expect("can be read").is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let freed = watch.ms();
    let open = ListFilter { status: vec![Status::Running, Status::Queued], ..all };
    while !host.client().list(&open, None, 1).await.expect("a page").runs.is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let resumed = watch.ms();
    host.close().await;
    Begun { opened, started, served, freed, resumed }
}

/// Puts a file out of the system's memory. To be called while nobody has the store open: SQLite's
/// locks are lost with any handle of the process that is closed.
fn forget(file: &Path) {
    let file = std::fs::File::open(file).expect("a file");
    file.sync_all().expect("synchronised");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advised");
}
