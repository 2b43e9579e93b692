//! A conversation at a terminal whose policy is edited, where the edit cannot be taken up.

use serde_json::json;

use crate::chat::{LEAD, chat, project, says};
use crate::chat_meanwhile::{exchange, locked};
use crate::project::Project;
use crate::terminal::Terminal;

const REFUSED: &str = "the line is not said: there is no agent \"lead\" in taskrun.toml";
const KEPT: &str = "the policy stays as it was";

fn policy(project: &Project) -> String {
    std::fs::read_to_string(project.path().join("taskrun.toml")).expect("there is one")
}

/// Says a line, and waits until it was refused, for so many times by now.
fn is_refused(terminal: &mut Terminal, times: usize) {
    terminal.types(&format!("{}\n", says("unsaid")));
    terminal.shows(REFUSED, times);
}

/// A conversation whose policy does not have its agent any more, so that no line needs a host or
/// the store, with the policy as it was. No host is left.
fn without_its_agent(project: &Project) -> (Terminal, String) {
    let before = policy(project);
    let mut terminal = chat(project, &["--agent", "lead"]);
    exchange(&mut terminal, "one");
    project.write("taskrun.toml", before.replace(LEAD, "").as_bytes());
    is_refused(&mut terminal, 1);
    project.kill_hosts_and_wait();
    (terminal, before)
}

fn told(terminal: &Terminal) -> usize {
    terminal.seen().matches(KEPT).count()
}

/// The runs of the agent under the policy as it is now, and under the others.
fn runs(project: &Project) -> [Option<u64>; 2] {
    let told = project.run(&["agent", "versions", "lead", "-o", "json"]).json();
    let versions = told["versions"].as_array().expect("versions");
    [true, false].map(|is_current| {
        let found = versions.iter().find(|version| version["current"] == is_current);
        found.and_then(|version| version["runs"].as_u64())
    })
}

#[test]
fn a_policy_that_cannot_be_taken_up_for_a_moment_is_tried_again_with_the_next_line() {
    let project = project();
    let (mut terminal, before) = without_its_agent(&project);
    // Nothing can be kept.
    let blobs = project.path().join(".taskrun/blobs");
    std::fs::rename(blobs.join("tmp"), blobs.join("away")).expect("it is there");
    std::fs::write(blobs.join("tmp"), b"no folder").expect("written");
    let edited = format!("{before}limits = {{ tool_calls = 7 }}\n");
    project.write("taskrun.toml", edited.as_bytes());
    is_refused(&mut terminal, 2);
    assert_eq!(told(&terminal), 1, "{}", terminal.seen());
    std::fs::remove_file(blobs.join("tmp")).expect("it is there");
    std::fs::rename(blobs.join("away"), blobs.join("tmp")).expect("it is there");
    // Nothing can be written into the store.
    let locked = locked(&project);
    is_refused(&mut terminal, 3);
    assert_eq!(told(&terminal), 2, "{}", terminal.seen());
    drop(locked);
    exchange(&mut terminal, "two");
    assert_eq!(runs(&project), [Some(1), Some(1)]);
    terminal.types("\x04");
    assert_eq!(terminal.ends(), 0, "{}", terminal.seen());
    assert_eq!(told(&terminal), 2, "{}", terminal.seen());
}

#[test]
fn a_policy_whose_agents_do_not_load_is_told_of_once_and_the_store_keeps_the_one_before() {
    let project = project();
    let (mut terminal, before) = without_its_agent(&project);
    let in_force = || project.run(&["policy", "show", "-o", "json"]).json()["in_force"].clone();
    let kept = in_force();
    assert_eq!(kept["same_text"], true, "{kept}");
    let broken = format!("{before}[agent.broken]\ncomponent = \"components/none.wasm\"\n");
    project.write("taskrun.toml", broken.as_bytes());
    for times in [2, 3] {
        is_refused(&mut terminal, times);
        assert_eq!(told(&terminal), 1, "{}", terminal.seen());
        let now = in_force();
        let shown = (&now["revision"], &now["same_text"]);
        assert_eq!(shown, (&kept["revision"], &json!(false)), "{now}");
    }
    project.write("taskrun.toml", before.as_bytes());
    exchange(&mut terminal, "two");
    assert_eq!(told(&terminal), 1, "{}", terminal.seen());
    let now = in_force();
    assert_eq!(now["same_text"], true, "{now}");
}
