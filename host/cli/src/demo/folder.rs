//! The folder that the demo leaves behind.

use std::path::{Path, PathBuf};

use taskrun_examples::{Example, RESEARCHER, SCRIPTED, WORKSPACE, evil};
use taskrun_runtime::{DATA_DIR, make_data_dir};

use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::place::POLICY_FILE;

/// Name of the folder.
const FOLDER: &str = "taskrun-demo";
/// Says that the demo made the folder.
const MARKER: &str = ".made-by-taskrun-demo";
const MARKER_TEXT: &str = "`taskrun demo` made this folder and refreshes it. It can be removed.\n";

macro_rules! documents {
    ($($path:literal),+ $(,)?) => {
        /// The project's own documents, by their path from its root.
        const DOCUMENTS: &[(&str, &str)] = &[
            $(($path, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../", $path)))),+
        ];
    };
}

documents!(
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/autonomous.md",
    "docs/capabilities.md",
    "docs/command-line.md",
    "docs/costs.md",
    "docs/delegation.md",
    "docs/limits.md",
    "docs/models.md",
    "docs/policy.md",
    "docs/decisions/README.md",
    "docs/decisions/budgets.md",
    "docs/decisions/calls.md",
    "docs/decisions/command-line.md",
    "docs/decisions/delegation.md",
    "docs/decisions/deployments.md",
    "docs/decisions/hosts.md",
    "docs/decisions/memory.md",
    "docs/decisions/models.md",
    "docs/decisions/network.md",
    "docs/decisions/policy.md",
    "docs/decisions/runs.md",
    "docs/decisions/sandbox.md",
    "docs/decisions/sessions.md",
    "docs/decisions/steps.md",
    "docs/decisions/store.md",
    "docs/decisions/time.md",
    "wit/clock.wit",
    "wit/controller.wit",
    "wit/conversation.wit",
    "wit/events.wit",
    "wit/finalizer.wit",
    "wit/http.wit",
    "wit/log.wit",
    "wit/memory-write.wit",
    "wit/memory.wit",
    "wit/metrics.wit",
    "wit/model.wit",
    "wit/planner.wit",
    "wit/policy.wit",
    "wit/prompts.wit",
    "wit/random.wit",
    "wit/reminders.wit",
    "wit/run.wit",
    "wit/state.wit",
    "wit/tools.wit",
    "wit/types.wit",
    "wit/workspace-read.wit",
    "wit/workspace-write.wit",
    "wit/worlds.wit",
);

const COMPONENTS: [Example; 4] = [WORKSPACE, RESEARCHER, SCRIPTED, evil::AGENT];
const POLICY: &str = include_str!("taskrun.toml");

/// A folder with everything that the demo needs.
pub(super) struct DemoFolder {
    /// The folder of the demo.
    pub(super) path: PathBuf,
}

impl DemoFolder {
    /// Makes or refreshes the folder below `here`; if `here` is one of these, that one.
    pub(super) fn make(here: &Path) -> Outcome<Self> {
        let path = if here.join(MARKER).is_file() { here.to_owned() } else { here.join(FOLDER) };
        let folder = Self { path };
        if folder.path.symlink_metadata().is_ok() && !folder.path.join(MARKER).is_file() {
            let message = format!("{} exists and was not made by the demo", folder.path.display());
            return Err(Failure::usage("demo-folder", message)
                .hint("remove or rename it, or run `taskrun demo` in another folder"));
        }
        folder.fill().map_err(|error| {
            Failure::new(
                Exit::Unexpected,
                "demo-folder",
                format!("{} cannot be written", folder.path.display()),
            )
            .because(&error)
            .hint("run `taskrun demo` in a folder that you may write")
        })?;
        make_data_dir(&folder.data_dir())?;
        Ok(folder)
    }

    fn fill(&self) -> std::io::Result<()> {
        std::fs::create_dir_all(&self.path)?;
        self.write(MARKER, MARKER_TEXT.as_bytes())?;
        for (path, text) in DOCUMENTS {
            self.write(&format!("docs/{path}"), text.as_bytes())?;
        }
        for example in COMPONENTS {
            self.write(&format!("components/{}.wasm", example.name), example.bytes)?;
        }
        std::fs::create_dir_all(self.path.join("notes"))?;
        self.write(POLICY_FILE, POLICY.as_bytes())
    }

    /// Writes a file if it is not there with these bytes: a process that reads it meanwhile, such
    /// as a host of the last demo, is not disturbed.
    fn write(&self, path: &str, bytes: &[u8]) -> std::io::Result<()> {
        let path = self.path.join(path);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        if std::fs::read(&path).is_ok_and(|found| found == bytes) {
            return Ok(());
        }
        std::fs::write(path, bytes)
    }

    pub(super) fn policy(&self) -> PathBuf {
        self.path.join(POLICY_FILE)
    }

    pub(super) fn data_dir(&self) -> PathBuf {
        self.path.join(DATA_DIR)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_interface_is_among_the_documents() {
        let wit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../wit");
        let found: BTreeSet<String> = std::fs::read_dir(wit)
            .expect("the interfaces are part of the repository")
            .map(|entry| format!("wit/{}", entry.expect("readable").file_name().to_string_lossy()))
            .filter(|name| name.ends_with(".wit"))
            .collect();
        let embedded: BTreeSet<String> = DOCUMENTS
            .iter()
            .map(|(path, _)| (*path).to_owned())
            .filter(|path| path.starts_with("wit/"))
            .collect();
        assert_eq!(embedded, found);
    }

    #[test]
    fn a_folder_of_somebody_else_is_not_touched() {
        let here = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(here.path().join(FOLDER)).expect("made");
        let failure = DemoFolder::make(here.path()).err().expect("refused");
        assert_eq!(failure.code, "demo-folder");
        assert_eq!(std::fs::read_dir(here.path().join(FOLDER)).expect("there").count(), 0);
    }

    #[test]
    fn a_folder_of_the_demo_is_refreshed_from_outside_and_inside() {
        let here = tempfile::tempdir().expect("a folder");
        let made = DemoFolder::make(here.path()).unwrap_or_else(|f| panic!("{}", f.text()));
        std::fs::write(made.policy(), "changed").expect("written");
        DemoFolder::make(here.path()).unwrap_or_else(|f| panic!("{}", f.text()));
        assert_eq!(std::fs::read_to_string(made.policy()).expect("read"), POLICY);
        let inside = DemoFolder::make(&made.path).unwrap_or_else(|f| panic!("{}", f.text()));
        assert_eq!(inside.path, made.path);
    }
}
