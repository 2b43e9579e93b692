//! A project in a folder: policy, components, workspace and store.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use taskrun_examples::{CHAT, FINALIZER, LEDGER, NOTES, SCRIPTED, SCRIPTED_TOOL};

const POLICY: &str = r#"[model.parrot]
provider = "scripted"
script = "parrot.jsonl"

[tool.ledger]
component = "components/ledger.wasm"

[tool.careful]
component = "components/ledger.wasm"
interrupted = "ask"

[tool.slow]
component = "components/scripted-tool.wasm"

[tool.hesitant]
component = "components/scripted-tool.wasm"
interrupted = "ask"

[tool.notes]
component = "components/notes.wasm"

[agent.worker]
component = "components/scripted.wasm"
tools = ["ledger/*", "careful/note", "slow/lookup", "hesitant/change"]
allow = ["workspace-write: ledger.txt", "workspace-write: put/**"]
members = ["worker"]

[agent.limited]
component = "components/scripted.wasm"
tools = ["ledger/*"]
allow = ["workspace-write: ledger.txt", "workspace-write: put/**"]
budget = { turns = 3, reserve = { turns = 1 } }

[agent.delegator]
component = "components/scripted.wasm"
tools = ["ledger/*", "agent/helper"]
allow = ["workspace-write: ledger.txt", "workspace-write: put/**"]

[agent.helper]
component = "components/scripted.wasm"

[agent.keeper]
component = "components/scripted.wasm"
tools = ["ledger/*", "notes/keep"]
allow = ["workspace-write: ledger.txt", "workspace-write: put/**", "memory: session", "memory-write: session"]

[agent.faller]
component = "components/scripted.wasm"
tools = ["ledger/*"]
allow = ["workspace-write: ledger.txt"]
retry = { attempts = 3, pause = "20ms", on = ["uncoded"] }

[agent.closer]
component = "components/finalizer.wasm"

[agent.talker]
component = "components/chat.wasm"
tools = ["ledger/put"]
model = "parrot"
allow = ["workspace-write: put/**"]
"#;

/// The words of the model: a call of a tool that may be repeated, then an answer.
const PARROT: &str = r#"{"responses": [{"text": "I keep "}, {"text": "a word."}, {"tool_call": {"tool_call_id": "p", "name": "ledger/put", "payload": "{\"text\":\"word\"}"}}, {"usage": {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}}]}
{"responses": [{"text": "It is "}, {"text": "kept."}, {"usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}}]}
"#;

/// A project; its folder is removed with it unless it is held.
pub(crate) struct Project {
    folder: tempfile::TempDir,
}

impl Project {
    /// # Errors
    /// The error of the operating system.
    pub(crate) fn new() -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("taskrun-crash-").tempdir()?;
        let project = Self { folder };
        fs::create_dir(project.path().join("components"))?;
        for example in [LEDGER, SCRIPTED, SCRIPTED_TOOL, NOTES, FINALIZER, CHAT] {
            let file = project.path().join(format!("components/{}.wasm", example.name));
            fs::write(file, example.bytes)?;
        }
        fs::create_dir(project.path().join("log"))?;
        fs::write(project.path().join("parrot.jsonl"), PARROT)?;
        fs::write(project.policy(), POLICY)?;
        Ok(project)
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn policy(&self) -> PathBuf {
        self.path().join("taskrun.toml")
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.path().join(".taskrun")
    }

    /// Where hosts keep native code.
    pub(crate) fn native(&self) -> PathBuf {
        self.data().join("native")
    }

    /// Takes over the native code of another project, so that no host has to compile.
    ///
    /// # Errors
    /// The error of the operating system.
    pub(crate) fn warm(&self, other: &Self) -> io::Result<()> {
        let own = self.native();
        // The store's own mode: native code that others could write is not used.
        DirBuilder::new().recursive(true).mode(0o700).create(&own)?;
        for entry in fs::read_dir(other.native())? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                fs::copy(entry.path(), own.join(entry.file_name()))?;
            }
        }
        Ok(())
    }

    /// Leaves the folder where it is, to be looked at, until it is let go; says where that is.
    pub(crate) fn hold(&mut self) -> PathBuf {
        self.folder.disable_cleanup(true);
        self.folder.path().to_owned()
    }

    /// Prints everything that was wrong, and lets go of the folder if that is nothing, or says where
    /// it is; true if nothing was.
    pub(crate) fn judge(&mut self, wrong: &[String]) -> bool {
        for wrong in wrong {
            println!("VIOLATED: {wrong}");
        }
        if wrong.is_empty() {
            self.folder.disable_cleanup(false);
        } else {
            println!("everything is kept in {}", self.folder.path().display());
        }
        wrong.is_empty()
    }

    /// Removes the folder, also if it was held.
    ///
    /// # Errors
    /// The error of the operating system; there is one if a process still writes there.
    pub(crate) fn remove(self) -> io::Result<()> {
        self.folder.close()
    }
}
