//! Completions that were paid for are not asked for again, wherever the host dies.

use serde_json::{Value, json};
use taskrun_examples::{CHAT, EDITOR, LEDGER};
use taskrun_tests::provider::{Asked, Provider, Reply};
use tokio::runtime::Runtime;

use crate::project::Project;

/// A provider on loopback that counts, and a project whose agents ask it.
struct Bench {
    project: Project,
    runtime: Runtime,
    provider: Provider,
}

fn bench(replies: Vec<Reply>) -> Bench {
    let runtime = Runtime::new().expect("a runtime");
    let provider = runtime.block_on(Provider::start(replies));
    let project = Project::new();
    for (name, bytes) in [("chat", CHAT.bytes), ("editor", EDITOR.bytes), ("ledger", LEDGER.bytes)]
    {
        project.write(&format!("components/{name}.wasm"), bytes);
    }
    let policy = format!(
        r#"[model.default]
provider = "openai-chat"
model = "m-1"
base_url = "{}"

[tool.ledger]
component = "components/ledger.wasm"

[tool.scripted]
component = "components/scripted-tool.wasm"

[agent.editor]
component = "components/editor.wasm"
model = "default"

[agent.talker]
component = "components/chat.wasm"
model = "default"
tools = ["ledger/*", "scripted/lookup"]
allow = ["workspace-read: **", "workspace-write: **"]
limits = {{ call = "60s" }}

[agent.hasty]
component = "components/chat.wasm"
model = "default"
tools = ["scripted/lookup"]
budget = {{ turns = 2, reserve = {{ turns = 1 }} }}
"#,
        provider.base_url()
    );
    project.write("taskrun.toml", policy.as_bytes());
    Bench { project, runtime, provider }
}

impl Bench {
    /// Kills the hosts when so many answers were sent, as far as they go.
    fn kill_after(&self, answers: usize) {
        self.runtime.block_on(self.provider.has_sent(answers));
        assert!(self.project.kill_hosts() > 0, "somebody executed it");
    }

    /// The result of the run when it has ended.
    fn result(&self, id: &str) -> Value {
        let waited = self.project.run(&["wait", id]);
        assert_eq!(waited.code, 0, "{waited:?} {:?}", self.project.events(id));
        self.project.get(id)["result"].clone()
    }

    /// The last words of each question that the provider was asked, in order.
    fn asked(&self) -> Vec<String> {
        let last = |asked: &Asked| {
            let messages = asked.body["messages"].as_array().cloned().unwrap_or_default();
            let last = messages.last().cloned().unwrap_or_default();
            last["content"].as_str().unwrap_or_default().to_owned()
        };
        self.provider.asked().iter().map(last).collect()
    }
}

fn piece(delta: &Value) -> Value {
    json!({ "choices": [{ "index": 0, "delta": delta }] })
}

/// An answer of this text.
fn says(text: &str) -> Reply {
    let stop = json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }] });
    let usage = json!({ "choices": [], "usage":
        { "prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15 } });
    Reply::events(&[piece(&json!({ "content": text })), stop, usage])
}

/// The beginning of an answer, and then nothing.
fn hangs(text: &str) -> Reply {
    Reply::events(&[piece(&json!({ "content": text }))]).hang()
}

/// An answer that wants these tools called.
fn calls(calls: &[(&str, &str, Value)]) -> Reply {
    let calls: Vec<Value> = calls
        .iter()
        .zip(0..)
        .map(|((id, name, args), index): (_, u32)| {
            json!({ "index": index, "id": id, "type": "function",
                "function": { "name": name, "arguments": args.to_string() } })
        })
        .collect();
    let stop = json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "tool_calls" }] });
    Reply::events(&[piece(&json!({ "tool_calls": calls })), stop])
}

/// The number of events of this kind.
fn count(events: &[Value], kind: &str) -> usize {
    events.iter().filter(|event| event["kind"] == kind).count()
}

#[test]
fn killed_in_a_stream_and_while_a_person_is_asked_only_the_answer_that_broke_off_is_asked_for_again()
 {
    let bench =
        bench(vec![says("A draft."), hangs("Too"), says("Too short."), says("A longer draft.")]);
    let id = bench.project.run(&["run", "editor", "Write.", "-d"]).id();
    bench.kill_after(2);
    let blocked = bench.project.run(&["wait", &id]);
    assert_eq!(blocked.code, 8, "{blocked:?}");
    let critique = "What is the weakest point of this text?\n\nA draft.";
    assert_eq!(bench.asked(), ["Write.", critique, critique]);

    // Nobody has to stay for a run that waits; whoever stayed dies.
    bench.project.kill_hosts();
    let answered = bench.project.run(&["answer", &id, "Say more."]);
    assert_eq!(answered.code, 0, "{answered:?}");
    assert_eq!(bench.result(&id), "A longer draft.");
    assert_eq!(bench.asked().len(), 4, "{:?}", bench.asked());
    let run = bench.project.get(&id);
    // The answer that broke off said nothing of its tokens.
    assert_eq!(run["progress"]["completion_tokens"], 15, "{run}");
}

#[test]
fn killed_in_a_batch_of_calls_the_model_is_not_asked_for_them_again() {
    let slow = json!({ "sleep_ms": 8_000, "result": "found" });
    let bench = bench(vec![
        calls(&[
            ("c1", "scripted__lookup", slow),
            ("c2", "ledger__note", json!({ "text": "once" })),
        ]),
        says("Noted."),
    ]);
    let id = bench.project.run(&["run", "talker", "Note it.", "-d"]).id();
    bench.project.sees(&id, "tool_result");
    assert!(bench.project.kill_hosts() > 0, "somebody executed it");
    assert_eq!(bench.result(&id), "Noted.");
    assert_eq!(bench.asked().len(), 2, "{:?}", bench.asked());
    let ledger = std::fs::read_to_string(bench.project.path().join("ledger.txt"));
    assert_eq!(ledger.expect("it was noted").lines().count(), 1);
    let events = bench.project.events(&id);
    assert_eq!((count(&events, "tool_call_repeated"), count(&events, "tool_result")), (1, 2));
}

#[test]
fn killed_in_the_last_turn_what_was_said_before_is_not_asked_for_again() {
    let quick = json!({ "result": "found" });
    let bench = bench(vec![
        calls(&[("c1", "scripted__lookup", quick)]),
        hangs("As far"),
        says("As far as I know."),
    ]);
    let id = bench.project.run(&["run", "hasty", "Look it up.", "-d"]).id();
    bench.kill_after(2);
    let ended = bench.project.run(&["wait", &id]);
    assert_eq!(ended.code, 9, "{ended:?}");
    let run = bench.project.get(&id);
    assert_eq!(
        (&run["result"], &run["stop_reason"]),
        (&json!("As far as I know."), &json!("max_turns"))
    );
    let asked = bench.asked();
    assert_eq!(asked.len(), 3, "{asked:?}");
    assert_eq!(asked[1], asked[2]);
}

#[test]
fn what_a_dead_host_left_goes_on_where_no_agent_of_the_policy_can_be_used_any_more() {
    let bench = bench(vec![hangs("Some"), says("Some words.")]);
    let id = bench.project.run(&["run", "talker", "Write.", "-d"]).id();
    bench.runtime.block_on(bench.provider.has_sent(1));
    assert_ne!(bench.project.kill_hosts_and_wait(), 0, "somebody executed it");
    for name in ["chat", "editor", "ledger", "scripted-tool"] {
        bench.project.write(&format!("components/{name}.wasm"), b"no component");
    }
    // It was under way, so that nothing waits to be taken.
    let host = bench.project.run(&["host", "--idle-exit", "1s"]);
    assert_eq!(host.code, 0, "{host:?}");
    assert_eq!(bench.project.get(&id)["result"], "Some words.");
}
