//! `agent versions` and `agent diff`: what runs were accepted with, and what became of it.

use serde_json::{Value, json};

use crate::project::Project;

fn edit(project: &Project, from: &str, to: &str) {
    let path = project.path().join("taskrun.toml");
    let policy = std::fs::read_to_string(&path).expect("there is one");
    assert!(policy.contains(from), "{policy}");
    std::fs::write(path, policy.replacen(from, to, 1)).expect("written");
}

fn waits(project: &Project) -> String {
    let clarification = json!({ "clarification": { "id": "which", "question": "Which?" } });
    let steps = json!([[{ "plan": { "await": [clarification] } }], [{ "reply": "thanks" }]]);
    let id = project.run(&["run", "worker", &json!({ "steps": steps }).to_string(), "-d"]).id();
    project.reach(&id, "blocked");
    id
}

fn versions(project: &Project, more: &[&str]) -> Vec<Value> {
    let ran = project.run(&[&["agent", "versions", "-o", "json"][..], more].concat());
    assert_eq!(ran.code, 0, "{ran:?}");
    ran.json()["versions"].as_array().cloned().expect("versions")
}

fn counts(version: &Value) -> [&Value; 4] {
    [&version["open_runs"], &version["runs"], &version["kept"], &version["current"]]
}

fn text<'v>(version: &'v Value, key: &str) -> &'v str {
    version[key].as_str().unwrap_or_else(|| panic!("no {key}: {version}"))
}

/// A project with a run of an earlier version of the worker, one that ended and one of the current
/// one; gives the pins of both versions, the current one first.
fn two_versions() -> (Project, [String; 2]) {
    let project = Project::new();
    let ends = waits(&project);
    waits(&project);
    assert_eq!(project.run(&["answer", &ends, "the third one"]).code, 0);
    project.ends_by_itself(&ends);
    let before = versions(&project, &["worker"]);
    assert_eq!(before.len(), 1, "{before:?}");
    assert_eq!(counts(&before[0]), [&json!(1), &json!(2), &json!(true), &json!(true)]);
    edit(&project, "limits = { call = \"60s\" }", "limits = { call = \"50s\" }");
    let now = versions(&project, &["worker"]);
    let [current, earlier] = now.as_slice() else { panic!("{now:?}") };
    assert_eq!(counts(current), [&json!(0), &json!(0), &json!(false), &json!(true)]);
    assert_eq!(counts(earlier), [&json!(1), &json!(2), &json!(true), &json!(false)]);
    assert_eq!((&current["since"], &earlier["since"]), (&Value::Null, &before[0]["since"]));
    let first = project.get(&ends)["created_at"].clone();
    assert_eq!(earlier["since"], first, "it is there since its first run");
    waits(&project);
    let pins = [text(current, "pin").to_owned(), text(earlier, "pin").to_owned()];
    (project, pins)
}

#[test]
fn the_versions_of_an_agent_are_listed_with_their_runs_and_the_current_one() {
    let (project, [current, earlier]) = two_versions();
    let now = versions(&project, &["worker"]);
    assert_eq!([text(&now[0], "pin"), text(&now[1], "pin")], [&current, &earlier]);
    assert_eq!(counts(&now[0]), [&json!(1), &json!(1), &json!(true), &json!(true)]);
    assert!(earlier.starts_with(&format!("worker@blake3:{}", text(&now[1], "short"))));
    let names = project.run(&["agent", "versions", "worker", "-o", "name"]).stdout;
    assert_eq!(names.lines().collect::<Vec<_>>(), [&current, &earlier]);
    let rows = project.run(&["agent", "versions", "worker", "-o", "ndjson"]).stdout;
    assert_eq!(rows.lines().count(), 2, "{rows}");
    let table = project.run(&["agent", "versions", "worker"]).stdout;
    let line = table.lines().find(|line| line.contains(text(&now[0], "short")));
    assert!(line.is_some_and(|line| line.ends_with("current")), "{table}");
    // Nothing is kept of the other agents, of which no run was ever accepted.
    let all = versions(&project, &[]);
    let reader = all.iter().find(|version| version["agent_name"] == "reader").expect("current");
    assert_eq!(counts(reader), [&json!(0), &json!(0), &json!(false), &json!(true)], "{reader}");
    assert!(reader["since"].is_null(), "{reader}");
    // An agent that the policy does not have any more is known by its runs.
    project.write("taskrun.toml", b"[agent.other]\ncomponent = \"components/scripted.wasm\"\n");
    let gone = versions(&project, &["worker"]);
    assert_eq!(gone.len(), 2, "{gone:?}");
    assert!(gone.iter().all(|version| version["current"] == false), "{gone:?}");
    let unknown = project.run(&["agent", "versions", "nobody"]);
    assert_eq!((unknown.code, &unknown.error()["code"]), (2, &json!("unknown-agent")));
    // Another tenant's runs are not counted.
    let other = versions(&project, &["worker", "--tenant", "other"]);
    assert!(other.iter().all(|version| version["runs"] == 0), "{other:?}");
}

#[test]
fn what_differs_between_two_versions_is_shown_line_by_line() {
    let (project, [current, earlier]) = two_versions();
    let short = &earlier["worker@blake3:".len()..][..12];
    let shown = project.run(&["agent", "diff", "worker", short]);
    assert_eq!(shown.code, 0, "{shown:?}");
    let changed = |sign: char| {
        let lines = shown.stdout.lines().filter(move |line| line.starts_with(sign));
        lines.map(|line| line[1..].trim().to_owned()).collect::<Vec<_>>()
    };
    let (old, new) = (changed('-'), changed('+'));
    assert_eq!(old[0], format!("-- worker@{short}"), "{shown:?}");
    assert!(old.iter().any(|line| line.contains("60000")), "{shown:?}");
    assert!(new.iter().any(|line| line.contains("50000")), "{shown:?}");
    assert!(!shown.stdout.contains("\"component\""), "what is the same is left out: {shown:?}");
    let of = |from: &str, to: &str| {
        project.run(&["agent", "diff", "worker", from, to, "-o", "json"]).json()
    };
    let back = of(&current, &earlier);
    assert_eq!(
        (&back["differs"], &back["from"], &back["to"]),
        (&json!(true), &json!(current), &json!(earlier))
    );
    assert!(back["parts"].as_array().is_some_and(|parts| parts.contains(&json!("limits"))));
    assert!(text(&back, "diff").contains("50000"), "{back}");
    let same = of(&current, &current);
    assert_eq!(
        (&same["differs"], &same["parts"], &same["diff"]),
        (&json!(false), &json!([]), &json!(""))
    );
    let parts = project.run(&["agent", "diff", "worker", &earlier, "-o", "name"]).stdout;
    assert!(parts.lines().any(|part| part == "limits"), "{parts}");
    // A component is in it by its digest.
    let bytes = std::fs::read(project.path().join("components/scripted.wasm")).expect("readable");
    let other = [bytes.as_slice(), &[0, 2, 1, b'x']].concat();
    project.write("components/scripted.wasm", &other);
    let shown = project.run(&["agent", "diff", "worker", &current]).stdout;
    assert!(shown.contains(&format!("blake3:{}", blake3::hash(&other).to_hex())), "{shown}");
}

#[test]
fn a_version_that_is_not_known_or_not_kept_is_refused() {
    let (project, [current, earlier]) = two_versions();
    let refused = |args: &[&str], code: &str| {
        let ran = project.run(&[&["agent", "diff"][..], args].concat());
        assert_eq!((ran.code, &ran.error()["code"]), (2, &json!(code)), "{args:?}: {ran:?}");
    };
    let digits = &earlier["worker@blake3:".len()..];
    refused(&["worker", "ffff0000ffff"], "unknown-pin");
    refused(&["worker", &digits[..3]], "unknown-pin");
    refused(&["worker", ""], "unknown-pin");
    refused(&["worker", &format!("reader@blake3:{digits}")], "unknown-pin");
    refused(&["nobody", digits], "unknown-agent");
    let kept = project.path().join(".taskrun/blobs/pins").join(digits);
    std::fs::remove_file(kept).expect("removed");
    refused(&["worker", digits], "pin-not-kept");
    let now = versions(&project, &["worker"]);
    assert_eq!(counts(&now[1]), [&json!(1), &json!(2), &json!(false), &json!(false)]);
    // The current one is known from the policy itself.
    let digits = &current["worker@blake3:".len()..];
    std::fs::remove_file(project.path().join(".taskrun/blobs/pins").join(digits)).expect("removed");
    assert_eq!(project.run(&["agent", "diff", "worker", digits]).code, 0);
    project.write("taskrun.toml", b"[agent.other]\ncomponent = \"components/scripted.wasm\"\n");
    refused(&["worker", digits], "unknown-pin");
}
