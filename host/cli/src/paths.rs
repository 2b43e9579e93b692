//! Paths as people read them.

use std::path::Path;

/// A path as a person would type it: relative to the working directory where it is below that.
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
