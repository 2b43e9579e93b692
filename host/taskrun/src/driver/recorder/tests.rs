//! Writes of a driver while others write too.

use super::*;
use crate::fixtures::{answered, asked, cancel_requested, run, started};

#[test]
fn what_others_made_void_in_the_meantime_is_not_written() {
    let asking = || vec![started(), asked("q")];
    let with = |more: Event| run(asking().into_iter().chain([more]));
    let begins = || Event::ToolCallRepeated { tool_call_id: "c".to_owned(), attempt: 2 };
    let table = [
        (run(asking()), answered("q"), true),
        (with(answered("q")), answered("q"), false),
        (with(cancel_requested()), answered("q"), false),
        (run(asking()), answered("another"), false),
        (run(asking()), begins(), true),
        (with(cancel_requested()), begins(), false),
        (with(cancel_requested()), asked("r"), false),
        (with(cancel_requested()), Event::AssistantChunk { text: "x".to_owned() }, true),
    ];
    for (run, event, expected) in table {
        assert_eq!(may_be_written(&run, &event), expected, "{event:?} to {}", run.status());
        if expected {
            let (seq, at) = (run.state.head + 1, taskrun_journal::time::Timestamp(1));
            let recorded = EventRecord { seq, id: 1, at, event };
            taskrun_journal::machine::apply(run.state, &recorded).expect("what is written fits");
        }
    }
}
