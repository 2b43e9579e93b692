//! Workspaces whose folder becomes another one while the component that uses it stays loaded.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use taskrun::ports::tool::{Tool, ToolCall};
use taskrun_engine::{AgentGrants, LoadError};
use taskrun_examples as examples;

use crate::support::*;

const ALL: &str = r#"allow = ["workspace-read: **", "workspace-write: **"]"#;

/// Grants in the folder `sub` of a root.
fn grants_in(root: &Path) -> AgentGrants {
    let (workspace, workspace_root) = (root.join("sub"), Some(root.to_owned()));
    AgentGrants { workspace, workspace_root, ..grants(ALL) }
}

fn folder_with(path: &Path, contents: &str) {
    fs::create_dir_all(path).expect("a folder");
    fs::write(path.join("a.txt"), contents).expect("a file");
}

/// The answer of a tool that reads `a.txt` by our interface or by WASI, or its failure.
async fn read(tool: &dyn Tool, by_wasi: bool, with: &AgentGrants) -> String {
    let attempt = serde_json::json!({ "attempts": [{ "op": "read", "path": "/a.txt" }] });
    let (name, payload) = match by_wasi {
        true => ("attempt", attempt.to_string()),
        false => ("read", r#"{"path":"a.txt"}"#.to_owned()),
    };
    let call = ToolCall { name: name.to_owned(), payload, ..call() };
    match ask(tool, call, patient_under(with)).await.expect("it goes on") {
        Ok(value) => value.value,
        Err(failure) => failure.error.message,
    }
}

async fn reader(by_wasi: bool, with: &AgentGrants) -> Arc<dyn Tool> {
    let bytes = match by_wasi {
        true => examples::evil::WASI.bytes,
        false => examples::WORKSPACE.bytes,
    };
    let loaded = tool(&engine(), bytes.to_vec(), with.clone()).await;
    loaded.expect("it loads")
}

#[tokio::test]
async fn a_call_works_in_the_folder_that_is_there_when_it_begins() {
    for by_wasi in [false, true] {
        let dir = tempfile::tempdir().expect("a folder");
        let (path, old) = (dir.path().join("w"), dir.path().join("w.old"));
        folder_with(&path, "the first");
        let with = AgentGrants { workspace: path.clone(), ..grants(ALL) };
        let tool = reader(by_wasi, &with).await;
        assert!(read(&*tool, by_wasi, &with).await.contains("the first"));
        fs::rename(&path, &old).expect("moved");
        assert!(!read(&*tool, by_wasi, &with).await.contains("the first"), "none is there");
        folder_with(&path, "the second");
        assert!(read(&*tool, by_wasi, &with).await.contains("the second"));
        fs::rename(&path, dir.path().join("w.older")).expect("moved");
        symlink("w.old", &path).expect("a link in its place");
        assert!(read(&*tool, by_wasi, &with).await.contains("the first"));
    }
}

#[tokio::test]
async fn a_folder_that_leads_out_of_its_root_is_used_by_no_call_and_not_loaded() {
    for by_wasi in [false, true] {
        let dir = tempfile::tempdir().expect("a folder");
        let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
        folder_with(&root.join("sub"), "inside");
        folder_with(&outside, "outside");
        let with = grants_in(&root);
        let tool = reader(by_wasi, &with).await;
        assert!(read(&*tool, by_wasi, &with).await.contains("inside"));
        fs::rename(root.join("sub"), root.join("other")).expect("moved");
        symlink(&outside, root.join("sub")).expect("a link in its place");
        let refused = read(&*tool, by_wasi, &with).await;
        assert!(!refused.contains("outside") && !refused.contains("inside"), "{refused}");
        let bytes = examples::WORKSPACE.bytes.to_vec();
        let error = crate::support::tool(&engine(), bytes, with.clone()).await.err();
        assert!(matches!(error, Some(LoadError::Workspace { .. })), "{error:?}");
        fs::remove_file(root.join("sub")).expect("removed");
        symlink("other", root.join("sub")).expect("a link that stays inside");
        assert!(read(&*tool, by_wasi, &with).await.contains("inside"));
    }
}
