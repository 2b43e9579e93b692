//! Where the policy and the data directory are.

use std::path::{Path, PathBuf};

use taskrun_runtime::{CACHE_DIR, DATA_DIR, user_cache_folder};

use crate::args::Globals;
use crate::failure::{Failure, Outcome};
use crate::trust::Trust;

/// Name of a policy file.
pub(crate) const POLICY_FILE: &str = "taskrun.toml";
/// The word for programs that there is no policy.
pub(crate) const NO_POLICY: &str = "no-policy";

/// The policy file, if there is one: the one named, else the nearest from here upward, which must
/// be trusted.
///
/// # Errors
/// If one is named and is not there, or one is found and not to be trusted.
pub(crate) fn policy_file(globals: &Globals, trust: &Trust) -> Outcome<Option<PathBuf>> {
    if let Some(named) = &globals.config {
        return named_policy(named).map(Some);
    }
    let Some((folder, file)) = found_policy(trust)? else { return Ok(None) };
    trust.check(&folder, &file)?;
    let data = folder.join(DATA_DIR);
    if globals.data_dir.is_none() && data.symlink_metadata().is_ok() {
        trust.is_safe(&folder, &data)?;
    }
    Ok(Some(file))
}

/// The policy file that a path names: a folder is as good as the file in it.
///
/// # Errors
/// If there is none.
pub(crate) fn named_policy(named: &Path) -> Outcome<PathBuf> {
    let file = if named.is_dir() { named.join(POLICY_FILE) } else { named.to_owned() };
    if file.is_file() {
        return absolute(&file);
    }
    let message = format!("there is no policy file {}", file.display());
    Err(Failure::usage(NO_POLICY, message)
        .hint("correct --config (or TASKRUN_CONFIG), or make a policy with `taskrun demo`"))
}

/// The nearest policy file from here upward, and its folder.
///
/// # Errors
/// If the working directory is gone.
pub(crate) fn found_policy(trust: &Trust) -> Outcome<Option<(PathBuf, PathBuf)>> {
    let folder = trust.upward(&here()?, |folder| folder.join(POLICY_FILE).is_file());
    Ok(folder.map(|folder| (folder.clone(), folder.join(POLICY_FILE))))
}

/// The failure of a command that needs a policy where none is named or found.
pub(crate) fn no_policy(trust: &Trust) -> Box<Failure> {
    nothing_found(trust, NO_POLICY, format!("there is no {POLICY_FILE} here or above"))
}

fn nothing_found(trust: &Trust, code: &'static str, message: String) -> Box<Failure> {
    let mut failure = Failure::usage(code, message)
        .hint("go where your policy is, name it with --config FILE, or begin with `taskrun demo`");
    failure.causes.extend(here().ok().and_then(|here| trust.end_of_search(&here)));
    failure
}

/// The data directory: the one named, else the one beside the policy, else the nearest from here
/// upward, which must be trusted. Need not exist.
///
/// # Errors
/// If none of these is to be had.
pub(crate) fn data_dir(
    globals: &Globals,
    policy: Option<&Path>,
    trust: &Trust,
) -> Outcome<PathBuf> {
    if let Some(named) = &globals.data_dir {
        return absolute(named);
    }
    if let Some(folder) = policy.and_then(Path::parent) {
        return Ok(folder.join(DATA_DIR));
    }
    let found = trust.upward(&here()?, |folder| folder.join(DATA_DIR).is_dir());
    let Some(folder) = found else {
        let message = format!("there is no {POLICY_FILE} here or above, and no {DATA_DIR}");
        return Err(nothing_found(trust, "no-data-dir", message));
    };
    let dir = folder.join(DATA_DIR);
    trust.check(&folder, &dir)?;
    Ok(dir)
}

/// Folder of native code of the user, for projects without a data directory.
#[must_use]
pub(crate) fn cache_folder() -> Option<PathBuf> {
    user_cache_folder().map(|folder| folder.join(CACHE_DIR))
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
