//! A policy that somebody left where a person works is not used by itself.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::project::{Project, Ran};
use crate::terminal::Terminal;

/// A project that nobody trusts yet.
fn found() -> Project {
    let project = Project::untouched();
    std::fs::remove_dir_all(project.path().join("state")).expect("it was trusted");
    project
}

fn untrusted(ran: &Ran) {
    assert_eq!((ran.code, ran.stdout.as_str()), (3, ""), "{ran:?}");
    let error = ran.error();
    assert_eq!(error["code"], "untrusted", "{ran:?}");
    let hint = error["hint"].as_str().expect("a hint");
    assert!(hint.contains("--config") && hint.contains("TASKRUN_CONFIG"), "{hint}");
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("its mode");
}

#[test]
fn a_policy_that_is_found_is_used_once_it_is_trusted_and_one_that_is_named_at_once() {
    let project = found();
    let explain = ["policy", "explain", "--agent", "worker", "--cap", "model"];
    for command in
        [&["ps"][..], &["run", "worker", "x", "-d"], &["agent", "ls"], &["inbox"], &explain]
    {
        untrusted(&project.run(command));
    }
    assert!(!project.path().join(".taskrun").exists(), "nothing was begun");
    let config = ["--config", "taskrun.toml"];
    let named = project.run(&[&config[..], &["agent", "ls", "-o", "name"]].concat());
    assert_eq!(named.code, 0, "{named:?}");
    let mut by_variable = project.command(&["agent", "ls", "-o", "name"]);
    by_variable.env("TASKRUN_CONFIG", "taskrun.toml");
    let by_variable = Ran::from(by_variable.output().expect("starts"));
    assert_eq!((by_variable.code, &by_variable.stdout), (0, &named.stdout), "{by_variable:?}");
    untrusted(&project.run(&["agent", "ls"]));
    let trusted = project.run(&["policy", "trust"]);
    assert_eq!(trusted.code, 0, "{trusted:?}");
    assert_eq!(project.run(&["agent", "ls", "-o", "name"]).stdout, named.stdout);
    // An edit does not ask again.
    let policy = std::fs::read_to_string(project.path().join("taskrun.toml")).expect("a policy");
    project.write("taskrun.toml", format!("# edited\n{policy}").as_bytes());
    assert_eq!(project.run(&["agent", "ls"]).code, 0);
    let below = project.command(&["agent", "ls"]).current_dir(project.path().join("docs")).output();
    assert_eq!(Ran::from(below.expect("starts")).code, 0, "from below, too");
}

#[test]
fn what_others_can_write_is_not_used_though_it_was_trusted() {
    let project = Project::untouched();
    assert_eq!(project.run(&["ps"]).code, 0);
    let file = project.path().join("taskrun.toml");
    mode(&file, 0o666);
    let open = project.run(&["ps"]);
    untrusted(&open);
    assert!(open.stderr.contains("can be written by others"), "{open:?}");
    assert_eq!(project.run(&["policy", "trust"]).code, 3, "and cannot be trusted");
    mode(&file, 0o644);
    // Nor is it found where others could have put it.
    mode(project.path(), 0o1777);
    let open = project.run(&["agent", "ls"]);
    mode(project.path(), 0o700);
    assert_eq!(open.error()["code"], "no-policy", "{open:?}");
    assert!(open.stderr.contains("the search ends below"), "{open:?}");
    let data = project.path().join(".taskrun");
    std::fs::create_dir_all(&data).expect("a data directory");
    mode(&data, 0o777);
    untrusted(&project.run(&["ps"]));
}

#[test]
fn a_data_directory_that_is_found_is_trusted_like_a_policy() {
    let project = found();
    std::fs::remove_file(project.path().join("taskrun.toml")).expect("it was there");
    std::fs::create_dir(project.path().join(".taskrun")).expect("made");
    untrusted(&project.run(&["ps"]));
    let named = project.run(&["--data-dir", ".taskrun", "ps"]);
    assert_eq!(named.code, 0, "{named:?}");
}

#[test]
fn what_the_demo_made_is_trusted_at_once() {
    let project = found();
    let played = project.run(&["demo"]);
    assert_eq!(played.code, 0, "{played:?}");
    let folder = project.path().join("taskrun-demo");
    let listed = project.command(&["ps", "-a", "-o", "name"]).current_dir(&folder).output();
    let listed = Ran::from(listed.expect("starts"));
    assert_eq!((listed.code, listed.stdout.lines().count()), (0, 3), "{listed:?}");
    untrusted(&project.run(&["ps"]));
}

#[test]
fn in_a_terminal_it_is_asked_once_and_keys_pressed_before_are_no_answer() {
    let project = found();
    let mut terminal = Terminal::typed_ahead(&project, &["agent", "ls"], "y\n");
    terminal.shows("[y/N]", 1);
    terminal.types("n\n");
    assert_eq!(terminal.ends(), 3, "{}", terminal.seen());
    terminal.shows("is not trusted yet", 1);
    assert_eq!(terminal.seen().matches("[y/N]").count(), 1, "{}", terminal.seen());
    let mut terminal = Terminal::new(project.command(&["agent", "ls"]));
    terminal.shows("[y/N]", 1);
    terminal.types("y\n");
    assert_eq!(terminal.ends(), 0, "{}", terminal.seen());
    terminal.shows("worker", 1);
    let mut terminal = Terminal::new(project.command(&["agent", "ls"]));
    assert_eq!(terminal.ends(), 0, "{}", terminal.seen());
    terminal.shows("worker", 1);
    assert!(!terminal.seen().contains("[y/N]"), "{}", terminal.seen());
}

#[test]
fn for_root_the_files_of_whoever_became_root_are_its_own() {
    let project = found();
    let someone = rustix::process::geteuid().as_raw() + 1_000;
    for path in ["", "taskrun.toml"] {
        // Only root can give a file away.
        if std::os::unix::fs::chown(project.path().join(path), Some(someone), Some(someone))
            .is_err()
        {
            return;
        }
    }
    let run = |name: Option<&str>| {
        let mut command = project.command(&["policy", "trust", "."]);
        command.envs(name.map(|name| (name, someone.to_string())));
        Ran::from(command.output().expect("starts"))
    };
    let theirs = run(None);
    untrusted(&theirs);
    assert!(theirs.stderr.contains(&format!("TASKRUN_POLICY_OWNER={someone}")), "{theirs:?}");
    assert_eq!(run(Some("SUDO_UID")).code, 0);
    assert_eq!(run(Some("TASKRUN_POLICY_OWNER")).code, 0);
}

#[test]
fn a_file_that_is_never_found_is_not_trusted_in_the_place_of_the_one_beside_it() {
    let project = found();
    let reviewed = std::fs::read(project.path().join("taskrun.toml")).expect("a policy");
    project.write("taskrun.new.toml", &reviewed);
    let other = project.run(&["policy", "trust", "taskrun.new.toml"]);
    assert_eq!((other.code, &other.error()["code"]), (2, &"never-found".into()), "{other:?}");
    let told = other.error()["message"].to_string();
    assert!(told.contains("only taskrun.toml is found") && told.contains("new.toml"), "{told}");
    assert!(!project.path().join("state/taskrun/trusted").exists(), "nothing is trusted by that");
    untrusted(&project.run(&["ps"]));
    let named = project.run(&["policy", "trust", "taskrun.toml", "-o", "name"]);
    let file = project.path().canonicalize().expect("a path").join("taskrun.toml");
    assert_eq!((named.code, named.stdout.trim()), (0, file.to_str().expect("text")), "{named:?}");
    assert_eq!(project.run(&["agent", "ls"]).code, 0);
}
