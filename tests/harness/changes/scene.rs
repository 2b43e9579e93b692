//! A policy, its files, the servers of its models, and the tasks that bring runs into their states.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};
use taskrun_examples::{CAUTIOUS, CHAT, SCRIPTED, SCRIPTED_TOOL, THINKER, WORKSPACE};

use crate::provider::{Provider, Reply};

/// The part that all agents that the table is about have in common.
const COMMON: &str = r#"tools = ["workspace/read", "scripted/*", "agent/child"]
ask = ["tool: scripted/change"]
allow = ["workspace-read: docs/**", "prompts: brief"]
deny = ["workspace-write: **"]
limits = { call = "60s", turn_calls = 3 }
policy = { component = "components/cautious.wasm", timeout = "10s" }
retry = { pause = "8s" }
"#;
/// The length of the call that is cut off, in milliseconds: in real time longer than it takes until the
/// host is killed.
pub const CALL_MS: u64 = 6_000;
/// The files of the models' keys; what is in each is its path.
pub const KEY: &str = "keys/one";
/// The one of another key.
pub const OTHER_KEY: &str = "keys/other";

/// The servers of the models that two of the runs ask.
pub struct Scene {
    /// Of the run that pauses before a retry: it is asked once before the change, and twice after it.
    pub first: Provider,
    /// Of the run in the middle of a step: it is asked four times before the change, and three times after
    /// it, the first of which is for the answer that was cut off.
    pub second: Provider,
}

/// A task that brings a run into one of the states.
pub struct Task {
    /// Its agent.
    pub agent: &'static str,
    /// The task.
    pub task: String,
    /// True for those that wait for each other in their session.
    pub is_serial: bool,
}

/// The tasks of runs that come into [`super::STATES`], in their order.
#[must_use]
pub fn tasks() -> [Task; 7] {
    let of = |agent, task| Task { agent, task, is_serial: false };
    let serial = |task| Task { is_serial: true, ..of("subject", task) };
    let consent = json!([call("c", "scripted/change", &json!({ "result": "changed" }))]);
    let task = json!({ "steps": [question(), [{ "reply": "played" }]] }).to_string();
    let child = json!([call("c", "agent/child", &json!({ "task": task }))]);
    let slow =
        json!([call("c", "scripted/lookup", &json!({ "sleep_ms": CALL_MS, "result": "slept" }))]);
    [
        serial(script(&[question()])),
        serial(script(&[])),
        of("subject", script(&[consent])),
        of("subject", script(&[child])),
        of("retries", "Try.".to_owned()),
        of("plans", "Plan.".to_owned()),
        of("subject", script(&[slow])),
    ]
}

/// A task that is answered at once.
#[must_use]
pub fn reply() -> Task {
    let task = json!({ "steps": [[{ "reply": "thanks" }]] }).to_string();
    Task { agent: "subject", task, is_serial: false }
}

/// The calls that each run makes once it goes on: by id, function and arguments.
pub(super) fn calls() -> [(&'static str, &'static str, Value); 4] {
    [
        ("t1", "workspace/read", json!({ "path": "docs/a.txt" })),
        ("t2", "workspace/read", json!({ "path": "other/b.txt" })),
        ("t3", "scripted/lookup", json!({ "result": "found" })),
        ("t4", "scripted/lookup", json!({ "result": "found" })),
    ]
}

fn call(id: &str, name: &str, args: &Value) -> Value {
    json!({ "call": { "id": id, "name": name, "args": args } })
}

/// A task of a scripted agent: these steps, then the calls, then its answer.
fn script(first: &[Value]) -> String {
    let mut steps = first.to_vec();
    steps.push(calls().iter().map(|(id, name, args)| call(id, name, args)).collect());
    steps.push(json!([{ "reply": "thanks" }]));
    // Where no tool is left at all, the second turn of refusals is the last but one.
    json!({ "steps": steps, "finalize": [{ "reply": "thanks" }] }).to_string()
}

fn question() -> Value {
    let clarification = json!({ "clarification": { "id": "which", "question": "Which quarter?" } });
    json!([{ "plan": { "await": [clarification] } }])
}

fn piece(delta: &Value) -> Value {
    json!({ "choices": [{ "index": 0, "delta": delta }] })
}

fn stop(reason: &str) -> Value {
    json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }] })
}

fn says(text: &str) -> Reply {
    Reply::events(&[piece(&json!({ "content": text })), stop("stop")])
}

fn wants(calls: &[(&str, &str, Value)]) -> Reply {
    let calls = calls.iter().zip(0..).map(|((id, name, args), index): (_, u32)| {
        let function = json!({ "name": name.replace('/', "__"), "arguments": args.to_string() });
        json!({ "index": index, "id": id, "type": "function", "function": function })
    });
    let calls: Vec<Value> = calls.collect();
    Reply::events(&[piece(&json!({ "tool_calls": calls })), stop("tool_calls")])
}

fn hangs() -> Reply {
    Reply::events(&[piece(&json!({ "content": "Now" }))]).hang()
}

impl Scene {
    /// Starts the servers and writes the policy, with all files that it names, into a folder.
    pub async fn set(folder: &Path) -> Self {
        let busy = Reply::new(503, "busy");
        let found = [("f", "scripted/lookup", json!({ "result": "found" }))];
        let first = [busy, wants(&calls()), says("thanks")];
        // It thinks before it decides, and the second time its host dies between the two.
        let second = [
            says("First look."),
            wants(&found),
            says("Then read."),
            hangs(),
            wants(&calls()),
            says("That is all."),
            says("thanks"),
        ];
        let scene =
            Self { first: Provider::start(first).await, second: Provider::start(second).await };
        for (name, bytes) in [
            ("workspace", WORKSPACE.bytes),
            ("scripted-tool", SCRIPTED_TOOL.bytes),
            ("scripted", SCRIPTED.bytes),
            ("chat", CHAT.bytes),
            ("thinker", THINKER.bytes),
            ("cautious", CAUTIOUS.bytes),
            ("child", SCRIPTED.bytes),
        ] {
            write(folder, &format!("components/{name}.wasm"), bytes);
        }
        write(folder, "docs/a.txt", b"one");
        write(folder, "other/b.txt", b"two");
        write(folder, "prompts/brief.md", b"Be brief.");
        for key in [KEY, OTHER_KEY] {
            write(folder, key, key.as_bytes());
            let own = std::fs::Permissions::from_mode(0o600);
            std::fs::set_permissions(folder.join(key), own).expect("its mode");
        }
        write(folder, "taskrun.toml", scene.policy().as_bytes());
        scene
    }

    fn policy(&self) -> String {
        let model = |name: &str, provider: &Provider| {
            let url = provider.base_url();
            format!(
                "[model.{name}]\nprovider = \"openai-chat\"\nmodel = \"m-1\"\nbase_url = \"{url}\"\n\
                 key_file = \"{KEY}\"\nretry = {{ attempts = 1 }}\n\n"
            )
        };
        let models = model("first", &self.first) + &model("second", &self.second);
        format!(
            "{models}[prompt.brief]\nfile = \"prompts/brief.md\"\n\n\
             [tool.workspace]\ncomponent = \"components/workspace.wasm\"\n\n\
             [tool.scripted]\ncomponent = \"components/scripted-tool.wasm\"\n\n\
             [agent.subject]\ncomponent = \"components/scripted.wasm\"\n{COMMON}\n\
             [agent.retries]\ncomponent = \"components/chat.wasm\"\nmodel = \"first\"\n{COMMON}\n\
             [agent.plans]\ncomponent = \"components/thinker.wasm\"\nmodel = \"second\"\n{COMMON}\n\
             [agent.child]\ncomponent = \"components/child.wasm\"\nlimits = {{ tool_calls = 7 }}\n"
        )
    }

    /// Holds the models to what they have to have been asked before the change, when the run that asks the
    /// second one has this journal.
    ///
    /// # Panics
    /// If that is not so.
    pub fn is_cut_off(&self, events: &[Value]) {
        assert_eq!(self.first.asked().len(), 1, "it pauses");
        // What the model thought in the step that is cut off is paid for, and on record.
        let answers = events.iter().filter(|event| event["kind"] == "host_answered").count();
        assert_eq!((answers, self.second.asked().len()), (3, 4), "it decides");
    }

    /// Holds the models to what they have to have been asked when all runs have ended: the answer that
    /// broke off was asked for again, and no other, not the one before it in the step; with the prompt of
    /// then, and this key of now.
    ///
    /// # Panics
    /// If that is not so.
    pub fn is_paid_once(&self, key: &str) {
        let (first, second) = (self.first.asked(), self.second.asked());
        assert_eq!((first.len(), second.len()), (3, 7));
        let briefs = second.iter().map(|asked| asked.body["messages"][0]["content"].as_str());
        assert_eq!(
            briefs.collect::<Vec<_>>(),
            [Some("Be brief."); 7],
            "the prompt is that of then"
        );
        let after = first[1..].iter().chain(&second[4..]);
        let keys: Vec<_> = after.map(|asked| asked.headers["authorization"].as_str()).collect();
        let key = format!("Bearer {key}");
        assert_eq!(keys, [key.as_str(); 5], "the keys are those of now");
    }
}

/// Writes a file, and the folders above it.
///
/// # Panics
/// If that fails.
pub(super) fn write(folder: &Path, path: &str, contents: &[u8]) {
    let file = folder.join(path);
    std::fs::create_dir_all(file.parent().expect("beneath the folder")).expect("a folder");
    std::fs::write(file, contents).expect("written");
}

/// Changes what the policy says, everywhere.
///
/// # Panics
/// If it does not say that.
pub fn edit(folder: &Path, from: &str, to: &str) {
    let path = folder.join("taskrun.toml");
    let policy = std::fs::read_to_string(&path).expect("there is one");
    assert!(policy.contains(from), "{policy}");
    std::fs::write(path, policy.replace(from, to)).expect("written");
}
