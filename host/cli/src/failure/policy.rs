//! Everything that is wrong with a policy file, shown in its text.

use std::fmt;
use std::sync::Arc;

use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource};
use taskrun_policy::{PolicyError, PolicyErrors, without_keys};
use taskrun_runtime::PolicyLoadError;

use super::Failure;
use crate::paths::shown;

/// A policy that cannot be used. `fancy` says whether the report may have colours and frames.
#[must_use]
pub fn policy_failure(error: &PolicyLoadError, fancy: bool) -> Box<Failure> {
    match error {
        PolicyLoadError::Read { path, source } => Failure::usage(
            "policy-unreadable",
            format!("cannot read the policy {}", path.display()),
        )
        .because(source)
        .with_places()
        .hint("name the policy with --config FILE, or make one with `taskrun demo`"),
        PolicyLoadError::Invalid(errors) => of_errors(errors, fancy),
    }
}

impl From<(&PolicyErrors, bool)> for Box<Failure> {
    fn from((errors, fancy): (&PolicyErrors, bool)) -> Self {
        of_errors(errors, fancy)
    }
}

fn of_errors(errors: &PolicyErrors, fancy: bool) -> Box<Failure> {
    let count = errors.errors.len();
    let problems = if count == 1 { "1 problem".to_owned() } else { format!("{count} problems") };
    let message = format!("the policy {} has {problems}", errors.path.display());
    let mut failure = Failure::usage("policy-invalid", message)
        .hint("correct the policy; `taskrun policy check` tries it with everything that it names");
    failure.report = Some(report(errors, fancy));
    failure.causes = errors.errors.iter().map(ToString::to_string).collect();
    failure.with_places()
}

fn report(errors: &PolicyErrors, fancy: bool) -> String {
    let theme = if fancy { GraphicalTheme::unicode() } else { GraphicalTheme::none() };
    let handler = GraphicalReportHandler::new_themed(theme).with_width(100);
    let name = shown(&errors.path);
    let source = Arc::new(NamedSource::new(name, without_keys(&errors.source_text)));
    let mut text = String::new();
    for error in &errors.errors {
        let problem = Problem { error, source: Arc::clone(&source) };
        if handler.render_report(&mut text, &problem).is_err() {
            text.push_str(&format!("{error}\n  help: {}\n", error.help));
        }
    }
    text
}

/// One problem as miette wants it.
struct Problem<'a> {
    error: &'a PolicyError,
    source: Arc<NamedSource<String>>,
}

impl fmt::Debug for Problem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.error, f)
    }
}

impl fmt::Display for Problem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error.kind, f)
    }
}

impl std::error::Error for Problem<'_> {}

impl Diagnostic for Problem<'_> {
    fn help<'b>(&'b self) -> Option<Box<dyn fmt::Display + 'b>> {
        Some(Box::new(&self.error.help))
    }

    fn source_code(&self) -> Option<&dyn miette::SourceCode> {
        Some(&*self.source)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let span = self.error.span.clone();
        let label = LabeledSpan::new(None, span.start, span.len());
        Some(Box::new(std::iter::once(label)))
    }
}
