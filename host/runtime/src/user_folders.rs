//! The folders that this program has of a user, whatever policy and data directory it works with.
//! Native code is loaded from one of them, and policies are trusted by the other, so both are the
//! host's own.

use std::path::PathBuf;

/// The variable that names a folder of the user, and its place below the home folder where that is
/// not set, as the XDG base directory specification says.
type BaseFolder = (&'static str, &'static str);

const CACHE: BaseFolder = ("XDG_CACHE_HOME", ".cache");
const STATE: BaseFolder = ("XDG_STATE_HOME", ".local/state");
/// The folder of this program in each of them.
const OWN_FOLDER: &str = "taskrun";

/// The folder of this program in the user's cache folder, where native code is kept for projects
/// without a data directory. `None` where the environment says nothing of a user.
#[must_use]
pub fn user_cache_folder() -> Option<PathBuf> {
    folders(CACHE).next()
}

/// The folder of this program in the user's state folder, where the list of trusted folders is.
/// `None` where the environment says nothing of a user.
#[must_use]
pub fn user_state_folder() -> Option<PathBuf> {
    folders(STATE).next()
}

/// All folders of this program that the user may have: another process may not be told the same by
/// its environment. Where there is no `HOME`, as in a service, the user database says the home folder.
pub(crate) fn user_folders() -> impl Iterator<Item = PathBuf> {
    let home = std::env::home_dir().filter(|home| home.is_absolute());
    [CACHE, STATE].into_iter().flat_map(move |base| {
        let (_, below_home) = base;
        let known = home.as_ref().map(|home| home.join(below_home).join(OWN_FOLDER));
        folders(base).chain(known)
    })
}

/// The folders in which this program may find its own, the one that counts first.
fn folders((variable, below_home): BaseFolder) -> impl Iterator<Item = PathBuf> {
    let home = absolute("HOME").map(|home| home.join(below_home));
    absolute(variable).into_iter().chain(home).map(|folder| folder.join(OWN_FOLDER))
}

#[expect(
    clippy::disallowed_methods,
    reason = "these are the user's, and no settings of the program that asks"
)]
fn absolute(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

    const WITHOUT_HOME: &str = "TASKRUN_TEST_WITHOUT_HOME";

    #[test]
    fn a_user_of_whom_the_environment_says_nothing_has_folders_by_the_user_database() {
        #[expect(clippy::disallowed_methods, reason = "how the parent tells its child what to do")]
        let told = std::env::var_os(WITHOUT_HOME);
        if told.is_some() {
            // The harness has begun a line.
            user_folders().for_each(|folder| println!("\nit has {}", folder.display()));
            return;
        }
        let mut child = Command::new(std::env::current_exe().expect("this test"));
        let name = "user_folders::tests::\
                    a_user_of_whom_the_environment_says_nothing_has_folders_by_the_user_database";
        child.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(WITHOUT_HOME, "1");
        for variable in ["HOME", CACHE.0, STATE.0] {
            child.env_remove(variable);
        }
        let ended = child.output().expect("starts");
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success() && said.contains("1 passed"), "{said}");
        let found = said.lines().filter_map(|line| line.strip_prefix("it has "));
        let found: Vec<&Path> = found.map(Path::new).collect();
        let places = [".cache/taskrun", ".local/state/taskrun"];
        assert_eq!(found.len(), places.len(), "{said}");
        assert!(found.iter().zip(places).all(|(path, place)| path.ends_with(place)), "{said}");
    }
}
