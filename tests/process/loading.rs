//! A component that takes long to compile, beside honest ones; and where native code is kept.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use taskrun_examples::evil;

use crate::descriptors::run_in_shell;
use crate::project::Project;

const POLICY: &str = r#"
[agent.slow]
component = "components/slow.wasm"

[agent.worker]
component = "components/scripted.wasm"
"#;

const REPLY: &str = r#"{"steps":[[{"reply":"served"}]]}"#;

#[test]
fn an_honest_agent_is_served_while_another_is_compiled_and_people_are_told() {
    let project = Project::untouched();
    project.write("components/slow.wasm", &evil::slow_to_compile(0));
    project.write("taskrun.toml", POLICY.as_bytes());
    let slow = project.run(&["run", "slow", REPLY, "-d"]).id();
    // Started without the terminal that asked: said where people look.
    let told = "agent slow is being loaded for";
    let said = |args: &[&str]| project.run(args).stderr.contains(told);
    project.until("it is told", || said(&["get", &slow]));
    assert!(project.run(&["doctor"]).stdout.contains(told));
    for _ in 0..3 {
        let ran = project.run(&["run", "worker", REPLY, "--wait"]);
        assert_eq!((ran.code, ran.stdout.trim()), (0, "served"), "{ran:?}");
    }
    let run = project.get(&slow);
    assert_eq!((&run["status"], &run["started_at"]), (&"queued".into(), &serde_json::Value::Null));
    assert!(said(&["ps"]) && said(&["wait", &slow, "--timeout", "1s"]));
    assert_eq!(project.reach(&slow, "completed")["result"], "served");
    assert!(!project.run(&["doctor"]).stdout.contains(told), "it is there");
}

/// The compile worker of this host, once there is one.
fn compile_worker(project: &Project, host: i32) -> Pid {
    let found = Cell::new(None);
    project.until("a worker compiles", || {
        let entries = std::fs::read_dir("/proc").expect("a list of processes").flatten();
        let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let is_worker = |pid: &i32| {
            // One that ends meanwhile is none.
            let read = |what: &str| std::fs::read(format!("/proc/{pid}/{what}"));
            let stat = String::from_utf8(read("stat").unwrap_or_default()).unwrap_or_default();
            // After the name in parentheses: its state, and the process that started it.
            let parent = stat.rsplit(')').next().and_then(|rest| rest.split(' ').nth(2));
            let words = read("cmdline").unwrap_or_default();
            parent == Some(&*host.to_string()) && words.ends_with(b"compile-worker\0")
        };
        found.set(pids.find(is_worker).and_then(Pid::from_raw));
        found.get().is_some()
    });
    found.get().expect("it was found")
}

/// As by the system when memory is short: the first to be killed is the worker.
#[test]
fn a_run_waits_for_its_agent_where_the_worker_that_compiles_it_was_killed() {
    let project = Project::untouched();
    project.write("components/slow.wasm", &evil::slow_to_compile(1));
    project.write("taskrun.toml", POLICY.as_bytes());
    let slow = project.run(&["run", "slow", REPLY, "-d"]).id();
    project.meets_host();
    let [host] = *project.hosts() else { panic!("one host") };
    kill_process(compile_worker(&project, host), Signal::KILL).expect("killed");
    project.until("it is told", || {
        let told = project.run(&["get", &slow]).stderr;
        assert!(!told.contains("closure_unusable"), "{told}");
        told.contains("the compile worker gave no answer: signal: 9")
    });
    let run = project.get(&slow);
    assert_eq!((&run["status"], &run["started_at"]), (&"queued".into(), &serde_json::Value::Null));
    assert_eq!(project.reach(&slow, "completed")["result"], "served");
}

/// The files in a folder and below: name, inode and bytes.
fn files(folder: &Path) -> BTreeSet<(PathBuf, u64, u64)> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("readable").path();
        let about = path.metadata().expect("it is there");
        match about.is_dir() {
            true => found.extend(files(&path)),
            false => drop(found.insert((path, about.ino(), about.len()))),
        }
    }
    found
}

#[test]
fn a_tool_call_without_a_data_directory_keeps_native_code_for_the_next_one() {
    let project = Project::untouched();
    let call = || {
        let args = ["tool", "call", "scripted/lookup", r#"{"result":1}"#, "--agent", "worker"];
        let called = project.run(&args);
        assert_eq!((called.code, called.stdout.trim()), (0, "1"), "{called:?}");
        files(&project.path().join("cache"))
    };
    let kept = call();
    let component = std::fs::metadata(project.path().join("components/scripted-tool.wasm"));
    let bytes = component.expect("it is there").len();
    assert!(kept.iter().any(|(_, _, native)| *native > bytes), "{kept:?}");
    assert_eq!(call(), kept, "it is not compiled again");
    assert!(!project.path().join(".taskrun").exists());
}

/// Without `/proc`, where the system lets this process take it away.
#[test]
fn a_program_that_does_not_find_its_own_file_warns_that_nothing_bounds_its_compiler() {
    let project = Project::new();
    let (args, says) = (["inspect", "components/workspace.wasm"], "bounds of time and memory");
    let usual = project.run(&args);
    assert!(usual.code == 0 && !usual.stderr.contains(says), "{usual:?}");
    let mut shell = Command::new("unshare");
    shell.args(["--map-root-user", "--mount", "sh"]);
    let script = "mount -t tmpfs none /proc && exec \"$@\"";
    let ran = run_in_shell(&project, shell, script, &args);
    if ["unshare: ", "mount: "].iter().any(|who| ran.stderr.starts_with(who)) {
        let said = format!("THE TEST WITHOUT /proc DID NOTHING: {}", ran.stderr);
        std::io::stderr().write_all(said.as_bytes()).expect("somebody hears it");
        return;
    }
    assert!(ran.code == 0 && ran.stderr.contains(says), "{ran:?}");
    assert_eq!(ran.stdout, usual.stdout);
}
