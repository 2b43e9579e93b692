//! The files and folders that a policy names, looked for by a host that has them.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::error::{PolicyErrorKind, Problems};

/// The files that policies name, where a host has them. Nothing in this crate reads one by itself.
/// Paths are resolved against the folder of the policy file.
pub trait Files {
    /// The text of a file; of one that is longer than `bytes_max` so much that it is seen to be.
    ///
    /// # Errors
    /// The words of the operating system; also if the text is not UTF-8.
    fn read(&self, path: &Path, bytes_max: usize) -> io::Result<String>;

    /// The kind of a file, after links.
    ///
    /// # Errors
    /// The words of the operating system.
    fn kind(&self, path: &Path) -> io::Result<FileKind>;

    /// The path of a file without links.
    ///
    /// # Errors
    /// The words of the operating system.
    fn real_path(&self, path: &Path) -> io::Result<PathBuf>;
}

/// The kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// Anything else, such as a socket.
    Other,
}

/// A file or folder that the policy names.
#[derive(Debug, Clone)]
pub(super) struct NamedFile {
    /// Resolved against the folder of the policy file.
    pub(super) path: PathBuf,
    pub(super) span: Range<usize>,
    pub(super) usage: FileUse,
}

/// The use of a file.
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

/// Reports those of the files that cannot be used.
pub(super) fn check<'n>(
    problems: &Problems<'_>,
    named: impl IntoIterator<Item = &'n NamedFile>,
    files: &dyn Files,
) {
    let check_file = |path: &Path| check_kind(files, path, FileKind::File, "is not a file");
    let check_folder = |path: &Path| check_kind(files, path, FileKind::Folder, "is not a folder");
    for file in named {
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
                    check_folder(&file.path).and_then(|()| check_beneath(files, &file.path, root));
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
}

fn check_kind(
    files: &dyn Files,
    path: &Path,
    wanted: FileKind,
    otherwise: &str,
) -> Result<(), String> {
    let kind = files.kind(path).map_err(unusable)?;
    if kind == wanted { Ok(()) } else { Err(otherwise.to_owned()) }
}

fn check_beneath(files: &dyn Files, path: &Path, root: &Path) -> Result<(), String> {
    let real = |path: &Path| files.real_path(path).map_err(unusable);
    if real(path)?.starts_with(real(root)?) {
        Ok(())
    } else {
        Err("leads out of the workspace's root".to_owned())
    }
}

pub(super) fn unusable(error: io::Error) -> String {
    format!("cannot be used: {error}")
}
