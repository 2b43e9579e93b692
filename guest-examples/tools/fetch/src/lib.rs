//! A tool that gets what stands at an address, by the host's `http` interface.

use serde::{Deserialize, Serialize};
use taskrun_guest::{
    http::{self, HttpError, Request, Response},
    tool::{Bounds, Failure, RetryHint, RetryReason, ToolCall, ToolResult},
};

const GET: &str = r#"{
  "type": "object",
  "properties": {
    "url": {"type": "string", "minLength": 1, "description": "Address, with `https:` or `http:`."},
    "max_bytes": {"type": "integer", "minimum": 1, "maximum": 1048576, "default": 65536, "description": "Most bytes of the body to return."}
  },
  "required": ["url"],
  "additionalProperties": false
}"#;
const GOT: &str = r#"{
  "type": "object",
  "properties": {
    "status": {"type": "integer"},
    "content_type": {"type": ["string", "null"]},
    "location": {"type": ["string", "null"], "description": "Where a redirect points."},
    "body": {"type": "string"}
  },
  "required": ["status", "content_type", "location", "body"],
  "additionalProperties": false
}"#;

taskrun_guest::tool! {
    /// Gets the text that stands at an address on the web. Redirects are not followed: their
    /// answer says where they point. Only addresses that the policy lists can be reached.
    fn get(GET, output(GOT), title("Get a page"), read_only, bounded, tag("web")) => get;
}

#[derive(Deserialize)]
struct Args {
    url: String,
    #[serde(default = "max_bytes")]
    max_bytes: usize,
}

fn max_bytes() -> usize {
    65_536
}

#[derive(Serialize)]
struct Got {
    status: u16,
    content_type: Option<String>,
    location: Option<String>,
    body: String,
}

fn get(call: &ToolCall) -> Result<ToolResult, Failure> {
    let args: Args = call.args()?;
    let response = http::send(&Request {
        method: "GET".into(),
        url: args.url,
        headers: Vec::new(),
        body: Vec::new(),
        timeout: None,
    })
    .map_err(|error| failure(&error, call))?;
    let total = response.body.len();
    let returned = total.min(args.max_bytes);
    let bounds = if returned < total {
        Bounds::truncated(returned as u64, Some(total as u64), "raise `max_bytes`")
    } else {
        Bounds::whole(total as u64)
    };
    let got = Got {
        status: response.status,
        content_type: header(&response, "content-type"),
        location: header(&response, "location"),
        body: String::from_utf8_lossy(&response.body[..returned]).into_owned(),
    };
    Ok(ToolResult::json(&got)?.bounds(bounds))
}

fn header(response: &Response, name: &str) -> Option<String> {
    let mut headers = response.headers.iter();
    headers.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone())
}

fn failure(error: &HttpError, call: &ToolCall) -> Failure {
    let failure = Failure::new(error.text()).code(error.code());
    let (reason, advice) = match error {
        HttpError::InvalidRequest(_) => (
            RetryReason::InvalidArguments,
            "give an absolute address, such as https://example.com/",
        ),
        HttpError::Timeout => (RetryReason::Timeout, "the same call may succeed later"),
        HttpError::Denied(_)
        | HttpError::Unreachable(_)
        | HttpError::Limit(_)
        | HttpError::Canceled
        | HttpError::Other(_) => return failure,
    };
    failure.hint(RetryHint::new(reason, &call.name).advice(advice))
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskrun_guest::{native, tool::Tool as _};

    fn call(payload: &str) -> Result<ToolResult, Failure> {
        Functions::call(native::tool_call("get", payload))
    }

    #[test]
    fn a_page_comes_with_status_and_type_and_a_long_one_is_cut() {
        native::host(|host| {
            host.http_answers.push_back(Ok(Response {
                status: 200,
                headers: vec![("Content-Type".into(), "text/plain".into())],
                body: b"hello".to_vec(),
            }));
        });
        let result = call(r#"{"url":"https://example.com/","max_bytes":2}"#).expect("a result");
        assert_eq!(
            result.value,
            r#"{"status":200,"content_type":"text/plain","location":null,"body":"he"}"#
        );
        assert!(result.bounds.expect("bounds").truncated);
        native::host(|host| assert_eq!(host.http_requests[0].method, "GET"));
    }

    #[test]
    fn a_refusal_has_its_code_and_no_advice() {
        native::host(|host| {
            host.http_answers.push_back(Err(HttpError::Denied("deny http: *".into())));
        });
        let failure = call(r#"{"url":"http://localhost/"}"#).expect_err("denied");
        assert_eq!(failure.error.code.as_deref(), Some("denied"));
        assert_eq!(failure.retry_hint, None);
    }
}
