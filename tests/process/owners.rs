//! Two owners of one tenant, and every command: neither sees, ends or removes what is the other's; and
//! the same for the owner's own name in another tenant or another session.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::project::{Project, Ran};

fn asking() -> String {
    let clarification = json!({ "clarification": { "id": "which", "question": "Which quarter?" } });
    json!({ "steps": [[{ "plan": { "await": [clarification] } }], [{ "reply": "thanks" }]] })
        .to_string()
}

/// The output of the program for one of the owners.
fn by(project: &Project, owner: &str, args: &[&str]) -> Ran {
    project.run(&[args, &["--owner", owner]].concat())
}

fn not_found(ran: &Ran) {
    assert_eq!((ran.code, &ran.error()["code"]), (2, &json!("not-found")), "{ran:?}");
}

fn ids(list: &Value) -> BTreeSet<String> {
    let runs = list["runs"].as_array().expect("runs");
    runs.iter().map(|run| run["id"].as_str().expect("an id").to_owned()).collect()
}

/// The commands that the program has, as its help lists them.
fn commands(project: &Project) -> BTreeSet<String> {
    let help = project.run(&["--help"]).stdout;
    let listed = help.lines().skip_while(|line| !line.starts_with("Commands:")).skip(1);
    // Lines with more space go on with what was said of the command before.
    let names =
        listed.map_while(|line| line.strip_prefix("  ")).filter(|line| !line.starts_with(' '));
    names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// Commands that are about no run and no session: of the policy, a component, this installation. Those
/// of them that tell of runs beside are tried by [`policies_tell_of_own_runs`].
const ABOUT_NO_RUN: [&str; 10] = [
    "agent",
    "tool",
    "model",
    "policy",
    "inspect",
    "demo",
    "doctor",
    "host",
    "completions",
    "replay",
];

/// The commands about a policy and about versions of its agents count and name the runs of one's own
/// alone: ann's, of which one is open, and bob's, of which none is.
fn policies_tell_of_own_runs(project: &Project, hers: &str, wrong: &[&[&str]]) {
    let arg = "name=scripted/lookup";
    let explain = ["policy", "explain", "--cap", "tool", "--arg", arg, "--run", hers];
    for identity in wrong {
        not_found(&project.run(&[&explain[..], *identity].concat()));
    }
    let own = by(project, "ann", &explain);
    assert_eq!(own.code, 0, "{own:?}");
    let counted: [(&[&str], _, _); 2] = [
        (&["agent", "versions", "worker", "-o", "json"], "versions", "agent_name"),
        (&["policy", "check", "taskrun.toml", "-o", "json"], "agents", "name"),
    ];
    for (command, list, name) in counted {
        for (owner, open) in [("ann", 1), ("bob", 0)] {
            let told = by(project, owner, command).json();
            let all = told[list].as_array().unwrap_or_else(|| panic!("{told}"));
            let of_worker = all.iter().filter(|one| one[name] == "worker");
            let counts: Vec<_> = of_worker.map(|one| &one["open_runs"]).collect();
            assert_eq!(counts, [&json!(open)], "{owner}: {told}");
        }
    }
}

#[test]
fn a_consent_of_one_owner_is_nobodys_to_see_to_use_or_to_revoke() {
    let project = Project::new();
    let call = json!({ "call": { "id": "a", "name": "scripted/change", "args": {} } });
    let script = json!({ "steps": [[call], [{ "reply": "done" }]] }).to_string();
    let ask = |owner: &str| {
        let id = by(&project, owner, &["run", "asking", &script, "-d"]).id();
        (by(&project, owner, &["wait", &id]).code, id)
    };
    let (code, hers) = ask("ann");
    assert_eq!(code, 8, "she is asked");
    assert_eq!(by(&project, "ann", &["answer", &hers, "--accept", "--always"]).code, 0);
    assert_eq!(by(&project, "ann", &["wait", &hers]).code, 0);
    assert_eq!(by(&project, "bob", &["consents", "-o", "name"]).stdout, "");
    not_found(&by(&project, "bob", &["consents", "revoke", "1"]));
    let (code, his) = ask("bob");
    assert_eq!(code, 8, "he is asked");
    assert_eq!(by(&project, "bob", &["cancel", &his]).code, 0);
    assert_eq!(by(&project, "ann", &["consents", "-o", "name"]).stdout, "1\n");
}

#[test]
fn neither_of_two_owners_sees_ends_or_removes_what_is_the_others_with_any_command() {
    let project = Project::new();
    let start = |owner: &str, task: &str| {
        let args = ["run", "worker", task, "-d", "--session", "s", "--idempotency-key"];
        let name = if task == "x" { "done" } else { "open" };
        by(&project, owner, &[&args[..], &[name, "--name", name]].concat()).id()
    };
    let (open, done) = (start("ann", &asking()), start("ann", "x"));
    let theirs = start("bob", "x");
    assert_eq!(by(&project, "ann", &["wait", &done]).code, 0);
    assert_eq!(by(&project, "bob", &["wait", &theirs]).code, 0);
    project.reach(&open, "blocked");
    // A result is used again by whom it belongs to, however it was asked for.
    let reuse = ["run", "worker", "hers", "-d", "--session", "s", "--reuse"];
    let hers = by(&project, "ann", &reuse[..6]).id();
    assert_eq!(by(&project, "ann", &["wait", &hers]).code, 0);
    assert_eq!(by(&project, "ann", &reuse).id(), hers);
    let his = by(&project, "bob", &reuse).id();
    assert_ne!(his, hers);
    assert_eq!(by(&project, "bob", &["wait", &his]).code, 0);
    assert_eq!(by(&project, "ann", &["session", "create", "s"]).code, 0);
    let put = ["memory", "put", "secret", "a word", "--session", "s"];
    assert_eq!(by(&project, "ann", &put).code, 0);

    let bob = |args: &[&str]| by(&project, "bob", args);
    // Nobody of them may see a run of hers in that session, and two not even the session.
    let wrong: [&[&str]; 3] = [
        &["--owner", "bob", "--session", "s"],
        &["--owner", "ann", "--session", "s", "--tenant", "another"],
        &["--owner", "ann", "--session", "another"],
    ];
    let nobody_finds = |args: &[&str], wrong: &[&[&str]]| {
        for identity in wrong {
            not_found(&project.run(&[args, *identity].concat()));
        }
    };
    let mut tried: BTreeSet<String> = ABOUT_NO_RUN.map(str::to_owned).into();
    for command in [
        "get",
        "tree",
        "wait",
        "cancel",
        "pause",
        "resume",
        "adopt",
        "logs",
        "events",
        "transcript",
        "export",
        "wake",
    ] {
        for run in [&open, &done] {
            nobody_finds(&[command, run], &wrong);
        }
        tried.insert(command.to_owned());
    }
    let adopted = bob(&["adopt", "--agent", "worker", "-o", "json"]).json();
    assert_eq!(adopted["runs"], json!([]), "none of his is open");
    nobody_finds(&["inject", &open, "stop"], &wrong);
    nobody_finds(&["answer", &open, "which", "Q3"], &wrong);
    nobody_finds(&["run", "worker", "x", "-d", "--parent", &open], &wrong);
    nobody_finds(&["session", "show", "s"], &wrong);
    let inbox = bob(&["inbox", "-o", "json"]).json();
    assert_eq!(inbox["items"], json!([]));
    for command in ["show", "retry", "drop"] {
        nobody_finds(&["outbox", command, &done], &wrong);
    }
    policies_tell_of_own_runs(&project, &open, &wrong);
    let said = bob(&["chat", "s"]);
    assert_eq!((said.code, said.stdout.matches("> ").count()), (0, 2), "his own lines: {said:?}");
    let all = ["outbox", "ls", "--state", "pending", "--state", "delivered", "-o", "json"];
    assert_eq!(bob(&all).json()["reports"], json!([]));
    let own = BTreeSet::from([theirs, his]);
    for status in [&["-a"][..], &["-a", "--tree"], &["--status", "blocked,completed"]] {
        assert_eq!(ids(&bob(&[&["ps", "-o", "json"], status].concat()).json()), own);
    }
    assert_eq!(ids(&bob(&["ps", "-a", "--session", "s", "-o", "json"]).json()), own);
    assert_eq!(bob(&["top"]).stdout, "", "none of his is open");
    tried.insert("consents".to_owned());
    assert_eq!(bob(&["consents", "-o", "name"]).stdout, "", "see the test above");
    assert!(by(&project, "ann", &["top"]).stdout.contains(&open));
    let events = bob(&["events", "--session", "s", "-o", "json"]).json();
    let events = events["events"].as_array().expect("events");
    let is_own = |event: &Value| event["run_id"].as_str().is_some_and(|id| own.contains(id));
    assert!(!events.is_empty() && events.iter().all(is_own), "{events:?}");
    for look in [&["ls"][..], &["search", "word"], &["get", "secret"], &["rm", "secret"]] {
        let facts = bob(&[&["memory"], look, &["--session", "s"]].concat());
        assert!(!facts.stdout.contains("secret") && !facts.stdout.contains("a word"), "{facts:?}");
    }
    for dry in [&["--dry-run"][..], &[]] {
        let args = [&["gc", "--older-than", "0s", "-o", "json"], dry].concat();
        assert_eq!(bob(&args).json()["runs"], 2, "his own alone");
    }
    assert_eq!(bob(&["session", "end", "s"]).code, 0, "it is his own of that name");
    let deleted = bob(&["session", "delete", "s", "-o", "json"]).json();
    assert_eq!((&deleted["canceled"], &deleted["removed"]["runs"]), (&json!([]), &json!(0)));
    let names = [
        "inject", "answer", "run", "session", "inbox", "outbox", "chat", "ps", "top", "memory",
        "gc",
    ];
    tried.extend(names.map(str::to_owned));
    assert_eq!(commands(&project), tried, "every command is tried here");

    // Nothing of it has become of the other one's.
    let ann = |args: &[&str]| by(&project, "ann", args);
    let all = BTreeSet::from([open.clone(), done, hers]);
    assert_eq!(ids(&ann(&["ps", "-a", "--session", "s", "-o", "json"]).json()), all);
    let inbox = ann(&["inbox", "-o", "json"]).json();
    assert_eq!(inbox["items"].as_array().map(Vec::len), Some(1), "{inbox}");
    assert_eq!(ann(&["memory", "get", "secret", "--session", "s"]).stdout.trim(), "a word");
    let session = ann(&["session", "show", "s", "-o", "json"]).json();
    assert!(session.get("ended_at").is_none_or(Value::is_null), "{session}");
    assert_eq!(ann(&["answer", &open, "which", "Q3"]).code, 0);
    assert_eq!(ann(&["wait", &open]).code, 0);
    let deleted = ann(&["session", "delete", "s", "-o", "json"]).json();
    assert_eq!(deleted["removed"]["runs"], 3, "{deleted}");
}
