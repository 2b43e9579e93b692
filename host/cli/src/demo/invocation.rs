//! The command line by which a person calls this program.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use crate::shell;

/// Its name where it cannot be told where it is.
const PROGRAM: &str = "taskrun";

/// The words that call this program in `folder`, as a shell takes them: `taskrun` where it is on the
/// path, `cargo run --` where it was run so, else its path.
pub(super) fn invocation(folder: &Path) -> String {
    let called = std::env::args_os().next();
    let called = called.map_or_else(|| PathBuf::from(PROGRAM), PathBuf::from);
    let absolute = std::path::absolute(&called).unwrap_or_default();
    of(&called, &absolute, folder)
}

fn of(called: &Path, absolute: &Path, folder: &Path) -> String {
    if called.components().count() <= 1 {
        return shell::path(called, PROGRAM);
    }
    // `PROJECT/target/PROFILE/taskrun`
    let project = absolute.ancestors().nth(3);
    let is_built_here = absolute.ancestors().nth(2).is_some_and(|dir| dir.ends_with("target"));
    match project {
        Some(project) if is_built_here && folder.starts_with(project) => "cargo run --".to_owned(),
        // It is called from another folder than this one.
        Some(_) | None => {
            let word = absolute.to_str().and_then(shell::word);
            word.map_or_else(|| PROGRAM.to_owned(), Cow::into_owned)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn the_program_is_named_as_it_was_called() {
        let of = |called: &str, absolute: &str, folder: &str| {
            of(called.as_ref(), absolute.as_ref(), folder.as_ref())
        };
        assert_eq!(of("taskrun", "/w/taskrun", "/w/taskrun-demo"), "taskrun");
        let built = "/p/target/debug/taskrun";
        assert_eq!(of("target/debug/taskrun", built, "/p/taskrun-demo"), "cargo run --");
        assert_eq!(of(built, built, "/elsewhere/taskrun-demo"), built);
        assert_eq!(
            of("/opt/bin/taskrun", "/opt/bin/taskrun", "/p/taskrun-demo"),
            "/opt/bin/taskrun"
        );
        let odd = "/opt/od d/taskrun";
        assert_eq!(of(odd, odd, "/p/taskrun-demo"), "'/opt/od d/taskrun'");
    }
}
