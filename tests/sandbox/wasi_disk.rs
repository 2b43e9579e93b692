//! Cases 31 to 33 through `wasi:filesystem`: links, pipes, the host's own files, sparse files and
//! descriptors.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use taskrun_journal::event::Event;
use taskrun_journal::tool::ToolOutcome;
use taskrun_tests::{Builder, House, Storage, engine};

use super::{call_by, code, neighbour_is_served, one_call, output, value};

const POLICY: &str = r#"
[workspace]
limits = { bytes = "2MiB", files = 40, reserve = "1MiB" }

[tool.evil]
component = "components/evil-wasi.wasm"

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

[agent.greedy]
component = "components/scripted.wasm"
tools = ["evil/*"]
allow = ["workspace-read: notes/**"]
limits = { call = "3s" }

[agent.victim]
component = "components/scripted.wasm"
tools = ["honest/*"]
"#;

async fn house() -> House {
    Builder::new(POLICY).file("notes/mine.md", "mine").storage(Storage::Sqlite).open().await
}

async fn attempts(house: &House, agent: &str, attempts: Value) -> Vec<Value> {
    let outcome = call_by(house, agent, "evil/attempt", json!({ "attempts": attempts })).await;
    value(&outcome).as_array().expect("a list").clone()
}

fn is_refused(outcome: &Value, with: &str) -> bool {
    outcome["error"].as_str().is_some_and(|error| error.contains(with))
}

#[tokio::test]
async fn case_33_no_sparse_file_is_larger_than_what_may_be_written() {
    let house = house().await;
    let tried = json!([
        { "op": "set-size", "path": "/notes/sparse", "count": 1_u64 << 40 },
        { "op": "write-at", "path": "/notes/far", "count": 1_u64 << 40 },
        { "op": "set-size", "path": "/notes/sparse", "count": 50_000 },
        { "op": "set-size", "path": "/notes/sparse", "count": 0 },
        { "op": "set-size", "path": "/notes/sparse", "count": 50_000 },
        { "op": "write-at", "path": "/notes/far", "count": 50_000 },
    ]);
    let outcomes = attempts(&house, "narrow", tried).await;
    assert!(is_refused(&outcomes[0], "uota"), "{:?}", outcomes[0]);
    // The guest's libc asks no stream why it failed: whatever the host says is an I/O error there.
    for refused in [1, 5] {
        assert!(is_refused(&outcomes[refused], "I/O error"), "{refused}: {:?}", outcomes[refused]);
    }
    for done in [2, 3, 4] {
        assert_eq!(outcomes[done]["ok"], json!("done"), "{done}");
    }
    let length = |name| std::fs::metadata(house.path().join(name)).expect("a file").len();
    assert_eq!((length("notes/sparse"), length("notes/far")), (50_000, 0));
}

#[tokio::test]
async fn case_33_a_write_that_a_stream_refuses_names_the_bound_in_the_journal_once() {
    let house = house().await;
    let far = json!({ "op": "write-at", "path": "/notes/far", "count": 1_u64 << 40 });
    let task = one_call("evil/attempt", json!({ "attempts": [far, far] }));
    let run = house.run("narrow", &task).await;
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
    assert!(matches!(bounds.as_slice(), [bound] if bound.contains("limits: write")), "{bounds:?}");
}

#[tokio::test]
async fn case_33_files_of_wasi_fill_the_workspace_of_workspace_write() {
    let house = house().await;
    let files: Vec<Value> =
        (0..8).map(|number| json!({ "op": "write", "path": format!("/notes/{number}") })).collect();
    let outcomes = attempts(&house, "narrow", json!(files)).await;
    let made = outcomes.iter().filter(|outcome| outcome["ok"] == json!("done")).count();
    assert_eq!(made, 5, "{outcomes:?}");
    let folders = |numbers: std::ops::Range<u32>| -> Value {
        let make =
            |number| json!({ "op": "create-directory", "path": format!("/notes/d{number}") });
        numbers.map(make).collect()
    };
    let outcomes = attempts(&house, "patient", folders(0..34)).await;
    let are_made = outcomes.iter().all(|outcome| outcome["ok"] == json!("done"));
    assert!(are_made, "of 40 six were there: {outcomes:?}");
    // What is removed may be made again, and a file that is replaced makes room.
    let again = json!([
        { "op": "remove-directory", "path": "/notes/d0" },
        { "op": "create-directory", "path": "/notes/d0" },
        { "op": "rename", "path": "/notes/0", "to": "/notes/1" },
        { "op": "write", "path": "/notes/0" },
        { "op": "write", "path": "/notes/more" },
    ]);
    let outcomes = attempts(&house, "patient", again).await;
    assert!(outcomes[..4].iter().all(|outcome| outcome["ok"] == json!("done")), "{outcomes:?}");
    assert!(is_refused(&outcomes[4], "uota"), "{:?}", outcomes[4]);
    let outcomes = attempts(&house, "patient", folders(34..60)).await;
    assert!(outcomes.iter().all(|outcome| is_refused(outcome, "uota")), "{outcomes:?}");
    neighbour_is_served(&house).await;
}

#[tokio::test]
async fn case_33_an_instance_has_a_small_share_of_descriptors() {
    let house = house().await;
    let tried = json!([
        { "op": "open-many", "path": "/notes/mine.md", "count": 1_000 },
        { "op": "open-many", "path": "/notes/mine.md", "count": 63 },
        { "op": "open-many", "path": "/notes/mine.md", "count": 64 },
        { "op": "read", "path": "/notes/mine.md" },
    ]);
    let outcomes = attempts(&house, "patient", tried).await;
    assert!(is_refused(&outcomes[0], "uota"), "{:?}", outcomes[0]);
    assert_eq!(outcomes[1]["ok"], json!("63"), "closed files are given back");
    assert!(is_refused(&outcomes[2], "uota"), "the granted folder is one: {:?}", outcomes[2]);
    assert_eq!(outcomes[3]["ok"], json!("mine"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_33_calls_that_keep_their_files_open_leave_others_theirs() {
    let house = house().await;
    let file = house.path().join("notes/mine.md").canonicalize().expect("the file is there");
    let stay = json!({ "attempts": [
        { "op": "open-many-and-stay", "path": "/notes/mine.md", "count": 1_000 },
    ] });
    let task = one_call("evil/attempt", stay);
    let mut greedy = Vec::new();
    for _ in 0..4 {
        greedy.push(house.spawn(&house.request("greedy", &task)).await);
    }
    // Each is seen to have opened what it may; more of them would have to be let.
    let all_open = async {
        while descriptors_of(&file) < 4 * 60 {
            tokio::task::yield_now().await
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all_open).await.expect("they open files");
    assert!(descriptors_of(&file) <= 4 * 64, "64 each");
    let read = attempts(&house, "patient", json!([{ "op": "read", "path": "/notes/mine.md" }]));
    assert_eq!(read.await[0]["ok"], json!("mine"));
    neighbour_is_served(&house).await;
    for id in greedy {
        let run = house.end(&id).await;
        let outcome = super::output(&house, &run).await.outcome;
        assert_eq!(code(&outcome), "deadline", "{outcome:?}");
    }
}

/// Descriptors of this process that are open on a file. Other tests run beside this one, so that
/// only those of a file of its own say anything.
fn descriptors_of(file: &Path) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").expect("descriptors");
    let links = all.filter_map(|one| std::fs::read_link(one.ok()?.path()).ok());
    links.filter(|target| target == file).count()
}

#[tokio::test]
async fn case_32_a_pipe_is_refused_without_waiting_for_its_other_end() {
    let house = house().await;
    let fifo = house.path().join("notes/fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .expect("a pipe");
    let tried = ["read", "write", "append", "truncate", "hard-link"]
        .map(|op| json!({ "op": op, "path": "/notes/fifo", "to": "/notes/pipe" }));
    let tried = attempts(&house, "patient", json!(tried));
    let outcomes = tokio::time::timeout(Duration::from_secs(60), tried).await.expect("no waiting");
    assert!(outcomes.iter().all(|outcome| outcome["ok"].is_null()), "{outcomes:?}");
}

#[tokio::test]
async fn case_31_no_symbolic_link_is_made() {
    let house = house().await;
    let tried = ["../outside.txt", "..", "mine.md", "/etc/passwd"]
        .map(|to| json!({ "op": "symbolic-link", "path": to, "to": "/notes/link" }));
    for outcome in attempts(&house, "patient", json!(tried)).await {
        assert!(is_refused(&outcome, "ermitted"), "{outcome}");
    }
    assert!(std::fs::symlink_metadata(house.path().join("notes/link")).is_err());
}

#[tokio::test]
async fn links_that_stay_inside_are_followed_and_others_are_not() {
    let house = house().await;
    std::fs::create_dir(house.path().join("notes/sub")).expect("a folder");
    let link = |target: &str, name: &str| symlink(target, house.path().join("notes").join(name));
    link("../mine.md", "sub/up").expect("a link");
    link("sub/up", "twice").expect("a link");
    link("../../taskrun.toml", "sub/out").expect("a link");
    link("loop", "loop").expect("a link");
    let tried = ["sub/up", "twice", "sub/../mine.md", "sub/out", "loop", "sub/../../taskrun.toml"]
        .map(|path| json!({ "op": "read", "path": format!("/notes/{path}") }));
    let outcomes = attempts(&house, "patient", json!(tried)).await;
    for outcome in &outcomes[..3] {
        assert_eq!(outcome["ok"], json!("mine"), "{outcome}");
    }
    for outcome in &outcomes[3..] {
        assert!(outcome["ok"].is_null(), "{outcome}");
    }
}

#[tokio::test]
async fn case_31_a_second_name_for_a_file_of_the_host_leads_nowhere() {
    let house = house().await;
    let policy = house.path().join("taskrun.toml");
    let second = house.path().join("notes/again");
    std::fs::hard_link(&policy, &second).expect("a second name");
    let before = std::fs::read(&policy).expect("a policy");
    let tried = ["read", "write", "append", "truncate", "stat", "hard-link", "rename", "remove"]
        .map(|op| json!({ "op": op, "path": "/notes/again", "to": "/notes/third" }));
    for outcome in attempts(&house, "patient", json!(tried)).await {
        assert!(outcome["ok"].is_null(), "{outcome}");
    }
    let listed = attempts(&house, "patient", json!([{ "op": "list", "path": "/notes" }])).await;
    assert_eq!(listed[0]["ok"], json!("mine.md"));
    assert_eq!(std::fs::read(&policy).expect("a policy"), before);
    assert!(second.exists(), "nor is it removed");
}

#[tokio::test]
async fn case_31_no_folder_of_another_agent_and_no_link_is_moved() {
    let other = "[agent.other]\ncomponent = \"components/scripted.wasm\"\n\
                 workspace = \"notes/deep/sub\"\n";
    let house = Builder::new(&format!("{POLICY}\n{other}"))
        .file("notes/deep/sub/theirs.md", "theirs")
        .file("notes/own/mine.md", "mine")
        .open()
        .await;
    symlink("/etc", house.path().join("notes/own/link")).expect("a link");
    let tried = json!([
        { "op": "rename", "path": "/notes/deep/sub", "to": "/notes/taken" },
        { "op": "rename", "path": "/notes/deep", "to": "/notes/taken" },
        { "op": "rename", "path": "/notes/own/link", "to": "/notes/taken" },
        { "op": "rename", "path": "/notes/own/mine.md", "to": "/notes/moved.md" },
        { "op": "rename", "path": "/notes/own", "to": "/notes/other" },
    ]);
    let task = one_call("evil/attempt", json!({ "attempts": tried }));
    let run = house.run("patient", &task).await;
    let outcomes = value(&output(&house, &run).await.outcome);
    let outcomes = outcomes.as_array().expect("a list");
    for outcome in &outcomes[..3] {
        assert!(is_refused(outcome, "ermitted"), "{outcome}");
    }
    for outcome in &outcomes[3..] {
        assert_eq!(outcome["ok"], json!("done"), "{outcome}");
    }
    assert!(house.path().join("notes/deep/sub/theirs.md").exists());
    assert!(!house.path().join("notes/taken").exists());
    let journal = house.journal(run.id().as_str()).await;
    let refusals: Vec<(String, String, String)> = journal
        .into_iter()
        .filter_map(|recorded| {
            let Event::PolicyDecision { capability, subject, rule, .. } = recorded.event else {
                return None;
            };
            Some((capability, subject, rule))
        })
        .collect();
    let (own, special) =
        ("the host's own files", "WASI moves and links nothing but files and folders");
    let expected = [("deep/sub", own), ("deep", own), ("own/link", special)];
    let expected = expected.map(|(from, rule)| {
        let subject = format!("notes/{from} -> notes/taken");
        ("workspace-write".to_owned(), subject, rule.to_owned())
    });
    assert_eq!(refusals, expected);
}

#[tokio::test]
async fn case_31_a_folder_in_which_the_host_puts_a_file_later_is_granted_no_more() {
    let house = house().await;
    let read = json!([{ "op": "read", "path": "/notes/mine.md" }]);
    let before = attempts(&house, "patient", read.clone()).await;
    assert_eq!(before[0]["ok"], json!("mine"));
    engine().protect([house.path().join("notes/later")]);
    let after = attempts(&house, "patient", read).await;
    assert!(after[0]["ok"].is_null(), "{after:?}");
}

#[tokio::test]
async fn a_tree_of_folders_is_removed_as_far_as_a_call_may_have_them_open() {
    let house = house().await;
    for (name, depth) in [("deep", 20), ("deeper", 80)] {
        let folders = house.path().join("notes").join(name).join("in/".repeat(depth));
        std::fs::create_dir_all(folders).expect("folders");
    }
    let tried = json!([
        { "op": "remove-directory", "path": "/notes/deep" },
        { "op": "remove-directory", "path": "/notes/deeper" },
        { "op": "read", "path": "/notes/mine.md" },
    ]);
    let outcomes = attempts(&house, "patient", tried).await;
    assert_eq!(outcomes[0]["ok"], json!("done"), "{:?}", outcomes[0]);
    assert!(!house.path().join("notes/deep").exists());
    assert!(is_refused(&outcomes[1], "uota"), "{:?}", outcomes[1]);
    assert_eq!(outcomes[2]["ok"], json!("mine"), "the call goes on");
}

#[tokio::test]
async fn case_33_a_listing_keeps_no_descriptor() {
    let house = house().await;
    let tried: Vec<Value> = (0..100).map(|_| json!({ "op": "list", "path": "/notes" })).collect();
    let outcome = call_by(&house, "patient", "evil/attempt", json!({ "attempts": tried })).await;
    assert!(matches!(&outcome, ToolOutcome::Value(_)), "{outcome:?}");
}
