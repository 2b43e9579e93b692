//! The policies in documents are policies.

use std::path::Path;

use taskrun_policy::Policy;

use super::markdown::Document;

/// True if a block of TOML is another file than a policy: its first line names the file then.
fn is_another_file(block: &str) -> bool {
    let first = block.lines().next().unwrap_or_default();
    first.strip_prefix("# ").is_some_and(|name| name.ends_with(".toml") && name != "taskrun.toml")
}

#[test]
fn all_policies_of_a_document_are_together_one_that_is_read() {
    let mut read = Vec::new();
    for document in Document::all() {
        let blocks = document.blocks_in("toml").filter(|block| !is_another_file(block));
        let text = blocks.collect::<Vec<_>>().join("\n");
        if text.is_empty() {
            continue;
        }
        if let Err(errors) = Policy::parse(&text, Path::new("taskrun.toml")) {
            panic!("{}: {:#?}\n{text}", document.path.display(), errors.errors);
        }
        read.push(document.path.display().to_string());
    }
    for known in ["README.md", "docs/capabilities.md", "docs/models.md", "docs/policy.md"] {
        assert!(read.iter().any(|path| path == known), "{known} has none: {read:?}");
    }
}
