use taskrun_guest::tool::{Failure, ToolCall, ToolResult};

const ARGS: &str =
    r#"{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}"#;

taskrun_guest::tool! {
    /// Counts the words of a text.
    fn count(ARGS, read_only) => count;
}

#[derive(serde::Deserialize)]
struct Args {
    text: String,
}

fn count(call: &ToolCall) -> Result<ToolResult, Failure> {
    let args: Args = call.args()?;
    ToolResult::json(&args.text.split_whitespace().count())
}

#[cfg(test)]
mod tests {
    #[test]
    fn words_are_counted() {
        let call = taskrun_guest::native::tool_call("count", r#"{"text": "one two three"}"#);
        assert_eq!(super::count(&call).expect("a result").value, "3");
    }
}
