//! Prompts that the operator has registered, and how one becomes a text.
//!
//! A text follows from the policy, the data and the run alone, so it is not recorded: a step that
//! runs again renders it again, and the digest in the journal shows that it is the same.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;

use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, UndefinedBehavior};
use taskrun_journal::event::OverrideReason;
use taskrun_journal::message::Labels;

/// Most bytes of a template: a prompt is read by people.
pub(crate) const PROMPT_BYTES_MAX: usize = 64 << 10;
/// Most bytes of the data for one rendering, as JSON.
pub const PROMPT_DATA_BYTES_MAX: usize = 64 << 10;
/// Most bytes of a rendered prompt: a quarter of what a plan step may put before a model.
pub(crate) const RENDERED_BYTES_MAX: usize = 256 << 10;
/// Steps of the template engine for one rendering, so that loops over loops end. A step takes at
/// most as long as it takes to walk through the data once.
const FUEL: u64 = 20_000;
/// Name of the template in the engine's errors.
const NAME: &str = "prompt";

/// The prompts of a policy, by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompts {
    by_id: BTreeMap<String, Prompt>,
}

/// A prompt and the templates that replace its own for some runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The template where no other is meant.
    pub template: String,
    /// In the order of the file; the first that fits decides, those with a session first.
    pub overrides: Vec<PromptOverride>,
}

/// A template for some runs. It fits a run that has the session and all of the labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptOverride {
    /// The session that asked for the run; `None` is any.
    pub session: Option<String>,
    /// Labels of the run.
    pub labels: Labels,
    /// The template.
    pub template: String,
}

/// A prompt that became a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedPrompt {
    /// The text.
    pub text: String,
    /// BLAKE3 hash of the text, 64 hexadecimal digits.
    pub digest: String,
    /// Why the template is not the prompt's own.
    pub chosen_by: Option<OverrideReason>,
}

/// Why a prompt did not become a text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PromptError {
    /// There is none of that id.
    #[error("there is no prompt {0:?}")]
    Unknown(String),
    /// The data is no JSON object, too large, or lacks what the template names.
    #[error("the data does not fit the prompt: {0}")]
    InvalidData(String),
    /// The template cannot be rendered, whatever the data is, or the text has no bound.
    #[error("the prompt cannot be rendered: {0}")]
    Unusable(String),
}

impl Prompts {
    /// These prompts.
    #[must_use]
    pub fn new(by_id: BTreeMap<String, Prompt>) -> Self {
        Self { by_id }
    }

    /// Their ids, sorted.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.by_id.keys().map(String::as_str)
    }

    /// Renders a prompt with `data`, a JSON object, for a run that `session` asked for.
    ///
    /// # Errors
    /// [`PromptError`].
    pub fn render(
        &self,
        id: &str,
        data: &str,
        session: &str,
        labels: &Labels,
    ) -> Result<RenderedPrompt, PromptError> {
        let unknown = || PromptError::Unknown(id.to_owned());
        let prompt = self.by_id.get(id).ok_or_else(unknown)?;
        if data.len() > PROMPT_DATA_BYTES_MAX {
            let detail = format!("it has more than {PROMPT_DATA_BYTES_MAX} bytes");
            return Err(PromptError::InvalidData(detail));
        }
        let data: serde_json::Map<String, serde_json::Value> = serde_json::from_str(data)
            .map_err(|error| PromptError::InvalidData(format!("not a JSON object: {error}")))?;
        let (template, chosen_by) = prompt.choose(session, labels);
        let text = render(template, &data)?;
        let digest = blake3::hash(text.as_bytes()).to_hex().to_string();
        Ok(RenderedPrompt { text, digest, chosen_by })
    }
}

impl Prompt {
    /// The template for a run: what its session says, then what its labels say, then its own.
    fn choose(&self, session: &str, labels: &Labels) -> (&str, Option<OverrideReason>) {
        let has_labels = |one: &&PromptOverride| {
            one.labels.iter().all(|(key, value)| labels.get(key) == Some(value))
        };
        let fitting = || self.overrides.iter().filter(has_labels);
        let of_session = fitting().find(|one| one.session.as_deref() == Some(session));
        if let Some(one) = of_session {
            return (&one.template, Some(OverrideReason::Session));
        }
        match fitting().find(|one| one.session.is_none()) {
            Some(one) => (&one.template, Some(OverrideReason::Labels)),
            None => (&self.template, None),
        }
    }
}

/// Checks that a text is a template.
///
/// # Errors
/// The mistake in it, and its line.
pub(crate) fn check_template(text: &str) -> Result<(), String> {
    if text.len() > PROMPT_BYTES_MAX {
        return Err(format!("it has more than {PROMPT_BYTES_MAX} bytes"));
    }
    let environment = environment();
    let compiled = environment.template_from_named_str(NAME, text);
    compiled.map(|_| ()).map_err(|error| said(&error))
}

/// Nothing is in reach of a template but its data: no other template, no function, and of the
/// filters those whose result is no longer than what they are given.
fn environment<'t>() -> Environment<'t> {
    use minijinja::filters;
    let mut environment = Environment::empty();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_fuel(Some(FUEL));
    environment.add_filter("default", filters::default);
    environment.add_filter("first", filters::first);
    environment.add_filter("last", filters::last);
    environment.add_filter("length", filters::length);
    environment.add_filter("lower", filters::lower);
    environment.add_filter("trim", filters::trim);
    environment.add_filter("upper", filters::upper);
    environment
}

fn render(
    template: &str,
    data: &serde_json::Map<String, serde_json::Value>,
) -> Result<String, PromptError> {
    let environment = environment();
    let unusable = |error: minijinja::Error| PromptError::Unusable(said(&error));
    let template = environment.template_from_named_str(NAME, template).map_err(unusable)?;
    let mut text = BoundedBuffer::default();
    let rendered = template.render_captured_to(Serde(data), &mut text);
    let outcome = rendered.map(|_| ());
    if text.is_over {
        let detail = format!("the text has more than {RENDERED_BYTES_MAX} bytes");
        return Err(PromptError::Unusable(detail));
    }
    match outcome {
        Ok(()) => String::from_utf8(text.bytes)
            .map_err(|_| PromptError::Unusable("the text is not UTF-8".to_owned())),
        Err(error) if is_about_template(error.kind()) => Err(unusable(error)),
        Err(error) => Err(PromptError::InvalidData(said(&error))),
    }
}

/// Tells if no data could mend it.
fn is_about_template(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::SyntaxError
            | ErrorKind::UnknownFilter
            | ErrorKind::UnknownFunction
            | ErrorKind::UnknownTest
            | ErrorKind::OutOfFuel
            | ErrorKind::WriteFailure
    )
}

/// An error of the template engine in one line.
fn said(error: &minijinja::Error) -> String {
    let mut text = String::new();
    if let Some(line) = error.line() {
        text.push_str(&format!("line {line}: "));
    }
    text.push_str(&error.kind().to_string());
    if let Some(detail) = error.detail() {
        text.push_str(": ");
        text.push_str(detail);
    }
    text
}

/// Takes bytes up to the bound.
#[derive(Default)]
struct BoundedBuffer {
    bytes: Vec<u8>,
    is_over: bool,
}

impl io::Write for BoundedBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > RENDERED_BYTES_MAX {
            self.is_over = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
