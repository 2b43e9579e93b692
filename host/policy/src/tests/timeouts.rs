//! L-025, L-032: time-outs of calls, and the tools that lists leave.

use std::time::Duration;

use super::super::{CallTimeouts, Pattern};
use super::{agent, parse, with_agent};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn l_025_a_name_beats_a_beginning_and_the_longest_beginning_wins() {
    let patterns = [("*", 1), ("t/*", 2), ("t/re*", 3), ("t/read", 4), ("t/rea*", 5), ("u/*", 6)];
    let all = || patterns.map(|(pattern, timeout)| (Pattern::parse(pattern), ms(timeout)));
    let mut backwards = all();
    backwards.reverse();
    for timeouts in [CallTimeouts::new(all()), CallTimeouts::new(backwards)] {
        for (name, expected) in [
            ("t/read", 4),
            ("t/reads", 5),
            ("t/red", 3),
            ("t/list", 2),
            ("u/read", 6),
            ("tt/read", 1),
        ] {
            assert_eq!(timeouts.of(name), Some(ms(expected)), "{name}");
        }
    }
    assert_eq!(CallTimeouts::new([(Pattern::parse("t/*"), ms(1))]).of("u/read"), None);
    // A function may be called like a beginning with its star.
    let same = [(Pattern::parse("t/a*"), ms(1)), (Pattern::parse("t/ab"), ms(2))];
    assert_eq!(CallTimeouts::new(same).of("t/ab"), Some(ms(2)));
}

#[test]
fn l_025_no_time_out_is_longer_than_the_tools_own_limit() {
    let text = with_agent(
        "tools = [\"workspace/*\"]\nlimits = { call = \"1s\" }\n\
         timeouts = { \"workspace/read\" = \"1m\", \"workspace/*\" = \"2s\" }",
    );
    let limited = text.replace("\"w.wasm\"\n", "\"w.wasm\"\nlimits = { call = \"30s\" }\n");
    for (text, read) in [(text.as_str(), ms(60_000)), (limited.as_str(), ms(30_000))] {
        let policy = parse(text).unwrap_or_else(|errors| panic!("{errors}"));
        let timeouts = policy.agents["a"].call_timeouts(&policy.tools["workspace"]);
        assert_eq!(timeouts.of("workspace/read"), Some(read));
        // It takes the place of what the agent says of all its calls.
        assert_eq!(timeouts.of("workspace/list"), Some(ms(2_000)));
    }
}

#[test]
fn l_032_lists_of_tools_are_read_and_without_their_table_nothing_is_decided() {
    assert_eq!(agent("").engine, None);
    let plain = agent("policy = {}").engine.unwrap().lists;
    assert_eq!(plain.name, "policy (conf/taskrun.toml:9:10)");
    assert!(plain.hints && plain.allow.is_none() && plain.allow_tags.is_none());
    let all = agent(
        "tools = [\"workspace/*\"]\npolicy = { allow = [], allow_tags = [\"a\"], \
         block = [\"workspace/write\"], block_tags = [\"b\"], hints = false }",
    );
    let lists = all.engine.unwrap().lists;
    assert_eq!(lists.allow, Some(Vec::new()), "an empty list allows nothing");
    assert_eq!(lists.allow_tags, Some(vec!["a".to_owned()]));
    assert_eq!(lists.block[0].to_string(), "workspace/write");
    assert_eq!((lists.block_tags, lists.hints), (vec!["b".to_owned()], false));
}
