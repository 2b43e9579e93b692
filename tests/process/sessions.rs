//! Trees and sessions of runs, what is used again, what is refused, and what is removed.

use serde_json::json;

use crate::project::Project;

fn block() -> String {
    json!({ "steps": [["block"]] }).to_string()
}

#[test]
fn a_tree_is_shown_and_canceled_as_one() {
    let project = Project::new();
    let parent = project.run(&["run", "worker", &block(), "-d", "--session", "s"]).id();
    let child = project.run(&["run", "worker", &block(), "-d", "--parent", &parent]).id();
    let stranger = project.run(&["run", "fragile", "x", "-d", "--parent", &parent]);
    assert_eq!(stranger.code, 3, "{stranger:?}");
    assert!(stranger.stderr.contains("members"), "{stranger:?}");
    project.reach(&child, "running");
    let tree = project.run(&["tree", &parent, "-o", "json"]).json();
    assert_eq!(
        (&tree["run"]["id"], &tree["descendants"][0]["id"]),
        (&json!(parent), &json!(child))
    );
    assert_eq!(tree["descendants"][0]["parent_session_id"], "s", "that of its parent");
    let listed = project.run(&["ps", "--tree"]);
    assert!(listed.stdout.contains(&format!("└ {child}")), "{listed:?}");
    let canceled = project.run(&["cancel", &parent]);
    assert!(canceled.stdout.contains("and 1 run beneath it"), "{canceled:?}");
    assert_eq!(project.run(&["wait", &parent, &child]).code, 6);
    assert_eq!(project.get(&child)["stop_reason"], "canceled_by_parent");
    let late = project.run(&["run", "worker", "x", "--parent", &parent]);
    assert_eq!((late.code, &late.error()["code"]), (2, &json!("parent-ended")), "{late:?}");
}

#[test]
fn a_request_can_take_away_and_not_give() {
    let project = Project::new();
    let task = block();
    let budget = "turns=3,tool-calls=0,wall=10m";
    let asked = ["run", "worker", &task, "-d", "--only-tool", "scripted/lookup"];
    let asked = [&asked[..], &["--deny", "http: *", "--budget", budget]].concat();
    let id = project.run(&asked).id();
    let expected = json!({
        "tools": ["scripted/lookup"],
        "deny": ["http: *"],
        "turns": 3,
        "tool_calls": 0,
        "wall_ms": 600_000,
    });
    assert_eq!(project.get(&id)["narrow"], expected);
    let shown = project.run(&["get", &id]);
    let line = "only scripted/lookup; deny \"http: *\"; turns=3; tool-calls=0; wall=10m";
    assert!(shown.stdout.contains(line), "{shown:?}");
    for more in [["--only-tool", "scripted/more"], ["--deny", "files: *"], ["--budget", "turns=21"]]
    {
        let refused = project.run(&[&["run", "worker", "x", "-d"][..], &more].concat());
        assert_eq!((refused.code, &refused.error()["code"]), (2, &json!("invalid")), "{refused:?}");
    }
    assert_eq!(project.run(&["cancel", &id]).code, 0);
}

#[test]
fn children_can_be_kept_and_one_of_several_waited_for() {
    let project = Project::new();
    let parent = project.run(&["run", "worker", &block(), "-d"]).id();
    let child = project.run(&["run", "worker", &block(), "-d", "--parent", &parent]).id();
    project.reach(&child, "running");
    assert_eq!(project.run(&["cancel", &parent, "--keep-children"]).code, 0);
    let any = project.run(&["wait", "--any", &child, &parent, "-o", "name"]);
    assert_eq!((any.code, any.stdout.trim()), (6, parent.as_str()), "{any:?}");
    let all = project.run(&["wait", "--all", &child, &parent, "--timeout", "100ms"]);
    assert_eq!(all.code, 124, "{all:?}");
    assert_eq!(project.get(&child)["status"], "running");
    assert_eq!(project.run(&["cancel", &child]).code, 0);
}

#[test]
fn a_session_is_followed_ended_and_deleted() {
    let project = Project::new();
    assert_eq!(project.run(&["session", "create", "s"]).code, 0);
    let first = project.run(&["run", "worker", "one", "--session", "s", "-d"]).id();
    assert_eq!(project.run(&["wait", &first]).code, 0);
    let second = project.run(&["run", "worker", &block(), "--session", "s", "-d"]).id();
    project.reach(&second, "running");
    let ended = project.run(&["session", "end", "s", "-o", "json"]).json();
    assert!(ended["ended_at"].is_string(), "{ended}");
    let late = project.run(&["run", "worker", "late", "--session", "s", "-d"]);
    assert_eq!((late.code, &late.error()["code"]), (2, &json!("session-ended")), "{late:?}");
    let following = project.start(&["events", "--session", "s", "-f", "-o", "ndjson"]);
    assert_eq!(project.run(&["cancel", &second]).code, 0);
    let followed = following.wait_with_output().expect("ends with the last run");
    let lines = String::from_utf8(followed.stdout).expect("text");
    let events: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let ends = events.iter().filter(|event| event["kind"] == "finished");
    let ids: Vec<_> = ends.map(|event| event["run_id"].clone()).collect();
    assert_eq!(ids, [json!(first), json!(second)]);
    let places: Vec<u64> = events.iter().filter_map(|event| event["place"].as_u64()).collect();
    assert!(places.is_sorted() && places.len() == events.len(), "{places:?}");
    let last = places.last().expect("events").to_string();
    let rest = project.run(&["events", "--session", "s", "--after", &last, "-o", "json"]).json();
    assert_eq!(rest["events"], json!([]));
    let deleted = project.run(&["session", "delete", "s", "-o", "json"]).json();
    assert_eq!(deleted["removed"]["runs"], 2, "{deleted}");
    assert_eq!(project.run(&["get", &first]).code, 2);
    let unknown = project.run(&["session", "show", "nobodys"]);
    assert_eq!((unknown.code, &unknown.error()["code"]), (2, &json!("not-found")));
}

#[test]
fn a_session_that_only_owners_have_is_shown_to_each_and_says_so_to_others() {
    let project = Project::new();
    for owner in ["ann", "bob"] {
        let session = ["session", "create", "s", "--owner", owner];
        assert_eq!(project.run(&session).code, 0);
    }
    assert_eq!(project.run(&["session", "end", "s", "--owner", "bob"]).code, 0);
    let shown = |words: &[&str]| project.run(&[&["session", "show", "s"][..], words].concat());
    for (owner, has_ended) in [("ann", false), ("bob", true)] {
        let own = shown(&["--owner", owner, "-o", "json"]).json();
        let is = (&own["owner_user_id"], own["ended_at"].is_string());
        assert_eq!(is, (&json!(owner), has_ended), "{own}");
    }
    let all = shown(&[]);
    assert_eq!((all.code, &all.error()["code"]), (2, &json!("not-found")), "{all:?}");
    assert!(all.stderr.contains("`--owner NAME`"), "{all:?}");
    // One that was made known for all owners is another record.
    assert_eq!(project.run(&["session", "create", "s"]).code, 0);
    let all = shown(&["-o", "json"]).json();
    assert_eq!((all.get("owner_user_id"), all.get("ended_at")), (None, None), "{all}");
}

#[test]
fn results_are_used_again_and_what_cannot_begin_at_once_may_be_refused() {
    let project = Project::new();
    let first = project.run(&["run", "worker", "the same", "-d"]).id();
    assert_eq!(project.run(&["wait", &first]).code, 0);
    let again = project.run(&["run", "worker", "The same", "-d", "--reuse", "-o", "json"]);
    assert_eq!(again.json()["id"], json!(first), "{again:?}");
    assert_eq!(again.json()["reused"], true);
    let waited = project.run(&["run", "worker", "the same", "--wait", "--reuse", "-o", "json"]);
    assert_eq!((&waited.json()["id"], &waited.json()["reused"]), (&json!(first), &json!(true)));
    let third = project.run(&["run", "worker", "the same", "-d", "-o", "json"]);
    assert_ne!(third.json()["id"], json!(first), "unless it is asked for");
    assert_eq!(project.run(&["wait", third.json()["id"].as_str().expect("an id")]).code, 0);

    project.end_hosts();
    let mut host = project.start(&["host", "--slots", "1", "--idle-exit", "0"]);
    // Else the next run would start one with more slots.
    project.meets_host();
    let blocking = project.run(&["run", "worker", &block(), "-d"]).id();
    project.reach(&blocking, "running");
    let refused = project.run(&["run", "worker", "now", "--no-queue", "-d"]);
    assert_eq!((refused.code, &refused.error()["code"]), (4, &json!("limit")), "{refused:?}");
    assert_eq!(project.run(&["cancel", &blocking]).code, 0);
    host.kill().expect("killed");
    host.wait().expect("gone");
}

#[test]
fn gc_removes_what_is_old_and_says_so_before_and_after() {
    let project = Project::new();
    let id = project.run(&["run", "worker", "old", "-d"]).id();
    assert_eq!(project.run(&["wait", &id]).code, 0);
    let blocking = project.run(&["run", "worker", &block(), "-d"]).id();
    let young = project.run(&["gc", "-o", "json"]).json();
    assert_eq!((&young["runs"], &young["dry_run"]), (&json!(0), &json!(false)), "{young}");
    let would = project.run(&["gc", "--older-than", "0s", "--dry-run", "-o", "json"]).json();
    assert_eq!((&would["runs"], &would["dry_run"]), (&json!(1), &json!(true)), "{would}");
    assert_eq!(project.get(&id)["status"], "completed");
    let removed = project.run(&["gc", "--older-than", "0s"]);
    assert!(removed.stdout.starts_with("removed 1 run, "), "{removed:?}");
    assert_eq!(project.run(&["get", &id]).code, 2);
    assert_eq!(project.run(&["cancel", &blocking]).code, 0);
}

#[test]
fn m_63_a_second_run_of_a_named_session_is_told_what_was_said_in_the_first() {
    let project = Project::new();
    let show = json!({ "ops": ["reply_input"] }).to_string();
    let told = |args: &[&str]| -> Vec<serde_json::Value> {
        let asked = [&["run", "worker", &show, "--wait", "-o", "json"][..], args].concat();
        let shown = project.run(&asked).json();
        let input: serde_json::Value =
            serde_json::from_str(shown["result"].as_str().expect("a result")).expect("JSON");
        let messages = input["messages"].as_array().expect("messages");
        messages.iter().map(|message| message["parts"][0]["text"].clone()).collect()
    };
    let said = project.run(&["run", "worker", "hello", "--session", "s", "--wait"]);
    assert_eq!((said.code, said.stdout.trim()), (0, "hello"), "{said:?}");
    let expected = [json!("hello"), json!("hello"), json!(show)];
    assert_eq!(told(&["--session", "s"]), expected);
    assert_eq!(told(&["--session", "s", "--no-history"]), [json!(show)]);
    assert_eq!(told(&["--session", "s", "--owner", "ann"]), [json!(show)]);
    assert_eq!(told(&["--session", "t"]), [json!(show)]);
    // Runs of which nobody says that they belong together have nothing to do with each other.
    assert_eq!(told(&[]), [json!(show)]);
    assert_eq!(told(&[]), [json!(show)]);
}

#[test]
fn l_014_facts_are_kept_found_and_forgotten_from_the_command_line() {
    let project = Project::new();
    let memory = |args: &[&str]| project.run(&[&["memory"][..], args].concat());
    assert_eq!(memory(&["put", "day", "We deploy on Friday.", "--label", "topic=release"]).code, 0);
    assert_eq!(memory(&["put", "day", "Not before nine.", "--session", "s"]).code, 0);
    let got = memory(&["get", "day"]);
    assert_eq!((got.code, got.stdout.trim()), (0, "We deploy on Friday."), "{got:?}");
    let got = memory(&["get", "day", "--session", "s", "-o", "json"]).json();
    assert_eq!((&got["v"], &got["text"]), (&json!(1), &json!("Not before nine.")), "{got}");
    let found = memory(&["search", "RELEASE", "\"", "*", "-o", "json"]).json();
    assert_eq!(found["facts"][0]["key"], "day", "{found}");
    assert_eq!(memory(&["search", "nothing", "-o", "json"]).json()["facts"], json!([]));
    assert_eq!(memory(&["put", "a", "first"]).code, 0);
    let page = memory(&["ls", "--limit", "1", "-o", "json"]).json();
    assert_eq!((&page["facts"][0]["key"], &page["next_after"]), (&json!("a"), &json!("a")));
    assert_eq!(memory(&["ls", "--after", "a", "-o", "name"]).stdout.trim(), "day");
    let unknown = memory(&["get", "day", "--session", "s", "--owner", "ann"]);
    assert_eq!((unknown.code, &unknown.error()["code"]), (2, &json!("not-found")), "{unknown:?}");
    let refused = memory(&["put", "k", "t", "--owner", "ann"]);
    assert_eq!((refused.code, &refused.error()["code"]), (3, &json!("forbidden")), "{refused:?}");
    let gone = memory(&["rm", "day", "none", "-o", "json"]).json();
    assert_eq!((&gone["forgotten"], &gone["absent"]), (&json!(["day"]), &json!(["none"])));
    let deleted = project.run(&["session", "delete", "s", "-o", "json"]).json();
    assert_eq!(deleted["facts"], 1, "{deleted}");
    assert_eq!(memory(&["ls", "--session", "s", "-o", "json"]).json()["facts"], json!([]));
}
