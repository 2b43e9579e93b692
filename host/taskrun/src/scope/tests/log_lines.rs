//! Lines that are longer than the log has them.

use taskrun_journal::message::LogLevel;
use taskrun_journal::stop::StopCause;

use super::super::*;
use super::fixtures::Host;
use super::scope;

fn logged(message: &str) -> Event {
    let source = "guest".to_owned();
    let message = message.to_owned();
    Event::Log { level: LogLevel::Info, source, message, fields: Labels::new() }
}

#[test]
fn a_long_line_ends_with_the_number_of_bytes_that_are_left_out() {
    for (text, left_out) in [
        ("x".repeat(9_000), 0),
        ("x".repeat(LOG_LINE_BYTES_MAX + 1), 0),
        ("x".repeat(LOG_LINE_BYTES_MAX), 808),
        ("ä€".repeat(1_000_000), 0),
    ] {
        let line = log_line(text.as_bytes(), left_out);
        assert!((LOG_LINE_BYTES_MAX - 7..=LOG_LINE_BYTES_MAX).contains(&line.len()), "{line}");
        let marked = line.strip_suffix(" bytes more)").and_then(|line| line.rsplit_once("… ("));
        let (kept, more) = marked.expect("it is marked");
        assert!(text.starts_with(kept));
        let more: u64 = more.parse().expect("a number");
        assert_eq!(kept.len() as u64 + more, text.len() as u64 + left_out);
    }
    let whole = "x".repeat(LOG_LINE_BYTES_MAX);
    assert_eq!(log_line(whole.as_bytes(), 0), whole);
}

#[test]
fn bytes_that_are_no_text_count_as_the_guest_wrote_them() {
    let replaced = |characters: usize, rest: &str| "\u{fffd}".repeat(characters) + rest;
    for (line, left_out, expected) in [
        (vec![0xff; 2_730], 0, replaced(2_730, "")),
        (vec![0xff; 3_000], 0, replaced(2_723, "… (277 bytes more)")),
        (vec![0xff; 3_000], 1_000, replaced(2_723, "… (1277 bytes more)")),
        // Three bytes of a character that lacks its fourth have one in their place.
        (b"\xf0\x9f\x98".repeat(3_000), 0, replaced(2_723, "… (831 bytes more)")),
        (b"ab\xff".repeat(2_000), 0, "ab\u{fffd}".repeat(1_634) + "a… (1097 bytes more)"),
    ] {
        assert_eq!(log_line(&line, left_out), expected, "{} bytes", line.len());
    }
}

#[test]
fn a_line_of_9000_bytes_is_marked_in_the_log() {
    let scope = scope(10, 1 << 20);
    scope.log(LogLevel::Info, "guest", &"x".repeat(9_000), Labels::new());
    let expected = format!("{}… (829 bytes more)", "x".repeat(8_171));
    assert_eq!(scope.finish().events, [logged(&expected)]);
}

#[tokio::test]
async fn a_long_line_that_an_earlier_program_recorded_without_a_mark_is_no_other_step() {
    let before = [logged(&"x".repeat(LOG_LINE_BYTES_MAX)), logged("done")];
    for (text, is_same) in [("x".repeat(9_000), true), ("y".repeat(9_000), false)] {
        let again = Host::new(&before, 1, 0);
        again.scope.log(LogLevel::Info, "guest", &text, Labels::new());
        let is_diverged = again.scope.stop().cause() == Some(StopCause::Diverged);
        assert_eq!(is_diverged, !is_same, "{}", &text[..1]);
    }
    // And only where it is the line that was long.
    for recorded in ["x".repeat(20), "done".to_owned()] {
        let again = Host::new(&[logged(&recorded)], 1, 0);
        again.scope.log(LogLevel::Info, "guest", &"x".repeat(9_000), Labels::new());
        assert_eq!(again.scope.stop().cause(), Some(StopCause::Diverged), "{recorded}");
    }
}
