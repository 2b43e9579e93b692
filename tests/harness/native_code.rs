//! Native code of the components of tests, which is compiled once on a machine.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use taskrun_engine::Cache;
use taskrun_journal::artifact::digest;

/// The file without which the others of a folder are of no use.
const KEY_FILE: &str = "key";

/// The folder in which it is kept, for all tests.
#[must_use]
pub fn folder() -> PathBuf {
    std::env::temp_dir().join("taskrun-tests-native")
}

/// Gives what there is to a host that keeps native code in a folder of its own, which must not be there,
/// or have been filled by this.
///
/// # Panics
/// If the folder cannot be made.
pub fn take(own: &Path) {
    // It has a key then, without which none of it is of use.
    Cache::open(&folder()).expect("the cache opens");
    DirBuilder::new().recursive(true).mode(0o700).create(own).expect("a folder");
    link(&folder(), own, |_| true);
}

/// Keeps what such a host has compiled for others.
///
/// # Panics
/// If the folder of the host cannot be read.
pub fn give(own: &Path) {
    link(own, &folder(), |_| true);
}

/// Lets a host use the native code of single components, with [`take_code`] and [`give_code`], in a folder
/// that is not there yet. It finds out by itself all else that is known of a component.
///
/// # Panics
/// If the folder cannot be made.
pub fn prepare(own: &Path) {
    Cache::open(&folder()).expect("the cache opens");
    DirBuilder::new().recursive(true).mode(0o700).create(own).expect("a folder");
    link(&folder(), own, |name| name == KEY_FILE);
}

/// Gives the native code of a component, if there is some, to such a host.
///
/// # Panics
/// If the folder cannot be read.
pub fn take_code(own: &Path, component: &[u8]) {
    let digest = digest(component);
    if is_prepared(own) {
        link(&folder(), own, |name| is_code(name) && name.starts_with(digest.as_str()));
    }
}

/// Keeps the native code that such a host has compiled for others.
///
/// # Panics
/// If the folder of the host cannot be read.
pub fn give_code(own: &Path) {
    if is_prepared(own) {
        link(own, &folder(), is_code);
    }
}

fn is_code(name: &str) -> bool {
    name.ends_with(".native")
}

/// True if a folder has the key without which none of it is of use.
fn is_prepared(own: &Path) -> bool {
    let [own, shared] = [own, &folder()].map(|dir| std::fs::read(dir.join(KEY_FILE)).ok());
    own.is_some() && own == shared
}

/// Gives files of a folder a second name in another one, but for those that are there. They are never
/// written again: whoever makes one anew makes a file.
fn link(from: &Path, to: &Path, is_wanted: impl Fn(&str) -> bool) {
    for entry in std::fs::read_dir(from).expect("can be read") {
        let entry = entry.expect("can be read");
        let name = entry.file_name();
        // One that is just written has a name for the time being.
        let text = name.to_string_lossy();
        if !text.starts_with('.') && is_wanted(&text) {
            // Without it that one is compiled, which takes longer and changes nothing.
            std::fs::hard_link(entry.path(), to.join(name)).ok();
        }
    }
}
