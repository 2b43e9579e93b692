//! Arguments of tool calls, held to the schema of their function before the call begins.
//!
//! Schema and arguments are written by others, so the look at them is counted in steps
//! (`schema`). Most calls need some hundred and are looked at in place. What needs more is
//! looked at by a thread of its own, one at a time in the whole process, so that the threads that
//! everybody needs are never held; it has a bound, too, and is given up when the run is stopped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use taskrun_journal::json;
use taskrun_journal::message::{RetryHint, RetryReason, ToolError};
use taskrun_journal::tool::ToolFailure;
use tokio::sync::{Semaphore, oneshot};

use crate::example::example;
use crate::schema::{Allowance, Fuel, Issue, Problem, Schema, Spent};

/// Most bytes of arguments that are looked at in place.
const IN_PLACE_BYTES_MAX: usize = 16 << 10;
/// Steps that are taken in place, a millisecond at most, and schemas within each other there.
const IN_PLACE: (u64, u32) = (10_000, 48);
/// Steps that are taken for one call, half a second at most, and schemas within each other: as deep
/// as values are nested, with two more in each place.
const OF_A_CALL: (u64, u32) = (4_000_000, 3 * json::DEPTH_MAX as u32);
/// Steps that are taken for all calls of a turn beside those in place.
const OF_A_TURN: u64 = 2 * OF_A_CALL.0;
/// Stack of the thread that looks at what is large, with room for the deepest look.
const STACK_BYTES: usize = 4 << 20;
/// Most values in arguments, those within others included.
const VALUES_MAX: usize = 200_000;
/// Most fields that the question of a retry hint names.
const FIELDS_NAMED_MAX: usize = 3;
/// Most bytes that are told of one mistake.
const ISSUE_BYTES_MAX: usize = 200;
/// Most bytes of refused arguments that are handed back with the refusal.
const PRIOR_INPUT_BYTES_MAX: usize = 4 << 10;

/// Large looks that are taken at once in this process. They are work of the processor and nothing
/// else, so more of them would only take it from others.
static LARGE: Semaphore = Semaphore::const_new(1);

/// Steps that are left to the calls of one turn beside those in place.
#[derive(Debug)]
pub struct TurnSteps(AtomicU64);

impl Default for TurnSteps {
    fn default() -> Self {
        Self(AtomicU64::new(OF_A_TURN))
    }
}

/// The arguments that a function takes.
#[derive(Debug)]
pub(crate) struct Arguments {
    /// The function's qualified name.
    name: String,
    schema: Schema,
    /// Arguments that are accepted, as JSON.
    example: Option<String>,
}

impl Arguments {
    /// Those of a function, by the text of its schema. What that takes of its tool's allowance is
    /// subtracted.
    ///
    /// # Errors
    /// The mistake in the schema.
    pub(crate) fn new(name: &str, schema: &str, allowance: &mut Allowance) -> Result<Self, String> {
        let document = json::parse(schema, VALUES_MAX)?;
        let schema = Schema::new(&document, allowance)?;
        let example = example(&document, |value| {
            let issues = schema.issues(value, &mut Fuel::new(IN_PLACE.0, IN_PLACE.1));
            issues.is_ok_and(|issues| issues.is_empty())
        });
        Ok(Self { name: name.to_owned(), schema, example })
    }

    /// Holds the arguments of a call to the schema.
    ///
    /// # Errors
    /// The failure to be given to the caller, with a hint how to try again.
    ///
    /// # Cancel safety
    /// Dropping the future ends the look within a millisecond.
    pub(crate) async fn check(
        self: &Arc<Self>,
        payload: &str,
        steps: &TurnSteps,
    ) -> Result<(), ToolFailure> {
        if payload.len() <= IN_PLACE_BYTES_MAX {
            let mut fuel = Fuel::new(IN_PLACE.0, IN_PLACE.1);
            match self.look(payload, &mut fuel) {
                Err(ArgumentsFault::Spent(_)) => {}
                Ok(()) => return Ok(()),
                Err(refused) => return Err(self.failure(refused, payload)),
            }
        }
        let looked = self.check_large(payload, steps).await;
        looked.map_err(|refused| self.failure(refused, payload))
    }

    async fn check_large(
        self: &Arc<Self>,
        payload: &str,
        steps: &TurnSteps,
    ) -> Result<(), ArgumentsFault> {
        let turn = LARGE.acquire().await.map_err(|_| ArgumentsFault::Failed)?;
        let stop = StopOnDrop::default();
        let left = steps.0.load(Ordering::Relaxed);
        let mut fuel = Fuel::new(OF_A_CALL.0.min(left), OF_A_CALL.1).stopped_by(stop.flag());
        let (own, payload) = (Arc::clone(self), payload.to_owned());
        let (tell, told) = oneshot::channel();
        let thread = std::thread::Builder::new().name("arguments".to_owned());
        let spawned = thread.stack_size(STACK_BYTES).spawn(move || {
            let before = fuel.left();
            let looked = own.look(&payload, &mut fuel);
            // Nobody hears it if the run was stopped.
            drop(tell.send((looked, before - fuel.left())));
        });
        spawned.map_err(|_| ArgumentsFault::Failed)?;
        let (looked, taken) = told.await.map_err(|_| ArgumentsFault::Failed)?;
        drop(turn);
        steps.0.fetch_sub(taken.min(left), Ordering::Relaxed);
        looked
    }

    fn look(&self, payload: &str, fuel: &mut Fuel) -> Result<(), ArgumentsFault> {
        // A bug in the engine for patterns must not end the process.
        let looked = catch_unwind(AssertUnwindSafe(|| {
            let value = json::parse(payload, VALUES_MAX).map_err(ArgumentsFault::NotJson)?;
            self.schema.issues(&value, fuel).map_err(ArgumentsFault::Spent)
        }));
        let issues = looked.unwrap_or(Err(ArgumentsFault::Failed))?;
        if issues.is_empty() { Ok(()) } else { Err(ArgumentsFault::Issues(issues)) }
    }

    fn failure(&self, refused: ArgumentsFault, payload: &str) -> ToolFailure {
        let name = &self.name;
        let (mut hint, text) = match refused {
            ArgumentsFault::Issues(issues) => self.misfit(&issues),
            ArgumentsFault::NotJson(error) => {
                let mut hint = RetryHint::new(RetryReason::MalformedResponse, name);
                hint.missing_fields = vec!["$payload".to_owned()];
                hint.clarifying_question =
                    Some(format!("What are the arguments of {name}, as a JSON object?"));
                (hint, format!("the arguments of {name} are not JSON: {error}"))
            }
            ArgumentsFault::Spent(_) | ArgumentsFault::Failed => {
                let hint = RetryHint::new(RetryReason::InvalidArguments, name);
                let why = match refused {
                    ArgumentsFault::Spent(Spent::Steps) => {
                        "holding them to its schema takes too long"
                    }
                    ArgumentsFault::Spent(Spent::Depth) => {
                        "they are nested too deep for its schema"
                    }
                    ArgumentsFault::Spent(Spent::Stopped) => "the run is being stopped",
                    ArgumentsFault::Failed
                    | ArgumentsFault::Issues(_)
                    | ArgumentsFault::NotJson(_) => "they could not be held to its schema",
                };
                (hint, format!("the arguments of {name} are refused: {why}"))
            }
        };
        hint.prior_input = (payload.len() <= PRIOR_INPUT_BYTES_MAX).then(|| payload.to_owned());
        hint.example_input.clone_from(&self.example);
        let error = ToolError::coded("invalid-arguments", text);
        ToolFailure { error, retry_hint: Some(Box::new(hint)) }
    }

    fn misfit(&self, issues: &[Issue]) -> (RetryHint, String) {
        let name = &self.name;
        let (mut missing, mut invalid) = (Vec::new(), Vec::new());
        let (mut texts, mut named) = (Vec::new(), Vec::new());
        for Issue { field, problem } in issues {
            match problem {
                Problem::Missing(member) => {
                    missing.push(format!("{field}/{member}").trim_start_matches('/').to_owned());
                    texts.push(format!("{member} is required"));
                    named.push(member.clone());
                }
                Problem::NotListed(options) => {
                    invalid.push(field.clone());
                    texts.push(format!("{field} must be one of: {options}"));
                    named.push(format!("{field} (one of: {options})"));
                }
                Problem::Other(text) if field.is_empty() => texts.push(text.clone()),
                Problem::Other(text) => {
                    invalid.push(field.clone());
                    texts.push(format!("{field}: {text}"));
                    named.push(field.clone());
                }
            }
        }
        for text in texts.iter_mut().chain(&mut missing).chain(&mut invalid).chain(&mut named) {
            text.truncate(text.floor_char_boundary(ISSUE_BYTES_MAX));
        }
        named.retain(|field| !field.is_empty());
        named.dedup();
        named.truncate(FIELDS_NAMED_MAX);
        let (reason, mut fields) = match missing.is_empty() {
            true => (RetryReason::InvalidArguments, invalid),
            false => (RetryReason::MissingFields, missing),
        };
        fields.retain(|field| !field.is_empty());
        fields.dedup();
        let mut hint = RetryHint::new(reason, name);
        hint.missing_fields = fields;
        hint.clarifying_question = Some(match named.as_slice() {
            [] => format!("What are the arguments of {name}?"),
            some => format!("What should {name} be given as {}?", some.join(", ")),
        });
        hint.message = Some(texts.join("; "));
        (hint, format!("the arguments of {name} do not fit: {}", texts.join("; ")))
    }
}

/// Why arguments are refused.
enum ArgumentsFault {
    NotJson(String),
    Issues(Vec<Issue>),
    Spent(Spent),
    Failed,
}

/// Ends a look that nobody waits for any more.
#[derive(Default)]
struct StopOnDrop(Arc<AtomicBool>);

impl StopOnDrop {
    fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
