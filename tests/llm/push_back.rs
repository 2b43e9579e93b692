//! A provider that wants a pause of more than a minute, a host that is killed in it, and another one
//! that comes back when it is over. It takes that long.

use std::time::Duration;

use serde_json::{Value, json};
use taskrun::clock::SystemClock;
use taskrun_journal::time::Clock;
use taskrun_tests::provider::{Provider, Reply};
use tokio::runtime::Runtime;

use crate::project::Project;

/// The pause that the provider asks for.
const PAUSE: Duration = Duration::from_secs(65);

/// The run goes on by itself, not before its time, and asks only what was refused.
pub(crate) fn test() {
    let runtime = Runtime::new().expect("a runtime");
    let refusal = Reply::new(429, "{}").header("retry-after", &PAUSE.as_secs().to_string());
    let piece = json!({ "choices": [{ "index": 0, "delta": { "content": "Well met." } }] });
    let stop = json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }] });
    let replies = [refusal, Reply::events(&[piece, stop])];
    let provider = runtime.block_on(Provider::start(replies));
    let project = Project::new(&format!(
        r#"[model.default]
provider = "openai-chat"
model = "m-1"
base_url = "{}"

[agent.talker]
component = "chat.wasm"
model = "default"
"#,
        provider.base_url()
    ));
    let clock = SystemClock::new();
    let started = project.run(&["run", "talker", "Hello.", "-d"]);
    let id = String::from_utf8_lossy(&started.stdout).trim().to_owned();
    runtime.block_on(provider.has_sent(1));
    let refused = clock.monotonic();
    let blocked = project.run(&["wait", &id, "--for", "blocked"]);
    project.kill_hosts();
    let waited = project.run(&["wait", &id]);
    let took = clock.monotonic().saturating_sub(refused);
    assert!(waited.status.success(), "{waited:?} {blocked:?}");
    assert!(took >= PAUSE, "it came back after {took:?}");
    assert_eq!(provider.asked().len(), 2);
    let run: Value = project.json(&["get", &id]);
    assert_eq!((&run["result"], &run["status"]), (&json!("Well met."), &json!("completed")));
    println!("pushed back for {PAUSE:?}, killed, and went on after {took:?}");
}
