//! Runs as files: what an export has, and what it has not.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::project::Project;

/// Everything in an export, without its compression.
fn contents(file: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    let file = std::fs::File::open(file).expect("it is there");
    let mut packed = zstd::Decoder::new(file).expect("an export");
    packed.read_to_end(&mut all).expect("whole");
    all
}

fn has(all: &[u8], text: &str) -> bool {
    all.windows(text.len()).any(|part| part == text.as_bytes())
}

#[test]
fn c_078_an_export_has_the_run_and_no_secret_and_only_its_owner_may_read_it() {
    let project = Project::new();
    let policy = std::fs::read_to_string(project.path().join("taskrun.toml")).expect("a policy");
    let model = "[model.far] # SECRET-1\nprovider = \"openai-chat\"\nmodel = \"m\"\n\
                 base_url = \"https://SECRET-2.example\"\nkey_file = \"SECRET-3\"\n\
                 headers = { x-gateway = \"SECRET-4\" }\ncontext_tokens = 77777\n\n";
    project.write("taskrun.toml", format!("{model}{policy}").as_bytes());
    project.write("SECRET-3", b"SECRET-5");
    let key = project.path().join("SECRET-3");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("a key");
    let run = project.run(&["run", "worker", r#"{"steps":[[{"reply":"kept"}]]}"#, "--wait"]);
    assert_eq!(run.code, 0, "{run:?}");

    let exported = project.run(&["export", "@last", "run.taskrun", "-o", "json"]);
    assert_eq!(exported.code, 0, "{exported:?}");
    assert_eq!(exported.json()["file"], "run.taskrun");
    let file = project.path().join("run.taskrun");
    let mode = std::fs::metadata(&file).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let all = contents(&file);
    for text in ["\"taskrun_export\":1", "kept", "[agent.worker]", "\"far\"", "77777"] {
        assert!(has(&all, text), "{text}");
    }
    assert!(has(&all, "\0asm"), "its components are in it");
    assert!(!has(&all, "SECRET"), "no place, address or key of a model is in it");

    let again = project.run(&["export", "@last", "run.taskrun"]);
    assert_eq!((again.code, &again.error()["code"]), (2, &"export-file".into()), "{again:?}");
    assert_eq!(contents(&file), all, "what was there is there");
    let unknown = project.run(&["export", "@last", "nowhere/run.taskrun"]);
    assert_eq!(unknown.code, 2, "{unknown:?}");
}
