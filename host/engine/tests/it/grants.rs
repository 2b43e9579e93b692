//! Imports against grants.

use taskrun_engine::{LoadError, MissingGrant, Need};
use taskrun_policy::Capability;

use crate::support::*;

const WANTS: &str = r#"
    (import "taskrun:plugin/http@0.1.0" "send"
        (func (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i64 i32)))
    (import "taskrun:plugin/workspace-read@0.1.0" "stat" (func (param i32 i32 i32)))
    (import "taskrun:plugin/workspace-write@0.1.0" "remove" (func $remove (param i32 i32 i32)))
    (import "taskrun:plugin/metrics@0.1.0" "add" (func (param i32 i32 i64 i32 i32)))
"#;

async fn denied(bytes: Vec<u8>, rules: &str) -> Vec<MissingGrant> {
    match tool(&engine(), bytes, grants(rules)).await.err() {
        Some(LoadError::Denied(missing)) => missing,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn all_missing_grants_are_listed_at_once() {
    let missing = denied(tool_bytes(WANTS, OK), "").await;
    let needs: Vec<(&str, Need)> =
        missing.iter().map(|grant| (grant.import.as_str(), grant.need)).collect();
    assert_eq!(
        needs,
        [
            ("taskrun:plugin/http@0.1.0", Need::Rule(Capability::Http)),
            ("taskrun:plugin/metrics@0.1.0", Need::Rule(Capability::Metrics)),
            ("taskrun:plugin/workspace-read@0.1.0", Need::Rule(Capability::WorkspaceRead)),
            ("taskrun:plugin/workspace-write@0.1.0", Need::Rule(Capability::WorkspaceWrite)),
        ]
    );
    let text = LoadError::Denied(missing).to_string();
    assert!(
        text.contains(r#"add to [agent.tester]: allow = ["workspace-write: notes/**"]"#),
        "{text}"
    );
}

#[tokio::test]
async fn suggested_lines_are_lines_of_a_policy() {
    for grant in denied(tool_bytes(WANTS, OK), "").await {
        if let Some(line) = grant.suggestion() {
            assert_eq!(grants(&line).grants.rules().len(), 1, "{line}");
        }
    }
}

#[tokio::test]
async fn a_grant_for_one_import_leaves_the_others_missing() {
    let rules = r#"allow = ["workspace-read: **", "http: GET https://a.example/**"]"#;
    let missing = denied(tool_bytes(WANTS, OK), rules).await;
    assert_eq!(missing.len(), 2);
}

#[tokio::test]
async fn events_state_and_models_are_for_agents() {
    // The world of tools does not name them, so this component is put together by hand.
    let text = r#"(component
        (import "taskrun:plugin/state@0.1.0" (instance (export "keys" (func (result (list string))))))
        (import "taskrun:plugin/model@0.1.0" (instance (export "complete" (func))))
        (import "taskrun:plugin/conversation@0.1.0" (instance (export "read" (func))))
        (instance $tools)
        (export "taskrun:plugin/tools@0.1.0" (instance $tools)))"#;
    let missing = denied(wat::parse_str(text).unwrap(), "").await;
    assert!(missing.iter().all(|grant| grant.need == Need::AgentsOnly), "{missing:?}");
    assert_eq!(missing.len(), 3);
}

#[tokio::test]
async fn an_agent_that_asks_about_the_conversation_needs_a_rule_for_models() {
    let engine = engine();
    let loaded = engine.load(taskrun_examples::CHAT.bytes.to_vec()).await.unwrap();
    let Some(LoadError::Denied(missing)) = engine.agent(&loaded, grants("")).err() else {
        panic!("it asks models")
    };
    let needs: Vec<(&str, Need)> =
        missing.iter().map(|grant| (grant.import.as_str(), grant.need)).collect();
    let need = Need::Rule(Capability::Model);
    let imports = ["taskrun:plugin/conversation@0.1.0", "taskrun:plugin/model@0.1.0"];
    assert_eq!(needs, imports.map(|import| (import, need)));
}

#[tokio::test]
async fn case_42_unknown_imports_and_sockets_are_never_given() {
    let text = r#"(component
        (import "wasi:sockets/tcp@0.2.0" (instance (export "f" (func))))
        (import "wasi:nn/graph@0.2.0" (instance (export "f" (func))))
        (import "wasi:clocks/timezone@0.2.0" (instance (export "f" (func))))
        (import "plain" (func))
        (import "wasi:cli/types-only@0.9.0" (instance (export "t" (type (sub resource)))))
        (import "other:thing/types@1.0.0" (instance (type $r (record (field "a" u8))) (export "t" (type (eq $r)))))
        (instance $tools)
        (export "taskrun:plugin/tools@0.1.0" (instance $tools)))"#;
    let missing = denied(wat::parse_str(text).unwrap(), "").await;
    let needs: Vec<(&str, Need)> =
        missing.iter().map(|grant| (grant.import.as_str(), grant.need)).collect();
    assert_eq!(
        needs,
        [
            ("plain", Need::Unknown),
            ("wasi:cli/types-only@0.9.0", Need::OtherWasi),
            ("wasi:clocks/timezone@0.2.0", Need::Unknown),
            ("wasi:nn/graph@0.2.0", Need::Unknown),
            ("wasi:sockets/tcp@0.2.0", Need::Sockets),
        ]
    );
}

#[tokio::test]
async fn a_component_inside_another_gets_nothing_by_itself() {
    // What the inner one imports must come from the outer one, whose imports are what is checked.
    let text = r#"(component
        (import "taskrun:plugin/http@0.1.0" (instance $http (export "send" (func))))
        (component $inner
            (import "taskrun:plugin/http@0.1.0" (instance (export "send" (func)))))
        (instance (instantiate $inner (with "taskrun:plugin/http@0.1.0" (instance $http))))
        (instance $tools)
        (export "taskrun:plugin/tools@0.1.0" (instance $tools)))"#;
    let missing = denied(wat::parse_str(text).unwrap(), "").await;
    assert_eq!(missing.len(), 1);
    assert_eq!(missing[0].need, Need::Rule(Capability::Http));
    let unfed = r#"(component
        (component $inner
            (import "taskrun:plugin/http@0.1.0" (instance (export "send" (func)))))
        (instance (instantiate $inner)))"#;
    let error = engine().load(wat::parse_str(unfed).unwrap()).await.unwrap_err();
    assert!(matches!(error, LoadError::Invalid { .. }), "{error}");
}

#[tokio::test]
async fn an_explicit_deny_loads_and_always_refuses() {
    let imports = r#"
        (import "taskrun:plugin/workspace-write@0.1.0" "remove" (func $remove (param i32 i32 i32)))
    "#;
    // Hands back the text of `denied`.
    let code = r#"
        (call $remove (i32.const 2048) (i32.const 3) (i32.const 5120))
        (if (i32.eqz (i32.load8_u (i32.const 5120))) (then unreachable))
        (if (i32.load8_u (i32.const 5124)) (then unreachable))
        (call $fail (i32.load (i32.const 5128)) (i32.load (i32.const 5132)))
    "#;
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("run"), "").unwrap();
    let mut with = grants(r#"deny = ["workspace-write: **"]"#);
    with.workspace = dir.path().to_owned();
    let scope = patient_under(&with);
    let refused = failure(run_in(tool_bytes(imports, code), with, scope.clone()).await);
    assert_eq!(refused, r#"denied by "workspace-write: **""#);
    assert!(dir.path().join("run").exists());
    let decisions = decisions(&scope);
    assert_eq!(decisions.len(), 1);
    let (capability, subject, rule) = &decisions[0];
    assert_eq!((capability.as_str(), subject.as_str()), ("workspace-write", "run"));
    assert!(rule.contains("taskrun.toml:3:"), "{rule}");
}

#[tokio::test]
async fn rules_that_are_no_folders_keep_wasi_files_out() {
    let text = r#"(component
        (import "wasi:filesystem/types@0.2.0" (instance (export "d" (type (sub resource)))))
        (instance $tools)
        (export "taskrun:plugin/tools@0.1.0" (instance $tools)))"#;
    let bytes = wat::parse_str(text).unwrap();
    for (rules, words) in [
        (
            r#"allow = ["workspace-read: *.md"]"#,
            r#"knows folders only, and allow "workspace-read: *.md" (taskrun.toml:3:"#,
        ),
        (
            r#"allow = ["workspace-write: docs/**"]"#,
            r#"readable, too: beside allow "workspace-write: docs/**" (taskrun.toml:3:"#,
        ),
        (
            r#"allow = ["workspace-read: docs/**"]
            deny = ["workspace-read: docs/a"]"#,
            r#"and deny "workspace-read: docs/a" (taskrun.toml:4:"#,
        ),
    ] {
        let refused = tool(&engine(), bytes.clone(), grants(rules)).await;
        let error = refused.err().expect("it does not load").to_string();
        assert!(error.contains(words), "{error}");
    }
}
