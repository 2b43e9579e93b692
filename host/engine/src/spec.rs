//! The description that a tool gives of itself, checked once at load.

use std::collections::BTreeSet;

use taskrun_journal::tool::ToolSpec;

use crate::error::LoadError;
use taskrun_journal::json;
use taskrun_journal::plain::first_disguised;

/// Most functions of one tool.
const FUNCTIONS_MAX: usize = 256;
/// Longest name of a function.
const NAME_BYTES_MAX: usize = 64;
/// Longest description: it is sent to a model with every request.
const DESCRIPTION_BYTES_MAX: usize = 4_096;
/// Longest title, in bytes.
const TITLE_BYTES_MAX: usize = 256;
/// Largest schema: it is sent to a model with every request.
const SCHEMA_BYTES_MAX: usize = 64 << 10;
/// Most tags of a function, and the longest.
const TAGS_MAX: usize = 32;
const TAG_BYTES_MAX: usize = 64;

/// Checks the functions that a tool describes.
///
/// # Errors
/// [`LoadError::Description`] with the first thing that is wrong.
pub(crate) fn check(specs: &[ToolSpec]) -> Result<(), LoadError> {
    first_problem(specs).map_or(Ok(()), |reason| Err(LoadError::Description { reason }))
}

fn first_problem(specs: &[ToolSpec]) -> Option<String> {
    if specs.is_empty() || specs.len() > FUNCTIONS_MAX {
        return Some(format!("it has {} functions; 1 to {FUNCTIONS_MAX} are allowed", specs.len()));
    }
    let mut names = BTreeSet::new();
    for spec in specs {
        let name = taskrun_journal::text::cut(&spec.name, NAME_BYTES_MAX);
        if !is_name(&spec.name) {
            return Some(format!(
                "{name:?} is not a function's name; it must match [a-z0-9_-]{{1,{NAME_BYTES_MAX}}}"
            ));
        }
        if !names.insert(&spec.name) {
            return Some(format!("it has two functions named {name:?}"));
        }
        if let Some(problem) = problem_of(spec) {
            return Some(format!("{name}: {problem}"));
        }
    }
    None
}

fn problem_of(spec: &ToolSpec) -> Option<String> {
    let description = spec.description.len();
    if description > DESCRIPTION_BYTES_MAX {
        return Some(format!(
            "its description has {description} bytes; at most {DESCRIPTION_BYTES_MAX} are allowed"
        ));
    }
    if spec.title.as_ref().is_some_and(|title| title.len() > TITLE_BYTES_MAX) {
        return Some(format!("its title is longer than {TITLE_BYTES_MAX} bytes"));
    }
    if spec.tags.len() > TAGS_MAX || spec.tags.iter().any(|tag| tag.len() > TAG_BYTES_MAX) {
        return Some(format!("it has more than {TAGS_MAX} tags, or one is too long"));
    }
    if let Some(problem) = disguised(spec) {
        return Some(problem);
    }
    let input = match schema(&spec.input_schema) {
        Ok(schema) => schema,
        Err(problem) => return Some(format!("its input schema {problem}")),
    };
    if input.get("type").and_then(serde_json::Value::as_str) != Some("object") {
        return Some("its input schema must say \"type\": \"object\"".to_owned());
    }
    let output = spec.output_schema.as_deref().map(schema);
    output.and_then(Result::err).map(|problem| format!("its output schema {problem}"))
}

/// A text of a function that people or models would see otherwise than it is.
fn disguised(spec: &ToolSpec) -> Option<String> {
    let title = ("title", spec.title.as_deref().unwrap_or_default(), false);
    let texts = [title, ("description", &*spec.description, true)].into_iter();
    let tags = spec.tags.iter().map(|tag| ("tag", &**tag, false));
    texts.chain(tags).find_map(|(what, text, lines)| {
        let one = u32::from(first_disguised(text, lines)?);
        Some(format!("its {what} has the control character U+{one:04X}"))
    })
}

fn schema(text: &str) -> Result<serde_json::Map<String, serde_json::Value>, String> {
    if text.len() > SCHEMA_BYTES_MAX {
        return Err(format!("is longer than {SCHEMA_BYTES_MAX} bytes"));
    }
    json::check(text).map_err(|problem| format!("is not JSON: {problem}"))?;
    serde_json::from_str(text).map_err(|_| "is not a JSON object".to_owned())
}

fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str) -> ToolSpec {
        ToolSpec {
            name: name.to_owned(),
            title: None,
            description: String::new(),
            input_schema: r#"{"type":"object"}"#.to_owned(),
            output_schema: None,
            hints: Default::default(),
            timeout: None,
            tags: Vec::new(),
            stated_tags: Vec::new(),
        }
    }

    #[test]
    fn a_plain_description_is_accepted() {
        assert_eq!(first_problem(&[spec("list"), spec("read_2-x")]), None);
    }

    #[test]
    fn case_53_counts_and_names_are_checked() {
        assert!(first_problem(&[]).is_some());
        let many: Vec<ToolSpec> = (0..257).map(|n| spec(&n.to_string())).collect();
        assert!(first_problem(&many).is_some());
        assert!(first_problem(&[spec("a"), spec("a")]).is_some());
        for name in ["", "A", "a/b", "ä", "a b", &"x".repeat(65), &"x".repeat(1 << 20)] {
            let problem = first_problem(&[spec(name)]).unwrap();
            assert!(problem.len() < 200, "{problem}");
        }
    }

    #[test]
    fn case_49_texts_that_look_like_others_do_not_load() {
        let title = |text: &str| ToolSpec { title: Some(text.to_owned()), ..spec("a") };
        let described = |text: &str| ToolSpec { description: text.to_owned(), ..spec("a") };
        let tagged = |text: &str| ToolSpec { tags: vec![text.to_owned()], ..spec("a") };
        assert_eq!(first_problem(&[described("First line.\n\n- second\tline")]), None);
        assert_eq!(first_problem(&[title("Größe")]), None);
        for (spec, said) in [
            (title("a\u{202e}b"), "a: its title has the control character U+202E"),
            (title("two\nlines"), "a: its title has the control character U+000A"),
            (described("\u{1b}[2K"), "a: its description has the control character U+001B"),
            (described("a\u{e0041}"), "a: its description has the control character U+E0041"),
            (tagged("safe\u{200b}"), "a: its tag has the control character U+200B"),
        ] {
            assert_eq!(first_problem(&[spec]).as_deref(), Some(said));
        }
    }

    #[test]
    fn schemas_and_texts_are_checked() {
        let with = |schema: &str| ToolSpec { input_schema: schema.to_owned(), ..spec("a") };
        let deep = format!(r#"{{"type":"object","x":{}{}}}"#, "[".repeat(200), "]".repeat(200));
        for schema in [
            "",
            "1",
            "[]",
            "{}",
            r#"{"type":"string"}"#,
            r#"{"type":"object","type":"object"}"#,
            &deep,
        ] {
            assert!(first_problem(&[with(schema)]).is_some(), "{schema}");
        }
        let wordy = ToolSpec { description: "x".repeat(4_097), ..spec("a") };
        assert!(first_problem(&[wordy]).is_some());
        let output = ToolSpec { output_schema: Some("no".into()), ..spec("a") };
        assert!(first_problem(&[output]).is_some());
    }
}
