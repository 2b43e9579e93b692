//! The files and folders that a policy names, and whether they are there.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::error::{PolicyErrorKind, PolicyErrors, Problems};
use super::location::Source;

/// A file or folder that the policy names.
#[derive(Debug, Clone)]
pub(super) struct NamedFile {
    /// Resolved against the folder of the policy file.
    pub(super) path: PathBuf,
    pub(super) span: Range<usize>,
    pub(super) usage: FileUse,
}

/// What it is for.
#[derive(Debug, Clone)]
pub(super) enum FileUse {
    Component,
    Script,
    Cassette,
    Key,
    Prompt,
    /// The root of all workspaces.
    Workspace,
    /// A folder that must lie beneath `root`.
    AgentWorkspace {
        root: PathBuf,
    },
}

pub(super) fn check(source: &Source, files: &[NamedFile]) -> Result<(), PolicyErrors> {
    let problems = Problems::new(source);
    for file in files {
        let (what, help, checked) = match &file.usage {
            FileUse::Component => {
                ("component", "build the component, or write where it is", check_file(&file.path))
            }
            FileUse::Script => ("script", "write where the script is", check_file(&file.path)),
            FileUse::Cassette => {
                ("cassette", "write where the cassette is", check_file(&file.path))
            }
            FileUse::Key => (
                "key",
                "write the key into this file, readable by you alone, or write where it is",
                check_file(&file.path),
            ),
            FileUse::Prompt => ("prompt", "write where the prompt is", check_file(&file.path)),
            FileUse::Workspace => {
                ("folder", "make the folder, or write where it is", check_folder(&file.path))
            }
            FileUse::AgentWorkspace { root } => {
                let checked =
                    check_folder(&file.path).and_then(|()| check_beneath(&file.path, root));
                (
                    "folder",
                    "make the folder below the workspace's root, not a link out of it",
                    checked,
                )
            }
        };
        if let Err(reason) = checked {
            let kind = PolicyErrorKind::BadFile { what, path: file.path.clone(), reason };
            problems.add(file.span.clone(), kind, help);
        }
    }
    problems.into_result()
}

fn check_file(path: &Path) -> Result<(), String> {
    let metadata = path.metadata().map_err(|error| format!("cannot be used: {error}"))?;
    if metadata.is_file() { Ok(()) } else { Err("is not a file".to_owned()) }
}

fn check_folder(path: &Path) -> Result<(), String> {
    let metadata = path.metadata().map_err(|error| format!("cannot be used: {error}"))?;
    if metadata.is_dir() { Ok(()) } else { Err("is not a folder".to_owned()) }
}

fn check_beneath(path: &Path, root: &Path) -> Result<(), String> {
    let real =
        |path: &Path| path.canonicalize().map_err(|error| format!("cannot be used: {error}"));
    if real(path)?.starts_with(real(root)?) {
        Ok(())
    } else {
        Err("leads out of the workspace's root".to_owned())
    }
}
