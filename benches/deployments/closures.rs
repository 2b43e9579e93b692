//! Many closures in one data directory, executed by one host.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use taskrun::controller::Client;
use taskrun_benches::resident_bytes;
use taskrun_examples::BRIEFER;
use taskrun_journal::list::Scope;
use taskrun_journal::status::Status;
use taskrun_runtime::{
    LoaderOptions, Options, Runtime, Storage, StorageOptions, agents_to_spawn, load_policy,
};

use crate::{Sizes, apart, request, say};

/// Closures of earlier policies that a host keeps ready at once.
const READY_MAX: usize = 32;
/// Of so many closures one is of the policy in force.
const IN_FORCE_OF: usize = 10;
/// The pause between two looks at the memory.
const LOOK: Duration = Duration::from_millis(20);

const MIB: f64 = 1_048_576.0;

/// Says how much larger the host is after runs of all closures than after as many as it keeps ready.
pub(crate) async fn measure(sizes: &Sizes) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    furnish(folder.path(), sizes.closures);
    let earlier = sizes.closures - sizes.closures / IN_FORCE_OF;
    let (then, now) = (0..earlier, earlier..sizes.closures);
    let each = sizes.runs / sizes.closures;
    let accept = |version: &str, agents: &Range<usize>, runs: usize| -> Vec<String> {
        let bounds = [agents.start, agents.end, runs].map(|number| number.to_string());
        let path = folder.path().display().to_string();
        let mut words = vec!["--part", "accept", &path, version];
        words.extend(bounds.iter().map(String::as_str));
        let ids = apart(&words).expect("a terminal accepts");
        serde_json::from_value(ids).expect("ids")
    };
    say("few closures");
    let few = accept("then", &(0..READY_MAX.min(earlier)), 1);
    let few_now = accept("now", &now, 1);
    let host = Runtime::open(Options::new(policy_file(folder.path(), "now"), data(folder.path())));
    let host = host.await.expect("a host opens");
    let client = host.controller().at(&Scope::tenant("default"));
    check(&client, &few, "then").await;
    check(&client, &few_now, "now").await;
    let small = resident_bytes();
    say("all closures");
    let ids = accept("then", &then, each);
    let ids_now = accept("now", &now, each);
    let mut peak = small;
    let all = async {
        check(&client, &ids, "then").await;
        check(&client, &ids_now, "now").await;
    };
    tokio::pin!(all);
    while tokio::time::timeout(LOOK, &mut all).await.is_err() {
        peak = peak.max(resident_bytes());
    }
    let large = resident_bytes();
    host.shutdown().await;
    json!({
        "closures": sizes.closures,
        "runs": few.len() + few_now.len() + ids.len() + ids_now.len(),
        "ready_max": READY_MAX,
        "resident_mib_few": small / MIB,
        "resident_mib_all": large / MIB,
        "grown_mib": (large - small) / MIB,
        "grown_mib_peak": (peak - small) / MIB,
        "goal_mib": 64,
    })
}

/// Accepts so many runs of each of these agents, as they are in this version of the policy, as a
/// terminal does; gives their ids.
pub(crate) async fn accept(
    folder: &Path,
    version: &str,
    agents: Range<usize>,
    runs: usize,
) -> Value {
    let policy = load_policy(&policy_file(folder, version)).expect("a policy");
    let names: Vec<String> = agents.map(|number| format!("a{number}")).collect();
    let options = LoaderOptions { keeps: true, ..LoaderOptions::of_data_dir(&data(folder)) };
    let storage = Storage::open(&data(folder), StorageOptions::default()).expect("a store");
    let loaded = agents_to_spawn(policy, options, &names).await.expect("the agents load");
    let terminal = storage.watch(loaded);
    terminal.start().await.expect("starts");
    let client = terminal.at(&Scope::tenant("default"));
    let mut ids = Vec::new();
    // One of each after the other: the worst order for a host that keeps some ready.
    for _ in 0..runs {
        for name in &names {
            let run =
                client.spawn(&request(name, &name.replacen("a", "p", 1))).await.expect("accepted");
            ids.push(run.id().to_string());
        }
    }
    json!(ids)
}

/// Waits until each run has ended, with the prompt of its own closure.
async fn check(client: &Client, ids: &[String], version: &str) {
    for id in ids {
        let run = client.wait(id, None).await.expect("can be waited for").run;
        let wanted = format!("{} {version}", run.spec.agent_name);
        assert_eq!(run.status(), Status::Completed, "{id}");
        assert_eq!(run.state.reply.result(), Some(wanted), "{id}");
    }
}

fn data(folder: &Path) -> PathBuf {
    folder.join("data")
}

fn policy_file(folder: &Path, version: &str) -> PathBuf {
    folder.join(format!("{version}.toml"))
}

/// Two versions of a policy in which each agent has a component and a prompt of its own.
fn furnish(folder: &Path, agents: usize) {
    for number in 0..agents {
        // A section that nobody reads.
        let text = format!("{number:03}");
        let bytes = [BRIEFER.bytes, &[0, 4, 0], text.as_bytes()].concat();
        std::fs::write(folder.join(format!("a{number}.wasm")), bytes).expect("written");
    }
    for version in ["then", "now"] {
        let agent = |number: usize| {
            format!(
                "[prompt.p{number}]\ntemplate = \"a{number} {version}\"\n\
                 [agent.a{number}]\ncomponent = \"a{number}.wasm\"\n\
                 allow = [\"prompts: p{number}\"]\n"
            )
        };
        let policy: String = (0..agents).map(agent).collect();
        std::fs::write(policy_file(folder, version), policy).expect("written");
    }
}
