//! Drives one run from its claim until it ends or waits: plan, execute tools, plan again, until a
//! terminal decision, a limit, something to wait for, or somebody who stops it.
//!
//! Three objects do the work, each for as long as its name says:
//!
//! - `recorder::Recorder`, for the execution: the journal, the calls under way and the work that
//!   follows from both. It alone records, and it alone says whether the run goes on
//!   (`stop` has the reasons, and what each forbids).
//! - `step::Step`, for one plan step with its attempts: asks the planner, and says what is to be
//!   recorded of that.
//! - `batch::Batch`, for the calls of a turn, whether they were just decided on or were open when
//!   their host died: admits, executes, waits.
//!
//! The driver is the loop around them: steps and batches until the run is at its end, at a limit
//! (`finish`), or goes on elsewhere; then the finalizer. An answer ends the run, or one of its rounds
//! (`round`). A reason to stop travels as
//! `Halt::Stopped` from wherever it was found up to `Driver::drive`, which knows what follows
//! from it.

mod advice;
mod allowance;
mod arguments;
mod await_runs;
mod batch;
mod call;
mod child_tracker;
mod children;
mod consents;
mod conversation;
mod delivery_hooks;
mod descendants;
mod end;
mod engines;
mod finalizer;
mod finish;
mod hand_over;
mod history;
mod hooks;
mod images;
mod journal;
mod lease;
mod live;
mod missing;
mod parts;
mod patience;
mod plan;
mod put_off;
mod queue;
mod random;
mod recorder;
pub mod replay;
mod reports;
mod results;
mod resume;
mod round;
mod run_rights;
mod said;
mod stalls;
mod start_order;
mod step;
mod stop;
mod subtree;
mod time_up;
mod turns;
mod used_up;
mod wake;
mod windows;
mod work;

pub(crate) use allowance::{TreeRemainder, bounds_spending};
pub(crate) use consents::PatientConsents;
pub use conversation::CONVERSATION_RESULT_BYTES_MAX;
pub(crate) use conversation::result_from_outside;
pub(crate) use descendants::{
    EarlierRuns, continued_runs, find_visible, is_own_or_above, may_be_of_conversation,
};
pub use finalizer::{FINALIZER_TIMEOUT, FINALIZER_TIMEOUT_CANCELED};
pub(crate) use hand_over::conversation_before_call;
pub use journal::Journal;
pub(crate) use lease::Lease;
pub(crate) use live::Live;
pub(crate) use parts::{Bounds, Env};
pub(crate) use patience::{Patience, PatientMemory, PatientRuns, PatientStore};
pub(crate) use reports::in_words;
pub(crate) use results::{overtaken, unanswered};
pub(crate) use run_rights::RunRights;
pub(crate) use stalls::Stalls;
pub use step::PLAN_INPUT_BYTES_MAX;
pub use stop::{Halt, Stop};
pub use subtree::charged;
pub(crate) use subtree::{charged_with_descendants, read_carried_usage};
pub(crate) use turns::Driver;
pub use work::is_between_steps;
