//! The documents of the repository say what is so: links lead somewhere, policies are read,
//! commands are taken, and every key, command and option has its place. So are the commands that
//! the program itself tells.

mod commands;
mod guests;
mod hints;
mod keys;
mod links;
mod markdown;
mod policies;

pub(crate) use keys::known_keys;
pub(crate) use markdown::root;
