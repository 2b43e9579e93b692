//! Components that were built for another form of the interfaces than this host's.

use std::path::Path;
use std::time::Duration;

use taskrun_engine::{Kind, LoadError};
use taskrun_journal::ending::Ending;
use taskrun_journal::status::StopReason;
use taskrun_journal::stop::CallAbort;
use wit_component::StringEncoding;

use crate::finalizer::{input, module_of_both};
use crate::support::*;

/// A core module of a policy that decides nothing.
const POLICY: &str = r#"(module
    (memory (export "memory") 1)
    (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 8192))
    (func (export "taskrun:plugin/policy@0.1.0#decide") (param i32) (result i32) unreachable))"#;

/// A folder with the contract, in one file of which a line is another.
fn contract_but(file: &str, line: &str, instead: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for entry in std::fs::read_dir(wit()).expect("the contract") {
        let path = entry.expect("a file of the contract").path();
        let name = path.file_name().expect("it has a name");
        let mut text = std::fs::read_to_string(&path).expect("it is text");
        if name == file {
            assert!(text.contains(line), "{file} has the line {line:?}");
            text = text.replacen(line, instead, 1);
        }
        std::fs::write(folder.path().join(name), text).expect("written");
    }
    folder
}

/// Loads and links a component of a world by the contract in a folder, in the role that it has.
async fn linked(contract: &Path, world: &str, module: &str) -> Result<(), LoadError> {
    let bytes = component_by(contract, &[], world, module, StringEncoding::UTF8);
    let engine = engine();
    let loaded = engine.load(bytes).await?;
    match loaded.inspect().kind {
        Kind::Tool => engine.tool(&loaded, grants("")).await.map(drop),
        Kind::Policy => {
            let (name, timeout) = ("policy".to_owned(), Duration::from_secs(1));
            engine.policy(&loaded, grants(""), name, timeout).map(drop)
        }
        Kind::Agent | Kind::AgentAndTool | Kind::Other => {
            engine.agent(&loaded, grants("")).map(drop)
        }
    }
}

/// Each call of them would end, or of a policy take all tools away; and no first step is done by an
/// agent that has no later one.
#[tokio::test]
async fn an_export_of_another_form_does_not_load_and_says_what_differs() {
    let agent = agent_module("", "");
    let tool = tool_module("", DESCRIBE, OK);
    let of_agent = ("agent", &*agent);
    let more = "record plan-input {\n        more: option<string>,";
    let later = "plan-resume: func(input: plan-resume-input)";
    let rows = [
        (of_agent, ("planner.wit", "record plan-input {", more), "plan-start"),
        (of_agent, ("planner.wit", later, "plan-resume: func(input: plan-input)"), "plan-resume"),
        (("tool", &*tool), ("tools.wit", "media: list<list<u8>>,", ""), "call"),
        (("policy-engine", POLICY), ("policy.wit", "metadata: list<label>,", ""), "decide"),
    ];
    for ((world, module), (file, line, instead), function) in rows {
        let folder = contract_but(file, line, instead);
        let error = linked(folder.path(), world, module).await.expect_err(function);
        let LoadError::Mismatch { detail } = &error else { panic!("{function}: {error}") };
        assert!(detail.contains(&format!("`{function}`")), "{detail}");
        assert!(detail.contains("expected record of"), "the difference is told: {detail}");
        assert!(error.is_of_component(), "{error}");
        let whole = linked(&wit(), world, module).await;
        assert!(whole.is_ok(), "{world}: {whole:?}");
    }
}

/// It cannot change the outcome of a run, and so its form keeps no agent from its runs.
#[tokio::test]
async fn a_finalizer_of_another_form_adds_nothing_and_its_agent_loads() {
    let folder = contract_but("finalizer.wit", "causes: list<string>,", "");
    let module = module_of_both();
    let texts = StringEncoding::UTF8;
    let bytes = component_by(folder.path(), &[], "agent-with-finalizer", &module, texts);
    let engine = engine();
    let loaded = engine.load(bytes).await.expect("it is a component");
    let agent = engine.agent(&loaded, grants("")).expect("an agent whose planner fits");
    assert!(agent.has_finalizer(), "the runs say that it added nothing");
    let ending = Ending::completed(StopReason::FinalResponse);
    let answer = agent.finalize(input(ending, Some("x")), patient()).await;
    let abort = answer.expect_err("the finalizer is not one of this host's");
    let CallAbort::Contract { detail } = &abort else { panic!("{abort}") };
    assert!(detail.contains("`finalize`"), "{detail}");
    assert!(detail.contains("expected record of"), "the difference is told: {detail}");
}
