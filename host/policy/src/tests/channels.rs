//! Channels: `[channel.NAME]`, and those of an agent.

use taskrun_journal::channel::{Channel, ChannelAccess};

use super::parse;

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
