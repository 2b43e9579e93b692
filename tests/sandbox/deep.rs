//! Case 21: functions of the host that are called at the end of a guest's stack.
//!
//! Their work stands on the same stack. There an overflow would end the host and not the guest.

use std::io::Read;
use std::net::{SocketAddr, TcpListener};

use taskrun_journal::run::{Run, RunView};
use taskrun_journal::status::Status;
use taskrun_journal::stop::CallAbort;
use taskrun_tests::{Builder, House};

const POLICY: &str = r#"
[model.echo]
provider = "echo"

[model.far]
provider = "openai-chat"
model = "far"
base_url = "https://ADDRESS/v1"
key_file = "secrets/key"

[prompt.deep]
template = "{% for a in a.a.a %}{{ a }}{% endfor %}{{ (((((((((a|default(1))))))))))|length }}"

[agent.deep]
component = "components/evil-deep.wasm"
model = "echo"
members = ["deep"]
allow = [
  "workspace-read: docs/**", "workspace-write: docs/**", "http: POST http://localhost:9/**",
  "http: POST https://localhost:9/**", "prompts: *", "memory: *", "metrics: *", "controller: *",
]
limits = { result = "4MiB" }

[agent.far]
component = "components/evil-deep.wasm"
model = "far"
retry = { attempts = 1 }
allow = ["prompts: *", "memory: *", "metrics: *", "controller: *"]
deny = ["workspace-read: **", "workspace-write: **", "http: *"]
"#;

/// Deeper than any guest gets with the stack it has.
const DEPTH_MAX: u64 = 1 << 20;

async fn at(house: &House, depth: u64, function: &str) -> Run {
    by(house, "deep", depth, function).await
}

async fn by(house: &House, agent: &str, depth: u64, function: &str) -> Run {
    house.run(agent, &format!("{depth} {function}")).await
}

/// A server that hears how a client would talk to it, and says nothing. Gives how much it heard
/// each time.
fn server() -> (SocketAddr, std::sync::mpsc::Receiver<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let (heard, hear) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut hello = [0; 4_096];
            let read = stream.and_then(|mut stream| stream.read(&mut hello));
            if heard.send(read.unwrap_or(0)).is_err() {
                return;
            }
        }
    });
    (address, hear)
}

fn overflowed(run: &Run) -> bool {
    if run.status() == Status::Completed {
        return false;
    }
    let failure = RunView::from(run).failure;
    assert!(matches!(failure, Some(CallAbort::Stack)), "{failure:?}: {run:?}");
    true
}

/// The deepest stack from which a function of the host can be called that takes no more of it.
async fn deepest(house: &House) -> u64 {
    let (mut fits, mut too_deep) = (0, DEPTH_MAX);
    // To one part in fifty: what a call itself takes of the guest's stack is more than that.
    while too_deep - fits > too_deep / 50 {
        let middle = fits.midpoint(too_deep);
        match overflowed(&at(house, middle, "nothing").await) {
            true => too_deep = middle,
            false => fits = middle,
        }
    }
    assert!(fits > 1_000, "it is deep: {fits}");
    fits
}

#[tokio::test]
async fn case_21_each_function_of_the_host_has_room_at_the_end_of_a_guests_stack() {
    let (address, heard) = server();
    let house = Builder::new(&POLICY.replace("ADDRESS", &address.to_string()))
        .file("secrets/key", "sk-test")
        .file("docs/large", &"x".repeat(8 << 20))
        .file("docs/b/c/d", "small")
        .open()
        .await;
    let depth = deepest(&house).await;
    let names = at(&house, 0, "names").await.state.reply.result().expect("names");
    assert!(names.split(' ').count() > 20, "{names}");
    for name in names.split(' ') {
        // At the very end, where the guest's own share of the call may be too much; the host lives.
        overflowed(&at(&house, depth, name).await);
        let before = at(&house, depth - depth / 20, name).await;
        assert!(!overflowed(&before), "{name}: {before:?}");
    }
    // What no model here does on that stack, and the client of one elsewhere does: it begins to
    // speak TLS.
    for name in ["complete", "stream", "complete-about", "stream-about"] {
        overflowed(&by(&house, "far", depth, name).await);
        let before = by(&house, "far", depth - depth / 20, name).await;
        assert!(!overflowed(&before), "{name}: {before:?}");
        assert!(heard.recv().expect("it was asked") > 100, "{name}");
    }
}
