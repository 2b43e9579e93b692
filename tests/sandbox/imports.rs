//! Case 55: an import that was not granted, also through a nested component.

use std::collections::BTreeMap;

use taskrun_engine::{AgentError, AgentGrants, ImportClass, LoadError};
use taskrun_examples::WORKSPACE;
use taskrun_policy::Policy;
use taskrun_tests::engine;

fn policy(rules: &str) -> Policy {
    let text = format!("[agent.a]\ncomponent = \"x.wasm\"\n{rules}\n");
    Policy::parse(&text, "taskrun.toml".as_ref()).expect("a valid policy")
}

async fn link(bytes: &[u8], rules: &str) -> Result<(), LoadError> {
    let loaded = engine().load(bytes.to_vec()).await?;
    let grants = AgentGrants::of_agent(&policy(rules).agents["a"]);
    engine().tool(&loaded, grants).await.map(|_| ())
}

#[tokio::test]
async fn case_55_imports_without_a_rule_are_all_named_with_the_line_to_add() {
    let error = link(WORKSPACE.bytes, "").await.expect_err("nothing is granted");
    let text = error.to_string();
    for part in ["workspace-read", "workspace-write", "allow = [\"workspace-"] {
        assert!(text.contains(part), "{part} is missing in: {text}");
    }
    assert!(text.contains("agent \"a\""), "{text}");
    let half = link(WORKSPACE.bytes, "allow = [\"workspace-read: **\"]").await;
    let text = half.expect_err("writing is not mentioned").to_string();
    assert!(text.contains("workspace-write"), "{text}");
    let both = "allow = [\"workspace-read: **\"]\ndeny = [\"workspace-write: **\"]";
    link(WORKSPACE.bytes, both).await.expect("a denial is a mention");
}

#[tokio::test]
async fn case_55_a_nested_component_imports_nothing_past_the_outer_list() {
    // The outer component passes its own import on to the one inside it: the list of the outer
    // one is what counts, and it names the import.
    let nested = wat::parse_str(
        r#"(component
            (import "wasi:sockets/instance-network@0.2.6" (instance $net
                (export "network" (type (sub resource)))))
            (component $inner
                (import "wasi:sockets/instance-network@0.2.6" (instance
                    (export "network" (type (sub resource))))))
            (instance (instantiate $inner
                (with "wasi:sockets/instance-network@0.2.6" (instance $net)))))"#,
    )
    .expect("valid text");
    let loaded = engine().load(nested.clone()).await.expect("a component");
    let imports = &loaded.inspect().imports;
    let sockets = imports.iter().find(|import| import.interface.contains("wasi:sockets"));
    assert_eq!(sockets.map(|import| import.class), Some(ImportClass::Sockets), "{imports:?}");
    link(&nested, "").await.expect_err("sockets are never linked");
}

#[tokio::test]
async fn case_55_an_agent_whose_tool_asks_for_more_does_not_load() {
    let folder = tempfile_with(WORKSPACE.bytes);
    let text =
        "[tool.w]\ncomponent = \"w.wasm\"\n[agent.a]\ncomponent = \"a.wasm\"\ntools = [\"w/*\"]\n";
    let path = folder.path().join("taskrun.toml");
    let policy = Policy::parse(text, &path).expect("valid");
    let error = match engine().load_agents(&policy, &BTreeMap::new()).await {
        Ok(_) => panic!("the tool's imports are not granted"),
        Err(error) => error,
    };
    assert!(matches!(&error, AgentError::Component { agent, .. } if agent == "a"), "{error:?}");
}

fn tempfile_with(bytes: &[u8]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("w.wasm"), bytes).expect("written");
    std::fs::write(folder.path().join("a.wasm"), taskrun_examples::SCRIPTED.bytes)
        .expect("written");
    folder
}
