//! A policy of many agents that changes while runs of one of them are under way.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use taskrun::clock::SystemClock;
use taskrun::controller::Client;
use taskrun_benches::{cpu_us, percentile};
use taskrun_examples::{SCRIPTED, SCRIPTED_TOOL};
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::list::Scope;
use taskrun_journal::status::Status;
use taskrun_journal::time::{Clock, Timestamp};
use taskrun_runtime::{Options, Runtime};

use crate::{Sizes, request, say};

/// The pause of each plan step, so that the runs do not keep all cores busy.
const PACE_MS: u64 = 100;
/// The time before each change, and after it. Turns grow slower with what was said before, so those
/// beside a change are held against those just before it, and not against the first ones.
const APART: Duration = Duration::from_secs(3);

/// Says how long turns took before the changes and beside them, and what a change cost. A time
/// without a change follows each: what turns took then, against before, is what the machine alone
/// makes of them.
pub(crate) async fn measure(sizes: &Sizes) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("agent.wasm"), SCRIPTED.bytes).expect("written");
    std::fs::write(folder.path().join("tool.wasm"), SCRIPTED_TOOL.bytes).expect("written");
    let policy = folder.path().join("taskrun.toml");
    write_policy(&policy, sizes.agents, 0);
    let slots = sizes.under_way + sizes.changes;
    let options =
        Options { preload: true, slots, ..Options::new(&policy, folder.path().join("data")) };
    let host = Runtime::open(options).await.expect("a host opens");
    let client = host.controller().at(&Scope::tenant("default"));
    let mut ids = Vec::new();
    for _ in 0..sizes.under_way {
        let run = client.spawn(&request("worker", &task(sizes.turns))).await;
        ids.push(run.expect("accepted").id().to_string());
    }
    let clock = SystemClock::new();
    say("until all run");
    until_all_run(&client, &ids).await;
    // The first turns load components and fill caches.
    tokio::time::sleep(APART).await;
    let (mut before, mut beside, mut after) = (Vec::new(), Vec::new(), Vec::new());
    let (mut took_ms, mut cpu_ms) = (Vec::new(), Vec::new());
    let mut accepted = Vec::new();
    for change in 1..=sizes.changes {
        say(&format!("change {change} of {}", sizes.changes));
        let (began, since, cpu) = (now(), clock.monotonic(), cpu_us());
        tokio::time::sleep(APART).await;
        let idle_share = (cpu_us() - cpu) / (clock.monotonic() - since).as_secs_f64() / 1e6;
        before.push(began..now());
        all_run(&client, &ids).await;
        write_policy(&policy, sizes.agents, change);
        let (began, since, cpu) = (now(), clock.monotonic(), cpu_us());
        host.controller().reload().await;
        let elapsed = clock.monotonic() - since;
        took_ms.push(elapsed.as_secs_f64() * 1e3);
        cpu_ms.push((cpu_us() - cpu) / 1e3 - idle_share * elapsed.as_secs_f64() * 1e3);
        // Nobody is refused meanwhile, and there is a slot for it.
        let later = client.spawn(&request("a1", "x")).await.expect("accepted");
        accepted.push(later.id().to_string());
        tokio::time::sleep(APART).await;
        beside.push(began..now());
        let began = now();
        tokio::time::sleep(APART).await;
        after.push(began..now());
        all_run(&client, &ids).await;
    }
    say("to the end");
    let (mut turns_before, mut turns_beside, mut turns_after) = (vec![], vec![], vec![]);
    let mut again = 0;
    for id in ids.iter().chain(&accepted) {
        let run = client.wait(id, None).await.expect("ends").run;
        assert_eq!(
            run.status(),
            Status::Completed,
            "{:?} {:?}",
            run.ending(),
            run.state.reply.result()
        );
        let journal = journal(&client, id).await;
        again += journal.iter().filter(|one| is_again(&one.event)).count();
        turns_before.extend(turns(&journal, &before));
        turns_beside.extend(turns(&journal, &beside));
        turns_after.extend(turns(&journal, &after));
    }
    host.shutdown().await;
    assert_eq!(again, 0, "no run is repeated, or queued again");
    let p99 = |turns: &[f64]| percentile(turns, 99);
    let p99_before = p99(&turns_before);
    json!({
        "agents": sizes.agents,
        "runs_under_way": sizes.under_way,
        "changes": sizes.changes,
        "turns_before": turns_before.len(),
        "turns_beside": turns_beside.len(),
        "pace_ms": PACE_MS,
        "turns_after": turns_after.len(),
        "turn_ms_before": { "p50": percentile(&turns_before, 50), "p99": p99_before },
        "turn_ms_beside": { "p50": percentile(&turns_beside, 50), "p99": p99(&turns_beside) },
        "turn_ms_after": { "p50": percentile(&turns_after, 50), "p99": p99(&turns_after) },
        "p99_times": p99(&turns_beside) / p99_before,
        "p99_times_without_change": p99(&turns_after) / p99_before,
        "goal_times": 1.5,
        "reload_ms": { "p50": percentile(&took_ms, 50), "max": percentile(&took_ms, 100) },
        "reload_cpu_ms": { "p50": percentile(&cpu_ms, 50), "max": percentile(&cpu_ms, 100) },
        "run_again_or_queued_again": again,
    })
}

fn now() -> Timestamp {
    SystemClock::new().now()
}

/// All agents but the one whose runs are under way have another limit after each change.
fn write_policy(path: &Path, agents: usize, change: usize) {
    let mut policy = "[tool.lookup]\ncomponent = \"tool.wasm\"\n\
                      [agent.worker]\ncomponent = \"agent.wasm\"\ntools = [\"lookup/*\"]\n\
                      limits = { tool_calls = 10000 }\nbudget = { turns = 1000 }\n"
        .to_owned();
    for number in 1..agents {
        policy.push_str(&format!(
            "[agent.a{number}]\ncomponent = \"agent.wasm\"\ntools = [\"lookup/*\"]\n\
             limits = {{ tool_calls = {} }}\n",
            100 + change
        ));
    }
    std::fs::write(path, policy).expect("written");
}

/// Waits a moment and calls a tool, in each turn.
fn task(turns: usize) -> String {
    let step = json!([{ "sleep": PACE_MS }, { "call": { "name": "lookup/lookup" } }]);
    let mut steps = vec![step; turns];
    steps.push(json!([{ "reply": "done" }]));
    json!({ "steps": steps }).to_string()
}

/// Holds the measurement to its word: all runs are under way at this moment.
async fn all_run(client: &Client, ids: &[String]) {
    for id in ids {
        let run = client.get(id).await.expect("it is there");
        assert_eq!(run.status(), Status::Running, "{id} is under way");
    }
}

async fn until_all_run(client: &Client, ids: &[String]) {
    for id in ids {
        let running = client.wait_for(id, None, |run| run.state.turns > 2).await;
        running.expect("can be waited for");
    }
}

async fn journal(client: &Client, id: &str) -> Vec<EventRecord> {
    let mut all: Vec<EventRecord> = Vec::new();
    loop {
        let after = all.last().map_or(0, |last| last.seq);
        let page = client.events(id, after, 1_000).await.expect("can be read");
        if page.is_empty() {
            return all;
        }
        all.extend(page);
    }
}

fn is_again(event: &Event) -> bool {
    matches!(
        event,
        Event::Lost { .. }
            | Event::Resumed { .. }
            | Event::ToolCallRepeated { .. }
            | Event::StepRestarted { .. }
    )
}

/// The durations of the turns that ended within these times, without the pause of each.
fn turns(journal: &[EventRecord], within: &[Range<Timestamp>]) -> Vec<f64> {
    let decided = journal.iter().filter(|one| matches!(one.event, Event::PlanDecided { .. }));
    let at: Vec<Timestamp> = decided.map(|one| one.at).collect();
    let turns = at.windows(2).filter(|pair| within.iter().any(|time| time.contains(&pair[1])));
    let pace = Duration::from_millis(PACE_MS);
    turns.map(|pair| pair[1].since(pair[0]).saturating_sub(pace).as_secs_f64() * 1e3).collect()
}
