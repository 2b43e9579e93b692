//! Channels: `[channel.NAME]`, and those of an agent.

use std::time::Duration;

use taskrun_journal::channel::{Channel, ChannelAccess};

use super::parse;
use crate::DelegationSettings;

const AGENT: &str = "[agent.a]\ncomponent = \"a.wasm\"\n";

#[test]
fn channels_are_read_with_their_defaults() {
    let text = format!(
        "{AGENT}channels = [\"mail\", \"desk\"]\n\
         [channel.mail]\nto = \"transport/mail\"\n\
         [channel.desk]\nto = \"terminal\"\naccess = \"read-only\"\nmuted = true\nhidden = true\n\
         [channel.log]\nto = \"file/log\"\naccess = \"write-only\"\n\
         [file.log]\npath = \"log.jsonl\"\n"
    );
    let policy = parse(&text).unwrap_or_else(|errors| panic!("{errors}"));
    let channel = |name: &str, to: &str, access, (muted, hidden)| {
        let (name, to) = (name.to_owned(), to.to_owned());
        Channel { name, to, access, muted, hidden }
    };
    let all: Vec<Channel> = policy.channels.values().cloned().collect();
    let expected = [
        channel("desk", "terminal", ChannelAccess::ReadOnly, (true, true)),
        channel("log", "file/log", ChannelAccess::WriteOnly, (false, false)),
        channel("mail", "transport/mail", ChannelAccess::ReadWrite, (false, false)),
    ];
    assert_eq!(all, expected);
    assert_eq!(policy.agents["a"].channels, ["mail", "desk"]);
}

#[test]
fn the_settings_of_delegated_tasks_are_read_and_bounded() {
    let channels = "[channel.c]\nto = \"transport/mail\"\n";
    let with = |delegation: &str| format!("{AGENT}delegation = {{ {delegation} }}\n{channels}");
    let all = "share_channels = [\"c\"], reuse_within = \"5m\", serial = true";
    let policy = parse(&with(all)).unwrap_or_else(|errors| panic!("{errors}"));
    let expected = DelegationSettings {
        share_channels: vec!["c".to_owned()],
        reuse_within: Some(Duration::from_secs(300)),
        serial: true,
    };
    assert_eq!(policy.agents["a"].delegation, expected);
    let policy = parse(&with("")).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(policy.agents["a"].delegation, DelegationSettings::default());
    for (wrong, expected) in [
        ("share_channels = [\"d\"]", "unknown channel"),
        ("reuse_within = \"25h\"", "1s to 1d"),
        ("reuse_within = \"0s\"", "1s"),
        ("cache = true", "cache"),
    ] {
        let errors = parse(&with(wrong)).expect_err(wrong).errors;
        let told = format!("{}; {}", errors[0].kind, errors[0].help);
        assert!(told.contains(expected), "{wrong}: {told}");
    }
}

#[test]
fn what_is_wrong_with_a_channel_is_said() {
    let channel = |body: &str| format!("{AGENT}[channel.c]\n{body}\n");
    let mail = "[channel.c]\nto = \"transport/mail\"\n";
    let agent = |names: &str| format!("{AGENT}channels = [{names}]\n{mail}");
    let table = [
        (channel(""), "`to` is missing"),
        (channel("to = \"file/other\""), "unknown subscriber"),
        (channel("to = \"transport/mail\"\naccess = \"all\""), "unknown `access` value"),
        (channel("to = \"transport/mail\"\nmuted = 1"), "muted"),
        (channel("to = \"transport/mail\"\nkind = \"mail\""), "kind"),
        (agent("\"d\""), "unknown channel"),
        (agent("\"c\", \"c\""), "remove it"),
    ];
    for (text, expected) in table {
        let errors = parse(&text).err().map_or(Vec::new(), |errors| errors.errors);
        let told: Vec<String> =
            errors.iter().map(|error| format!("{}; {}", error.kind, error.help)).collect();
        assert!(told.iter().any(|line| line.contains(expected)), "{text}: {told:?}");
    }
}
