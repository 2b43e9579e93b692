//! Changes, by the state in which a run is: the policy, a component or a file is another one
//! when a host takes up runs that a dead one has left, each in another state, and each goes on as if
//! nothing had changed, but for the rights and bounds that it lost.
//!
//! Each test is a row of [`CHANGES`], by the program and in real time; the rows of a later program stand in
//! `tests/later`, and the same table by the library in `tests/changes`.

mod stage;

use taskrun_tests::changes::{CHANGES, Change, ProgramForm};
use taskrun_tests::test_changes;

use self::stage::Stage;

/// Kills the host of seven runs, changes something, and checks how they go on, and what becomes of
/// a run that is accepted later.
fn goes_on(change: &Change) {
    let stage = Stage::new();
    (change.make)(stage.project.path());
    stage.check(change);
}

test_changes!(
    goes_on:
    a_comment,
    a_limit_of_another_agent,
    a_limit_that_goes_up,
    a_limit_that_goes_down,
    the_component,
    the_component_of_a_tool,
    the_engine,
    the_component_of_the_engine,
    a_file_of_a_prompt,
    a_key_of_a_model,
    a_rule_that_is_taken_away,
    a_rule_that_is_given,
    the_root_of_the_workspace,
);

#[test]
fn every_change_of_a_file_is_tried() {
    let of_files = CHANGES.iter().filter(|change| change.program == ProgramForm::Same);
    assert_eq!(TRIED, of_files.map(|change| change.name).collect::<Vec<_>>());
}

#[test]
fn another_form_that_runs_are_given() {
    // With each of these changes they would go on as before; those that are given them have what they
    // allow.
    let stage = Stage::new();
    for change in ["a_limit_that_goes_up", "a_rule_that_is_given"] {
        (Change::named(change).make)(stage.project.path());
    }
    stage.adopt();
    stage.check_adopted(["one", "two", "found", "found", "changed"]);
}
