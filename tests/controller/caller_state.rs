//! The state that a caller gives to a run, beside the host's own keys (TS-28).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use taskrun::spawn::RuntimeStateKeys;

use crate::native::{ClosurePlanner, SESSION, World, answer, request};

#[tokio::test]
async fn ts_28_a_key_of_the_caller_takes_the_place_of_one_default_and_of_no_other() {
    let mut world = World::new();
    let seen = Arc::new(Mutex::new(BTreeMap::new()));
    let note = Arc::clone(&seen);
    world.agent(
        "a",
        ClosurePlanner::new(move |input, _| {
            note.lock().expect("nobody panics with it").clone_from(&input.run.envelope);
            async { answer("done") }
        }),
    );
    let host = world.start().await;
    let mut asked = request("a", "x");
    asked.runtime_state_keys =
        RuntimeStateKeys { run: Some("product.run".into()), ..RuntimeStateKeys::default() };
    asked.runtime_state = BTreeMap::from([
        ("trace_id".to_owned(), "trace-1".to_owned()),
        // The host's own keys win.
        ("product.run".to_owned(), "forged".to_owned()),
        ("taskrun.run_id".to_owned(), "forged".to_owned()),
    ]);
    let id = host.spawn(&asked).await;
    host.end(&id).await;
    let seen = seen.lock().expect("nobody panics with it").clone();
    let expected = [
        ("product.run", "true"),
        ("taskrun.parent_session_id", SESSION),
        ("taskrun.run_id", id.as_str()),
        ("trace_id", "trace-1"),
    ];
    let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(seen, BTreeMap::from(expected), "and no taskrun.run");
}
