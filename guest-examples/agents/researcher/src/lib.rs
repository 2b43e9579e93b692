//! An agent that answers questions from the workspace, without a model: it searches, reads the
//! best passages, and answers with their sentences and where they stand.
//!
//! It decides from the history of tool calls alone, so it needs no state.

mod answer;

use answer::{Passage, answer};
use serde::Deserialize;
use taskrun_guest::{
    agent::{
        Agent, PlanInput, PlanResult, PlanResumeInput, PlannerError, ToolOutcome, ToolOutput,
        ToolRequest, task,
    },
    run,
};

const SEARCH: &str = "workspace/search";
const READ: &str = "workspace/read";
/// Passages of an answer. More of them is no longer short.
const PASSAGES_MAX: usize = 3;
/// A passage with less than this share of the best one's score says something else.
const SCORE_SHARE: f64 = 0.5;
/// Lines read before and after a hit.
const LINES_AROUND: u64 = 6;

struct Researcher;

taskrun_guest::export_agent!(Researcher);

impl Agent for Researcher {
    fn start(input: PlanInput) -> Result<PlanResult, PlannerError> {
        let offered = run::tools();
        let missing: Vec<&str> = [SEARCH, READ]
            .into_iter()
            .filter(|name| !offered.iter().any(|tool| tool.name == *name))
            .collect();
        if !missing.is_empty() {
            let message = format!(
                "the researcher needs the tools {SEARCH} and {READ}; this run does not offer {}",
                missing.join(" and ")
            );
            return Err(PlannerError::new(message).code("tool-unavailable"));
        }
        let question = task(&input.messages).unwrap_or_default();
        let question = question.trim();
        if question.is_empty() {
            return Ok(PlanResult::final_text("There is no question to look into."));
        }
        let query: String = question.chars().take(QUERY_CHARS_MAX).collect();
        let payload = serde_json::json!({ "query": query });
        Ok(PlanResult::tool_calls(vec![ToolRequest::new(SEARCH, payload.to_string())])
            .note("searching the workspace"))
    }

    fn resume(input: PlanResumeInput) -> Result<PlanResult, PlannerError> {
        let Some(search) = input.tool_outputs.iter().rfind(|output| output.name == SEARCH) else {
            return Err(PlannerError::new(format!("the history has no call of {SEARCH}")));
        };
        let found = match &search.outcome {
            ToolOutcome::Value(json) => parse::<Found>(search, json)?,
            ToolOutcome::Failure(failure) => {
                let text =
                    format!("The workspace could not be searched: {}", failure.error.message);
                return Ok(PlanResult::final_text(text));
            }
        };
        let query = parse::<Query>(search, &search.payload)?.query;
        let hits = best(found.hits);
        if hits.is_empty() {
            let text = format!("Nothing was found in the workspace about: {query}");
            return Ok(PlanResult::final_text(text));
        }
        let reads: Vec<&ToolOutput> =
            input.tool_outputs.iter().filter(|output| output.name == READ).collect();
        // The host may want an answer before anything could be read: excerpts have to do then.
        if reads.is_empty() && input.finalize.is_none() {
            let requests: Vec<ToolRequest> =
                hits.iter().map(|hit| ToolRequest::new(READ, read_payload(hit))).collect();
            let note = format!("reading {} passages", requests.len());
            return Ok(PlanResult::tool_calls(requests).note(note));
        }
        let passages: Vec<Passage> = hits.iter().map(|hit| passage(hit, &reads)).collect();
        Ok(PlanResult::final_text(answer(&query, &passages)))
    }
}

/// As much as `workspace/search` takes.
const QUERY_CHARS_MAX: usize = 1_000;

#[derive(Deserialize)]
struct Query {
    query: String,
}

#[derive(Deserialize)]
struct Found {
    hits: Vec<Hit>,
}

#[derive(Deserialize)]
struct Hit {
    path: String,
    line: u64,
    excerpt: String,
    score: f64,
}

#[derive(Deserialize)]
struct Lines {
    text: String,
}

fn parse<'a, T: Deserialize<'a>>(output: &ToolOutput, json: &'a str) -> Result<T, PlannerError> {
    serde_json::from_str(json).map_err(|error| {
        let what = output.result_omitted.as_deref().map_or_else(
            || format!("{} answers something else than expected", output.name),
            |why| format!("the result of {} was left out: {why}", output.name),
        );
        let mut failed = PlannerError::new(what).code("malformed-response");
        failed.causes.push(error.to_string());
        failed
    })
}

fn best(mut hits: Vec<Hit>) -> Vec<Hit> {
    let top = hits.first().map_or(0.0, |hit| hit.score);
    hits.retain(|hit| hit.score >= top * SCORE_SHARE);
    hits.truncate(PASSAGES_MAX);
    hits
}

/// The arguments that read around a hit. They also tell which answer belongs to which hit.
fn read_payload(hit: &Hit) -> String {
    serde_json::json!({
        "path": hit.path,
        "start_line": hit.line.saturating_sub(LINES_AROUND).max(1),
        "line_count": 2 * LINES_AROUND + 1,
    })
    .to_string()
}

/// The paragraph around a hit, or its excerpt where it was not read.
fn passage(hit: &Hit, reads: &[&ToolOutput]) -> Passage {
    let wanted: Option<serde_json::Value> = serde_json::from_str(&read_payload(hit)).ok();
    let text = reads
        .iter()
        .filter(|output| serde_json::from_str(&output.payload).ok() == wanted)
        .find_map(|output| match &output.outcome {
            ToolOutcome::Value(json) => serde_json::from_str::<Lines>(json).ok(),
            ToolOutcome::Failure(_) => None,
        })
        .and_then(|lines| answer::paragraph(&lines.text, hit.line))
        .unwrap_or_else(|| hit.excerpt.clone());
    Passage { path: hit.path.clone(), line: hit.line, text }
}

#[cfg(test)]
mod tests;
