use super::*;
use crate::text::{Numbered, numbered};
use serde_json::{Value, json};
use taskrun_guest::{native, tool::Tool as _};

fn call(name: &str, args: &Value) -> Result<ToolResult, Failure> {
    Functions::call(native::tool_call(name, args.to_string()))
}

fn value(result: Result<ToolResult, Failure>) -> Value {
    serde_json::from_str(&result.expect("it succeeds").value).expect("results are JSON")
}

fn files(files: &[(&str, &str)]) {
    native::reset();
    native::host(|host| {
        for (path, text) in files {
            host.files.insert((*path).into(), text.as_bytes().to_vec());
        }
    });
}

#[test]
fn schemas_are_strict_json_objects() {
    for spec in Functions::describe() {
        for schema in [Some(spec.input_schema), spec.output_schema].into_iter().flatten() {
            let schema: Value = serde_json::from_str(&schema).expect("schemas are JSON");
            assert_eq!(schema["type"], "object");
            assert_eq!(schema["additionalProperties"], false);
        }
        assert!(spec.description.len() > 40);
        assert_eq!(spec.hints.bounded, spec.name != "write");
        assert_eq!(spec.hints.read_only, spec.name != "write");
        assert_eq!(spec.hints.idempotent, spec.name != "write");
    }
}

#[test]
fn rarer_words_and_headings_come_first() {
    files(&[
        ("a.md", "A run has a limit.\n\nA tool has a limit.\n\nThe retry limit is three.\n"),
        ("b.md", "# Retries\n\nThree times, then the run fails.\n"),
    ]);
    let found = value(call("search", &json!({"query": "What is the retry limit?"})));
    let hits = found["hits"].as_array().expect("hits");
    assert_eq!(hits[0]["path"], "a.md");
    assert_eq!(hits[0]["line"], 5);
    assert_eq!(hits[0]["excerpt"], "The retry limit is three.");
    assert_eq!(found["files_searched"], 2);
    let scores: Vec<f64> = hits.iter().filter_map(|hit| hit["score"].as_f64()).collect();
    assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
}

#[test]
fn equal_passages_are_ordered_by_path_and_line_and_one_file_does_not_hide_others() {
    let many = "apple\n\n".repeat(5);
    files(&[("b.md", "apple\n"), ("a.md", &many)]);
    let found = value(call("search", &json!({"query": "apple"})));
    let places: Vec<String> = found["hits"]
        .as_array()
        .expect("hits")
        .iter()
        .map(|hit| format!("{}:{}", hit["path"].as_str().unwrap_or(""), hit["line"]))
        .collect();
    assert_eq!(places, ["a.md:1", "a.md:3", "a.md:5", "b.md:1"]);
}

#[test]
fn a_search_is_bounded_and_says_so() {
    files(&[("a.md", "apple\n\napple\n"), ("b.md", "apple\n"), ("c.bin", "apple\0")]);
    let result = call("search", &json!({"query": "apples", "limit": 1})).expect("it succeeds");
    let bounds = result.bounds.clone().expect("bounds");
    assert_eq!((bounds.returned, bounds.total, bounds.truncated), (1, Some(3), true));
    assert!(bounds.refinement.is_some());
    assert_eq!(value(Ok(result))["files_skipped"], 1);
}

#[test]
fn nothing_found_is_an_empty_list() {
    files(&[("a.md", "apple\n")]);
    assert_eq!(value(call("search", &json!({"query": "zebra"})))["hits"], json!([]));
}

#[test]
fn lines_are_numbered_from_where_they_are_asked_for() {
    let lines = numbered("a\nb\r\nc\nd", 2, 2, 100);
    assert_eq!(lines, Numbered { text: "2: b\n3: c\n".into(), returned: 2, total: 4 });
    assert_eq!(numbered("", 1, 5, 100).total, 0);
    assert_eq!(
        numbered("a\nb", 7, 5, 100),
        Numbered { text: String::new(), returned: 0, total: 2 }
    );
}

#[test]
fn an_answer_over_the_byte_bound_stops_at_a_line_or_cuts_a_single_one() {
    let lines = numbered("aaaa\nbbbb\ncccc", 1, 9, 15);
    assert_eq!(lines, Numbered { text: "1: aaaa\n".into(), returned: 1, total: 3 });
    let lines = numbered("ééééééé", 1, 1, 8);
    assert_eq!(lines, Numbered { text: "1: éé…\n".into(), returned: 1, total: 1 });
}

#[test]
fn reading_part_of_a_file_says_how_to_read_on() {
    files(&[("a.md", "1\n2\n3\n4\n5\n")]);
    let result = call("read", &json!({"path": "a.md", "start_line": 2, "line_count": 2}));
    let bounds = result.clone().expect("it succeeds").bounds.expect("bounds");
    assert_eq!((bounds.returned, bounds.total, bounds.truncated), (2, Some(5), true));
    let next: Value = serde_json::from_str(&bounds.continuation.expect("a continuation"))
        .expect("continuations are JSON");
    assert_eq!(next, json!({"path": "a.md", "start_line": 4, "line_count": 2}));
    let read = value(result);
    assert_eq!(read["text"], "2: 2\n3: 3\n");
    assert_eq!(read["total_lines"], 5);
}

#[test]
fn file_errors_become_codes_with_advice_where_it_helps() {
    files(&[("a/b.md", "text")]);
    for (path, code) in [("a/none.md", "not-found"), ("../x", "invalid-path"), ("a", "not-a-file")]
    {
        let failure = call("read", &json!({"path": path})).expect_err("it fails");
        assert_eq!(failure.error.code.as_deref(), Some(code));
        assert!(failure.error.message.starts_with(path));
        let hint = failure.retry_hint.clone().expect("a hint");
        assert!(hint.message.is_some());
    }
    let denied = FileError::Denied("deny workspace-read: x".into());
    let call = native::tool_call("read", "{}");
    assert_eq!(file_failure(&denied, "x", &call).retry_hint, None);
}

#[test]
fn writing_makes_folders_and_never_replaces_unasked() {
    files(&[]);
    let args = json!({"path": "notes/a/b.md", "contents": "one"});
    assert_eq!(value(call("write", &args))["bytes"], 3);
    let failure = call("write", &args).expect_err("it exists");
    assert_eq!(failure.error.code.as_deref(), Some("already-exists"));
    let args = json!({"path": "notes/a/b.md", "contents": "two", "mode": "append"});
    value(call("write", &args));
    native::host(|host| assert_eq!(host.files["notes/a/b.md"], b"onetwo"));
}

#[test]
fn a_listing_is_sorted_and_bounded() {
    files(&[("b.md", "1"), ("a/c.md", "22"), ("a/d.md", "")]);
    let listed = value(call("list", &json!({})));
    assert_eq!(
        listed["entries"],
        json!([{"path": "a", "kind": "directory", "size": 0}, {"path": "b.md", "kind": "file", "size": 1}])
    );
    let result = call("list", &json!({"recursive": true, "limit": 2})).expect("it succeeds");
    assert!(result.bounds.expect("bounds").truncated);
}
