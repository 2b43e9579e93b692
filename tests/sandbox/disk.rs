//! Case 33: filling the disk, through `workspace-write`.

use serde_json::json;
use taskrun_journal::event::Event;
use taskrun_tests::{Builder, House};

use super::{call_by, neighbour_is_served, one_call, value};

/// Four agents that differ in their limits, and one that is nobody's enemy.
const POLICY: &str = r#"
[workspace]
limits = { bytes = "2MiB", files = 60, reserve = "1MiB" }

[tool.evil]
component = "components/evil-tool.wasm"

[tool.honest]
component = "components/scripted-tool.wasm"

[agent.patient]
component = "components/scripted.wasm"
tools = ["evil/*"]
allow = ["workspace-read: notes/**", "workspace-write: notes/**"]
limits = { call = "10m" }

[agent.narrow]
component = "components/scripted.wasm"
tools = ["evil/*"]
allow = ["workspace-read: notes/**", "workspace-write: notes/**"]
limits = { call = "10m", write = "100KiB", new_files = 5 }

[agent.terse]
component = "components/scripted.wasm"
tools = ["evil/*"]
allow = ["workspace-read: notes/**"]
deny = ["workspace-write: **"]
limits = { call = "10m", host_call_bytes = "64KiB" }

[agent.victim]
component = "components/scripted.wasm"
tools = ["honest/*"]
"#;

/// The bytes that a guest had written when it was refused, and why it was.
async fn fill(house: &House, agent: &str, how: &str, files: u32, bytes: u32) -> (u64, String) {
    let args = json!({ "folder": "notes", "files": files, "bytes": bytes, "how": how });
    let filled = value(&call_by(house, agent, "evil/fill", args).await);
    let refused = filled["refused"].as_str().unwrap_or("(not refused)");
    (filled["done"].as_u64().expect("a number"), refused.to_owned())
}

async fn house() -> House {
    Builder::new(POLICY).file("notes/mine.md", "mine").open().await
}

/// Bytes and number of all that is in a folder.
fn held(house: &House) -> (u64, usize) {
    let entries = std::fs::read_dir(house.path().join("notes")).expect("a folder");
    let sizes: Vec<u64> =
        entries.map(|entry| entry.expect("an entry").metadata().expect("metadata").len()).collect();
    (sizes.iter().sum(), sizes.len())
}

#[tokio::test]
async fn case_33_one_call_writes_no_more_bytes_than_it_may() {
    for how in ["create", "append", "replace"] {
        let house = house().await;
        let (done, refused) = fill(&house, "narrow", how, 4, 30 << 10).await;
        assert_eq!(done, 3, "{how}: {refused}");
        assert!(refused.contains("limits: write"), "{how}: {refused}");
        assert!(held(&house).0 <= 100 << 10, "{how}");
    }
}

#[tokio::test]
async fn case_33_one_call_makes_no_more_files_than_it_may() {
    for how in ["create", "folders"] {
        let house = house().await;
        let (done, refused) = fill(&house, "narrow", how, 1_000, 0).await;
        assert_eq!(done, 5, "{how}: {refused}");
        assert!(refused.contains("limits: new_files"), "{how}: {refused}");
        assert_eq!(held(&house).1, 6, "{how}");
    }
}

#[tokio::test]
async fn case_33_all_calls_together_fill_a_workspace_no_further_than_it_may_be() {
    let house = house().await;
    let calls = (0..6).map(|_| fill(&house, "patient", "append", 1_000, 50_000));
    let filled = futures::future::join_all(calls).await;
    let done: u64 = filled.iter().map(|(done, _)| done).sum();
    assert_eq!(done, (2 << 20) / 50_000, "{filled:?}");
    assert!(filled.iter().all(|(_, why)| why.contains("limits: bytes")), "{filled:?}");
    assert_eq!(held(&house).0, done * 50_000 + 4);
    neighbour_is_served(&house).await;
    // What people remove may be written again, as soon as the workspace is counted again.
    std::fs::remove_file(house.path().join("notes/one")).expect("removed by hand");
    let deadline = std::time::Duration::from_secs(60);
    let counted_again =
        async { while fill(&house, "patient", "replace", 20, 50_000).await.0 < 20 {} };
    tokio::time::timeout(deadline, counted_again).await.expect("there is room again");
}

#[tokio::test]
async fn case_33_a_workspace_gets_no_more_files_than_it_may_have() {
    let house = house().await;
    let (done, refused) = fill(&house, "patient", "folders", 1_000, 0).await;
    assert_eq!(done, 59, "one was there: {refused}");
    assert!(refused.contains("limits: files"), "{refused}");
    assert_eq!(held(&house).1, 60);
}

#[tokio::test]
async fn case_23_listings_of_many_long_names_are_bounded_in_bytes_and_share_a_pool() {
    let house = house().await;
    for number in 0..10_000 {
        let name = format!("notes/{number:05}-{}", "x".repeat(200));
        std::fs::write(house.path().join(name), "").expect("a file");
    }
    let list = |agent| {
        let house = &house;
        async move {
            let args = json!({ "folder": "notes" });
            value(&call_by(house, agent, "evil/list_all", args).await)
        }
    };
    let terse = list("terse").await;
    let entries = terse["entries"].as_u64().expect("a number");
    assert!((100..300).contains(&entries) && terse["truncated"] == json!(true), "{terse}");
    // More at once than the pool has room for at the most that each can come to.
    let all = futures::future::join_all((0..24).map(|_| list("patient"))).await;
    for listed in all {
        assert_eq!(listed, json!({ "entries": 10_000, "truncated": true }));
    }
}

#[tokio::test]
async fn case_33_a_refusal_names_the_bound_in_the_journal_once() {
    let house = house().await;
    let args = json!({ "folder": "notes", "files": 1_000, "bytes": 0, "how": "folders" });
    let run = house.run("narrow", &one_call("evil/fill", args)).await;
    let journal = house.journal(run.id().as_str()).await;
    let bounds: Vec<String> = journal
        .into_iter()
        .filter_map(|recorded| {
            let Event::PolicyDecision { capability, rule, .. } = recorded.event else {
                return None;
            };
            (capability == "workspace-write").then_some(rule)
        })
        .collect();
    assert!(matches!(bounds.as_slice(), [bound] if bound.contains("new_files")), "{bounds:?}");
}

#[tokio::test]
async fn case_33_a_reserve_of_the_disk_is_left_alone() {
    let house = Builder::new(&POLICY.replace("reserve = \"1MiB\"", &reserve_beyond_the_disk()));
    let house = house.file("notes/mine.md", "mine").open().await;
    for how in ["create", "append", "replace", "folders"] {
        let (done, refused) = fill(&house, "patient", how, 1, 1).await;
        assert_eq!(done, 0, "{how}");
        assert!(refused.contains("limits: reserve"), "{how}: {refused}");
    }
    assert_eq!(held(&house), (4, 1));
    neighbour_is_served(&house).await;
}

/// More than is free where tests have their folders.
fn reserve_beyond_the_disk() -> String {
    let disk = rustix::fs::statvfs(std::env::temp_dir()).expect("a disk");
    let free = disk.f_bavail * disk.f_frsize;
    format!("reserve = \"{}GiB\"", (free >> 30) + 10)
}
