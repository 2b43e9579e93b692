//! Case 57: bytes that are no component, or none that fits.

use std::fs::File;

use taskrun_engine::LoadError;
use taskrun_examples::{RESEARCHER, WORKSPACE};
use taskrun_tests::engine;

async fn refused(bytes: &[u8]) -> LoadError {
    match engine().load(bytes.to_vec()).await {
        Ok(_) => panic!("{} bytes were accepted", bytes.len()),
        Err(error) => error,
    }
}

#[tokio::test]
async fn case_57_what_is_no_component_is_refused_in_words() {
    let core = wat::parse_str("(module (func (export \"run\")))").expect("valid text");
    let empty_component = wat::parse_str("(component)").expect("valid text");
    let table: [(&[u8], &str); 5] = [
        (b"", "empty"),
        (b"#!/bin/sh\necho hello\n", "not a WebAssembly component"),
        (&core, "core module"),
        (&WORKSPACE.bytes[..WORKSPACE.bytes.len() / 2], "cut off"),
        (&empty_component, "exports nothing"),
    ];
    for (bytes, word) in table {
        let text = match engine().load(bytes.to_vec()).await {
            Err(error) => error.to_string(),
            Ok(loaded) => {
                let policy = "[agent.a]\ncomponent = \"x\"\n";
                let policy = taskrun_policy::Policy::parse(policy, "t.toml".as_ref()).expect("ok");
                let grants = taskrun_engine::AgentGrants::of_agent(&policy.agents["a"]);
                match engine().agent(&loaded, grants) {
                    Err(error) => error.to_string(),
                    Ok(_) => panic!("{word}: accepted"),
                }
            }
        };
        assert!(text.contains(word), "{word} is missing in: {text}");
    }
}

#[tokio::test]
async fn case_57_every_truncation_is_refused_and_none_ends_the_host() {
    let whole = WORKSPACE.bytes;
    for length in (0..whole.len()).step_by(whole.len() / 40) {
        refused(&whole[..length]).await;
    }
}

#[tokio::test]
async fn case_57_a_flipped_byte_never_ends_the_host() {
    for at in (8..RESEARCHER.bytes.len()).step_by(RESEARCHER.bytes.len() / 16) {
        let mut bytes = RESEARCHER.bytes[..].to_vec();
        bytes[at] ^= 0x55;
        // Some flips leave a valid component; whatever comes out, it is an answer.
        let _answer = engine().load(bytes).await.map(|loaded| loaded.digest().to_owned());
    }
}

#[tokio::test]
async fn case_57_a_huge_file_is_refused_before_it_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("huge.wasm");
    // Sparse: 200 MiB long, nothing on the disk.
    File::create(&path).and_then(|file| file.set_len(200 << 20)).expect("a sparse file");
    let error = match engine().load_file(&path).await {
        Ok(_) => panic!("200 MiB were accepted"),
        Err(error) => error.to_string(),
    };
    assert!(error.contains("200") || error.contains("209715200"), "{error}");
}

#[tokio::test]
async fn case_57_a_component_of_the_other_world_is_refused_in_words() {
    let policy =
        "[agent.a]\ncomponent = \"x\"\nallow = [\"workspace-read: **\", \"workspace-write: **\"]";
    let policy = taskrun_policy::Policy::parse(policy, "t.toml".as_ref()).expect("valid");
    let grants = || taskrun_engine::AgentGrants::of_agent(&policy.agents["a"]);
    let tool = engine().load(WORKSPACE.bytes.to_vec()).await.expect("a component");
    let error = match engine().agent(&tool, grants()) {
        Ok(_) => panic!("a tool is no agent"),
        Err(error) => error.to_string(),
    };
    assert!(error.contains("must export taskrun:plugin/planner"), "{error}");
    assert!(error.contains("exports taskrun:plugin/tools"), "{error}");
    let agent = engine().load(RESEARCHER.bytes.to_vec()).await.expect("a component");
    let error = match engine().tool(&agent, grants()).await {
        Ok(_) => panic!("an agent is no tool"),
        Err(error) => error.to_string(),
    };
    assert!(error.contains("must export taskrun:plugin/tools"), "{error}");
    assert!(error.contains("exports taskrun:plugin/planner"), "{error}");
}

#[tokio::test]
async fn case_58_parts_that_cost_too_much_are_refused_by_their_count() {
    let of = |inside: String| format!("(component (core module {inside}))");
    let depth = 40_000;
    let blocks = format!("(func {}{})", "block ".repeat(depth), "end ".repeat(depth));
    let locals = format!("(func (local {}))", "i32 ".repeat(10_000));
    let table: [(String, &str); 3] = [
        (of("(func)".repeat(900_000)), "functions"),
        (of(locals), "locals of a function"),
        (of(blocks), "blocks within blocks"),
    ];
    for (text, word) in table {
        let bytes = wat::parse_str(text).expect("valid text");
        let error = refused(&bytes).await;
        assert!(matches!(error, LoadError::Shape { what, .. } if what == word), "{error}");
    }
}
