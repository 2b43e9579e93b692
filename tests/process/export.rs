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
    for text in ["\"taskrun_export\":2", "kept", "[agent.worker]", "\"far\"", "77777"] {
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

#[test]
fn c_078_an_export_has_no_address_of_a_subscriber_and_is_executed_again_without() {
    let project = Project::new();
    let policy = std::fs::read_to_string(project.path().join("taskrun.toml")).expect("a policy");
    let told = "\n[webhook.ci] # SECRET\nurl = \"https://example.com/SECRET\"\n\
                secret_env = \"SECRET\"\n[command.mail]\nrun = [\"/bin/SECRET\", \"--key=SECRET\"]\n\
                [file.log]\npath = \"SECRET.jsonl\"\n\
                [agent.told]\ncomponent = \"components/scripted.wasm\"\n\
                subscribers = [\"file/log\"]\n\
                [agent.other]\ncomponent = \"components/scripted.wasm\"\n\
                subscribers = [\"webhook/ci\", \"command/mail\"]\n";
    project.write("taskrun.toml", format!("{policy}{told}").as_bytes());
    let run = project.run(&["run", "told", r#"{"steps":[[{"reply":"kept"}]]}"#, "--wait"]);
    assert_eq!(run.code, 0, "{run:?}");
    let exported = project.run(&["export", "@last", "run.taskrun"]);
    assert_eq!(exported.code, 0, "{exported:?}");
    let all = contents(&project.path().join("run.taskrun"));
    assert!(has(&all, "[webhook.ci]") && has(&all, "[agent.other]"), "the rest stands");
    assert!(!has(&all, "SECRET"), "no address, command line or path of a subscriber is in it");
    let replayed = project.run(&["replay", "run.taskrun", "-o", "json"]);
    let report = replayed.json();
    let counts = ["steps", "same"].map(|key| report[key].as_u64());
    assert_eq!((replayed.code, counts), (0, [Some(1), Some(1)]), "{replayed:?}");
}

#[test]
fn an_export_that_is_not_written_or_read_says_what_to_do_instead() {
    let project = Project::new();
    let run = project.run(&["run", "worker", r#"{"steps":[[{"reply":"kept"}]]}"#, "--wait"]);
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(project.run(&["export", "@last", "run.taskrun"]).code, 0);
    let whole = std::fs::read(project.path().join("run.taskrun")).expect("it is there");
    project.write("cut.taskrun", &whole[..whole.len() / 2]);
    let refusals: [(&[&str], &str, &str); 7] = [
        (&["export", "@last", "nowhere/run"], "nowhere/run cannot", "make its folder"),
        (&["export", "@last", "run.taskrun/run"], "run.taskrun/run cannot", "make its folder"),
        (&["replay", "nowhere"], "no file nowhere", "name one that `taskrun export RUN`"),
        (&["replay", "taskrun.toml"], "no whole export", "export the run again"),
        (&["replay", "cut.taskrun"], "no whole export", "export the run again"),
        (&["replay", "docs"], "no whole export", "export the run again"),
        (&["consents", "--all", "revoke", "1"], "for the list", "`taskrun consents -a`"),
    ];
    for (command, message, hint) in refusals {
        let refused = project.run(command);
        let error = refused.error();
        let says =
            |key: &str, text: &str| error[key].as_str().is_some_and(|told| told.contains(text));
        assert!(says("message", message) && says("hint", hint), "{refused:?}");
        assert!(refused.code == 2 && !refused.stderr.contains(".tmp"), "{refused:?}");
    }
}
