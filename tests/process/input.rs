//! Bad input gets a clear error, and nothing is lost.

use std::fs::File;

use taskrun_journal::spec::TASK_BYTES_MAX;

use crate::project::{Project, Ran};

/// The program refuses with this exit code, and says each of these things.
pub(crate) fn refuses(ran: &Ran, code: i32, says: &[&str]) {
    assert_eq!(ran.code, code, "{ran:?}");
    for text in says {
        assert!(ran.stderr.contains(text), "{text:?} is missing: {}", ran.stderr);
    }
    let last = ran.stderr.lines().last().unwrap_or_default();
    assert!(last.starts_with(r#"{"v":1,"error":{"#), "{last}");
    let error = ran.error();
    assert!(error["code"].is_string() && error["message"].is_string(), "{error}");
    assert!(error["hint"].as_str().is_some_and(|hint| !hint.is_empty()), "{error}");
    assert!(!ran.stderr.contains("panicked"), "{ran:?}");
}

#[test]
fn wrong_requests_are_refused_with_a_hint_and_leave_nothing_behind() {
    let project = Project::new();
    refuses(&project.run(&["run", "readonly_reseacher", "x"]), 2, &["readonly_researcher"]);
    refuses(&project.run(&["run", "worker", "  "]), 2, &["empty task"]);
    refuses(&project.run(&["get", "nobody"]), 2, &["not found"]);
    refuses(&project.run(&["cancel", "nobody"]), 2, &["not found"]);
    refuses(&project.run(&["wait", "nobody"]), 2, &["not found"]);
    refuses(&project.run(&["ps", "--status", "done"]), 2, &["done", "completed"]);
    refuses(&project.run(&["gc", "--components-older-than", "59m"]), 2, &["1h or longer"]);
    for (option, word) in [("--channel", "channel"), ("--subscriber", "subscriber")] {
        let says = format!("the policy has no {word} \"nosuch\"; there is none");
        refuses(&project.run(&["run", "worker", "x", option, "nosuch"]), 2, &[says.as_str()]);
    }
    let runs = project.run(&["ps", "-a", "-o", "json"]).json();
    assert_eq!(runs["runs"].as_array().map(Vec::len), Some(0));
}

#[test]
fn a_function_without_its_tool_is_refused_with_a_command_that_shows_it() {
    let project = Project::new();
    let call = |name: &str, more: &[&str]| {
        project.run(&[&["tool", "call", name, "{}"][..], more].concat())
    };
    let of_worker = ["--agent", "worker"];
    let show = "see the functions with `taskrun tool show scripted --agent worker`";
    refuses(&call("lookup", &of_worker), 2, &["TOOL/FUNCTION", show]);
    refuses(&call("scripted", &of_worker), 2, &["`taskrun tool show scripted`"]);
    refuses(&call("lookup", &[]), 2, &["`taskrun tool ls`"]);
    refuses(&call("lookup", &["--agent", "nobody"]), 2, &["`taskrun tool ls`"]);
}

#[test]
fn an_empty_name_is_refused_with_a_hint_that_needs_no_name() {
    let project = Project::new();
    refuses(&project.run(&["get", ""]), 2, &["empty run id", "taskrun ps -a"]);
    refuses(&project.run(&["chat", ""]), 2, &["SESSION", "it is empty"]);
}

#[test]
fn an_empty_key_id_or_tenant_is_refused_and_starts_nothing() {
    let project = Project::new();
    let run = ["run", "worker", "x", "-d"];
    for option in ["--idempotency-key", "--id", "--tenant", "--owner", "--session", "--name"] {
        for empty in ["", " "] {
            let ran = project.run(&[&run[..], &[option, empty]].concat());
            refuses(&ran, 2, &[]);
        }
    }
    let mut by_variable = project.command(&run);
    by_variable.env("TASKRUN_TENANT", "");
    let ran = Ran::from(by_variable.output().expect("starts"));
    refuses(&ran, 2, &["--tenant", "it is empty"]);
    let runs = project.run(&["ps", "-a", "-o", "json"]).json();
    assert_eq!(runs["runs"].as_array().map(Vec::len), Some(0));
}

#[test]
fn a_label_has_one_value_or_the_request_is_refused() {
    let project = Project::new();
    let two = ["--label", "k=a", "--label", "k=b"];
    for command in [&["run", "worker", "x", "-d"][..], &["ps"], &["memory", "put", "key", "text"]] {
        let ran = project.run(&[command, &two[..]].concat());
        refuses(&ran, 2, &["label k has two values", "--label once for each key"]);
    }
    let runs = project.run(&["ps", "-a", "-o", "json"]).json();
    assert_eq!(runs["runs"].as_array().map(Vec::len), Some(0));
    let same = ["--label", "k=a", "--label", "j=b", "--label", "k=a"];
    let run = project.run(&[&["run", "worker", "x", "-d"], &same[..]].concat()).id();
    assert_eq!(project.run(&[&["ps", "-o", "name"], &same[..]].concat()).id(), run);
}

#[test]
fn a_text_that_is_too_long_is_told_as_that_wherever_it_is_cut() {
    let project = Project::new();
    let run = |task: &str| {
        let mut command = project.command(&["run", "worker", task, "-d"]);
        command.stdin(File::open(project.path().join("task")).expect("it is there"));
        Ran::from(command.output().expect("starts"))
    };
    // What is read of it ends within a character.
    let ends_later = format!("{}\u{e9}", "e".repeat(TASK_BYTES_MAX));
    for text in ["\u{e9}".repeat(TASK_BYTES_MAX), ends_later] {
        project.write("task", text.as_bytes());
        for task in ["-", "@task"] {
            let bound = format!("more than {TASK_BYTES_MAX} bytes");
            refuses(&run(task), 2, &["too-long", &bound]);
        }
    }
    project.write("task", b"caf\xe9");
    for task in ["-", "@task"] {
        refuses(&run(task), 2, &["unreadable", "cannot read the task", "utf-8"]);
    }
}

#[test]
fn images_of_a_task_are_checked_before_there_is_a_run_and_shown_with_it() {
    let project = Project::new();
    let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
    project.write("cat.png", png);
    project.write("words.png", b"words");
    let run =
        |file: &str| project.run(&["run", "worker", "look", "--image", file, "-d", "-o", "json"]);
    refuses(&run("words.png"), 2, &["words.png", "neither PNG"]);
    refuses(&run("none.png"), 2, &["none.png"]);
    let runs = project.run(&["ps", "-a", "-o", "json"]).json();
    assert_eq!(runs["runs"].as_array().map(Vec::len), Some(0));
    let view = run("cat.png").json();
    let (id, hash) = (view["id"].as_str().expect("an id"), view["images"][0]["hash"].as_str());
    let kept = project.command(&["get", id, "--artifact", hash.expect("a hash")]).output();
    assert_eq!(kept.expect("starts").stdout, png);
    let transcript = project.run(&["transcript", id]);
    assert!(transcript.stdout.contains("- image image/png, 16 B"), "{transcript:?}");
}

#[test]
fn without_a_command_it_says_what_there_is() {
    let ran = Project::new().run(&[]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("Begin with `taskrun demo`"), "{ran:?}");
}

#[test]
fn a_mistake_in_the_policy_is_shown_with_its_place_and_what_to_write() {
    let project = Project::new();
    let policy = std::fs::read_to_string(project.path().join("taskrun.toml")).expect("a policy");
    let typo = policy.replace("[agent.worker]\ncomponent", "[agent.worker]\ncomponnet");
    project.write("taskrun.toml", typo.as_bytes());
    let line = 1 + typo.lines().position(|line| line.contains("componnet")).expect("the line");
    let place = format!("taskrun.toml:{line}:1");
    refuses(&project.run(&["run", "worker", "x"]), 2, &["componnet", "`component`", &place]);
}

#[test]
fn components_that_do_not_fit_are_refused_in_words() {
    let project = Project::new();
    let file = "components/scripted.wasm";
    let whole = std::fs::read(project.path().join(file)).expect("a component");
    let core = b"\0asm\x01\0\0\0";
    let tool = std::fs::read(project.path().join("components/workspace.wasm")).expect("a tool");
    let table: [(&[u8], &str); 5] = [
        (&whole[..whole.len() / 2], "cut off"),
        (core, "core module"),
        (&tool, "planner"),
        (b"", "empty"),
        (b"hello", "not a WebAssembly component"),
    ];
    for (bytes, word) in table {
        project.write(file, bytes);
        refuses(&project.run(&["run", "worker", "x"]), 2, &[word, "scripted.wasm"]);
    }
    project.write(file, &whole);
    let ran = project.run(&["run", "worker", "fits again", "--wait"]);
    assert_eq!((ran.code, ran.stdout.trim()), (0, "fits again"), "{ran:?}");
}

#[test]
fn a_component_without_a_rule_for_what_it_imports_is_refused_with_the_line_to_add() {
    let project = Project::new();
    let policy = std::fs::read_to_string(project.path().join("taskrun.toml")).expect("a policy");
    let without = policy.replace("deny = [\"workspace-write: **\"]\n", "");
    project.write("taskrun.toml", without.as_bytes());
    let ran = project.run(&["run", "readonly_researcher", "x"]);
    refuses(&ran, 4, &["readonly_researcher", "allow = [\"workspace-write: "]);
}

#[test]
fn a_locked_a_newer_and_a_foreign_store_are_refused_and_left_alone() {
    let project = Project::new();
    let ran = project.run(&["run", "worker", "kept", "--wait"]);
    let kept = (ran.code, ran.stdout.trim().to_owned());
    assert_eq!(kept, (0, "kept".to_owned()), "{ran:?}");
    project.kill_hosts();
    let file = project.path().join(".taskrun/taskrun.db");

    let other = rusqlite::Connection::open(&file).expect("opens");
    other.execute_batch("PRAGMA locking_mode=EXCLUSIVE; BEGIN EXCLUSIVE").expect("locked");
    refuses(&project.run(&["ps"]), 10, &["locked"]);
    other.execute_batch("ROLLBACK").expect("unlocked");
    drop(other);

    // As a newer program would, with the checksums that it keeps as well.
    let dir = file.parent().expect("a folder");
    drop(taskrun_store::SqliteStore::open(dir, taskrun_store::SqliteOptions::default()));
    let newer = || {
        let flags = rusqlite::OpenFlags::default();
        rusqlite::Connection::open_with_flags_and_vfs(&file, flags, "taskrun").expect("opens")
    };
    let other = newer();
    let version: i64 =
        other.query_row("PRAGMA user_version", [], |row| row.get(0)).expect("a version");
    other.execute_batch(&format!("PRAGMA user_version={}", version + 1)).expect("newer");
    drop(other);
    refuses(&project.run(&["ps"]), 10, &["unsupported store version"]);
    let other = newer();
    other.execute_batch(&format!("PRAGMA user_version={version}")).expect("as it was");
    drop(other);

    let runs = project.run(&["ps", "-a", "-o", "json"]).json();
    assert_eq!(runs["runs"][0]["result"], "kept");

    let foreign = Project::new();
    foreign.write(".taskrun/taskrun.db", b"this is no store, it is a letter to my aunt");
    refuses(&foreign.run(&["ps"]), 10, &["not a store"]);
    let letter = std::fs::read(foreign.path().join(".taskrun/taskrun.db")).expect("still there");
    assert!(letter.starts_with(b"this is no store"));
}

#[test]
fn a_filter_that_no_run_fits_is_not_told_as_a_store_without_runs() {
    let project = Project::new();
    let none = project.run(&["ps"]);
    assert!(none.code == 0 && none.stderr.contains("no runs; start one"), "{none:?}");
    assert_eq!(project.run(&["run", "worker", "x", "--wait"]).code, 0);
    for filter in [
        ["--agent", "nosuch"],
        ["--status", "failed"],
        ["--stop-reason", "deferred"],
        ["--label", "a=b"],
        ["--since", "2999-01-01T00:00:00Z"],
        ["--owner", "bob"],
        ["--session", "another"],
    ] {
        let ran = project.run(&[&["ps"], &filter[..]].concat());
        assert!(ran.code == 0 && ran.stderr.contains("no runs fit"), "{filter:?}: {ran:?}");
    }
}

#[test]
fn a_file_in_place_of_the_data_directory_is_told_by_every_command() {
    let project = Project::new();
    project.write("letter", b"dear aunt");
    let at = |dir: &str, args: &[&str]| project.run(&[&["--data-dir", dir], args].concat());
    let [run, get] = [["run", "worker", "x", "-d"], ["get", "@last", "-o", "json"]];
    for (dir, says) in [("letter", "it is no folder"), ("letter/beneath", "letter/beneath")] {
        for args in [&run[..], &get[..], &["ps"]] {
            refuses(&at(dir, args), 10, &["store-unavailable", says]);
        }
        let doctor = at(dir, &["doctor", "-o", "json"]);
        assert_eq!((doctor.code, &doctor.error()["code"]), (1, &"doctor".into()), "{doctor:?}");
        let told = doctor.json();
        let mut checks = told["checks"].as_array().expect("checks").iter();
        let data = checks.find(|check| check["name"] == "data").expect("one of them");
        assert_eq!(data["health"], "bad", "{data}");
        assert!(data["detail"].as_str().is_some_and(|detail| detail.contains(says)), "{data}");
    }
    assert_eq!(std::fs::read(project.path().join("letter")).expect("it is there"), b"dear aunt");
    let absent = at("absent", &["ps"]);
    assert_eq!(absent.code, 0, "{absent:?}");
}

#[test]
fn a_filter_of_the_log_that_is_none_is_refused_except_by_a_host_in_the_background() {
    let project = Project::new();
    refuses(&project.run(&["ps", "--log", "taskrun=loud"]), 2, &["taskrun=loud", "debug"]);
    let mut by_variable = project.command(&["ps"]);
    by_variable.env("TASKRUN_LOG", "taskrun=loud");
    refuses(&Ran::from(by_variable.output().expect("starts")), 2, &["taskrun=loud"]);
    assert_eq!(project.run(&["ps", "--log", "warn,taskrun=debug"]).code, 0);
    let host = ["host", "--background", "--idle-exit", "100ms", "--log", "taskrun=loud"];
    let left = project.run(&host);
    assert_eq!(left.code, 0, "{left:?}");
}

#[test]
fn a_store_that_has_its_most_bytes_takes_no_more_runs_and_says_so() {
    let project = Project::new();
    let ran = project.run(&["run", "worker", "kept", "--wait"]);
    assert_eq!((ran.code, ran.stdout.trim()), (0, "kept"), "{ran:?}");
    let task = "x".repeat(64 << 10);
    let refused = project.run(&["run", "worker", &task, "-d", "--store-max", "64KiB"]);
    refuses(&refused, 10, &["store-full", "taskrun gc", "--store-max"]);
    refuses(&project.run(&["ps", "--store-max", "0B"]), 2, &["--store-max", "64KiB or more"]);
    let mut by_variable = project.command(&["run", "worker", &task, "-d"]);
    by_variable.env("TASKRUN_STORE_MAX", "64KiB");
    let refused = Ran::from(by_variable.output().expect("starts"));
    assert_eq!(refused.error()["code"], "store-full", "{refused:?}");
    let room = |args: &[&str]| {
        let told = project.run(&[&["doctor", "-o", "json"], args].concat()).json();
        let checks = told["checks"].as_array().cloned().expect("checks");
        checks.into_iter().find(|check| check["name"] == "room").expect("one of them")
    };
    let little = room(&["--store-max", "64KiB"]);
    assert_eq!(little["health"], "note", "{little}");
    assert!(little["hint"].as_str().is_some_and(|hint| hint.contains("--store-max")), "{little}");
    let usual = room(&[]);
    assert!(usual["detail"].as_str().is_some_and(|detail| detail.contains("16 GiB")), "{usual}");
    assert!(!usual["hint"].as_str().is_some_and(|hint| hint.contains("--store-max")), "{usual}");
    let there = project.run(&["ps", "-a", "-o", "name"]);
    assert_eq!((there.code, there.stdout.lines().count()), (0, 1), "{there:?}");
    assert_eq!(project.run(&["run", "worker", &task, "-d"]).code, 0, "by default there is room");
}
