//! Native code that the projects of these tests share, so that a component is compiled once and not
//! in each of them. It is lost with nothing but time: a host compiles what it does not find, and runs
//! only what was made with its key.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The key of all of their native code.
const KEY: [u8; 32] = *b"native code of projects of tests";
const KEY_FILE: &str = "key";

/// The folder of the native code that is shared.
fn shared() -> &'static Path {
    static SHARED: OnceLock<PathBuf> = OnceLock::new();
    SHARED.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("native");
        // That of tests before these may be of components that are gone.
        fs::remove_dir_all(&folder).ok();
        fs::create_dir_all(&folder).expect("a folder");
        folder
    })
}

/// Prepares a folder for native code that may come from elsewhere and be given on.
pub(crate) fn prepare(native: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(native)?;
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    options.open(native.join(KEY_FILE))?.write_all(&KEY)
}

/// Copies the native code of a component into a prepared folder, if some is known.
pub(crate) fn take(native: &Path, component: &[u8]) {
    if !is_prepared(native) {
        return;
    }
    let name = blake3::hash(component).to_hex();
    for (known, file) in codes(shared()) {
        if known.starts_with(name.as_str()) {
            copy(&file, native, &known);
        }
    }
}

/// Copies the native code that was made in a prepared folder to where others find it.
pub(crate) fn give(native: &Path) {
    if !is_prepared(native) {
        return;
    }
    for (name, file) in codes(native) {
        if !shared().join(&name).exists() {
            copy(&file, shared(), &name);
        }
    }
}

fn is_prepared(native: &Path) -> bool {
    fs::read(native.join(KEY_FILE)).is_ok_and(|key| key == KEY)
}

/// The files of native code in a folder, with their names.
fn codes(folder: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let codes = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        name.ends_with(".native").then(|| (name, entry.path()))
    });
    codes.collect()
}

/// Copies a file, which is there as a whole or not at all. One that cannot be copied is compiled.
fn copy(file: &Path, to: &Path, name: &str) {
    let Ok(mut whole) = tempfile::NamedTempFile::new_in(to) else { return };
    let copied = fs::File::open(file).and_then(|mut from| io::copy(&mut from, &mut whole));
    if copied.is_ok() {
        whole.persist(to.join(name)).ok();
    }
}
