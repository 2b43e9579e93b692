//! The agents and tools of `guest-examples/`, built with this crate and at hand as bytes: for
//! tests, benchmarks and the demo.

/// A component and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Example {
    /// Name of its crate, such as `workspace`.
    pub name: &'static str,
    /// The component.
    pub bytes: &'static [u8],
    /// The world it is made for.
    pub kind: Kind,
}

/// The world a component is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It exports `planner`.
    Agent,
    /// It exports `tools`.
    Tool,
    /// It exports `policy`.
    Policy,
}

macro_rules! examples {
    ($($(#[doc = $doc:literal])+ $constant:ident = $kind:ident $name:literal;)+) => {
        $(
            $(#[doc = $doc])+
            pub const $constant: super::Example = super::Example {
                name: $name,
                bytes: include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".wasm")),
                kind: super::Kind::$kind,
            };
        )+

        /// All of these.
        pub const ALL: &[super::Example] = &[$($constant),+];
    };
}

/// Components as people write them.
mod good {
    examples! {
        /// Lists, searches, reads and writes the files of the workspace: functions `list`,
        /// `search`, `read`, `write`.
        WORKSPACE = Tool "workspace";
        /// Answers questions from the workspace, without a model.
        RESEARCHER = Agent "researcher";
        /// Lets a model decide.
        CHAT = Agent "chat";
        /// Lets a model decide, and ends with a line for each message of the conversation.
        MINUTES = Agent "minutes";
        /// Has a model fill in a form.
        SORTER = Agent "sorter";
        /// Asks a model twice, then a person, then the model again.
        EDITOR = Agent "editor";
        /// Has a model think before it decides.
        THINKER = Agent "thinker";
        /// Counts the words of its task with a tool; the README's agent.
        COUNTER = Agent "counter";
        /// Answers with a prompt of the policy.
        BRIEFER = Agent "briefer";
        /// Answers with its task and counts the words when the run has ended.
        FINALIZER = Agent "finalizer";
        /// Reads and writes files, asks servers and looks at its budget itself.
        INSPECTOR = Agent "inspector";
        /// Depends on chance, time and a model.
        DICE = Agent "dice";
        /// Gives each line of its task to a run of another agent.
        COORDINATOR = Agent "coordinator";
        /// Plays the script in its task.
        SCRIPTED = Agent "scripted";
        /// Counts words: function `count`; the README's tool.
        WORDS = Tool "words";
        /// Answers what its arguments say: functions `lookup`, `change`, `finish`,
        /// `measure`, `ids`.
        SCRIPTED_TOOL = Tool "scripted-tool";
        /// Leaves effects that can be counted: functions `note`, `put`.
        LEDGER = Tool "ledger";
        /// Keeps, finds and forgets facts: functions `keep`, `find`, `forget`.
        NOTES = Tool "notes";
        /// Counts and measures: functions `count`, `measure`.
        METER = Tool "meter";
        /// Answers with the facts that have words of its task.
        RECALLER = Agent "recaller";
        /// Starts, watches, answers and cancels runs: functions `spawn`, `get`, `list`, `wait`,
        /// `provide`, `events`, `cancel`, `cancel_tree`.
        DELEGATE = Tool "delegate";
        /// Reads and writes files through `std::fs`: functions `read`, `write`, `list`.
        WASI_FILES = Tool "wasi-files";
        /// Gets a page by the `http` interface: function `get`.
        FETCH = Tool "fetch";
        /// Leaves what may destroy something to runs with the label `approved=yes`.
        CAUTIOUS = Policy "cautious";
    }
}

mod slow;

pub use good::*;

/// Components that the host must survive.
pub mod evil {
    pub use crate::slow::{large, slow_to_compile};

    /// Functions of [`SCHEMA`], each with arguments that are too dear to hold to its schema.
    #[must_use]
    pub fn schema_bombs() -> [(&'static str, String); 5] {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(60), "]".repeat(60));
        let items: Vec<String> = (0..5_000).map(|n| n.to_string()).collect();
        let list = format!("{{\"a\":[{}]}}", items.join(","));
        let long = format!("{{\"a\":\"{}b\"}}", "a".repeat(30_000));
        [
            ("deep", deep.clone()),
            ("example", deep),
            ("flood", list.clone()),
            ("lists", list),
            // By itself it would only not match; a turn has spent its steps on those before it.
            ("backtrack", long),
        ]
    }

    examples! {
        /// One evil thing for each function.
        TOOL = Tool "evil-tool";
        /// Spins in `describe`.
        DESCRIBE = Tool "evil-describe";
        /// Asks a server without end: function `ask`.
        FETCH = Tool "evil-fetch";
        /// Has schemas that cost more than they look, one for each function.
        SCHEMA = Tool "evil-schema";
        /// One evil thing for each task.
        AGENT = Agent "evil-agent";
        /// Calls the host from as deep a stack as its task says.
        DEEP = Agent "evil-deep";
        /// Names images that it was never shown.
        MEDIA = Agent "evil-media";
        /// Forgets the answer of its model that it began.
        STREAM = Agent "evil-stream";
        /// Tries to leave its preopened folders: function `attempt`.
        WASI = Tool "evil-wasi";
    }
}
