//! Subscribers: webhooks, commands and files.

use std::path::PathBuf;
use std::time::Duration;

use taskrun_journal::dispatch::TaskEvent;

use super::parse;
use crate::{KeySource, SubscriberKind};

const AGENT: &str = "[agent.a]\ncomponent = \"a.wasm\"\n";

/// The words of all that is wrong with a policy.
fn wrong(text: &str) -> Vec<String> {
    let errors = parse(text).err().map_or(Vec::new(), |errors| errors.errors);
    errors.iter().map(|error| format!("{}; {}", error.kind, error.help)).collect()
}

#[test]
fn subscribers_are_read_with_their_defaults() {
    let text = format!(
        "{AGENT}subscribers = [\"webhook/ci\", \"command/note\", \"file/log\", \"transport/*\"]\n\
         [webhook.ci]\nurl = \"https://example.com/x?y=1\"\nsecret_env = \"S\"\n\
         old_secret_file = \"old.key\"\nevents = [\"on_task_completed\"]\n\
         [command.note]\nrun = [\"./note\", \"--to=hooks/tell.sh\"]\ninclude_result = true\n\
         [file.log]\npath = \"log.jsonl\"\n"
    );
    let policy = parse(&text).unwrap_or_else(|errors| panic!("{errors}"));
    let names: Vec<&str> = policy.subscribers.keys().map(String::as_str).collect();
    assert_eq!(names, ["command/note", "file/log", "webhook/ci"]);
    let webhook = &policy.subscribers["webhook/ci"];
    assert_eq!((&*webhook.events, webhook.include_result), (&[TaskEvent::Completed][..], false));
    let expected = SubscriberKind::Webhook {
        url: "https://example.com/x?y=1".to_owned(),
        secret: KeySource::Env("S".to_owned()),
        old_secret: Some(KeySource::File(PathBuf::from("conf/old.key"))),
    };
    assert_eq!(webhook.kind, expected);
    let command = &policy.subscribers["command/note"];
    assert_eq!((&*command.events, command.include_result), (&TaskEvent::ALL[..], true));
    let expected = SubscriberKind::Command {
        program: PathBuf::from("conf/note"),
        args: vec!["--to=hooks/tell.sh".to_owned()],
        named: ["conf/--to=hooks/tell.sh", "conf/hooks/tell.sh"].map(PathBuf::from).into(),
        timeout: Duration::from_secs(10),
    };
    assert_eq!(command.kind, expected);
    assert_eq!(command.files(), [PathBuf::from("conf/note")]);
    assert_eq!(command.arguments()[1..], [PathBuf::from("conf/hooks/tell.sh")]);
    let told = &policy.agents["a"].subscribers;
    assert_eq!(*told, ["webhook/ci", "command/note", "file/log", "transport/*"]);
    assert_eq!(policy.subscribers["file/log"].files(), [PathBuf::from("conf/log.jsonl")]);
}

#[test]
fn what_is_wrong_with_a_subscriber_is_said() {
    let webhook = |body: &str| format!("{AGENT}[webhook.w]\nsecret_env = \"S\"\n{body}\n");
    let agent = |names: &str| format!("{AGENT}subscribers = [{names}]\n[file.log]\npath = \"l\"\n");
    let table = [
        (webhook(""), "`url` is missing"),
        (webhook("url = \"ftp://example.com\""), "neither `https://` nor `http://`"),
        (webhook("url = \"http://example.com/x\""), "readable by others"),
        (webhook("url = \"https://me:hunter2@example.com\""), "names a user"),
        (webhook("url = \"https://*.example.com\""), "one host"),
        (webhook("url = \"https://example.com/#x\""), "no address has"),
        (
            webhook("url = \"https://example.com\"\nsecret_file = \"f\""),
            "is in `secret_file` already",
        ),
        (webhook("url = \"https://example.com\"\nevents = [\"on_task_done\"]"), "on_task_done"),
        (
            format!("{AGENT}[webhook.w]\nurl = \"https://example.com\"\n"),
            "`secret_file` is missing",
        ),
        (format!("{AGENT}[command.c]\n"), "`run` is missing"),
        (format!("{AGENT}[command.c]\nrun = [\"notify\"]\n"), "no folders are searched"),
        (format!("{AGENT}[command.c]\nrun = [\"./n\"]\ntimeout = \"61s\"\n"), "from 1ms to 1m"),
        (format!("{AGENT}[file.f]\n"), "`path` is missing"),
        (agent("\"file/other\""), "unknown subscriber"),
        (agent("\"file/log\", \"file/log\""), "remove it"),
        (agent("\"transport/No\""), "subscriber"),
        (agent("\"transport\""), "subscriber"),
    ];
    for (text, expected) in table {
        let told = wrong(&text);
        assert!(told.iter().any(|line| line.contains(expected)), "{text}: {told:?}");
        assert!(told.iter().all(|line| !line.contains("hunter2")), "{told:?}");
    }
    for local in ["http://127.0.0.1:1/x", "http://localhost/x", "http://[::1]:9/"] {
        assert_eq!(wrong(&webhook(&format!("url = \"{local}\""))), [] as [&str; 0], "{local}");
    }
}
