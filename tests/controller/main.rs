//! The controller under a simulated clock, with agents and tools that are closures: scenarios by
//! their id, crashes at chosen points, and what the store promises as seen from above.

mod answers;
mod attached;
mod beats;
mod cancel;
mod common;
mod crash;
mod drain;
mod dying;
mod everywhere;
mod gc;
mod heartbeat;
mod heartbeat_crash;
mod interrupted;
mod lease;
mod list;
mod ls_caps;
mod m_18;
mod m_20;
mod m_25;
mod model;
mod names;
mod narrow;
mod observe;
mod read_only;
mod reminders;
mod retry;
mod reuse;
mod scheduler;
mod session;
mod skip;
mod time_out;
mod transcript;
mod tree;
mod ts_cancel;
mod ts_finalizer;
mod ts_names;
mod ts_race;
mod ts_store;
mod usage;
mod wait_all;
mod waits;
mod ws_heartbeat;
mod ws_runs;
mod ws_time;

pub(crate) use taskrun_tests::native;
