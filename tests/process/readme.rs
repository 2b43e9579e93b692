//! What the README says to write works as it stands there.

use taskrun_examples::{COUNTER, WORDS};

use crate::project::Project;

const README: &str = include_str!("../../README.md");
const TOOL: &str = include_str!("../../guest-examples/tools/words/src/lib.rs");
const AGENT: &str = include_str!("../../guest-examples/agents/counter/src/lib.rs");

/// The blocks of this language that begin with this line, without it.
fn blocks(language: &str, first: &str) -> Vec<&'static str> {
    let mut rest = README;
    let mut found = Vec::new();
    let begin = format!("```{language}\n{first}\n");
    while let Some(at) = rest.find(&begin) {
        rest = &rest[at + begin.len()..];
        let end = rest.find("```").expect("a block ends");
        found.push(&rest[..end]);
        rest = &rest[end..];
    }
    found
}

#[test]
fn its_tool_and_its_agent_are_examples_that_are_built_and_have_at_most_40_lines() {
    let [tool, agent] = blocks("rust", "// src/lib.rs")[..] else { panic!("two guests") };
    assert_eq!(tool, TOOL);
    // The example has tests below.
    assert_eq!(AGENT.split("\n#[cfg(test)]").next(), Some(agent));
    assert!(agent.lines().count() <= 40);
}

#[test]
fn its_agent_answers_with_what_its_tool_says() {
    let project = Project::new();
    let [policy] = blocks("toml", "# taskrun.toml")[..] else { panic!("one policy") };
    project.write("taskrun.toml", policy.as_bytes());
    project.write("components/words.wasm", WORDS.bytes);
    project.write("components/counter.wasm", COUNTER.bytes);
    let ran = project.run(&["run", "counter", "one two three", "--wait"]);
    assert_eq!((ran.code, ran.stdout.trim()), (0, "3 words"), "{ran:?}");
    let called = project.run(&[
        "tool",
        "call",
        "words/count",
        r#"{"text": "one two"}"#,
        "--agent",
        "counter",
    ]);
    assert_eq!((called.code, called.stdout.trim()), (0, "2"), "{called:?}");
}
