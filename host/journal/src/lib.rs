//! The record of task runs and its meaning: the events of a run, the state that they
//! fold to, the decisions about it, and the ports of the stores that keep both.
//!
//! Nothing in here acts. The crate knows no policy, no agent's code, no controller and no engine;
//! it reads no file and no clock, starts no task, and parses neither TOML nor templates. Whatever
//! it holds can be written down and read again.
//!
//! # Glossary
//!
//! The product's words, in Rust, WIT, command line and documents alike.
//!
//! **Work**
//!
//! - *Task run*, or *run*: one durable execution of an agent on one task, from the request to its
//!   end ([`run::Run`]).
//! - *Turn*: one cycle of a run, from asking its planner to the results of the calls that it asked
//!   for.
//! - *Round*: the turns from a prompt to the answer without tool calls that they lead to; the first
//!   prompt is the task ([`rounds::Rounds`]).
//! - *Autonomous*: said of a run that goes on by itself, round after round, until it says that it is
//!   done ([`autonomy::Autonomy`]).
//! - *Mark*: a thing that a run says of itself by a tool call: that it is done, for instance
//!   ([`autonomy::Mark`]).
//! - *Plan step*: one call into a planner, which decides how the turn goes on ([`plan`]).
//! - *Tool call*: one call of a function of a tool, asked for by a planner ([`tool`]).
//! - *Completion*: one answer of a language model ([`completion`]).
//! - *Entry*: a run that waits for the heartbeat of its agent.
//! - *Batch*: the run in which a heartbeat works on several entries.
//! - *Ancestors*: the runs above a run, from the root to its parent; its *descendants* are the runs
//!   beneath it ([`narrowing::Ancestor`]).
//! - *Attached*: said of a run that is canceled when its parent ends.
//! - *Report*: the outcome of a run as it is told to a run above it, or to the next one of a
//!   conversation ([`delivery::Report`]).
//! - *Dispatch*: the news that a run was accepted, or has ended, for one subscriber outside of the
//!   runs, such as a webhook ([`dispatch::Dispatch`]).
//! - *Channel*: a named way between a run and people outside, which it may share with runs beneath it
//!   ([`channel::Channel`]).
//! - *Conversation*: the runs of one agent that continue a session ([`delivery::Conversation`]).
//!
//! **Record**
//!
//! - *Event*: one thing that happened to a run ([`event::Event`]).
//! - *Event record*: an event with its position in the journal, its id and its time
//!   ([`event::EventRecord`]).
//! - *Journal*: the events of one run in their order; it only grows.
//! - *Journal part*: events that are written to a journal together, with their JSON
//!   ([`event::JournalPart`]).
//! - *Format*: the form in which a program writes journals, by number ([`format::JournalFormat`]).
//! - *Fold*: the state of a run that follows from its journal ([`machine::fold`]).
//! - *Status*: where a run is in its life ([`status::Status`]).
//! - *Stop reason*: the reason for which a run ended ([`status::StopReason`]).
//! - *Ending*: the outcome of a run, fixed before the run has ended ([`ending::Ending`]).
//! - *Transcript*: a journal as people read it.
//! - *Progress*: counts of what a run has done ([`progress::Progress`]).
//! - *Reply*: the answer of a run so far ([`reply::Reply`]).
//! - *Artifact*: a result too long to be shown with its run, named by its digest
//!   ([`artifact::Artifact`]).
//!
//! **Who works**
//!
//! - *Agent*: a component with its policy, under a name.
//! - *Planner*: the component of an agent, or native code in its place; it decides and does
//!   nothing.
//! - *Tool*: a component with functions that planners have called.
//! - *Model*: a language model behind a provider.
//! - *Policy engine*: a component or a list of the policy that takes tools away from a run, turn by
//!   turn; its decision is a tool ruling ([`ruling::ToolRuling`]).
//! - *Controller*: the part of a host that accepts, lists, cancels and watches runs.
//! - *Driver*: the part of a host that executes one run.
//! - *Host*: one process that claims runs and executes them.
//! - *Store*: the keeper of runs, journals and facts ([`store::Store`]). It answers a write with an
//!   *outcome* ([`store::CreateOutcome`], [`store::AppendOutcome`], [`store::BatchOutcome`],
//!   [`store::RemovalOutcome`], [`memory::FactOutcome`]).
//!
//! **Who may**
//!
//! - *Capability*: a kind of thing that a component asks for, such as `read` or `http`.
//! - *Grant*: the part of a capability that a policy allows to one agent.
//! - *Pin*: the agent's name and a digest of all that decides about its runs, as a policy had it when
//!   a run was accepted ([`pin`]).
//! - *Narrowing*: the rights of its agent that a request takes away from its run
//!   ([`narrowing::Narrowing`]).
//! - *Budget*: the turns, tokens, money and time that a run may consume.
//! - *Tenant*: the customer whose runs no other customer sees.
//! - *Owner*: the user in whose name a run was requested.
//! - *Session*: a conversation of an owner, to which runs and facts belong.
//! - *Scope*: the runs that one caller sees ([`list::Scope`]).
//!
//! **Time and waiting**
//!
//! - *Claim*: the act by which a host takes a run from the queue ([`store::Claim`]).
//! - *Lease*: the time for which a host that is not heard keeps what it claimed ([`store::LEASE`]).
//! - *Epoch*: the number of the claims of a run; a host with an older one is refused.
//! - *Schedule*: the rules by which stores find the run that is executed next, and the consequences
//!   of one run's change for others ([`schedule`]).
//! - *Lane*: one of the two parts of the queue: runs that were executed before come first
//!   ([`hold::Lane`]).
//! - *Call wait*: the runs or the answer for which a parked tool call waits ([`event::CallWait`]).
//! - *Hold*: the host that has a run, or the condition under which one may have it
//!   ([`hold::Hold`]).
//! - *Pause*: a stretch in which no host has a run, whatever it waits for ([`pause::Pause`]).
//! - *Question*: a request of a run to people or to systems outside ([`question::Item`]).
//! - *Answer*: their reply ([`question::Answer`]).
//! - *Consent*: the answer of a person by which a tool call may begin, or is refused.
//! - *Lasting consent*: one for further runs, of a session or of all
//!   ([`consent::LastingConsent`]).
//! - *Fact*: a text under a key that is remembered for a session or for a tenant ([`fact::Fact`]),
//!   in the namespace of that ([`fact::FactNamespace`]).
//! - *Reminder*: a note that a planner leaves for a later turn ([`reminders::Reminder`]).

pub mod answers;
pub mod artifact;
pub mod autonomy;
pub mod channel;
pub mod checkpoint;
pub mod completion;
pub mod consent;
pub mod delivery;
pub mod dispatch;
pub mod ending;
pub mod event;
pub mod fact;
pub mod format;
pub mod history;
pub mod hold;
pub mod ids;
pub mod json;
pub mod layer;
pub mod list;
pub mod machine;
pub mod media;
pub mod memory;
pub mod message;
pub mod metrics;
pub mod money;
pub mod name;
pub mod narrowing;
pub mod operation;
pub mod outside;
pub mod parts;
pub mod pause;
pub mod pin;
pub mod plain;
pub mod plan;
pub mod progress;
pub mod quantity;
pub mod question;
pub mod reminders;
pub mod reply;
pub mod rounds;
pub mod ruling;
pub mod run;
pub mod runs;
pub mod schedule;
pub mod spec;
pub mod status;
pub mod stop;
pub mod store;
pub mod text;
pub mod time;
pub mod tool;

// The fixtures of all crates, compiled against the types of the crate under test.
#[cfg(test)]
extern crate self as taskrun_journal;
#[cfg(test)]
#[path = "../../fixtures/src/lib.rs"]
pub mod fixtures;
