//! The settings that an agent gets from its policy, besides its grants.

use std::time::Duration;

use taskrun_engine::{AgentError, AgentGrants, Cache, CompileWorker, EngineOptions, LoadError};
use taskrun_examples as examples;
use taskrun_policy::{InterruptionPolicy, Policy, Retry};

use crate::support::*;

const POLICY: &str = r#"
[tool.files]
component   = "tool.wasm"
interrupted = "ask"

[agent.lead]
component = "agent.wasm"
tools     = ["files/*"]
allow     = ["workspace-read: **", "workspace-write: **"]
members   = ["coder", "lead"]
durable   = false
retry     = { attempts = 5, pause = "2s" }

[agent.coder]
component = "agent.wasm"
"#;

#[tokio::test]
async fn an_agent_is_loaded_with_what_its_policy_says_of_members_crashes_and_failures() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tool.wasm"), examples::WORKSPACE.bytes).unwrap();
    std::fs::write(dir.path().join("agent.wasm"), examples::SCRIPTED.bytes).unwrap();
    let policy = Policy::parse(POLICY, &dir.path().join("taskrun.toml")).unwrap();
    let agents = engine().load_agents(&policy, &Default::default()).await.unwrap().by_name;

    let lead = &agents["lead"];
    assert_eq!(lead.members, ["coder", "lead"]);
    assert!(!lead.durable);
    assert_eq!(
        lead.retry,
        Retry { attempts: 5, pause: Duration::from_secs(2), ..Retry::default() }
    );
    assert_eq!(
        lead.code.loaded().unwrap().tools.get("files/write").unwrap().interrupted,
        InterruptionPolicy::Ask
    );

    let coder = &agents["coder"];
    assert!(coder.members.is_empty() && coder.durable);
    assert_eq!(coder.retry, Retry::default());
}

#[tokio::test]
async fn what_an_agent_lacks_is_told_before_anything_is_compiled() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tool.wasm"), examples::WORKSPACE.bytes).unwrap();
    std::fs::write(dir.path().join("agent.wasm"), examples::SCRIPTED.bytes).unwrap();
    let text = POLICY.replace(r#"allow     = ["workspace-read: **", "workspace-write: **"]"#, "");
    let policy = Policy::parse(&text, &dir.path().join("taskrun.toml")).unwrap();
    let cache = || Some(Cache::open(&dir.path().join("native")).unwrap());
    let looks = engine_with(EngineOptions { cache: cache(), ..Default::default() });
    for name in ["tool.wasm", "agent.wasm"] {
        looks.examine_file(&dir.path().join(name)).await.unwrap();
    }
    // Who compiled would learn that this worker does not start.
    let worker = CompileWorker { program: "/does/not/exist".into(), args: Vec::new() };
    let options =
        EngineOptions { compile_worker: Some(worker), cache: cache(), ..Default::default() };
    let engine = engine_with(options);
    let pin = "lead@p".to_owned();
    let error = engine.load_agent(&policy, &Default::default(), &policy.agents["lead"], pin).await;
    let Err(AgentError::Component { source, .. }) = error else { panic!("it loads") };
    assert!(matches!(*source, LoadError::Denied(_)), "{source}");
    let with = AgentGrants::of_tool(&policy.agents["lead"], &policy.tools["files"]);
    let error = engine.load_tool(&policy.tools["files"].component, with).await.err().unwrap();
    assert!(matches!(error, LoadError::Denied(_)), "{error}");
}
