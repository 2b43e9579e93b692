//! The table of `docs/models.md` that says what each protocol is sent: each cell is asked for.

use std::path::Path;

use serde_json::Value;
use taskrun_journal::completion::{CompletionRequest, ModelError, ToolChoice};
use taskrun_journal::message::{Message, Part, Role, Thinking, ToolUse};
use taskrun_policy::Policy;

use crate::ask::{answer, hello, model, request, result, table, tool};
use crate::provider::{Provider, Reply};

const DOCUMENT: &str = include_str!("../../../../docs/models.md");
/// The beginning of the table's first line.
const HEADING: &str = "| sent, as | ";
const SCHEMA: &str = r#"{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}"#;

/// The protocols, and the rows of the table: a name, and a cell for each of them.
fn rows() -> (Vec<String>, Vec<(String, Vec<String>)>) {
    let mut lines = DOCUMENT.lines().skip_while(|line| !line.starts_with(HEADING));
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect()
    };
    let wires = cells(lines.next().expect("a table")).into_iter().skip(1);
    let wires = wires.map(|wire| wire.trim_matches('`').to_owned()).collect();
    let rows = lines.skip(1).take_while(|line| line.starts_with('|')).map(|line| {
        let mut row = cells(line);
        let name = row.remove(0);
        (name, row)
    });
    (wires, rows.collect())
}

/// A conversation in which a model of this protocol reasoned and called a tool.
fn reasoned(wire: &str) -> CompletionRequest {
    let signature = match wire {
        "openai" => Some(
            r#"openai:{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"c2ln"}"#,
        ),
        "anthropic" => Some("anthropic:c2ln"),
        "gemini" => Some("gemini:c2ln"),
        _ => None,
    };
    let signature = signature.map(str::to_owned);
    let (tool_call_id, name) = ("t1".to_owned(), "workspace/read".to_owned());
    let call = ToolUse { tool_call_id, name, payload: "{}".to_owned() };
    let thought = Thinking { text: "It will say.".to_owned(), signature };
    let said = Message {
        role: Role::Assistant,
        parts: vec![Part::Thinking(thought), Part::ToolUse(call)].into(),
    };
    let mut asked = request(vec![Message::text(Role::User, "hello"), said, result("t1", "1")]);
    asked.tools = vec![tool("workspace/read")];
    asked
}

/// The question of a row, and the keys that its model has for it.
fn question(row: &str, wire: &str) -> (CompletionRequest, &'static str) {
    let with = |change: fn(&mut CompletionRequest)| {
        let mut asked = hello();
        change(&mut asked);
        asked
    };
    let with_tool = || with(|asked| asked.tools = vec![tool("workspace/read")]);
    match row {
        "tools" => (with_tool(), ""),
        "a tool that is to be called" => {
            let mut asked = with_tool();
            asked.tool_choice = ToolChoice::Tool("workspace/read".to_owned());
            (asked, "")
        }
        "the most tokens of an answer" => (with(|asked| asked.max_tokens = Some(77)), ""),
        "a temperature" => (with(|asked| asked.temperature = Some(0.25)), ""),
        "stop sequences" => (with(|asked| asked.stop_sequences = vec!["END".to_owned()]), ""),
        "a schema of the answer" => {
            (with(|asked| asked.response_schema = Some(SCHEMA.to_owned())), "")
        }
        "reasoning that came before" => (reasoned(wire), "thinking = 4000"),
        "[`effort`](#effort)" => (hello(), "effort = \"low\""),
        "[`thinking`](#thinking)" => (hello(), "thinking = 4000"),
        "[`parallel_tool_calls`](#parallel_tool_calls)" => {
            (with_tool(), "parallel_tool_calls = false")
        }
        "[`cache`](#cache)" => (reasoned(wire), "cache = true"),
        other => panic!("no question is known for {other:?}"),
    }
}

/// True if a member stands where the dotted path says, in the request or anywhere in it.
fn has(body: &Value, path: &[&str]) -> bool {
    let Some((first, rest)) = path.split_first() else { return true };
    match body {
        Value::Object(members) => {
            members.get(*first).is_some_and(|member| has_at(member, rest))
                || members.values().any(|member| has(member, path))
        }
        Value::Array(items) => items.iter().any(|item| has(item, path)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn has_at(member: &Value, rest: &[&str]) -> bool {
    rest.split_first()
        .is_none_or(|(next, rest)| has_at(&member[*next], rest) && !member[*next].is_null())
}

/// The request that is sent, or why there is none.
pub(crate) async fn sent(
    wire: &str,
    asked: CompletionRequest,
    keys: &str,
) -> Result<Value, ModelError> {
    let provider = Provider::start([Reply::new(400, "{}")]).await;
    let told = answer(model(wire, &provider, keys).as_ref(), asked).await;
    match (provider.asked().into_iter().next(), told) {
        (Some(asked), _) => Ok(asked.body),
        (None, Err(error)) => Err(error),
        (None, Ok(_)) => panic!("an answer to nothing"),
    }
}

/// The text that a cell has to have, by what is found.
async fn found(row: &str, wire: &str, stated: &str) -> String {
    let provider = Provider::start([]).await;
    let (asked, keys) = question(row, wire);
    // A row about a key of the policy; in any other one the keys only make way for it.
    let is_key = row.starts_with('[');
    let policy = Policy::parse(&table(wire, &provider, keys), Path::new("/conf/taskrun.toml"));
    if policy.is_err() && is_key {
        return "no such key".to_owned();
    }
    let keys = if policy.is_err() { "" } else { keys };
    let Ok(body) = sent(wire, asked, keys).await else { return "refused".to_owned() };
    let path = stated.trim_matches('`');
    if stated.starts_with('`') && has(&body, &path.split('.').collect::<Vec<_>>()) {
        return stated.to_owned();
    }
    let mark = match row {
        "a temperature" => "0.25",
        "reasoning that came before" => "It will say.",
        _ => panic!("{row}, {wire}: {stated} is not in {body:#}"),
    };
    assert!(!body.to_string().contains(mark), "{row}, {wire}: {body:#}");
    "not sent".to_owned()
}

#[tokio::test]
async fn each_cell_of_the_table_of_what_is_sent_is_so() {
    let (wires, rows) = rows();
    assert_eq!(wires, ["openai", "openai-chat", "anthropic", "gemini", "ollama"]);
    assert_eq!(rows.len(), 11, "each question has its row");
    for (row, cells) in rows {
        assert_eq!(cells.len(), wires.len(), "{row}");
        for (wire, stated) in wires.iter().zip(cells) {
            assert_eq!(found(&row, wire, &stated).await, stated, "{row}, {wire}");
        }
    }
}
