//! `taskrun model ls` and `taskrun model test`.

use std::time::Duration;

use serde::Serialize;
use taskrun_journal::completion::{Completion, ModelError};
use taskrun_journal::message::Usage;
use taskrun_journal::money::UsdDisplay;
use taskrun_journal::time::millis;
use taskrun_policy::{ModelPolicy, Provider, Remote, Wire};
use taskrun_runtime::{ModelProbe, probe_model};

use crate::args::OutputFormat;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, model_failure};
use crate::lookup::model_of;
use crate::output::{human, pairs, table_with_free, versioned};
use crate::paths::shown;

/// A model of the policy.
#[derive(Serialize)]
struct ModelView {
    name: String,
    /// The protocol, or the kind of a model without one.
    provider: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
    /// Where its key is, and never the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// The things that its protocol carries.
    can: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context_tokens: Option<u32>,
    /// True if the price of its tokens is known.
    priced: bool,
}

#[derive(Serialize)]
struct List {
    models: Vec<ModelView>,
}

/// A model that was asked.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    model: ModelView,
    ok: bool,
    duration_ms: u64,
    #[serde(flatten)]
    answer: Option<AnswerView>,
}

/// Its answer.
#[derive(Serialize)]
struct AnswerView {
    /// The provider's name of the model that answered.
    answered_by: String,
    /// Why it stopped.
    stop: String,
    text: String,
    /// True if it called the tool that it was offered.
    called_tool: bool,
    usage: Usage,
}

impl From<&ModelPolicy> for ModelView {
    fn from(model: &ModelPolicy) -> Self {
        let remote = match &model.provider {
            Provider::Remote(remote) => Some(remote),
            Provider::Scripted { .. }
            | Provider::Echo
            | Provider::Replay { .. }
            | Provider::Faulty { .. } => None,
        };
        Self {
            name: model.name.clone(),
            provider: model.provider.as_str(),
            model: model.model.clone(),
            endpoint: remote.map(|remote| remote.base_url.clone()),
            key: remote.and_then(|remote| remote.key.as_ref()).map(ToString::to_string),
            can: remote.map_or_else(Vec::new, |remote| abilities(remote)),
            context_tokens: remote.and_then(|remote| remote.context_tokens),
            priced: model.price.is_some(),
        }
    }
}

/// The things that a protocol carries, as the policy has it spoken.
fn abilities(remote: &Remote) -> Vec<&'static str> {
    let (reasons, caches, stops) = match remote.wire {
        Wire::OpenAi => (true, false, false),
        Wire::OpenAiChat | Wire::Ollama => (remote.server.reasoning_field.is_some(), false, true),
        Wire::Anthropic => (true, remote.cache, true),
        Wire::Gemini => (true, false, true),
    };
    let all = [
        ("tools", true),
        ("parallel calls", remote.request.parallel_tool_calls != Some(false)),
        ("schemas", true),
        ("reasoning that goes back", reasons),
        ("cache marks", caches),
        ("stop sequences", stops),
        ("answers in pieces", remote.stream),
    ];
    all.into_iter().filter_map(|(ability, has)| has.then_some(ability)).collect()
}

pub(super) fn ls(context: &Context) -> Outcome {
    let policy = context.policy()?;
    let rows: Vec<ModelView> = policy.models.values().map(ModelView::from).collect();
    let printer = &context.printer;
    match printer.format() {
        OutputFormat::Table if rows.is_empty() => {
            printer.talk(format!("{} names no models", shown(&policy.path)));
        }
        OutputFormat::Table => {
            let cells = rows.into_iter().map(|row| {
                let known = if row.priced { "known" } else { "-" };
                let (model, key) = (row.model.unwrap_or_default(), row.key.unwrap_or_default());
                let at = row.endpoint.unwrap_or_default();
                vec![row.name, row.provider.to_owned(), model, key, known.to_owned(), at]
            });
            let headings = ["NAME", "PROVIDER", "MODEL", "KEY", "PRICE", "ASKED AT"];
            printer.line(table_with_free(&headings, cells.collect(), printer.width(), &[2, 3, 5]));
        }
        OutputFormat::Json => printer.json(&versioned(List { models: rows })),
        OutputFormat::Ndjson => rows.iter().for_each(|row| printer.json_line(&versioned(row))),
        OutputFormat::Name => rows.iter().for_each(|row| printer.line(&row.name)),
    }
    Ok(Exit::Completed)
}

/// Asks a model once, and says what came of it.
///
/// # Errors
/// If there is no answer.
pub(super) async fn test(context: &Context, name: &str) -> Outcome {
    let policy = context.policy()?;
    let model = model_of(&policy, name)?;
    let probe = probe_model(&policy, model, &context.clock).await;
    let ModelProbe { answer, took } = probe.map_err(|error| model_failure(&error))?;
    let (answer, failure) = match answer {
        Ok(answer) => (Some(answer_view(answer, model)), None),
        Err(error) => (None, Some(unanswered(&error, model))),
    };
    let report =
        Report { model: model.into(), ok: answer.is_some(), duration_ms: millis(took), answer };
    match context.printer.format() {
        OutputFormat::Table => context.printer.line(pairs(&text(&report, took))),
        OutputFormat::Json => context.printer.json(&versioned(&report)),
        OutputFormat::Ndjson => context.printer.json_line(&versioned(&report)),
        OutputFormat::Name => context.printer.line(&report.model.name),
    }
    failure.map_or(Ok(Exit::Completed), Err)
}

fn answer_view(answer: Completion, model: &ModelPolicy) -> AnswerView {
    let usage = model.price.map_or(answer.usage, |price| price.applied(answer.usage));
    AnswerView {
        answered_by: answer.model,
        stop: answer.stop.into(),
        text: answer.message.joined_text(),
        called_tool: answer.message.tool_uses().next().is_some(),
        usage,
    }
}

fn text(report: &Report, took: Duration) -> Vec<(&'static str, String)> {
    let Report { model, answer, .. } = report;
    let named =
        |name: &Option<String>| name.as_ref().map_or_else(String::new, |n| format!(", {n}"));
    let mut lines = vec![
        ("model", model.name.clone()),
        ("provider", format!("{}{}", model.provider, named(&model.model))),
    ];
    lines.extend(model.endpoint.clone().map(|at| ("asked at", at)));
    lines.extend(model.key.clone().map(|key| ("key", format!("from {key}"))));
    if !model.can.is_empty() {
        lines.push(("can", model.can.join(", ")));
    }
    let Some(answer) = answer else { return lines };
    let tool = if answer.called_tool { "it called the tool" } else { "it called no tool" };
    let took = human::duration(took);
    lines.push(("answer", format!("{} in {took}: {}, {tool}", answer.answered_by, answer.stop)));
    if !answer.text.is_empty() {
        lines.push(("says", answer.text.clone()));
    }
    let usage = answer.usage;
    let counted = if usage.estimated { ", estimated" } else { "" };
    let tokens = format!(
        "{} read ({} of them from the cache), {} written ({} of them reasoning){counted}",
        usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.reasoning_tokens
    );
    lines.push(("tokens", tokens));
    let price = match model.priced {
        true => format!("${}", UsdDisplay(usage.cost_microusd)),
        false => "not known: the policy has no `prices` for it".to_owned(),
    };
    lines.push(("price", price));
    lines
}

/// The failure of a model that gave no answer, in words and with what helps.
fn unanswered(error: &ModelError, model: &ModelPolicy) -> Box<Failure> {
    let (exit, code, hint) = match error {
        ModelError::Unauthorized(_) => (
            Exit::Forbidden,
            "model-key",
            "the provider's own words stand in the warning above; check the key, and that its \
             account may use this model"
                .to_owned(),
        ),
        ModelError::NoQuota(_) => (
            Exit::Forbidden,
            "model-quota",
            "no wait helps: give its account more, or name another one's key".to_owned(),
        ),
        ModelError::InvalidRequest(_) | ModelError::ContextWindow(_) => (
            Exit::Usage,
            "model-request",
            "check that `base_url` is the address of its interface (most end with /v1), that the \
             provider has a `model` of this name, and what `effort`, `thinking` and `extra` say"
                .to_owned(),
        ),
        ModelError::RateLimited { retry_after_ms, said: _ }
        | ModelError::Overloaded { retry_after_ms, said: _ } => {
            let hint = match retry_after_ms {
                Some(ms) => format!(
                    "it may be asked again in {}; a run would wait so long, up to its \
                     `retry.patience`",
                    human::duration(Duration::from_millis(*ms))
                ),
                None => {
                    "it does not say for how long; the account may have no quota left".to_owned()
                }
            };
            (Exit::Unreachable, "model-busy", hint)
        }
        ModelError::Refused(_) => (
            Exit::Failed,
            "model-refused",
            "it can be asked, and does not want to answer even this".to_owned(),
        ),
        ModelError::Unreachable(_) | ModelError::Timeout | ModelError::Unavailable(_) => (
            Exit::Unreachable,
            "model-unreachable",
            "check `base_url`, and that a server answers there; no proxy is used".to_owned(),
        ),
        ModelError::CutOff
        | ModelError::Malformed(_)
        | ModelError::Misfit(_)
        | ModelError::NotFound(_)
        | ModelError::TooLarge(_) => (
            Exit::Failed,
            "model-answer",
            "check that `base_url` is the address of its interface (most end with /v1), and that \
             `provider` is the protocol that the server speaks"
                .to_owned(),
        ),
        ModelError::Denied(_)
        | ModelError::UnknownModel(_)
        | ModelError::Budget(_)
        | ModelError::Canceled
        | ModelError::Other(_) => (
            Exit::Unexpected,
            "model",
            "look at the whole installation with `taskrun doctor`".to_owned(),
        ),
    };
    let (name, place, error) = (&model.name, &model.location, error.in_full());
    Failure::new(exit, code, format!("model {name} did not answer: {error}"))
        .hint(format!("{hint}; [model.{name}] stands at {place}"))
}
