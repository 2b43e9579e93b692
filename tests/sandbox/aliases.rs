//! Case 34: names that some file system takes for one that is denied. A second name stands for
//! what such a file system would find; those that tests have tell names apart by their bytes.

use serde_json::{Value, json};
use taskrun::spawn::SpawnRequest;
use taskrun_journal::event::Event;
use taskrun_journal::narrowing::Narrowing;
use taskrun_tests::{Builder, House};

use super::{call_by, neighbour_is_served, one_call, output, value};

const POLICY: &str = r#"
[tool.evil]
component = "components/evil-tool.wasm"

[tool.honest]
component = "components/scripted-tool.wasm"

[agent.patient]
component = "components/scripted.wasm"
tools = ["evil/*"]
allow = ["workspace-read: docs/**", "workspace-write: docs/**"]
deny = [
  "workspace-read: docs/été-straße.md", "workspace-write: docs/été-straße.md",
  "workspace-read: docs/*.Key", "workspace-write: docs/*.Key",
  "workspace-read: **/.git/**", "workspace-write: **/.git/**",
]
limits = { call = "10m" }

[agent.everything]
component = "components/scripted.wasm"
tools = ["evil/*"]
allow = ["workspace-read: **", "workspace-write: **"]
limits = { call = "10m" }

[agent.victim]
component = "components/scripted.wasm"
tools = ["honest/*"]
"#;

const SECRET: &str = "the secret";

/// Names that lead to `docs/été-straße.md`, `docs/mine.Key` or `docs/.git/config` where case is
/// folded (the first ones), characters are put together anew, invisible ones are left out, or
/// names end sooner.
const ALIASES: [&str; 13] = [
    "docs/ÉTÉ-STRASSE.MD",
    "docs/été-stra\u{1e9e}e.md",
    "docs/e\u{301}te\u{301}-straße.md",
    "docs/E\u{301}TE\u{301}-Strasse.md",
    "docs/été\u{200d}-straße.md",
    "docs/été-straße.md.",
    "docs/été-straße.md:x",
    "docs/TSTRA~1.MD",
    "docs/mine.KEY",
    "docs/mine.\u{212a}ey",
    "docs/.GIT/config",
    "docs/.g\u{131}t/config",
    "docs/GIT~1/config",
];

async fn house() -> House {
    let house = Builder::new(POLICY)
        .file("docs/open.md", "open to read")
        .file("docs/secrets.md", "open as well")
        .file("secret.txt", SECRET)
        .open()
        .await;
    for alias in ALIASES {
        let path = house.path().join(alias);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::hard_link(house.path().join("secret.txt"), path).expect("a second name");
    }
    house
}

fn list(outcomes: &Value) -> Vec<Value> {
    outcomes.as_array().expect("a list").clone()
}

#[tokio::test]
async fn case_34_no_other_name_of_a_denied_file_is_read_listed_or_written() {
    let house = house().await;
    let read = call_by(&house, "patient", "evil/escape_paths", json!({ "paths": ALIASES })).await;
    for (alias, outcome) in ALIASES.iter().zip(list(&value(&read))) {
        assert_eq!(outcome["text"], Value::Null, "{alias}: {outcome}");
        assert_ne!(outcome["read"], json!("ok"), "{alias}: {outcome}");
    }
    let listed = call_by(&house, "patient", "evil/list_all", json!({ "folder": "docs" })).await;
    // Those that nobody denies; `docs/.git` and its aliases are folders, denied as a whole.
    assert_eq!(value(&listed), json!({ "entries": 2, "truncated": false }));
    let run =
        house.run("patient", &one_call("evil/write_paths", json!({ "paths": ALIASES }))).await;
    let journal = house.journal(run.id().as_str()).await;
    let denied = journal.iter().filter(|recorded| {
        matches!(&recorded.event, Event::PolicyDecision { capability, rule, .. }
            if capability == "workspace-write" && rule.contains("taskrun.toml:"))
    });
    assert_eq!(denied.count(), 5 * ALIASES.len(), "each of five operations is refused by a rule");
    let secret = std::fs::read_to_string(house.path().join("secret.txt")).expect("it is there");
    assert_eq!(secret, SECRET);
    let good = json!({ "paths": ["docs/open.md", "docs/secrets.md"] });
    let read = value(&call_by(&house, "patient", "evil/escape_paths", good).await);
    assert!(list(&read).iter().all(|outcome| outcome["read"] == json!("ok")), "{read}");
    neighbour_is_served(&house).await;
}

#[tokio::test]
async fn case_34_what_a_request_takes_away_is_taken_away_by_every_name() {
    let house = house().await;
    let paths = ["docs/OPEN.md", "docs/open.md"];
    std::fs::hard_link(house.path().join(paths[1]), house.path().join(paths[0])).expect("a name");
    let task = one_call("evil/escape_paths", json!({ "paths": paths }));
    let deny = vec!["workspace-read: docs/open.md".to_owned()];
    let narrow = Narrowing { deny, ..Narrowing::default() };
    let id = house.spawn(&SpawnRequest { narrow, ..house.request("patient", &task) }).await;
    let run = house.end(&id).await;
    for outcome in list(&value(&output(&house, &run).await.outcome)) {
        assert_ne!(outcome["read"], json!("ok"), "{outcome}");
    }
}

#[tokio::test]
async fn case_34_a_file_of_the_host_is_not_made_under_another_name() {
    let house = house().await;
    let paths = json!({ "paths": ["TASKRUN.TOML", "taskrun.toml.", "tas\u{212a}run.toml"] });
    let written = list(&value(&call_by(&house, "everything", "evil/write_paths", paths).await));
    assert_eq!(written.len(), 3);
    for outcome in written {
        for operation in ["create", "replace", "append", "create_directory", "remove"] {
            assert_eq!(outcome[operation], json!("denied"), "{operation}: {outcome}");
        }
    }
}
