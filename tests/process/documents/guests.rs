//! The files that the README says to write work as they stand there.

use taskrun_examples::{COUNTER, WORDS};

use super::markdown::Document;
use crate::project::Project;

const TOOL: &str = include_str!("../../../guest-examples/tools/words/src/lib.rs");
const AGENT: &str = include_str!("../../../guest-examples/agents/counter/src/lib.rs");

/// The README's blocks of this language that begin with this line, without it.
fn blocks(language: &str, first: &str) -> Vec<String> {
    let readme = Document::at("README.md");
    let first = format!("{first}\n");
    let found = readme.blocks_in(language).filter_map(|block| block.strip_prefix(&first));
    found.map(str::to_owned).collect()
}

#[test]
fn its_tool_and_its_agent_are_examples_that_are_built_and_have_at_most_40_lines() {
    let [tool, agent] = &blocks("rust", "// src/lib.rs")[..] else { panic!("two guests") };
    let [test] = &blocks("rust", "// src/lib.rs, at its end")[..] else { panic!("one test") };
    assert_eq!(format!("{tool}\n{test}"), TOOL);
    // The example has tests below.
    assert_eq!(AGENT.split("\n#[cfg(test)]").next(), Some(agent.as_str()));
    assert!(agent.lines().count() <= 40);
}

#[test]
fn its_agent_answers_with_what_its_tool_says() {
    let project = Project::new();
    let [policy] = &blocks("toml", "# taskrun.toml")[..] else { panic!("one policy") };
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
