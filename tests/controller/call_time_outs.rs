//! Time-outs of single tools (L-025, M-51).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use taskrun_journal::event::Event;
use taskrun_journal::status::Status;
use taskrun_journal::tool::ToolHints;
use taskrun_policy::{CallTimeouts, InterruptionPolicy, Pattern};

use super::common::{following, named};
use crate::native::{ClosureTool, World, value};

#[tokio::test]
async fn l_025_each_call_has_the_time_of_its_function_and_they_begin_in_the_order_requested() {
    let (mut world, seen) = (World::new(), Arc::new(Mutex::new(Vec::new())));
    let secs = |pattern: &str, secs| (Pattern::parse(pattern), Duration::from_secs(secs));
    // The limit of a tool of the world is an hour, and so is what most say of themselves.
    world.timeouts = CallTimeouts::new([secs("t/f", 7), secs("t*", 5), secs("u/*", 7_200)]);
    for (name, own) in [("t", 3_600), ("tt", 3_600), ("u", 3_600), ("v", 3_600), ("w", 3)] {
        let seen = Arc::clone(&seen);
        let tool = ClosureTool::new("f", ToolHints::default(), move |_, scope| {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.push((name, scope.deadline().as_secs()));
            async { value("1") }
        });
        world.tool(name, InterruptionPolicy::Fail, tool.timeout(Duration::from_secs(own)));
    }
    let names = ["tt/f", "t/f", "v/f", "tt/f", "u/f", "t/f", "w/f"];
    let calls = ["1", "2", "3", "4", "5", "6", "7"].into_iter().zip(names);
    let calls: Vec<_> = calls.map(|(id, name)| (id, name, "{}")).collect();
    world.agent("a", following(vec![calls]));
    let host = world.start().await;
    host.spawn(&named("1", "a")).await;
    assert_eq!(host.end("1").await.status(), Status::Completed);
    // Those with the same time-out are no group: each begins in its place.
    let began = host.journal("1").await.into_iter().filter_map(|recorded| {
        let Event::ToolCallScheduled { name, .. } = recorded.event else { return None };
        Some(name)
    });
    assert_eq!(began.collect::<Vec<_>>(), names);
    let expected = [("tt", 5), ("t", 7), ("v", 3_600), ("tt", 5), ("u", 3_600), ("t", 7), ("w", 3)];
    assert_eq!(*seen.lock().unwrap_or_else(PoisonError::into_inner), expected);
}
