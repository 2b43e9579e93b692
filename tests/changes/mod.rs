//! Changes, by the state in which a run is: the policy, a component or a file is another one, or the
//! program, when a host takes up runs that a dead one has left, each in another state, and each goes on
//! as if nothing had changed, but for the rights and bounds that it lost.
//!
//! Each test is a row of [`CHANGES`], by the library and under a simulated clock. `tests/process/changes`
//! has the same table by the program and in real time.

mod host;
mod stage;
mod tally;
mod year;

use taskrun_tests::changes::{CHANGES, Change};
use taskrun_tests::test_changes;

use self::stage::Stage;

/// Brings seven runs into their states, lets their host die, changes something, and checks how they go
/// on, and what becomes of a run that is accepted later.
fn goes_on(change: &Change) {
    let stage = Stage::set();
    let found = stage.begin();
    (change.make)(stage.path());
    stage.go_on(change, found);
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
    a_later_program,
    a_program_with_other_defaults,
);

#[test]
fn a_program_that_cannot_bind_the_components_holds_the_runs() {
    let stage = Stage::set();
    let mut found = stage.begin();
    stage.is_held(&mut found);
    // The one of before goes on with them, as if there had been none between.
    stage.go_on(Change::named("a_limit_of_another_agent"), found);
}

#[test]
fn every_change_is_tried() {
    assert_eq!(TRIED, CHANGES.map(|change| change.name));
}
