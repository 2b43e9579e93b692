//! The folder that the demo leaves behind.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use taskrun_examples::{Example, RESEARCHER, SCRIPTED, WORKSPACE, evil};
use taskrun_runtime::{DATA_DIR, make_data_dir};

use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::place::POLICY_FILE;

/// Name of the folder.
const FOLDER: &str = "taskrun-demo";
/// Says that the demo made the folder, and has a line for each file: the digest of what the demo
/// wrote there, two blanks, and the path.
const MARKER: &str = ".made-by-taskrun-demo";
const MARKER_TEXT: &str = "`taskrun demo` made this folder and refreshes it. It can be removed.\n";
/// The folder of what was in files that were changed since; a later one has a number.
const COPIES: &str = "before-demo";

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
    "docs/operations.md",
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
    /// The files that were changed since the demo wrote them, by their paths in the folder, each
    /// with the copy of what was in it.
    pub(super) copies: Vec<(String, PathBuf)>,
}

impl DemoFolder {
    /// Makes or refreshes the folder below `here`; if `here` is one of these, that one.
    pub(super) fn make(here: &Path) -> Outcome<Self> {
        let path = if here.join(MARKER).is_file() { here.to_owned() } else { here.join(FOLDER) };
        let mut folder = Self { path, copies: Vec::new() };
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

    fn fill(&mut self) -> io::Result<()> {
        std::fs::create_dir_all(&self.path)?;
        let marker = self.path.join(MARKER);
        let before = match std::fs::read(&marker) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            // First of all, so that a folder that was filled in part is known for what it is.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                std::fs::write(&marker, MARKER_TEXT)?;
                String::new()
            }
            Err(error) => return Err(error),
        };
        let (written, copies) = (digests(&before), free_folder(&self.path));
        let mut text = MARKER_TEXT.to_owned();
        for (path, bytes) in files() {
            self.refresh(&path, bytes, written.get(path.as_str()).copied(), &copies)?;
            text.push_str(&format!("{}  {path}\n", digest(bytes)));
        }
        std::fs::create_dir_all(self.path.join("notes"))?;
        if text == before { Ok(()) } else { std::fs::write(marker, text) }
    }

    /// Writes a file if it is not there with these bytes: a process that reads it meanwhile, such
    /// as a host of the last demo, is not disturbed. A file that has other bytes than the demo wrote
    /// is copied into `copies` before.
    fn refresh(
        &mut self,
        path: &str,
        bytes: &[u8],
        written: Option<&str>,
        copies: &Path,
    ) -> io::Result<()> {
        let file = self.path.join(path);
        match std::fs::read(&file) {
            Ok(found) if found == bytes => return Ok(()),
            Ok(found) if written == Some(digest(&found).as_str()) => {}
            Ok(_) => {
                let copy = copies.join(path);
                make_parent(&copy)?;
                std::fs::copy(&file, &copy)?;
                self.copies.push((path.to_owned(), copy));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => make_parent(&file)?,
            Err(error) => return Err(error),
        }
        std::fs::write(file, bytes)
    }

    pub(super) fn policy(&self) -> PathBuf {
        self.path.join(POLICY_FILE)
    }

    pub(super) fn data_dir(&self) -> PathBuf {
        self.path.join(DATA_DIR)
    }
}

/// The files that the demo writes, by their paths in its folder.
fn files() -> impl Iterator<Item = (String, &'static [u8])> {
    let documents = DOCUMENTS.iter().map(|(path, text)| (format!("docs/{path}"), text.as_bytes()));
    let component = |example: Example| (format!("components/{}.wasm", example.name), example.bytes);
    let components = COMPONENTS.into_iter().map(component);
    let policy = std::iter::once((POLICY_FILE.to_owned(), POLICY.as_bytes()));
    documents.chain(components).chain(policy)
}

fn digest(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// The digests that a marker has, by the paths of their files. One of an earlier version has none.
fn digests(marker: &str) -> BTreeMap<&str, &str> {
    let pairs = marker.lines().filter_map(|line| line.split_once("  "));
    pairs.map(|(digest, path)| (path, digest)).collect()
}

/// The first folder for copies that is not there.
fn free_folder(path: &Path) -> PathBuf {
    let mut folder = path.join(COPIES);
    let mut number = 2_u32;
    while folder.symlink_metadata().is_ok() {
        folder = path.join(format!("{COPIES}-{number}"));
        number += 1;
    }
    folder
}

fn make_parent(file: &Path) -> io::Result<()> {
    file.parent().map_or(Ok(()), std::fs::create_dir_all)
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

    fn made(here: &Path) -> DemoFolder {
        DemoFolder::make(here).unwrap_or_else(|failure| panic!("{}", failure.text()))
    }

    fn read(path: &Path) -> String {
        std::fs::read_to_string(path).expect("it is there")
    }

    #[test]
    fn a_folder_of_the_demo_is_refreshed_from_outside_and_inside() {
        let here = tempfile::tempdir().expect("a folder");
        let first = made(here.path());
        // As an earlier version of the program left it.
        let document = first.path.join("docs/README.md");
        std::fs::write(&document, "an older text").expect("written");
        let marker = first.path.join(MARKER);
        let line = |text: &str| format!("{}  docs/README.md", digest(text.as_bytes()));
        let older = read(&marker).replace(&line(DOCUMENTS[0].1), &line("an older text"));
        std::fs::write(&marker, older).expect("written");
        let again = made(here.path());
        assert_eq!((again.copies.len(), read(&document).as_str()), (0, DOCUMENTS[0].1));
        std::fs::remove_file(first.policy()).expect("it was there");
        let inside = made(&first.path);
        assert_eq!((inside.path, inside.copies), (first.path.clone(), Vec::new()));
        assert_eq!(read(&first.policy()), POLICY);
    }

    #[test]
    fn what_was_changed_in_a_folder_of_the_demo_is_kept_in_a_copy_each_time() {
        let here = tempfile::tempdir().expect("a folder");
        let first = made(here.path());
        for (text, folder) in [("mine", "before-demo"), ("mine again", "before-demo-2")] {
            std::fs::write(first.policy(), text).expect("written");
            let copy = first.path.join(folder).join(POLICY_FILE);
            assert_eq!(made(here.path()).copies, [(POLICY_FILE.to_owned(), copy.clone())]);
            assert_eq!((read(&first.policy()), read(&copy)), (POLICY.to_owned(), text.to_owned()));
        }
        // One that an earlier version made does not say what it wrote.
        std::fs::write(first.path.join(MARKER), MARKER_TEXT).expect("written");
        assert!(made(here.path()).copies.is_empty());
        std::fs::write(first.path.join(MARKER), MARKER_TEXT).expect("written");
        std::fs::write(first.path.join("docs/README.md"), "mine or older").expect("written");
        let copies = made(here.path()).copies;
        assert_eq!(copies.len(), 1);
        assert_eq!(read(&copies[0].1), "mine or older");
    }
}
