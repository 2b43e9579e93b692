//! Where the policy and the data directory are.

use std::path::{Path, PathBuf};

use crate::args::Globals;
use crate::failure::{Failure, Outcome};

/// Name of a policy file.
pub(crate) const POLICY_FILE: &str = "taskrun.toml";
/// Name of a data directory.
pub(crate) const DATA_DIR: &str = ".taskrun";

/// The policy file, if there is one: the one named, else the nearest from here upward.
///
/// # Errors
/// If one is named and is not there.
pub(crate) fn policy_file(globals: &Globals) -> Outcome<Option<PathBuf>> {
    if let Some(named) = &globals.config {
        // A folder is as good as the file in it.
        let file = if named.is_dir() { named.join(POLICY_FILE) } else { named.clone() };
        if file.is_file() {
            return absolute(&file).map(Some);
        }
        let message = format!("there is no policy file {}", file.display());
        return Err(Failure::usage("no-policy", message)
            .hint("correct --config (or TASKRUN_CONFIG), or make a policy with `taskrun demo`"));
    }
    Ok(upward(&here()?, |folder| {
        let file = folder.join(POLICY_FILE);
        file.is_file().then_some(file)
    }))
}

/// The data directory: the one named, else the one beside the policy, else the nearest from here
/// upward. Need not exist.
///
/// # Errors
/// If none of these is to be had.
pub(crate) fn data_dir(globals: &Globals, policy: Option<&Path>) -> Outcome<PathBuf> {
    if let Some(named) = &globals.data_dir {
        return absolute(named);
    }
    if let Some(folder) = policy.and_then(Path::parent) {
        return Ok(folder.join(DATA_DIR));
    }
    let found = upward(&here()?, |folder| {
        let dir = folder.join(DATA_DIR);
        dir.is_dir().then_some(dir)
    });
    found.ok_or_else(|| {
        Failure::usage(
            "no-data-dir",
            format!("there is no {POLICY_FILE} here or above, and no {DATA_DIR}"),
        )
        .hint("go where your policy is, name it with --config FILE, or begin with `taskrun demo`")
    })
}

fn here() -> Outcome<PathBuf> {
    std::env::current_dir()
        .map_err(|error| Failure::unexpected("the working directory is gone").because(&error))
}

fn absolute(path: &Path) -> Outcome<PathBuf> {
    let absolute = std::path::absolute(path).map_err(|error| {
        Failure::usage("path", format!("not a path: {}", path.display())).because(&error)
    })?;
    Ok(absolute.components().collect())
}

fn upward<T>(from: &Path, look: impl Fn(&Path) -> Option<T>) -> Option<T> {
    from.ancestors().find_map(look)
}

/// A path as whoever sits here would type it: relative to the working directory where it is
/// below that.
#[must_use]
pub(crate) fn shown(path: &Path) -> String {
    let relative = std::env::current_dir()
        .ok()
        .and_then(|here| path.strip_prefix(&here).ok().map(Path::to_owned))
        .filter(|relative| !relative.as_os_str().is_empty());
    relative.as_deref().unwrap_or(path).display().to_string()
}

/// The same for paths inside a text, such as places in a policy.
#[must_use]
pub(crate) fn shown_in(text: &str) -> String {
    match std::env::current_dir() {
        Ok(here) if here.parent().is_some() => text.replace(&format!("{}/", here.display()), ""),
        Ok(_) | Err(_) => text.to_owned(),
    }
}
