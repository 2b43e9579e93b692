//! Cases 29 and 30, through `workspace-read` and `workspace-write`.

use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use taskrun_journal::event::Event;
use taskrun_tests::{Builder, House};

use super::{EVIL, call_by, one_call, value};

const SECRET: &str = "the secret";

async fn house_with_files() -> House {
    let house = Builder::new(EVIL)
        .file("docs/open.md", "open to read")
        .file("docs/deep/inner.md", "deeper")
        .file("private/secret.txt", SECRET)
        .open()
        .await;
    let root = house.path();
    symlink("../private/secret.txt", root.join("docs/link-inside")).expect("a link");
    symlink("/etc/passwd", root.join("docs/link-outside")).expect("a link");
    symlink("../private", root.join("docs/dir-inside")).expect("a link");
    symlink("/", root.join("docs/dir-outside")).expect("a link");
    house
}

async fn outcomes(house: &House, function: &str, paths: &[String]) -> Vec<Value> {
    // Not the one whose calls have half a second: that is about time, and this is not.
    let outcome = call_by(house, "patient", function, json!({ "paths": paths })).await;
    value(&outcome).as_array().expect("a list").clone()
}

/// Paths that lead out of what is granted, or are no paths at all.
fn escapes() -> Vec<String> {
    let deep = format!("docs/{}open.md", "x/".repeat(2_048));
    [
        "../private/secret.txt",
        "docs/../private/secret.txt",
        "docs/../../../../../../etc/passwd",
        "/etc/passwd",
        "//etc/passwd",
        "docs//open.md",
        "docs/./open.md",
        "./docs/open.md",
        "docs/open.md/",
        "docs/open.md\0.txt",
        "\0",
        "..",
        "docs/..",
        "private/secret.txt",
        "docs\\..\\private\\secret.txt",
        "taskrun.toml",
        "docs/link-inside",
        "docs/link-outside",
        "docs/dir-inside/secret.txt",
        "docs/dir-outside/etc/passwd",
        "docs/deep/../../private/secret.txt",
        deep.as_str(),
    ]
    .map(str::to_owned)
    .to_vec()
}

fn assert_nothing_came_out(outcomes: &[Value]) {
    for outcome in outcomes {
        let text = outcome.to_string();
        assert!(!text.contains(SECRET), "{text:.300}");
        assert!(!text.contains("root:"), "{text:.300}");
        assert!(!text.contains("/tmp/"), "a path of the host: {text:.300}");
    }
}

#[tokio::test]
async fn case_29_paths_that_lead_out_are_refused() {
    let house = house_with_files().await;
    let paths = escapes();
    let read = outcomes(&house, "evil/escape_paths", &paths).await;
    assert_eq!(read.len(), paths.len());
    assert_nothing_came_out(&read);
    for (path, outcome) in paths.iter().zip(&read) {
        assert_ne!(outcome["read"], json!("ok"), "{path:.80}: {outcome}");
    }
    let good = ["docs/open.md".to_owned()];
    let read = outcomes(&house, "evil/escape_paths", &good).await;
    assert_eq!(read[0]["read"], json!("ok"));
    assert_eq!(read[0]["text"], json!("open to read"));
}

#[tokio::test]
async fn case_29_writing_under_a_denial_changes_nothing_and_names_the_rule() {
    let house = house_with_files().await;
    let before = listing(&house);
    let mut paths = escapes();
    paths.push("docs/new.md".into());
    let task = one_call("evil/write_paths", json!({ "paths": paths }));
    let run = house.run("victim", &task).await;
    assert_eq!(listing(&house), before);
    let journal = house.journal(run.id().as_str()).await;
    let rules: Vec<_> = journal
        .iter()
        .filter_map(|recorded| {
            let Event::PolicyDecision { capability, rule, .. } = &recorded.event else {
                return None;
            };
            (capability == "workspace-write").then(|| rule.clone())
        })
        .collect();
    assert!(!rules.is_empty(), "each refusal is in the journal");
    assert!(rules.iter().all(|rule| rule.contains("workspace-write: **")), "{rules:?}");
    assert!(rules.iter().all(|rule| rule.contains("taskrun.toml:")), "{rules:?}");
}

fn listing(house: &House) -> Vec<String> {
    fn walk(dir: &std::path::Path, out: &mut Vec<String>) {
        for entry in std::fs::read_dir(dir).expect("a folder") {
            let entry = entry.expect("an entry");
            out.push(entry.path().display().to_string());
            if entry.file_type().expect("a type").is_dir() {
                walk(&entry.path(), out);
            }
        }
    }
    let mut all = Vec::new();
    walk(&house.path().join("docs"), &mut all);
    walk(&house.path().join("private"), &mut all);
    all.sort();
    all
}

/// A shell is the program of the first command, and what it executes are its arguments.
const COMMANDS: &str = r#"
[command.tell]
run = ["/bin/sh", "hooks/tell.sh", "--settings=hooks/settings", "hooks"]

[tool.evil]
component = "components/evil-tool.wasm"

[agent.patient]
component = "components/scripted.wasm"
tools = ["evil/*"]
allow = ["workspace-read: **", "workspace-write: **"]
limits = { call = "10m" }
"#;

#[tokio::test]
async fn case_29_what_a_command_of_the_policy_executes_is_not_written_whatever_rules_grant() {
    let script = ("hooks/tell.sh", "#!/bin/sh");
    let house = Builder::new(COMMANDS).file(script.0, script.1).open().await;
    let paths = [script.0, "hooks/settings", "hooks/other"].map(str::to_owned);
    let written = outcomes(&house, "evil/write_paths", &paths).await;
    for operation in ["create", "replace", "append", "create_directory", "remove"] {
        assert_eq!(written[0][operation], json!("denied"), "{operation}: {written:?}");
        assert_eq!(written[1][operation], json!("denied"), "{operation}: {written:?}");
    }
    let kept = std::fs::read_to_string(house.path().join(script.0)).expect("it is there");
    assert_eq!(kept, script.1);
    assert!(!house.path().join("hooks/settings").exists());
    // A folder among the arguments is not the host's.
    assert_eq!(written[2]["create"], json!("ok"), "{written:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_30_a_link_swapped_in_while_a_file_is_opened_does_not_lead_out() {
    let house = house_with_files().await;
    let root = house.path();
    let stop = AtomicBool::new(false);
    let (flip, swapped) = (root.join("docs/flip"), root.join("docs/flip.new"));
    std::thread::scope(|threads| {
        // Also where the reading fails: the scope waits for its threads.
        let _stops = StopAtEnd(&stop);
        threads.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                std::fs::create_dir(&swapped).expect("a folder");
                std::fs::write(swapped.join("secret.txt"), "harmless").expect("a file");
                std::fs::rename(&swapped, &flip).expect("swapped");
                std::fs::remove_dir_all(&flip).expect("removed");
                symlink("../private", &swapped).expect("a link");
                std::fs::rename(&swapped, &flip).expect("swapped");
                std::fs::remove_file(&flip).expect("removed");
            }
        });
        let reading = async {
            let paths = vec!["docs/flip/secret.txt".to_owned(); 200];
            for _ in 0..10 {
                assert_nothing_came_out(&outcomes(&house, "evil/escape_paths", &paths).await);
            }
        };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(reading));
    });
}

/// Sets a flag when it is dropped.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
