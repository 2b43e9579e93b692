//! Tools in Python and JavaScript under the program: `TASKRUN_E2E_GUESTS=1 cargo test -p
//! taskrun-cli --test guests`. Not part of the usual tests, as `build.sh` fetches the toolchains.

use std::path::Path;
use std::process::{Command, ExitCode, Output, Stdio};

use serde_json::Value;

/// A policy that grants nothing: the tools are of the world `tool-pure`.
const POLICY: &str = r#"
[tool.tally]
component = "tally.wasm"

[tool.slugs]
component = "slugs.wasm"

[agent.counter]
component = "counter.wasm"
tools = ["tally/*", "slugs/*"]
"#;

fn main() -> ExitCode {
    #[expect(clippy::disallowed_methods, reason = "whoever starts the tests asks for it so")]
    let asked = std::env::var_os("TASKRUN_E2E_GUESTS").is_some_and(|value| value == "1");
    if !asked {
        println!("not run: TASKRUN_E2E_GUESTS=1 fetches toolchains for Python and JavaScript");
        return ExitCode::SUCCESS;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let project = folder.path();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guests/build.sh");
    let built = Command::new(script).arg(project).status().expect("starts");
    assert!(built.success(), "the guests cannot be built");
    std::fs::write(project.join("counter.wasm"), taskrun_examples::COUNTER.bytes).expect("written");
    std::fs::write(project.join("taskrun.toml"), POLICY).expect("written");

    for component in ["tally.wasm", "slugs.wasm"] {
        let seen = json(project, &["inspect", component]);
        let imports = seen["imports"].as_array().expect("imports");
        let asks = |import: &&Value| import["class"].as_str().is_some_and(|c| c.contains("needs"));
        assert!(imports.iter().all(|import| !asks(&import)), "{component}: {imports:?}");
        println!("{component}: {} bytes", seen["size"]);
    }
    let counted = call(project, "tally/count", r#"{"text":"one two one","most":1}"#);
    assert_eq!(counted, serde_json::json!([{ "word": "one", "count": 2 }]));
    let slug = call(project, "slugs/slug", r#"{"title":"Hello, World!"}"#);
    assert_eq!(slug, "hello-world");
    for (function, arguments, word) in [
        ("tally/count", r#"{"text":" "}"#, "there is no word"),
        ("slugs/slug", r#"{"title":"!"}"#, "neither a letter nor a digit"),
    ] {
        let failed = run(project, &["tool", "call", function, arguments]);
        let said = String::from_utf8_lossy(&failed.stderr).into_owned();
        assert!(!failed.status.success() && said.contains(word), "{said}");
    }
    // A project of which nothing but a tool was called has no data directory.
    assert!(!project.join(".taskrun").exists());
    println!("test result: ok");
    ExitCode::SUCCESS
}

fn call(project: &Path, function: &str, arguments: &str) -> Value {
    json(project, &["tool", "call", function, arguments])["result"].clone()
}

fn json(project: &Path, args: &[&str]) -> Value {
    let output = run(project, &[args, &["-o", "json"]].concat());
    assert!(output.status.success(), "{args:?}: {output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn run(project: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_taskrun"))
        .args(args)
        .current_dir(project)
        .env_clear()
        .env("XDG_CACHE_HOME", project.join("cache"))
        .env("TASKRUN_CONFIG", project.join("taskrun.toml"))
        .stdin(Stdio::null())
        .output()
        .expect("starts")
}
