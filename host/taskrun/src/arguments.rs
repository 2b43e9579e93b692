//! Arguments of tool calls, held to the schema of their function before the call begins.

use std::sync::Arc;

use taskrun_journal::message::{RetryHint, RetryReason, ToolError};
use taskrun_journal::tool::ToolFailure;

use crate::example::example;
use crate::form::{Form, FormFault, ISSUE_BYTES_MAX, issue_text};
use crate::schema::{Allowance, Issue, Problem, Spent};

pub use crate::form::TurnSteps;

/// Most fields that the question of a retry hint names.
const FIELDS_NAMED_MAX: usize = 3;
/// Most bytes of refused arguments that are handed back with the refusal.
const PRIOR_INPUT_BYTES_MAX: usize = 4 << 10;

/// The arguments that a function takes.
#[derive(Debug)]
pub(crate) struct Arguments {
    /// The function's qualified name.
    name: String,
    form: Arc<Form>,
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
        let (form, document) = Form::new(schema, allowance)?;
        let example = example(&document, |value| form.fits(value));
        Ok(Self { name: name.to_owned(), form: Arc::new(form), example })
    }

    /// Holds the arguments of a call to the schema.
    ///
    /// # Errors
    /// The failure to be given to the caller, with a hint how to try again.
    ///
    /// # Cancel safety
    /// Dropping the future ends the look within a millisecond.
    pub(crate) async fn check(&self, payload: &str, steps: &TurnSteps) -> Result<(), ToolFailure> {
        let looked = self.form.check(payload, steps).await;
        looked.map_err(|refused| self.failure(refused, payload))
    }

    fn failure(&self, refused: FormFault, payload: &str) -> ToolFailure {
        let name = &self.name;
        let (mut hint, text) = match refused {
            FormFault::Issues(issues) => self.misfit(&issues),
            FormFault::NotJson(error) => {
                let mut hint = RetryHint::new(RetryReason::MalformedResponse, name);
                hint.missing_fields = vec!["$payload".to_owned()];
                hint.clarifying_question =
                    Some(format!("What are the arguments of {name}, as a JSON object?"));
                (hint, format!("the arguments of {name} are not JSON: {error}"))
            }
            FormFault::Spent(_) | FormFault::Failed => {
                let hint = RetryHint::new(RetryReason::InvalidArguments, name);
                let why = match refused {
                    FormFault::Spent(Spent::Steps) => "holding them to its schema takes too long",
                    FormFault::Spent(Spent::Depth) => "they are nested too deep for its schema",
                    FormFault::Spent(Spent::Stopped) => "the run is being stopped",
                    FormFault::Failed | FormFault::Issues(_) | FormFault::NotJson(_) => {
                        "they could not be held to its schema"
                    }
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
        let mut named = Vec::new();
        let texts: Vec<String> = issues.iter().map(issue_text).collect();
        for Issue { field, problem } in issues {
            match problem {
                Problem::Missing(member) => {
                    missing.push(format!("{field}/{member}").trim_start_matches('/').to_owned());
                    named.push(member.clone());
                }
                Problem::NotListed(options) => {
                    invalid.push(field.clone());
                    named.push(format!("{field} (one of: {options})"));
                }
                Problem::Other(_) if field.is_empty() => {}
                Problem::Other(_) => {
                    invalid.push(field.clone());
                    named.push(field.clone());
                }
            }
        }
        for text in missing.iter_mut().chain(&mut invalid).chain(&mut named) {
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

#[cfg(test)]
mod tests;
