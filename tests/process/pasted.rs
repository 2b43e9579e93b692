//! Commands that the program tells a person, who pastes them into a shell: each is one command, and
//! does what was said of it, whatever guests and people have named the things that it is about.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use taskrun_examples::SCRIPTED_TOOL;

use crate::descriptors::in_shell;
use crate::project::{Project, Ran};

/// Names that a shell takes for several words, for commands, or for options.
const ODD: [&str; 8] =
    ["$(touch PWN)", "w; touch PWN", "`touch PWN`", "a b", "q'x", "q\"x", "-x", "--accept"];
/// A folder that is one word in quotes only.
const FOLDER: &str = "my 'proj";

/// Runs a command in a folder as a shell does that it is pasted into.
fn paste_in(project: &Project, folder: &Path, command: &str) -> Ran {
    let script = format!("PATH=\"${{1%/*}}:$PATH\"; {command}");
    let mut shell = in_shell(project, Command::new("sh"), &script, &[]);
    let pasted = shell.current_dir(folder).stdin(Stdio::null()).output().expect("a shell starts");
    assert!(!folder.join("PWN").exists(), "{command}");
    Ran::from(pasted)
}

fn paste(project: &Project, command: &str) -> Ran {
    paste_in(project, project.path(), command)
}

/// The command in the line of what was told that begins so.
fn told<'t>(ran: &'t Ran, line: &str, command: &str) -> &'t str {
    let line = ran.stderr.lines().find(|one| one.starts_with(line));
    let mut codes = line.unwrap_or_default().split('`').skip(1).step_by(2);
    let found = codes.find(|code| code.starts_with(command));
    found.unwrap_or_else(|| panic!("{command} is not told: {ran:?}"))
}

/// The names of what a run asks.
fn asked(project: &Project) -> BTreeSet<String> {
    let inbox = project.run(&["inbox", "-o", "json"]).json();
    let items = inbox["items"].as_array().expect("items").clone();
    items.iter().map(|item| item["item"].as_str().expect("a name").to_owned()).collect()
}

/// A run that asks for all of these at once.
fn asks(project: &Project, ids: &[&str]) -> String {
    let question = |id: &&str| json!({ "clarification": { "id": id, "question": "Which?" } });
    let questions: Vec<Value> = ids.iter().map(question).collect();
    let script =
        json!({ "steps": [[{ "plan": { "await": questions } }], [{ "reply": "thanks" }]] });
    let id = project.run(&["run", "worker", &script.to_string(), "-d"]).id();
    assert_eq!(project.run(&["wait", &id]).code, 8);
    id
}

#[test]
fn an_id_of_a_guest_is_one_word_in_the_command_that_answers_it() {
    let project = Project::new();
    let hidden = "a\u{1b}[2K\nb";
    let id = asks(&project, &[&ODD[..], &[hidden]].concat());
    // Given twice, it is refused with the command that gives it.
    let refused = |item: &str| project.run(&["answer", &id, "--accept", "--", item, "x"]);
    let unnamed = refused(hidden);
    assert_eq!(unnamed.code, 2, "{unnamed:?}");
    assert!(unnamed.stderr.contains("hint: see `taskrun inbox`"), "{unnamed:?}");
    assert!(!unnamed.stderr.contains("taskrun answer"), "{unnamed:?}");
    let mut left = asked(&project);
    for item in ODD {
        let ran = refused(item);
        let line = ran.stderr.lines().find_map(|line| line.strip_prefix("hint: `"));
        let command = line.and_then(|line| line.strip_suffix('`')).expect("a command");
        let answered = paste(&project, &command.replace("TEXT", "yes"));
        assert_eq!(answered.code, 0, "{command}: {answered:?}");
        assert!(left.remove(item), "{item}");
        assert_eq!(asked(&project), left, "{command}");
    }
    // The only one that is left needs no name.
    let alone = project.run(&["answer", &id]);
    let command = format!("taskrun answer {id} TEXT");
    assert!(alone.stderr.contains(&format!("hint: `{command}`\n")), "{alone:?}");
    assert_eq!(paste(&project, &command.replace("TEXT", "yes")).code, 0);
    assert_eq!(project.ends_by_itself(&id)["result"], "thanks");
}

#[test]
fn the_commands_that_a_blocked_run_leads_to_show_its_questions_and_answer_none() {
    let project = Project::new();
    let asks_nothing_else = |id: &str, items: &[&str]| {
        let blocked = project.run(&["wait", id]);
        let hint = blocked.error()["hint"].as_str().expect("a hint").to_owned();
        let commands: Vec<&str> = hint.split('`').skip(1).step_by(2).collect();
        let [inbox, answer, cancel] = commands[..] else { panic!("{hint}") };
        assert_eq!((inbox, cancel), ("taskrun inbox", &*format!("taskrun cancel {id}")));
        assert_eq!(paste(&project, inbox).code, 0);
        let shown = paste(&project, answer);
        let told = (shown.code, &shown.error()["code"]);
        assert_eq!(told, (2, &json!("invalid")), "{answer}: {shown:?}");
        for item in items {
            let question = format!("{item} (a clarification): Which?");
            assert!(shown.stderr.contains(&question), "{shown:?}");
        }
        let form = shown.error()["hint"].as_str().expect("a hint").to_owned();
        let events = project.events(id);
        assert!(events.iter().all(|event| event["kind"] != "answered"), "{events:?}");
        form
    };
    let one = asks(&project, &["which"]);
    assert_eq!(asks_nothing_else(&one, &["which"]), format!("`taskrun answer {one} TEXT`"));
    let two = asks(&project, &["here", "there"]);
    let form = asks_nothing_else(&two, &["here", "there"]);
    assert!(form.contains(&format!("`taskrun answer {two} ITEM ANSWER`")), "{form}");
}

#[test]
fn the_next_page_of_facts_begins_behind_a_key_that_is_one_word() {
    let project = Project::new();
    for key in ODD {
        let kept = project.run(&["memory", "put", "--", key, "a text"]);
        assert_eq!(kept.code, 0, "{kept:?}");
    }
    let (mut more, mut keys) = (String::new(), Vec::new());
    loop {
        let page = format!("taskrun memory ls --limit 1 {more}");
        let names = paste(&project, &format!("{page} -o name"));
        assert_eq!(names.code, 0, "{page}: {names:?}");
        keys.push(names.stdout.trim_end().to_owned());
        let told = paste(&project, &page);
        let next = told.stderr.lines().find_map(|line| line.strip_prefix("more with "));
        let Some(next) = next else { break };
        next.clone_into(&mut more);
        assert!(keys.len() < ODD.len(), "{keys:?}");
    }
    let all: BTreeSet<&str> = keys.iter().map(String::as_str).collect();
    assert_eq!((keys.len(), all), (ODD.len(), BTreeSet::from(ODD)));
}

/// A folder of this name in the project, with a policy of its own that nobody trusts yet.
fn odd_folder(project: &Project) -> PathBuf {
    let policy = std::fs::read_to_string(project.path().join("taskrun.toml")).expect("a policy");
    let policy = policy.replace("\"components/", "\"../components/");
    let odd = "[agent.odd]\ncomponent = \"od d/tool.wasm\"\n";
    project.write(&format!("{FOLDER}/taskrun.toml"), format!("{policy}\n{odd}").as_bytes());
    project.write(&format!("{FOLDER}/od d/tool.wasm"), SCRIPTED_TOOL.bytes);
    project.path().join(FOLDER)
}

#[test]
fn folders_and_files_are_one_word_in_the_commands_about_them() {
    let project = Project::new();
    let folder = odd_folder(&project);
    let here = |command: &str| paste_in(&project, &folder, command);
    let untrusted = here("taskrun ps");
    assert_eq!(untrusted.code, 3, "{untrusted:?}");
    let trust = told(&untrusted, "hint: ", "taskrun policy trust");
    assert_eq!(here(trust).code, 0, "{trust}");
    assert_eq!(here("taskrun ps").code, 0);
    // Others may write it.
    let file = folder.join("taskrun.toml");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).expect("its mode");
    let open = here("taskrun ps");
    let close = told(&open, "hint: ", "chmod go-w");
    assert_eq!(here(close).code, 0, "{close}");
    assert_eq!(here("taskrun ps").code, 0);
    // A component of the wrong kind.
    let wrong = here("taskrun run odd x -d");
    assert_eq!(wrong.error()["code"], "component-world", "{wrong:?}");
    let hint = wrong.error()["hint"].as_str().expect("a hint").to_owned();
    let inspect = hint.split('`').nth(1).expect("a command");
    let inspected = here(inspect);
    assert_eq!(inspected.code, 0, "{inspect}: {inspected:?}");
}

#[test]
fn a_record_is_written_later_by_the_command_that_names_its_file() {
    let project = Project::new();
    let question = json!({ "clarification": { "id": "which", "question": "Which?" } });
    let script =
        json!({ "steps": [[{ "plan": { "await": [question] } }], [{ "reply": "thanks" }]] });
    let script = script.to_string();
    let blocked = project.run(&["run", "worker", &script, "--wait", "--record", "my 'record"]);
    assert_eq!(blocked.code, 8, "{blocked:?}");
    let id = blocked.error()["run_id"].as_str().expect("a run").to_owned();
    let export = told(&blocked, &id, "taskrun export");
    assert_eq!(project.run(&["answer", &id, "yes"]).code, 0);
    assert_eq!(project.run(&["wait", &id]).code, 0);
    let exported = paste(&project, export);
    assert_eq!(exported.code, 0, "{export}: {exported:?}");
    assert!(project.path().join("my 'record").is_file(), "{export}");
}

#[test]
fn a_command_has_the_options_by_which_its_run_is_found() {
    let project = Project::new();
    let script = json!({ "steps": [[{ "err": "no" }]] }).to_string();
    let args = ["run", "fragile", &script, "--wait", "--tenant", "acme"];
    let failed = project.run(&args);
    assert_eq!(failed.code, 5, "{failed:?}");
    let transcript = told(&failed, "hint: ", "taskrun --tenant acme transcript");
    let shown = paste(&project, transcript);
    assert_eq!(shown.code, 0, "{transcript}: {shown:?}");
    let hint = failed.error()["hint"].as_str().expect("a hint").to_owned();
    assert!(hint.contains(transcript), "{hint}");
    // The environment says it to that command, too.
    let mut by_variable = project.command(&args[..4]);
    by_variable.env("TASKRUN_TENANT", "acme");
    let by_variable = Ran::from(by_variable.output().expect("starts"));
    assert!(by_variable.stderr.contains("`taskrun transcript"), "{by_variable:?}");
}

#[test]
fn every_notice_and_refusal_has_the_options_and_lists_of_all_runs_have_no_owner() {
    let project = Project::new();
    let acme = |args: &[&str]| project.run(&[args, &["--tenant", "acme"]].concat());
    let ended = || acme(&["run", "fragile", "done", "--wait", "-o", "name"]).id();
    let (one, other) = (ended(), ended());
    let refused = acme(&["pause", &one, &other]);
    assert_eq!(refused.code, 2, "{refused:?}");
    let second = format!("`taskrun --tenant acme get {other}`");
    assert!(refused.stderr.contains(&second), "{refused:?}");
    let quiet = acme(&["logs", &one, "--level", "error"]);
    told(&quiet, "the run has no log lines", "taskrun --tenant acme events");
    let nothing = acme(&["ps", "--status", "running"]);
    told(&nothing, "no runs fit", "taskrun --tenant acme ps --all");
    let unseen = acme(&["get", &one, "--owner", "bob"]);
    let list = told(&unseen, "hint: ", "taskrun --tenant acme ps -a");
    let listed = paste(&project, &format!("{list} -o name"));
    assert!(listed.stdout.contains(&one), "{list}: {listed:?}");
    let doctor = project.run(&["--data-dir", ".taskrun", "doctor", "-o", "json"]);
    let hint = doctor.check("policy").expect("a policy")["hint"].to_string();
    assert!(hint.contains("`taskrun --data-dir .taskrun agent check`"), "{hint}");
}

#[test]
fn a_run_of_another_policy_that_is_due_later_is_waited_for_by_a_host_of_that_policy() {
    let project = Project::new();
    let call = json!({ "id": "c", "name": "scripted/change", "args": {} });
    let script = json!({ "steps": [[{ "call": call }], [{ "reply": "done" }]] }).to_string();
    let id = project.run(&["run", "asking", &script, "-d"]).id();
    project.reach(&id, "blocked");
    project.kill_hosts_and_wait();
    let line = format!("{id} is due in 1d, no host runs");
    let here = project.run(&["ps"]);
    assert_eq!(told(&here, &line, "taskrun host"), "taskrun host --service");
    let named = project.run(&["--config", "taskrun.toml", "ps"]);
    let command = "taskrun --config taskrun.toml host --service";
    assert_eq!(told(&named, &line, command), command);
    project.write("other.toml", b"[agent.other]\ncomponent = \"components/scripted.wasm\"\n");
    let other = ["--config", "other.toml", "--data-dir", ".taskrun"];
    for words in [&["ps"][..], &["get", &id]] {
        let shown = project.run(&[&other[..], words].concat());
        let service = told(&shown, &line, "taskrun --data-dir /");
        assert!(service.ends_with("/.taskrun host --service"), "{service}");
    }
    assert_eq!(project.run(&["cancel", &id]).code, 0);
}

#[test]
fn a_run_that_the_policy_here_does_not_know_goes_on_by_a_command_that_does_not_name_it() {
    let project = Project::new();
    let id = asks(&project, &["which"]);
    project.kill_hosts_and_wait();
    let agent = "[agent.other]\ncomponent = \"components/scripted.wasm\"\n";
    project.write("other.toml", agent.as_bytes());
    let other = |args: &[&str]| {
        let options = ["--config", "other.toml", "--data-dir", ".taskrun"];
        project.run(&[&options[..], args].concat())
    };
    let answered = other(&["answer", &id, "blue"]);
    assert_eq!(answered.code, 0, "{answered:?}");
    let line = format!("no host executes {id}");
    let listed = other(&["ps"]);
    let options = "taskrun --config other.toml --data-dir .taskrun";
    told(&listed, &line, &format!("{options} cancel {id}"));
    let wait = told(&listed, &line, "taskrun --data-dir /");
    assert!(wait.ends_with(&format!(" wait {id}")), "{wait}");
    assert_eq!(paste(&project, wait).code, 0, "{wait}");
    assert_eq!(project.get(&id)["result"], "thanks");
}

#[test]
fn a_conversation_is_come_back_to_by_the_command_that_names_its_session() {
    let project = crate::chat::project();
    for session in ["my notes", "$(touch PWN)", "-x"] {
        let left = project.run(&["chat", "--agent", "lead", "--", session]);
        assert_eq!(left.code, 0, "{left:?}");
        let named = project.run(&["chat", "--", session]);
        let hint = named.error()["hint"].as_str().expect("a hint").to_owned();
        let command = hint.split('`').nth(1).expect("a command").replace("NAME", "lead");
        let again = paste(&project, &command);
        assert_eq!(again.code, 0, "{command}: {again:?}");
        let back = told(&left, "what runs goes on", "taskrun chat");
        // Nobody has spoken yet.
        assert_eq!(paste(&project, back).error()["message"], named.error()["message"], "{back}");
    }
}
