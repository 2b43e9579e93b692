//! Native code of the components of tests, which is compiled once on a machine.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use taskrun_engine::Cache;

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
    link(&folder(), own);
}

/// Keeps what such a host has compiled for others.
///
/// # Panics
/// If the folder of the host cannot be read.
pub fn give(own: &Path) {
    link(own, &folder());
}

/// Gives all files of a folder a second name in another one, but for those that are there. They are never
/// written again: whoever makes one anew makes a file.
fn link(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("can be read") {
        let entry = entry.expect("can be read");
        let name = entry.file_name();
        // One that is just written has a name for the time being.
        if !name.as_encoded_bytes().starts_with(b".") {
            // Without it that one is compiled, which takes longer and changes nothing.
            std::fs::hard_link(entry.path(), to.join(name)).ok();
        }
    }
}
