//! A tool that counts and measures for the operator of its runs. A real one would count what it
//! does besides; this one does nothing else.

use serde::Deserialize;
use taskrun_guest::{
    metrics,
    tool::{Failure, ToolCall, ToolResult},
};

const COUNT: &str = r#"{
  "type": "object",
  "properties": {
    "name": {"type": "string", "description": "Letters a to z, digits, `_` and `.`."},
    "delta": {"type": "integer", "minimum": 0, "description": "What to add; 1 unless given."},
    "of": {"type": "string", "description": "Tells it from others of the name."}
  },
  "required": ["name"],
  "additionalProperties": false
}"#;
const MEASURE: &str = r#"{
  "type": "object",
  "properties": {
    "name": {"type": "string", "description": "As for `count`, ending with its unit."},
    "values": {"type": "array", "maxItems": 1000, "items": {"type": "number"}}
  },
  "required": ["name", "values"],
  "additionalProperties": false
}"#;

taskrun_guest::tool! {
    /// Adds to a counter.
    fn count(COUNT, title("Count"), read_only, tag("metrics")) => count;

    /// Records measurements.
    fn measure(MEASURE, title("Measure"), read_only, tag("metrics")) => measure;
}

#[derive(Deserialize)]
struct Count {
    name: String,
    delta: Option<u64>,
    of: Option<String>,
}

#[derive(Deserialize)]
struct Measure {
    name: String,
    values: Vec<f64>,
}

fn count(call: &ToolCall) -> Result<ToolResult, Failure> {
    let Count { name, delta, of } = call.args()?;
    let labels: Vec<(String, String)> = of.map(|of| ("of".to_owned(), of)).into_iter().collect();
    metrics::add(&name, delta.unwrap_or(1), &labels);
    ToolResult::json(&true)
}

fn measure(call: &ToolCall) -> Result<ToolResult, Failure> {
    let Measure { name, values } = call.args()?;
    for value in values {
        metrics::record_value(&name, value, &[]);
    }
    ToolResult::json(&true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskrun_guest::{native, tool::Tool as _};

    fn call(name: &str, payload: &str) {
        Functions::call(native::tool_call(name, payload)).expect("a result");
    }

    #[test]
    fn it_counts_and_measures() {
        native::reset();
        call("count", r#"{"name":"pages","delta":2,"of":"docs"}"#);
        call("count", r#"{"name":"pages"}"#);
        call("measure", r#"{"name":"wait_ms","values":[1.5,2]}"#);
        native::host(|host| {
            assert_eq!(host.counters["pages"], 3);
            assert_eq!(host.values["wait_ms"], [1.5, 2.0]);
        });
    }
}
