//! Several policies on one data directory, and which of them is in force.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::project::Project;

/// More closures than a host keeps loaded, and runs of them. A thousand runs of a hundred closures are
/// executed by the benchmark `deployments`, and in `controller/loaded.rs` with a count of what is loaded.
const CLOSURES: usize = 40;
const RUNS: usize = 80;

fn policy(limit: usize, rule: &str) -> String {
    format!(
        "[tool.workspace]\ncomponent = \"components/workspace.wasm\"\n\n\
         [agent.reader]\ncomponent = \"components/scripted.wasm\"\n\
         tools = [\"workspace/read\"]\nallow = [\"workspace-read: {rule}\"]\n\
         deny = [\"workspace-write: **\"]\nlimits = {{ tool_calls = {limit} }}\n"
    )
}

fn reads() -> String {
    let call = json!({ "id": "c", "name": "workspace/read", "args": { "path": "docs/a.md" } });
    json!({ "steps": [[{ "call": call }], [{ "reply": "done" }]] }).to_string()
}

fn hosts(project: &Project, args: &[&str]) -> Vec<Value> {
    let shown = project.run(&[args, &["policy", "show", "-o", "json"]].concat());
    shown.json()["hosts"].as_array().cloned().expect("hosts")
}

#[test]
fn a_terminal_is_told_of_a_host_under_another_file_which_binds_its_runs_by_name_and_line() {
    let project = Project::new();
    project.write("taskrun.toml", policy(9, "docs/**").as_bytes());
    project.write("other.toml", policy(9, "other/**").as_bytes());
    let narrow = ["--config", "other.toml", "--data-dir", ".taskrun"];
    let mut host = project.start(&[&narrow[..], &["host", "--idle-exit", "0"]].concat());
    project.meets_host();
    let ran = project.run(&["run", "reader", &reads(), "--wait"]);
    let told = "other.toml, whose rules bind it, too";
    assert!(ran.code == 0 && ran.stderr.contains(told), "{ran:?}");
    let seen = hosts(&project, &[]);
    let other = seen.iter().find(|host| host["same_file"] == false).expect("the other host");
    assert!(other["policy"].as_str().is_some_and(|file| file.ends_with("other.toml")), "{other}");
    let doctor = project.run(&["doctor"]);
    assert!(doctor.stdout.contains("another policy, other.toml"), "{doctor:?}");
    host.kill().expect("killed");
    host.wait().expect("gone");
    project.end_hosts();
    // By itself it hears of nobody.
    let ran = project.run(&["run", "reader", &reads(), "--wait"]);
    assert!(ran.code == 0 && !ran.stderr.contains("whose rules"), "{ran:?}");
    let seen = hosts(&project, &[]);
    assert_eq!((&seen[0]["same_file"], &seen[0]["same_text"]), (&json!(true), &json!(true)));
}

#[test]
fn a_host_that_stands_still_is_told_of_with_the_time_since_it_reported() {
    let project = Project::new();
    let mut host = project.start(&["host", "--idle-exit", "0", "--lease", "1s"]);
    project.meets_host();
    let is_silent = || {
        let seen = hosts(&project, &[]);
        assert_eq!(seen.len(), 1, "its process is there: {seen:?}");
        seen[0]["silent_ms"].is_u64()
    };
    project.until("it reports", || !is_silent());
    assert_eq!(project.signal_hosts(Signal::STOP), 1);
    project.until("it is silent", is_silent);
    for command in [&["doctor"][..], &["policy", "show"]] {
        let told = project.run(command).stdout;
        let is_told = format!("process {} ", host.id());
        assert!(told.contains(&is_told) && told.contains("it has not reported for "), "{told}");
    }
    let doctor = project.run(&["doctor", "-o", "json"]).json();
    let seen = &doctor["hosts"][0];
    assert_eq!((&seen["pid"], seen["silent_ms"].is_u64()), (&json!(host.id()), true), "{doctor}");
    assert_eq!(project.signal_hosts(Signal::CONT), 1);
    project.until("it reports again", || !is_silent());
    host.kill().expect("killed");
    host.wait().expect("gone");
}

#[test]
fn a_text_with_a_mistake_is_not_in_force_and_people_are_told_so() {
    let project = Project::new();
    project.write("taskrun.toml", policy(9, "docs/**").as_bytes());
    let mut host = project.start(&["host", "--idle-exit", "0"]);
    project.meets_host();
    let before = hosts(&project, &[])[0]["digest"].clone();
    let other = policy(8, "docs/**");
    project.write("taskrun.toml", other.replace("tool_calls", "tool_cals").as_bytes());
    let is_told = || hosts(&project, &[])[0]["refused"].is_string();
    project.until("the mistake is told of", is_told);
    let shown = project.run(&["policy", "show"]);
    assert_eq!(shown.code, 2, "{shown:?}");
    assert!(shown.stdout.contains("not as it is now") && shown.stdout.contains("tool_cals"));
    assert!(!shown.stdout.contains("help:"), "a literal line break, or more: {shown:?}");
    let in_force = |shown: &str| {
        let line = shown.lines().find(|line| line.starts_with("in force"));
        line.unwrap_or_default().to_owned()
    };
    let told = in_force(&shown.stdout);
    let unusable = "; the file as it is now cannot be used and changes nothing";
    assert!(told.contains("an earlier text, for ") && told.ends_with(unusable), "{told}");
    assert_eq!(hosts(&project, &[])[0]["digest"], before);
    let doctor = project.run(&["doctor"]);
    let told = "under this policy as it was before; not as it is now: ";
    for ran in [&shown, &doctor] {
        assert!(ran.stdout.contains(told), "{ran:?}");
    }
    project.write("taskrun.toml", other.as_bytes());
    project.until("the next text is in force", || {
        let host = &hosts(&project, &[])[0];
        host["refused"].is_null() && host["same_text"] == true && host["digest"] != before
    });
    host.kill().expect("killed");
    host.wait().expect("gone");
    project.write("taskrun.toml", policy(7, "docs/**").as_bytes());
    let told = in_force(&project.run(&["policy", "show"]).stdout);
    assert!(told.contains("an earlier text, until a host or a command reads this one"), "{told}");
    std::fs::remove_file(project.path().join("taskrun.toml")).expect("it is there");
    let shown = project.run(&["--config", "taskrun.toml", "policy", "show"]);
    assert_eq!((shown.code, &*shown.stdout), (2, ""), "{shown:?}");
    assert_eq!(shown.error()["code"], "no-policy", "{shown:?}");
}

#[test]
fn runs_of_two_versions_of_many_agents_are_each_executed_as_accepted() {
    let project = Project::new();
    let agents = |version: &str| -> String {
        let agent = |number: usize| {
            format!(
                "[prompt.p{number}]\ntemplate = \"a{number} {version}\"\n\
                 [agent.a{number}]\ncomponent = \"components/briefer.wasm\"\n\
                 allow = [\"prompts: p{number}\"]\n"
            )
        };
        (0..CLOSURES / 2).map(agent).collect()
    };
    project.write("components/briefer.wasm", taskrun_examples::BRIEFER.bytes);
    let mut accepted = Vec::new();
    for version in ["then", "now"] {
        // The second one is the policy from here on.
        project.write("taskrun.toml", agents(version).as_bytes());
        for number in 0..CLOSURES / 2 {
            let (agent, prompt) = (format!("a{number}"), format!("p{number}"));
            accepted.extend((0..RUNS / CLOSURES).map(|_| {
                let id = project.run(&["run", &agent, &prompt, "-d"]).id();
                (id, format!("{agent} {version}"))
            }));
        }
    }
    for (id, said) in &accepted {
        let waited = project.run(&["wait", id, "-o", "json"]);
        assert_eq!(waited.code, 0, "{waited:?}");
        assert_eq!(project.get(id)["result"], json!(said), "{id}");
    }
}
