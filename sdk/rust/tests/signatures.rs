//! The guide for authors has functions of the library as they are.

use taskrun_guest::http::{HttpError, Request, Response};
use taskrun_guest::memory::{Fact, MemoryError, MemoryScope, NewFact, WriteError};
use taskrun_guest::workspace::{Entry, FileError, Listing, WriteMode};

const GUIDE: &str = include_str!("../../../guest-examples/README.md");

/// Functions and their types, which compile only if they are so.
macro_rules! functions {
    ($($module:ident::$name:ident($($arguments:tt)*) -> $result:ty;)+) => {
        $(const _: fn($($arguments)*) -> $result = taskrun_guest::$module::$name;)+

        /// The same as texts.
        const FUNCTIONS: &[&str] = &[$(concat!(
            stringify!($module),
            "::",
            stringify!($name),
            "(",
            stringify!($($arguments)*),
            ") -> ",
            stringify!($result),
        )),+];
    };
}

functions! {
    workspace::list(path: &str, recursive: bool, limit: u32) -> Result<Listing, FileError>;
    workspace::stat(path: &str) -> Result<Entry, FileError>;
    workspace::read(path: &str, offset: u64, max_bytes: u32) -> Result<Vec<u8>, FileError>;
    workspace::write(path: &str, contents: &[u8], mode: WriteMode) -> Result<(), FileError>;
    workspace::create_directory(path: &str) -> Result<(), FileError>;
    workspace::remove(path: &str) -> Result<(), FileError>;
    http::send(request: &Request) -> Result<Response, HttpError>;
    memory::get(key: &str) -> Result<Option<Fact>, MemoryError>;
    memory::search(query: &str, limit: u32) -> Result<Vec<Fact>, MemoryError>;
    memory::put(scope: MemoryScope, fact: &NewFact) -> Result<(), WriteError>;
    memory::delete(scope: MemoryScope, key: &str) -> Result<bool, WriteError>;
}

/// The text without spaces, as the compiler chooses where they stand between tokens.
fn without_spaces(text: &str) -> String {
    text.split_whitespace().collect()
}

#[test]
fn the_guide_has_the_functions_for_files_servers_and_memory_as_they_are() {
    let guide = without_spaces(GUIDE);
    for function in FUNCTIONS {
        let shown = format!("`{}`", without_spaces(function));
        assert!(guide.contains(&shown), "it has not {function}");
    }
}
