//! Changes, by the state in which a run is: the policy, a component or a file is another one
//! when a host takes up runs that a dead one has left, each in another state, and each goes on as if
//! nothing had changed, but for the rights and bounds that it lost.
//!
//! Each test is a change, and a row of one table; its columns are the runs of [`Stage`]. The last row,
//! a later program, stands in `tests/later`.

mod stage;

use taskrun_examples::{BRIEFER, WORDS};

use self::stage::{Later, Stage, TAKEN, UNCHANGED};

/// Kills the host of seven runs, changes something, and checks how they go on, and what becomes of
/// a run that is accepted later.
fn goes_on(change: impl FnOnce(&Stage), came_to: [&str; 5], later: Later) -> Stage {
    let stage = Stage::new();
    change(&stage);
    stage.check(came_to);
    assert_eq!(stage.later(), later);
    stage
}

#[test]
fn a_comment() {
    let edit = |stage: &Stage| stage.edit("[agent.subject]", "# A comment.\n[agent.subject]");
    goes_on(edit, UNCHANGED, Later::PinnedAlike);
}

#[test]
fn a_limit_of_another_agent() {
    // Of the child, too, which goes on within it.
    goes_on(|stage| stage.edit("tool_calls = 7", "tool_calls = 6"), UNCHANGED, Later::PinnedAlike);
}

#[test]
fn a_limit_that_goes_up() {
    goes_on(
        |stage| stage.edit("turn_calls = 3", "turn_calls = 9"),
        UNCHANGED,
        Later::PinnedOtherwise,
    );
}

#[test]
fn a_limit_that_goes_down() {
    let came_to = ["one", "denied", "cap", "cap", "changed"];
    goes_on(
        |stage| stage.edit("turn_calls = 3", "turn_calls = 2"),
        came_to,
        Later::PinnedOtherwise,
    );
}

#[test]
fn the_component() {
    // It would not call anything.
    let replace = |stage: &Stage| {
        for name in ["scripted", "chat", "thinker"] {
            stage.project.write(&format!("components/{name}.wasm"), BRIEFER.bytes);
        }
    };
    goes_on(replace, UNCHANGED, Later::PinnedOtherwise);
}

#[test]
fn the_component_of_a_tool() {
    // It has no such function.
    let replace = |stage: &Stage| stage.project.write("components/scripted-tool.wasm", WORDS.bytes);
    goes_on(replace, UNCHANGED, Later::PinnedOtherwise);
}

#[test]
fn the_engine() {
    // The call that waits for consent, too: the consent that is given afterwards does not bring it back.
    let block = "policy = { block = [\"scripted/lookup\", \"scripted/change\"], component";
    let came_to = ["one", "denied", TAKEN, TAKEN, TAKEN];
    goes_on(|stage| stage.edit("policy = { component", block), came_to, Later::PinnedOtherwise);
}

#[test]
fn the_component_of_the_engine() {
    // One of now that cannot be asked leaves nothing.
    let replace = |stage: &Stage| stage.project.write("components/cautious.wasm", WORDS.bytes);
    goes_on(replace, [TAKEN; 5], Later::Refused);
}

#[test]
fn a_file_of_a_prompt() {
    let edit = |stage: &Stage| stage.project.write("prompts/brief.md", b"Be very brief.");
    let stage = goes_on(edit, UNCHANGED, Later::PinnedOtherwise);
    assert_eq!(stage.briefs(), ["Be brief."; 7], "the prompt is that of then");
}

#[test]
fn a_key_of_a_model() {
    let stage =
        goes_on(|stage| stage.edit("keys/one", "keys/other"), UNCHANGED, Later::PinnedAlike);
    assert_eq!(stage.keys(), ["Bearer key-other"; 5], "the keys are those of now");
}

#[test]
fn a_rule_that_is_taken_away() {
    let came_to = ["denied", "denied", "found", "cap", "changed"];
    goes_on(
        |stage| stage.edit("workspace-read: docs/**", "workspace-read: x/**"),
        came_to,
        Later::PinnedOtherwise,
    );
}

#[test]
fn a_rule_that_is_given() {
    let edit = |stage: &Stage| {
        let both = "\"workspace-read: docs/**\", \"workspace-read: other/**\"";
        stage.edit("\"workspace-read: docs/**\"", both);
    };
    goes_on(edit, UNCHANGED, Later::PinnedOtherwise);
}

#[test]
fn the_root_of_the_workspace() {
    // The files of then lie outside of what the policy gives.
    let edit = |stage: &Stage| {
        stage.project.write("x/docs/a.txt", b"three");
        stage.edit("[prompt.brief]", "[workspace]\nroot = \"x\"\n\n[prompt.brief]");
    };
    let came_to = ["denied", "denied", "found", "cap", "changed"];
    goes_on(edit, came_to, Later::PinnedOtherwise);
}

#[test]
fn another_form_that_runs_are_given() {
    // With the change they would go on as before; those that are given it have what it allows.
    let stage = Stage::new();
    stage.edit("turn_calls = 3", "turn_calls = 9");
    stage.edit(
        "\"workspace-read: docs/**\"",
        "\"workspace-read: docs/**\", \"workspace-read: other/**\"",
    );
    stage.adopt();
    stage.check_adopted(["one", "two", "found", "found", "changed"]);
    assert_eq!(stage.later(), Later::PinnedOtherwise);
}
