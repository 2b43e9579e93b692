//! The table of changes that are made beneath runs in seven states while no host lives, with the way in
//! which the runs go on. The library tries it under a simulated clock (`tests/changes`), and the
//! program in real time (`tests/process/changes`, `tests/later`).

mod judge;
mod program;
mod scene;

use std::path::Path;

use taskrun_examples::{BRIEFER, WORDS};

pub use self::judge::EndedRun;
pub use self::program::ProgramForm;
pub use self::scene::{CALL_MS, KEY, OTHER_KEY, Scene, Task, edit, reply, tasks};

use self::Later::{PinnedAlike, PinnedOtherwise, Refused};
use self::scene::write;

/// The states in which the change finds the runs, the last three under way.
pub const STATES: [&str; 7] = [
    "waits for an answer",
    "is queued",
    "waits for consent",
    "waits for a child",
    "pauses before a retry",
    "is in the middle of a step",
    "is in the middle of a call",
];

/// The ends of the calls of a run: one reads a file, one another file, two are looked up, and one waited
/// for consent. Each is the answer of the call, or the code of its failure.
pub type Ends = [&'static str; 5];

/// The ends of the calls where nothing is taken away: the other file is denied, and the second call that
/// is looked up is over the bound of the turn.
pub const UNCHANGED: Ends = ["one", "denied", "found", "cap", "changed"];

/// The end of a call that a policy engine took away: it is refused, or, where a model decides on it that
/// is not offered the function any more, one of a function that it does not have.
pub const TAKEN: &str = "taken";

/// The fate of a run that is asked for after the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Later {
    /// It is accepted with the pin of those before.
    PinnedAlike,
    /// It is accepted with another one.
    PinnedOtherwise,
    /// It is refused, as its agent does not load.
    Refused,
}

/// A change, and how runs go on after it.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// The change, and the test of it.
    pub name: &'static str,
    /// Makes it in the folder of the policy.
    pub make: fn(&Path),
    /// The ends of the calls of every run, in whichever state it was.
    pub ends: Ends,
    /// The fate of a run that is asked for afterwards.
    pub later: Later,
    /// The key by which models are asked afterwards.
    pub key: &'static str,
    /// The program that goes on with the runs.
    pub program: ProgramForm,
}

const fn row(name: &'static str, make: fn(&Path), ends: Ends, later: Later) -> Change {
    Change { name, make, ends, later, key: KEY, program: ProgramForm::Same }
}

/// All changes. Each finds runs in all [`STATES`].
#[rustfmt::skip]
pub const CHANGES: [Change; 15] = [
    //   the change                       how it is made    a file    another   a look-up  another  consent    a later run
    row("a_comment",                      comment,         ["one",    "denied", "found",   "cap",   "changed"], PinnedAlike),
    row("a_limit_of_another_agent",       limit_of_child,  ["one",    "denied", "found",   "cap",   "changed"], PinnedAlike),
    row("a_limit_that_goes_up",           limit_up,        ["one",    "denied", "found",   "cap",   "changed"], PinnedOtherwise),
    row("a_limit_that_goes_down",         limit_down,      ["one",    "denied", "cap",     "cap",   "changed"], PinnedOtherwise),
    row("the_component",                  component,       ["one",    "denied", "found",   "cap",   "changed"], PinnedOtherwise),
    row("the_component_of_a_tool",        tool,            ["one",    "denied", "found",   "cap",   "changed"], PinnedOtherwise),
    row("the_engine",                     engine,          ["one",    "denied", TAKEN,     TAKEN,   TAKEN    ], PinnedOtherwise),
    row("the_component_of_the_engine",    engine_is_none,  [TAKEN,    TAKEN,    TAKEN,     TAKEN,   TAKEN    ], Refused),
    row("a_file_of_a_prompt",             prompt,          ["one",    "denied", "found",   "cap",   "changed"], PinnedOtherwise),
    Change { key: OTHER_KEY, ..
    row("a_key_of_a_model",               key,             ["one",    "denied", "found",   "cap",   "changed"], PinnedAlike) },
    row("a_rule_that_is_taken_away",      rule_taken,      ["denied", "denied", "found",   "cap",   "changed"], PinnedOtherwise),
    row("a_rule_that_is_given",           rule_given,      ["one",    "denied", "found",   "cap",   "changed"], PinnedOtherwise),
    row("the_root_of_the_workspace",      root,            ["denied", "denied", "found",   "cap",   "changed"], PinnedOtherwise),
    Change { program: ProgramForm::Later, ..
    row("a_later_program",                nothing,         ["one",    "denied", "found",   "cap",   "changed"], PinnedAlike) },
    Change { program: ProgramForm::LaterWithOtherDefaults, ..
    row("a_program_with_other_defaults",  nothing,         ["one",    "denied", "found",   "cap",   "changed"], PinnedOtherwise) },
];

impl Change {
    /// The row of this name.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn named(name: &str) -> &'static Self {
        let found = CHANGES.iter().find(|change| change.name == name);
        found.unwrap_or_else(|| panic!("no change is called {name}"))
    }
}

fn nothing(_: &Path) {}

fn comment(folder: &Path) {
    edit(folder, "[agent.subject]", "# A comment.\n[agent.subject]");
}

/// Of the child, too, which goes on within it.
fn limit_of_child(folder: &Path) {
    edit(folder, "tool_calls = 7", "tool_calls = 6");
}

fn limit_up(folder: &Path) {
    edit(folder, "turn_calls = 3", "turn_calls = 9");
}

fn limit_down(folder: &Path) {
    edit(folder, "turn_calls = 3", "turn_calls = 2");
}

/// It would not call anything.
fn component(folder: &Path) {
    for name in ["scripted", "chat", "thinker"] {
        write(folder, &format!("components/{name}.wasm"), BRIEFER.bytes);
    }
}

/// It has no such function, which no rule may name then.
fn tool(folder: &Path) {
    edit(folder, "ask = [\"tool: scripted/change\"]\n", "");
    write(folder, "components/scripted-tool.wasm", WORDS.bytes);
}

/// The call that waits for consent is taken away, too: the consent that is given afterwards does not
/// bring it back.
fn engine(folder: &Path) {
    let block = "policy = { block = [\"scripted/lookup\", \"scripted/change\"], component";
    edit(folder, "policy = { component", block);
}

/// One of now that cannot be asked leaves nothing.
fn engine_is_none(folder: &Path) {
    write(folder, "components/cautious.wasm", WORDS.bytes);
}

fn prompt(folder: &Path) {
    write(folder, "prompts/brief.md", b"Be very brief.");
}

fn key(folder: &Path) {
    edit(folder, KEY, OTHER_KEY);
}

fn rule_taken(folder: &Path) {
    edit(folder, "workspace-read: docs/**", "workspace-read: x/**");
}

fn rule_given(folder: &Path) {
    let both = "\"workspace-read: docs/**\", \"workspace-read: other/**\"";
    edit(folder, "\"workspace-read: docs/**\"", both);
}

/// The files of then lie outside of what the policy gives.
fn root(folder: &Path) {
    write(folder, "x/docs/a.txt", b"three");
    edit(folder, "[prompt.brief]", "[workspace]\nroot = \"x\"\n\n[prompt.brief]");
}

/// A test for each of these rows of [`CHANGES`], and a list of them.
#[macro_export]
macro_rules! test_changes {
    ($goes_on:path: $($name:ident),+ $(,)?) => {
        /// The rows that are tried.
        const TRIED: &[&str] = &[$(stringify!($name)),+];

        $(
            #[test]
            fn $name() {
                $goes_on($crate::changes::Change::named(stringify!($name)));
            }
        )+
    };
}
