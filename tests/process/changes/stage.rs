//! Seven runs of one policy, each in a state of its own, when their host is killed and something
//! changes.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};
use taskrun_examples::{CAUTIOUS, CHAT, SCRIPTED, THINKER};
use taskrun_tests::provider::{Provider, Reply};
use tokio::runtime::Runtime;

use crate::project::Project;

/// The part that all agents that the test looks at have in common.
const COMMON: &str = r#"tools = ["workspace/read", "scripted/*", "agent/child"]
ask = ["tool: scripted/change"]
allow = ["workspace-read: docs/**", "prompts: brief"]
deny = ["workspace-write: **"]
limits = { call = "60s", turn_calls = 3 }
policy = { component = "components/cautious.wasm", timeout = "10s" }
retry = { pause = "8s" }
"#;
/// Longer than it takes until the host is killed.
const CALL_MS: u64 = 6_000;
/// The states in which the change finds the runs, the last two under way.
pub(super) const STATES: [&str; 7] = [
    "waits for an answer",
    "is queued",
    "waits for consent",
    "waits for a child",
    "pauses before a retry",
    "is in the middle of a step",
    "is in the middle of a call",
];

/// The ends of the calls where nothing is taken away: a file is read, another one is denied, a call is
/// answered, and one is over the bound of the turn. The one that waited for consent is the last: it
/// begins.
pub(super) const UNCHANGED: [&str; 5] = ["one", "denied", "found", "cap", "changed"];

/// The end of a call that a policy engine took away: it is refused, or, where a model decides on it that
/// is not offered the function any more, one of a function that it does not have.
pub(super) const TAKEN: &str = "taken";

/// The fate of a run that is asked for after the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Later {
    /// It is accepted with the pin of those before.
    PinnedAlike,
    /// It is accepted with another one.
    PinnedOtherwise,
    /// It is refused, as its agent does not load.
    Refused,
}

/// The project with its runs.
pub(super) struct Stage {
    pub(super) project: Project,
    runtime: Runtime,
    /// Servers of the models that the last runs but one ask.
    providers: [Provider; 2],
    /// A run for each of [`STATES`], in their order, and its pin.
    pub(super) runs: Vec<(String, Value)>,
    child: String,
}

/// The calls that each run makes once it goes on: by id, function and arguments.
fn calls() -> [(&'static str, &'static str, Value); 4] {
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

fn policy(providers: &[Provider; 2]) -> String {
    let model = |name: &str, provider: &Provider| {
        let url = provider.base_url();
        format!(
            "[model.{name}]\nprovider = \"openai-chat\"\nmodel = \"m-1\"\nbase_url = \"{url}\"\n\
             key_file = \"keys/one\"\nretry = {{ attempts = 1 }}\n\n"
        )
    };
    let models = model("first", &providers[0]) + &model("second", &providers[1]);
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

impl Stage {
    /// Brings each run into its state and kills their host.
    pub(super) fn new() -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let busy = Reply::new(503, "busy");
        let found = [("f", "scripted/lookup", json!({ "result": "found" }))];
        let providers = runtime.block_on(async {
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
            [Provider::start(first).await, Provider::start(second).await]
        });
        let project = Project::new();
        for (name, bytes) in [
            ("chat", CHAT.bytes),
            ("thinker", THINKER.bytes),
            ("cautious", CAUTIOUS.bytes),
            ("child", SCRIPTED.bytes),
        ] {
            project.write(&format!("components/{name}.wasm"), bytes);
        }
        project.write("docs/a.txt", b"one");
        project.write("other/b.txt", b"two");
        project.write("prompts/brief.md", b"Be brief.");
        for key in ["one", "other"] {
            project.write(&format!("keys/{key}"), format!("key-{key}").as_bytes());
            let file = project.path().join(format!("keys/{key}"));
            let own = std::fs::Permissions::from_mode(0o600);
            std::fs::set_permissions(file, own).expect("its mode");
        }
        project.write("taskrun.toml", policy(&providers).as_bytes());
        let mut stage =
            Self { project, runtime, providers, runs: Vec::new(), child: String::new() };
        stage.begin();
        stage
    }

    fn begin(&mut self) {
        let serial = ["--serial", "--session", "s"];
        let task = script(&[question()]);
        let answer = self.spawn("subject", &task, &serial);
        self.project.reach(&answer, "blocked");
        let queued = self.spawn("subject", &script(&[]), &serial);
        let consent = json!([call("c", "scripted/change", &json!({ "result": "changed" }))]);
        let consent = self.spawn("subject", &script(&[consent]), &[]);
        let task = json!({ "steps": [question(), [{ "reply": "played" }]] }).to_string();
        let child = json!([call("c", "agent/child", &json!({ "task": task }))]);
        let parent = self.spawn("subject", &script(&[child]), &[]);
        self.project.reach(&consent, "blocked");
        self.project.reach(&parent, "blocked");
        let linked = self.event(&parent, "child_run_linked").expect("it has a child");
        self.child = linked["run_id"].as_str().unwrap_or_else(|| panic!("{linked}")).to_owned();
        self.project.reach(&self.child, "blocked");
        let plans = self.spawn("plans", "Plan.", &[]);
        self.runtime.block_on(self.providers[1].has_sent(4));
        let retries = self.spawn("retries", "Try.", &[]);
        let slow = json!([call("c", "scripted/lookup", &json!({ "sleep_ms": CALL_MS }))]);
        let calls = self.spawn("subject", &script(&[slow]), &[]);
        let is_there = |id: &str, kind: &str| self.event(id, kind).is_some();
        self.project.until("a step fails", || is_there(&retries, "step_failed"));
        self.project.until("a call begins", || is_there(&calls, "tool_call_scheduled"));
        assert_ne!(self.project.kill_hosts_and_wait(), 0, "a host executes them");
        assert!(!is_there(&calls, "tool_result"), "the host died in the middle of the call");
        assert_eq!(self.providers[0].asked().len(), 1, "and in the pause");
        // What the model thought in the step that is cut off is paid for, and on record.
        let answers = self.project.events(&plans);
        let answers = answers.iter().filter(|event| event["kind"] == "host_answered").count();
        assert_eq!((answers, self.providers[1].asked().len()), (3, 4), "it decides");
        let runs = [answer, queued, consent, parent, retries, plans, calls];
        self.runs = runs.iter().map(|id| (id.clone(), self.pin(id))).collect();
        for (id, state) in [(1, "queued"), (3, "blocked")] {
            assert_eq!(self.project.get(&runs[id])["status"], state);
        }
    }

    /// The first event of a kind in the journal of a run.
    fn event(&self, id: &str, kind: &str) -> Option<Value> {
        self.project.events(id).into_iter().find(|event| event["kind"] == kind)
    }

    /// The pin with which a run was accepted.
    fn pin(&self, id: &str) -> Value {
        self.project.events(id)[0]["spec"]["pin"].clone()
    }

    fn spawn(&self, agent: &str, task: &str, more: &[&str]) -> String {
        let label = ["--label", "approved=yes"];
        let args = [&["run", agent, task, "-d"], &label[..], more].concat();
        self.project.run(&args).id()
    }

    /// Changes what the policy says, everywhere.
    pub(super) fn edit(&self, from: &str, to: &str) {
        let path = self.project.path().join("taskrun.toml");
        let policy = std::fs::read_to_string(&path).expect("there is one");
        assert!(policy.contains(from), "{policy}");
        std::fs::write(path, policy.replace(from, to)).expect("written");
    }

    /// Gives what is waited for, and waits until every run has ended.
    fn finish(&self) {
        let (answer, consent) = (&self.runs[0].0, &self.runs[2].0);
        let answers: [&[&str]; 3] = [
            &["answer", answer, "the third one"],
            &["answer", consent, "--accept"],
            &["answer", &self.child, "the third one"],
        ];
        for words in answers {
            if self.event(words[1], "answered").is_none() {
                let answered = self.project.run(words);
                assert_eq!(answered.code, 0, "{answered:?}");
            }
        }
        for ((id, _), state) in self.runs.iter().zip(STATES) {
            let waited = self.project.run(&["wait", id, "--timeout", "60s"]);
            // Two turns of refusals where no tool is left are the last, and its answer is a part.
            let is_part = state == "waits for consent" && waited.stderr.contains("failure_cap");
            let code = if is_part { 9 } else { 0 };
            assert_eq!(waited.code, code, "{state}: {waited:?} {:#?}", self.project.events(id));
        }
    }

    /// Brings every run to its end and holds each to how it has to go on: it is what it was, asks
    /// nothing twice, and its calls come to this, the one that waited for consent last.
    pub(super) fn check(&self, came_to: [&str; 5]) {
        self.finish();
        for ((id, pin), state) in self.runs.iter().zip(STATES) {
            let run = self.project.get(id);
            let found = (&run["status"], &run["result"], self.pin(id));
            let wanted = (&json!("completed"), &json!("thanks"), pin.clone());
            assert_eq!(found, wanted, "{state}: {run}");
            let events = self.project.events(id);
            let count = |kind: &str| events.iter().filter(|event| event["kind"] == kind).count();
            assert_eq!(count("replay_diverged"), 0, "{state}: {events:#?}");
            let is_as_wanted = |(found, wanted): (&String, &str)| match wanted {
                TAKEN => ["denied", "tool-unavailable"].contains(&found.as_str()),
                wanted => found == wanted,
            };
            let found = outcomes(&events);
            let all = found.iter().zip(came_to).all(is_as_wanted);
            assert!(all, "{state}: {found:?}, not {came_to:?}: {events:#?}");
            if state == "waits for consent" {
                let consented = outcome_of("c", &events);
                assert!(is_as_wanted((&consented, came_to[4])), "{consented}: {events:#?}");
            }
            // The host died in the middle of these, and of nothing else that may be done again.
            let is_repeated = usize::from(state == "is in the middle of a call");
            assert_eq!(count("tool_call_repeated"), is_repeated, "{state}: {events:#?}");
            let is_asked =
                usize::from(["waits for an answer", "waits for consent"].contains(&state));
            let asked = (count("asked"), count("answered"));
            assert_eq!(asked, (is_asked, is_asked), "{state}: {events:#?}");
        }
        self.is_paid_once();
    }

    /// The answer that broke off was asked for again, and no other: not the one before it in the step.
    fn is_paid_once(&self) {
        assert_eq!(self.providers[0].asked().len(), 3);
        assert_eq!(self.providers[1].asked().len(), 7);
    }

    /// The prompt with which the model of the step that is cut off was asked, each time.
    pub(super) fn briefs(&self) -> Vec<String> {
        let asked = self.providers[1].asked();
        let briefs = asked.iter().map(|asked| asked.body["messages"][0]["content"].as_str());
        briefs.map(|brief| brief.unwrap_or_default().to_owned()).collect()
    }

    /// Gives each run the agent as it is now. Those whose host died in the middle of them count as under
    /// way until they are paused.
    pub(super) fn adopt(&self) {
        let all: Vec<&str> = self.runs.iter().map(|(id, _)| id.as_str()).collect();
        let cut_off = &all[4..];
        for words in [
            [&["pause"], cut_off].concat(),
            [&["adopt"], &all[..]].concat(),
            [&["resume"], cut_off].concat(),
        ] {
            let ran = self.project.run(&words);
            assert_eq!(ran.code, 0, "{words:?} {ran:?}");
        }
    }

    /// Brings every run to its end as the agent that it was given: its calls come to this, and no
    /// answer is asked for twice.
    pub(super) fn check_adopted(&self, came_to: [&str; 5]) {
        self.finish();
        for ((id, pin), state) in self.runs.iter().zip(STATES) {
            let run = self.project.get(id);
            assert_eq!(run["status"], json!("completed"), "{state}: {run}");
            let events = self.project.events(id);
            let adopted = events.iter().find(|event| event["kind"] == "adopted");
            let adopted = adopted.unwrap_or_else(|| panic!("{state}: {events:#?}"));
            assert_eq!(adopted["from"], *pin, "{state}");
            assert_eq!(outcomes(&events)[..], came_to[..4], "{state}: {events:#?}");
            if state == "waits for consent" {
                assert_eq!(outcome_of("c", &events), came_to[4], "{events:#?}");
            }
            let diverged = events.iter().any(|event| event["kind"] == "replay_diverged");
            assert!(!diverged, "{state}: {events:#?}");
        }
        self.is_paid_once();
    }

    /// The keys by which the models were asked after the change.
    pub(super) fn keys(&self) -> Vec<String> {
        let after = self.providers.iter().zip([1, 4]);
        let after = after.flat_map(|(provider, before)| provider.asked().split_off(before));
        after.map(|asked| asked.headers["authorization"].clone()).collect()
    }

    /// The fate of a run that is asked for after the change.
    pub(super) fn later(&self) -> Later {
        let reply = json!({ "steps": [[{ "reply": "thanks" }]] }).to_string();
        let ran = self.project.run(&["run", "subject", &reply, "-d"]);
        if ran.code != 0 {
            return Later::Refused;
        }
        match self.pin(&ran.id()) == self.runs[0].1 {
            true => Later::PinnedAlike,
            false => Later::PinnedOtherwise,
        }
    }
}

/// The ends of the last calls of a run.
fn outcomes(events: &[Value]) -> [String; 4] {
    calls().map(|(id, _, _)| outcome_of(id, events))
}

/// The end of a call: its text, or the code of its failure.
fn outcome_of(id: &str, events: &[Value]) -> String {
    let is_it =
        |event: &&Value| event["kind"] == "tool_result" && event["output"]["tool_call_id"] == id;
    let results: Vec<&Value> = events.iter().filter(is_it).collect();
    assert_eq!(results.len(), 1, "{id}: {events:#?}");
    let outcome = &results[0]["output"]["outcome"];
    if let Some(code) = outcome.pointer("/failure/error/code").and_then(Value::as_str) {
        return code.to_owned();
    }
    let value = outcome["value"].as_str().unwrap_or_else(|| panic!("{outcome}"));
    let value: Value = serde_json::from_str(value).expect("JSON");
    // A text, or the lines of a file.
    let text = value.as_str().or_else(|| value["text"].as_str()?.strip_prefix("1: "));
    text.unwrap_or_else(|| panic!("{value}")).trim_end().to_owned()
}
