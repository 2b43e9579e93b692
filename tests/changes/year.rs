//! A run that lives for months: a standing agent under the simulated clock, with an hourly round in
//! each of which it calls two tools and starts a child, of which it is told in the next. Hosts die
//! with it, programs of other versions go on with it, and the policy changes.
//!
//! Ten days in `cargo test`; as many as `TASKRUN_DAYS` says otherwise.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use taskrun::autonomy::AutonomyRequest;
use taskrun::clock::SimulatedClock;
use taskrun::spawn::SpawnRequest;
use taskrun_examples::{SCRIPTED, SCRIPTED_TOOL, WORKSPACE};
use taskrun_journal::checkpoint::Checkpoint;
use taskrun_journal::event::Event;
use taskrun_journal::format::JournalFormat;
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_journal::store::StoreError;
use taskrun_journal::time::{Clock, Timestamp};
use taskrun_policy::Defaults;
use taskrun_runtime::{CACHE_DIR, DATA_DIR, Options, Storage, StorageOptions};
use taskrun_tests::changes::{ProgramForm, edit};
use taskrun_tests::native::PAUSE_OVER;
use taskrun_tests::native_code;
use tempfile::TempDir;

use super::host::{Host, PAGE};
use super::tally::{Tally, Work};

/// Days in `cargo test`.
const DAYS_DEFAULT: u32 = 10;
/// Rounds of a day.
const DAY: u32 = 24;
/// The time for which a child works, after which its parent is told of it. Less than the hour that is
/// the longest time of a step.
const HOUR: Duration = Duration::from_secs(3_500);
/// The most by which a round may cost more at the end than at the beginning.
const GROWTH_MAX: f64 = 1.5;
/// Times that the policy changes.
const CHANGES: u32 = 10;
/// Hosts that die with a round of the run: more than one run that goes on by itself may lose between
/// two rounds.
const DEATHS: u32 = 14;
/// The one of these with which the artifacts are damaged: in the middle of the time, so that another
/// fold is kept before the last rounds are measured.
const WITHOUT_FOLDS: u32 = 6;

/// The prompt of each round: what the agent does in it.
fn script() -> String {
    let call = |name: &str, args: Value| json!({ "call": { "name": name, "args": args } });
    let child = json!({ "steps": [
        [call("scripted/lookup", json!({ "sleep_ms": HOUR.as_millis() as u64, "result": "looked" }))],
        [{ "reply": "The child has looked, and found nothing that is out of order." }],
    ] });
    let task = json!({ "agent": "child", "message": child.to_string() });
    json!({ "steps": [
        [
            call("workspace/read", json!({ "path": "docs/a.txt" })),
            call("scripted/lookup", json!({ "result": "found" })),
            call("host/spawn_task", task),
            call("host/schedule_next_turn", json!({ "wake_in_sec": 6 * 3_600 })),
            { "usage": [10, 5, 15] },
        ],
        [
            { "set": ["scripted.step", "0"] },
            { "usage": [20, 5, 25] },
            { "reply": "All is in order in this hour, as it was in the one before." },
        ],
    ] })
    .to_string()
}

const POLICY: &str = r#"
[model.small]
provider = "openai-chat"
model = "nobody-asks-it"
base_url = "http://127.0.0.1:9/v1"
context_tokens = 16_000

[tool.workspace]
component = "components/workspace.wasm"

[tool.scripted]
component = "components/scripted-tool.wasm"
limits = { call = "1h" }

[agent.keeper]
component = "components/scripted.wasm"
model = "small"
members = ["child"]
tools = ["workspace/read", "scripted/lookup", "host/tasks"]
allow = ["workspace-read: docs/**", "controller: *"]
deny = ["workspace-write: **"]
autonomous = { rounds = "none" }
budget = { tokens = 1_000_000_000, wall = "24h" }
limits = { turn_calls = 10 }
upgrade = "adopt"

[agent.child]
component = "components/scripted.wasm"
tools = ["scripted/lookup"]
budget = { wall = "2h" }
"#;

/// A standing agent, and the world around its hosts.
struct Life {
    folder: TempDir,
    clock: Arc<SimulatedClock>,
    tally: Arc<Tally>,
    format: JournalFormat,
    defaults: Arc<Defaults>,
    host: Option<Host>,
    id: String,
}

impl Life {
    fn begin() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let files = [
            ("components/workspace.wasm", WORKSPACE.bytes),
            ("components/scripted-tool.wasm", SCRIPTED_TOOL.bytes),
            ("components/scripted.wasm", SCRIPTED.bytes),
            ("docs/a.txt", b"one"),
            ("taskrun.toml", POLICY.as_bytes()),
        ];
        for (path, bytes) in files {
            let file = folder.path().join(path);
            std::fs::create_dir_all(file.parent().expect("beneath it")).expect("a folder");
            std::fs::write(file, bytes).expect("written");
        }
        let mut life = Self {
            folder,
            clock: Arc::new(SimulatedClock::new(Timestamp(1_800_000_000_000))),
            tally: Arc::default(),
            format: JournalFormat::CURRENT,
            defaults: Arc::default(),
            host: None,
            id: String::new(),
        };
        life.open();
        let autonomous =
            AutonomyRequest { continuation: Some(script()), ..AutonomyRequest::default() };
        life.id = life.host().spawn(&SpawnRequest {
            owner_user_id: "user-a".into(),
            parent_session_id: "s".into(),
            agent_name: "keeper".into(),
            task: script(),
            autonomous: Some(autonomous),
            ..SpawnRequest::default()
        });
        life
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn host(&self) -> &Host {
        self.host.as_ref().expect("a host lives")
    }

    fn open(&mut self) {
        let data = self.path().join(DATA_DIR);
        native_code::take(&data.join(CACHE_DIR));
        let (format, defaults) = (self.format, Arc::clone(&self.defaults));
        let clock = self.clock.clone();
        let options = Options::new(self.path().join("taskrun.toml"), data);
        let options = Options { clock, format, defaults, ..options };
        self.host = Some(Host::counting(options, &self.tally));
    }

    /// Waits until the run is deferred after so many rounds, and gives it.
    fn rounds(&self, ended: u32) -> Run {
        let is_deferred =
            |run: &Run| run.state.rounds.ended >= ended && run.status() == Status::Blocked;
        let run = self.host().comes_to(&self.id, is_deferred);
        assert_eq!(run.state.rounds.ended, ended, "a round an hour");
        run
    }

    /// Lets the time pass for which the newest child works.
    fn hour_passes(&self) {
        let child = self.tally.children().last().cloned().expect("a child");
        let host = self.host();
        host.comes_to(&child, |run| run.state.tool_calls == 1);
        let over = self.clock.now().plus(HOUR);
        host.wait(async {
            while self.clock.now() < over {
                self.clock.advance_to_next(over.since(self.clock.now())).await;
            }
        });
    }

    /// Waits until the host has died in the middle of a round, and has another one take the run up. `without_folds` damages
    /// every artifact while none lives.
    fn host_dies(&mut self, without_folds: bool) {
        self.host().wait(self.tally.has_killed());
        self.host.take().expect("a host lives").die();
        native_code::give(&self.path().join(DATA_DIR).join(CACHE_DIR));
        if without_folds {
            let file = self.path().join(DATA_DIR).join("taskrun.db");
            let (flags, sums) = (rusqlite::OpenFlags::default(), "taskrun");
            let db = rusqlite::Connection::open_with_flags_and_vfs(file, flags, sums);
            let db = db.expect("it opens");
            let damaged = db.execute("UPDATE blobs SET bytes = zeroblob(size)", []);
            assert!(damaged.expect("can be written") > 0, "there is one");
        }
        self.open();
        self.host().comes_to(&self.id, |run| run.state.hold.host().is_none());
        self.clock.advance(PAUSE_OVER);
    }

    /// The number of events of the run for which this gives so many.
    fn count(&self, number: impl Fn(&Event) -> usize) -> usize {
        let (client, mut after, mut count) = (self.host().client(), 0, 0);
        loop {
            let page = self.host().wait(client.events(&self.id, after, PAGE)).expect("can be read");
            let Some(last) = page.last() else { return count };
            after = last.seq;
            count += page.iter().map(|recorded| number(&recorded.event)).sum::<usize>();
        }
    }

    /// Holds the journal of the run to so many rounds.
    fn has_lived(&self, rounds: u32) {
        let rounds = rounds as usize;
        let of_kind = |kind: &'static str| self.count(|event| usize::from(event.kind() == kind));
        let checkpoints = |is: fn(&Checkpoint) -> bool| {
            self.count(|event| {
                let Event::RoundEnded { checkpoint, .. } = event else { return 0 };
                usize::from(is(checkpoint))
            })
        };
        assert_eq!(of_kind("round_ended"), rounds);
        let told = self.count(|event| {
            let Event::Reported { runs, .. } = event else { return 0 };
            runs.len()
        });
        assert_eq!((told, self.tally.children().len()), (rounds - 1, rounds), "one a round");
        let worked = self.count(|event| {
            let Event::ToolResult { output, .. } = event else { return 0 };
            usize::from(!output.name.starts_with("host/"))
        });
        assert_eq!(worked, 2 * rounds, "two calls a round");
        assert!(checkpoints(|one| one.conversation_bytes.is_some()) >= 10, "compacted");
        assert!(checkpoints(|one| one.fold.is_some()) >= 3, "folded");
        assert_eq!(of_kind("lost"), DEATHS as usize - 1, "hosts died in the middle of rounds");
        assert!(of_kind("adopted") >= CHANGES as usize - 1, "the policy changed");
    }

    /// Holds the store to what the later program leaves, once no host lives: an earlier one reads nothing
    /// of it.
    fn is_of_the_later_program(&self) {
        let data = self.path().join(DATA_DIR);
        let opened = |format| {
            let options = StorageOptions { format, ..StorageOptions::default() };
            Storage::open_existing(&data, options)
        };
        let refused = opened(JournalFormat::CURRENT).err();
        assert!(matches!(refused, Some(StoreError::Format { .. })), "{refused:?}");
        assert!(opened(ProgramForm::Later.format()).is_ok());
    }

    /// Changes the policy, of which the run is told between two rounds.
    fn policy_changes(&self, number: u32) {
        let calls = |number: u32| format!("turn_calls = {}", 10 + number);
        edit(self.path(), &calls(number - 1), &calls(number));
    }
}

/// The processor time of this process.
fn cpu() -> Duration {
    // Of all threads together, in ticks of 10 ms.
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux tells");
    let after_name = stat.rsplit_once(')').expect("a name").1;
    let ticks: u64 = after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse::<u64>().expect("a number"))
        .sum();
    Duration::from_millis(ticks * 10)
}

#[test]
fn a_standing_run_costs_in_its_last_week_what_it_cost_in_its_first() {
    #[expect(clippy::disallowed_methods, reason = "whoever starts the tests asks for it so")]
    let days = std::env::var("TASKRUN_DAYS").ok().map(|days| days.parse().expect("a number"));
    let is_whole = days.is_some();
    let days = days.unwrap_or(DAYS_DEFAULT);
    // A week of a year, three days of ten.
    let span = (days / 3).clamp(1, 7) * DAY;
    let rounds = days * DAY;
    let mut life = Life::begin();
    let (mut first, mut last) = ((Work::default(), Duration::ZERO), (Work::default(), cpu()));
    for round in 1..=rounds {
        life.rounds(round);
        if round == span {
            first = (life.tally.work(), cpu());
        }
        if round == rounds - span {
            last = (life.tally.work(), cpu());
        }
        if round == rounds {
            break;
        }
        let nth = |times: u32| (round * times % rounds < times).then(|| round * times / rounds);
        let dies = nth(DEATHS);
        if dies.is_some() {
            life.tally.arm();
        }
        life.hour_passes();
        if let Some(number) = nth(CHANGES).filter(|number| *number > 0) {
            life.policy_changes(number);
        }
        if round == rounds / 2 {
            let Defaults { tool_calls, .. } = Defaults::default();
            life.defaults =
                Arc::new(Defaults { tool_calls: tool_calls + 1, ..Defaults::default() });
            life.format = ProgramForm::Later.format();
        }
        if let Some(number) = dies {
            life.host_dies(number == WITHOUT_FOLDS);
        }
        if round % (7 * DAY) == 0 {
            println!("day {}: {:?} {:?}", round / DAY, life.tally.work(), cpu());
        }
    }
    let end = (life.tally.work() - last.0, cpu() - last.1);
    let growth = |before: f64, after: f64| after / before.max(1.0);
    let mut most = 0.0_f64;
    for ((what, before), (_, after)) in first.0.named().into_iter().zip(end.0.named()) {
        let growth = growth(before as f64, after as f64);
        println!("{what}: {before} in the first {span} rounds, {after} in the last: {growth:.2}");
        most = growth.max(most);
    }
    assert!(most <= GROWTH_MAX, "a round does {most:.2} times as much");
    let growth = growth(first.1.as_secs_f64() * 1e3, end.1.as_secs_f64() * 1e3);
    println!("processor: {:?}, then {:?}: {growth:.2}", first.1, end.1);
    life.has_lived(rounds);
    // The last child sleeps.
    life.host.take().expect("a host lives").die();
    life.is_of_the_later_program();
    // Beside other tests its own share cannot be told from theirs.
    assert!(!is_whole || growth <= GROWTH_MAX, "processor time grew {growth:.2} times");
}
