//! The program with models that others made: a real small one with `TASKRUN_E2E_LLM=1 cargo test -p
//! taskrun-cli --test llm`, implementations of the providers' protocols with `TASKRUN_E2E_MODELS=1`,
//! and a provider that wants a long pause with `TASKRUN_E2E_PUSH_BACK=1`.
//! Not part of the usual tests, as `serve.sh` and `models.sh` fetch them.

mod others;
mod project;
mod push_back;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use serde_json::Value;
use taskrun::clock::SystemClock;
use taskrun_journal::time::Clock;

use self::project::Project;

/// The longest wait for something that must happen: a model on a busy machine is slow.
const PATIENCE: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    #[expect(clippy::disallowed_methods, reason = "whoever starts the tests asks for it so")]
    let asked = |name: &str| std::env::var_os(name).is_some_and(|value| value == "1");
    if asked("TASKRUN_E2E_LLM") {
        let server = Server::start();
        let project = Project::new(&policy(&server.url));
        answers_while_it_is_watched(&project);
        hears_that_it_is_canceled(&project, &server);
    } else {
        println!("not run: TASKRUN_E2E_LLM=1 fetches a model of 200 MB and runs it");
    }
    if asked("TASKRUN_E2E_MODELS") {
        others::test();
    } else {
        println!("not run: TASKRUN_E2E_MODELS=1 fetches what others made of providers' protocols");
    }
    if asked("TASKRUN_E2E_PUSH_BACK") {
        push_back::test();
    } else {
        println!("not run: TASKRUN_E2E_PUSH_BACK=1 waits for more than a minute");
    }
    ExitCode::SUCCESS
}

fn policy(url: &str) -> String {
    format!(
        r#"[model.default]
provider = "openai-chat"
base_url = "{url}"
model = "smollm2"

[agent.chat]
component = "chat.wasm"
model = "default"
"#
    )
}

/// A question is answered, in pieces, and what it took is counted.
fn answers_while_it_is_watched(project: &Project) {
    let ran = project.run(&["run", "chat", "What is the capital of France?", "--wait"]);
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success() && said.contains("Paris"), "{ran:?}");
    let events = project.json(&["events", "@last"]);
    let events = events["events"].as_array().cloned().expect("events");
    let chunks = events.iter().filter(|event| event["kind"] == "assistant_chunk").count();
    assert!(chunks > 1, "the answer came as a whole: {events:?}");
    let progress = project.json(&["get", "@last"])["progress"].clone();
    let count = |what: &str| progress[what].as_u64().expect("a number");
    assert!(count("prompt_tokens") > 5 && count("completion_tokens") > 2, "{progress}");
    assert_eq!(count("prompt_tokens") + count("completion_tokens"), count("total_tokens"));
    println!("answered in {chunks} pieces, {progress}: {}", said.trim());
}

/// A run that is canceled while the model speaks stops the model.
fn hears_that_it_is_canceled(project: &Project, server: &Server) {
    let task = "Tell a very long story about the sea.";
    let started = project.run(&["run", "chat", task, "-d"]);
    let id = String::from_utf8_lossy(&started.stdout).trim().to_owned();
    let mut follow = project.command(&["events", &id, "-f", "--kind", "assistant_chunk"]);
    let mut child = follow.stdout(Stdio::piped()).spawn().expect("starts");
    let mut first = String::new();
    let stdout = child.stdout.take().expect("a pipe");
    BufReader::new(stdout).read_line(&mut first).expect("can be read");
    child.kill().expect("killed");
    child.wait().expect("gone");
    assert!(!first.is_empty(), "the model said nothing: {:?}", project.json(&["get", &id]));
    assert!(project.run(&["cancel", &id]).status.success());
    assert_eq!(project.run(&["wait", &id]).status.code(), Some(6));
    let clock = SystemClock::new();
    let until = clock.monotonic() + PATIENCE;
    while server.stats()["abandoned"] != 1 {
        assert!(clock.monotonic() < until, "the model goes on: {}", server.stats());
    }
    println!("canceled while it spoke, and the model stopped");
}

/// The model's server.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start() -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/llm/serve.sh");
        let mut child = Command::new(script).stdout(Stdio::piped()).spawn().expect("starts");
        let stdout = child.stdout.take().expect("a pipe");
        let mut url = String::new();
        BufReader::new(stdout).read_line(&mut url).expect("can be read");
        assert!(url.starts_with("http://127.0.0.1:"), "the server does not start: {url:?}");
        Self { child, url: url.trim().to_owned() }
    }

    fn stats(&self) -> Value {
        let address = self.url.trim_start_matches("http://").trim_end_matches("/v1");
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.write_all(b"GET /stats HTTP/1.0\r\n\r\n").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        serde_json::from_str(body).expect("JSON")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that ended by itself has ended.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
