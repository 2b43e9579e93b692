//! JSON of others held to a schema of others: arguments of calls, results of tools, answers of
//! models.
//!
//! Schema and text are written by others, so the look at them is counted in steps
//! (`schema`). Most texts need some hundred and are looked at in place. What needs more is
//! looked at by a thread of its own, one at a time in the whole process, so that the threads that
//! everybody needs are never held; it has a bound, too, and is given up when the run is stopped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::Value;
use taskrun_journal::json;
use tokio::sync::{Semaphore, oneshot};

use crate::schema::{Allowance, Fuel, Issue, Problem, Schema, Spent};

/// Most bytes of a text that are looked at in place.
const IN_PLACE_BYTES_MAX: usize = 16 << 10;
/// Steps that are taken in place, a millisecond at most, and schemas within each other there.
const IN_PLACE: (u64, u32) = (10_000, 48);
/// Steps that are taken for one text, half a second at most, and schemas within each other: as deep
/// as values are nested, with two more in each place.
const OF_A_TEXT: (u64, u32) = (4_000_000, 3 * json::DEPTH_MAX as u32);
/// Steps that are taken for all texts of a turn beside those in place.
const OF_A_TURN: u64 = 2 * OF_A_TEXT.0;
/// Stack of the thread that looks at what is large, with room for the deepest look.
const STACK_BYTES: usize = 4 << 20;
/// Most values in a text, those within others included.
const VALUES_MAX: usize = 200_000;
/// Most bytes that are told of one mistake.
pub(crate) const ISSUE_BYTES_MAX: usize = 200;

/// Large looks that are taken at once in this process. They are work of the processor and nothing
/// else, so more of them would only take it from others.
static LARGE: Semaphore = Semaphore::const_new(1);

/// Steps that are left to the texts of one turn beside those in place.
#[derive(Debug)]
pub struct TurnSteps(AtomicU64);

impl Default for TurnSteps {
    fn default() -> Self {
        Self(AtomicU64::new(OF_A_TURN))
    }
}

impl TurnSteps {
    /// Those that are left.
    pub(crate) fn left(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A schema that texts are held to.
#[derive(Debug)]
pub(crate) struct Form {
    schema: Schema,
}

/// The reason that a text is not of its form.
pub(crate) enum FormFault {
    /// It is no JSON.
    NotJson(String),
    /// Its first mistakes.
    Issues(Vec<Issue>),
    /// It would take too long to say.
    Spent(Spent),
    /// It could not be looked at.
    Failed,
}

impl Form {
    /// Reads a schema, and gives it as JSON besides. What it takes of the allowance is subtracted.
    ///
    /// # Errors
    /// The mistake in the schema.
    pub(crate) fn new(schema: &str, allowance: &mut Allowance) -> Result<(Self, Value), String> {
        let document = json::parse(schema, VALUES_MAX)?;
        let schema = Schema::new(&document, allowance)?;
        Ok((Self { schema }, document))
    }

    /// True if a value is of this form, as far as a look in place can say.
    pub(crate) fn fits(&self, value: &Value) -> bool {
        let issues = self.schema.issues(value, &mut Fuel::new(IN_PLACE.0, IN_PLACE.1));
        issues.is_ok_and(|issues| issues.is_empty())
    }

    /// Holds a text to it. `steps` are those that the texts of its turn may take together where
    /// they are large.
    ///
    /// # Errors
    /// [`FormFault`].
    ///
    /// # Cancel safety
    /// Dropping the future ends the look within a millisecond.
    pub(crate) async fn check(
        self: &Arc<Self>,
        text: &str,
        steps: &TurnSteps,
    ) -> Result<(), FormFault> {
        if text.len() <= IN_PLACE_BYTES_MAX {
            let mut fuel = Fuel::new(IN_PLACE.0, IN_PLACE.1);
            match self.look(text, &mut fuel) {
                Err(FormFault::Spent(_)) => {}
                looked => return looked,
            }
        }
        self.check_large(text, steps).await
    }

    async fn check_large(self: &Arc<Self>, text: &str, steps: &TurnSteps) -> Result<(), FormFault> {
        let turn = LARGE.acquire().await.map_err(|_| FormFault::Failed)?;
        let stop = StopOnDrop::default();
        let left = steps.left();
        let mut fuel = Fuel::new(OF_A_TEXT.0.min(left), OF_A_TEXT.1).stopped_by(stop.flag());
        let (own, text) = (Arc::clone(self), text.to_owned());
        let (tell, told) = oneshot::channel();
        let thread = std::thread::Builder::new().name("form".to_owned());
        let spawned = thread.stack_size(STACK_BYTES).spawn(move || {
            let before = fuel.left();
            let looked = own.look(&text, &mut fuel);
            // Nobody hears it if the run was stopped.
            drop(tell.send((looked, before - fuel.left())));
        });
        spawned.map_err(|_| FormFault::Failed)?;
        let (looked, taken) = told.await.map_err(|_| FormFault::Failed)?;
        drop(turn);
        steps.0.fetch_sub(taken.min(left), Ordering::Relaxed);
        looked
    }

    fn look(&self, text: &str, fuel: &mut Fuel) -> Result<(), FormFault> {
        // A bug in the engine for patterns must not end the process.
        let looked = catch_unwind(AssertUnwindSafe(|| {
            let value = json::parse(text, VALUES_MAX).map_err(FormFault::NotJson)?;
            self.schema.issues(&value, fuel).map_err(FormFault::Spent)
        }));
        let issues = looked.unwrap_or(Err(FormFault::Failed))?;
        if issues.is_empty() { Ok(()) } else { Err(FormFault::Issues(issues)) }
    }
}

impl FormFault {
    /// The fault in words that follow on what the text is: "is not JSON: ...".
    pub(crate) fn words(&self) -> String {
        match self {
            Self::NotJson(error) => format!("is not JSON: {error}"),
            Self::Issues(issues) => {
                let texts: Vec<String> = issues.iter().map(issue_text).collect();
                format!("does not fit its schema: {}", texts.join("; "))
            }
            Self::Spent(Spent::Steps) => "takes too long to hold to its schema".to_owned(),
            Self::Spent(Spent::Depth) => "is nested too deep for its schema".to_owned(),
            Self::Spent(Spent::Stopped) => {
                "was not held to its schema, as the run is being stopped".to_owned()
            }
            Self::Failed => "could not be held to its schema".to_owned(),
        }
    }
}

/// One mistake in words, at most [`ISSUE_BYTES_MAX`] bytes of them.
pub(crate) fn issue_text(Issue { field, problem }: &Issue) -> String {
    let mut text = match problem {
        Problem::Missing(member) => format!("{member} is required"),
        Problem::NotListed(options) => format!("{field} must be one of: {options}"),
        Problem::Other(text) if field.is_empty() => text.clone(),
        Problem::Other(text) => format!("{field}: {text}"),
    };
    text.truncate(text.floor_char_boundary(ISSUE_BYTES_MAX));
    text
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
