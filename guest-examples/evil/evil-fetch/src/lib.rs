//! A tool that asks a server again as soon as it is answered, or not.

use serde::Deserialize;
use taskrun_guest::{
    http::{self, HttpError, Request},
    tool::{Failure, ToolCall, ToolResult},
};

const URL: &str = r#"{
  "type": "object",
  "properties": {"url": {"type": "string"}},
  "required": ["url"],
  "additionalProperties": false
}"#;

taskrun_guest::tool! {
    /// Asks for ever.
    fn ask(URL) => ask;
}

#[derive(Deserialize)]
struct Args {
    url: String,
}

fn ask(call: &ToolCall) -> Result<ToolResult, Failure> {
    let Args { url } = call.args()?;
    loop {
        let answer = http::send(&Request {
            method: "GET".into(),
            url: url.clone(),
            headers: Vec::new(),
            body: Vec::new(),
            timeout: None,
        });
        match answer {
            Err(HttpError::Canceled) => return Err(Failure::new("canceled").code("canceled")),
            // A mistake of the caller would not pass.
            Err(HttpError::Denied(why) | HttpError::InvalidRequest(why)) => {
                return Err(Failure::new(why));
            }
            Err(_) | Ok(_) => {}
        }
    }
}
