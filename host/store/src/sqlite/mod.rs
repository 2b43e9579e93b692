//! A store in one SQLite file, shared by the processes of one machine.

mod absence;
mod artifacts;
mod attached;
mod change;
mod check;
mod create;
mod definition;
mod dispatches;
mod entries;
mod facts;
mod failure_detector;
mod fault;
mod heartbeat;
mod hosts;
mod identity;
mod list;
mod locks;
mod names;
mod open;
mod options;
mod outbox;
mod pins;
mod ports;
mod queue;
mod readers;
mod removal;
mod repair;
mod room;
mod row;
mod run_row;
mod schema;
mod scrub;
mod sessions;
#[cfg(test)]
mod statements;
mod store;
mod store_path;
mod sums;
mod waits;
mod watch;
mod writer;

pub use self::options::{Durability, READERS_DEFAULT, SqliteOptions};
pub use self::repair::Repair;
pub use self::schema::SCHEMA_VERSION;
pub use self::store::{SqliteStore, Stats};
pub use self::store_path::FILE_NAMES;
