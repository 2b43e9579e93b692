//! Conversations with implementations of the providers' protocols that others wrote, and each
//! request judged by the types of the providers' own SDKs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::project::Project;

/// Turns of a conversation, of two calls each, before its last word.
const TURNS: usize = 12;
/// Results after which the host is killed: in the middle of a turn in the middle.
const RESULTS_BEFORE_DEATH: usize = 9;

/// A protocol, and where it is spoken.
struct Dialect {
    provider: &'static str,
    model: &'static str,
    path: &'static str,
    more: &'static str,
}

const DIALECTS: [Dialect; 5] = [
    Dialect { provider: "openai", model: "gpt-5.6", path: "/v1", more: "effort = \"low\"" },
    Dialect { provider: "openai-chat", model: "gpt-4.1", path: "/v1", more: "" },
    Dialect { provider: "ollama", model: "smollm2", path: "/v1", more: "" },
    Dialect {
        provider: "anthropic",
        model: "claude-sonnet-4-5",
        path: "/v1",
        more: "thinking = 2000",
    },
    Dialect { provider: "gemini", model: "gemini-3-pro", path: "/v1beta", more: "" },
];

/// Talks in each protocol.
pub(crate) fn test() {
    let server = Server::start();
    for dialect in &DIALECTS {
        talks_through_a_death(&server, dialect);
    }
}

/// A long conversation whose host is killed in the middle comes to its last word, asks for nothing
/// twice that it was told, and is made of requests that the provider's own SDK could have sent.
fn talks_through_a_death(server: &Server, dialect: &Dialect) {
    let provider = dialect.provider;
    let project = Project::new(&dialect.policy(&server.url));
    let started = project.run(&["run", "talker", "Look twelve times.", "-d"]);
    let id = String::from_utf8_lossy(&started.stdout).trim().to_owned();
    assert!(started.status.success() && !id.is_empty(), "{provider}: {started:?}");
    let mut follow = project.command(&["events", &id, "-f", "--kind", "tool_result"]);
    let mut child = follow.stdout(Stdio::piped()).spawn().expect("starts");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let seen = lines.map_while(Result::ok).take(RESULTS_BEFORE_DEATH).count();
    assert_eq!(seen, RESULTS_BEFORE_DEATH, "{provider}: {:?}", project.json(&["get", &id]));
    project.kill_hosts();
    child.kill().expect("killed");
    child.wait().expect("gone");

    // Another host goes on with it, and its turns come to an end.
    project.run(&["wait", &id]);
    let run = project.json(&["get", &id]);
    assert_eq!(
        (&run["result"], &run["stop_reason"]),
        (&json!("Done."), &json!("max_turns")),
        "{provider}: {run}"
    );
    assert_eq!(run["progress"]["tool_result_count"], 2 * TURNS, "{provider}: {run}");
    let asked = server.get("/requests");
    let requests = asked.as_array().expect("requests");
    // The request under way at the death is sent again, and none before it.
    let count = requests.len();
    assert!((TURNS + 1..=TURNS + 2).contains(&count), "{provider}: {count} requests");
    if provider == "openai" {
        came_back(&requests[count - 1]["body"]);
    }
    judge(provider, requests);
    println!("{provider}: {count} requests of {TURNS} turns, with a death in the middle");
}

/// All that the model reasoned stands before what followed from it.
fn came_back(body: &Value) {
    let input = body["input"].as_array().expect("items");
    let question = input.iter().position(|item| item["role"] == "user").expect("the question");
    let (demand, turns) = input[question + 1..].split_last().expect("items");
    assert_eq!((turns.len(), &demand["role"]), (6 * TURNS, &json!("system")), "{body:#}");
    for (turn, items) in turns.chunks(6).enumerate() {
        let types: Vec<&str> = items.iter().filter_map(|item| item["type"].as_str()).collect();
        let (call, output) = ("function_call", "function_call_output");
        assert_eq!(types, ["reasoning", "message", call, call, output, output]);
        assert_eq!(items[0]["summary"][0]["text"], format!("Thought {turn}."));
        assert!(items[0]["encrypted_content"].is_string(), "{:#}", items[0]);
    }
}

fn judge(provider: &str, requests: &[Value]) {
    let mut command = script();
    let child = command.arg("judge").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.expect("starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let lines: String = requests.iter().map(|request| format!("{request}\n")).collect();
    stdin.write_all(lines.as_bytes()).expect("reads");
    drop(stdin);
    let judged = child.wait_with_output().expect("ends");
    let faults = String::from_utf8_lossy(&judged.stdout).into_owned();
    assert!(judged.status.success(), "{provider}: {faults}");
}

fn script() -> Command {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/llm/models.sh");
    Command::new(path)
}

impl Dialect {
    fn policy(&self, url: &str) -> String {
        let Self { provider, model, path, more } = self;
        let turns = TURNS + 1;
        format!(
            r#"[tool.workspace]
component = "workspace.wasm"

[model.default]
provider = "{provider}"
model = "{model}"
base_url = "{url}{path}"
{more}

[agent.talker]
component = "chat.wasm"
model = "default"
tools = ["workspace/read"]
allow = ["workspace-read: docs/**"]
deny = ["workspace-write: **"]
budget = {{ turns = {turns}, reserve = {{ turns = 1 }} }}
"#
        )
    }
}

/// The server of all protocols.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start() -> Self {
        let mut child = script().arg("serve").stdout(Stdio::piped()).spawn().expect("starts");
        let stdout = child.stdout.take().expect("a pipe");
        let mut url = String::new();
        BufReader::new(stdout).read_line(&mut url).expect("can be read");
        assert!(url.starts_with("http://127.0.0.1:"), "the server does not start: {url:?}");
        Self { child, url: url.trim().to_owned() }
    }

    fn get(&self, path: &str) -> Value {
        let address = self.url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        serde_json::from_str(body).unwrap_or_else(|error| json!(error.to_string()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that ended by itself has ended.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
