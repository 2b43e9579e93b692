//! L-025: which time-out a call has.

use std::time::Duration;

use super::super::CallTimeouts;
use super::{parse, with_agent};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn l_025_a_name_beats_a_beginning_and_the_longest_beginning_wins() {
    let patterns = [("*", 1), ("t/*", 2), ("t/re*", 3), ("t/read", 4), ("t/rea*", 5), ("u/*", 6)];
    let all = || patterns.map(|(pattern, timeout)| (pattern.to_owned(), ms(timeout)));
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
    assert_eq!(CallTimeouts::new([("t/*".to_owned(), ms(1))]).of("u/read"), None);
    // A function may be called like a beginning with its star.
    let same = [("t/a*".to_owned(), ms(1)), ("t/ab".to_owned(), ms(2))];
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
