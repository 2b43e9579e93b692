//! Seven runs of one policy, each in a state of its own, when their host dies and something changes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use taskrun::clock::SimulatedClock;
use taskrun::spawn::SpawnRequest;
use taskrun_examples::THINKER;
use taskrun_journal::ids::RunId;
use taskrun_journal::message::Labels;
use taskrun_journal::question::Answer;
use taskrun_journal::status::Status;
use taskrun_journal::time::Timestamp;
use taskrun_runtime::{CACHE_DIR, DATA_DIR, Options, Storage, StorageOptions, load_policy};
use taskrun_tests::changes::{
    self, CALL_MS, Change, EndedRun, Later, ProgramForm, STATES, Scene, Task,
};
use taskrun_tests::native::PAUSE_OVER;
use taskrun_tests::native_code;
use taskrun_tests::replays::{self, Replays};
use tempfile::TempDir;

use super::host::{Host, PAGE, json};

/// The states of [`STATES`] in which a run is with its host: it is lost with that.
const UNDER_WAY: [&str; 3] =
    ["pauses before a retry", "is in the middle of a step", "is in the middle of a call"];

/// The time at which all of it begins.
const BEGAN: Timestamp = Timestamp(1_800_000_000_000);

/// A folder with a policy, and the world around its hosts.
pub(super) struct Stage {
    folder: TempDir,
    /// Where the servers of the models are.
    outside: tokio::runtime::Runtime,
    scene: Scene,
    clock: Arc<SimulatedClock>,
}

/// The runs as their dead host has left them.
pub(super) struct Left {
    /// One for each of [`STATES`], in their order.
    runs: Vec<LeftRun>,
    child: String,
    /// True if the pause is over after which those may go on that were with their host.
    pause_is_over: bool,
}

struct LeftRun {
    state: &'static str,
    id: String,
    events: Vec<Value>,
}

impl Left {
    /// Those that were with their host.
    fn under_way(&self) -> impl Iterator<Item = &LeftRun> {
        self.runs.iter().filter(|run| UNDER_WAY.contains(&run.state))
    }
}

impl LeftRun {
    /// The pin with which it was accepted.
    fn pin(&self) -> &Value {
        &self.events[0]["spec"]["pin"]
    }
}

impl Stage {
    /// Writes policy and files. No host lives yet.
    pub(super) fn set() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let outside = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let scene = outside.block_on(Scene::set(folder.path()));
        let clock = Arc::new(SimulatedClock::new(BEGAN));
        Self { folder, outside, scene, clock }
    }

    /// The folder of the policy.
    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    fn data(&self) -> PathBuf {
        self.path().join(DATA_DIR)
    }

    fn open(&self, program: ProgramForm) -> Host {
        let (format, defaults) = (program.format(), program.defaults());
        self.open_with(|options| Options { format, defaults, ..options })
    }

    fn open_with(&self, program: impl FnOnce(Options) -> Options) -> Host {
        native_code::take(&self.data().join(CACHE_DIR));
        let options = Options::new(self.path().join("taskrun.toml"), self.data());
        Host::open(program(Options { clock: self.clock.clone(), ..options }))
    }

    /// Has a host bring each run into its state, and lets it die.
    pub(super) fn begin(&self) -> Left {
        let host = self.open(ProgramForm::Same);
        let [answer, queued, consent, parent, retries, plans, calls] = changes::tasks();
        let spawn = |task: Task| host.spawn(&request(&task));
        let answer = spawn(answer);
        host.reaches(&answer, Status::Blocked);
        let (queued, consent, parent) = (spawn(queued), spawn(consent), spawn(parent));
        host.reaches(&consent, Status::Blocked);
        host.reaches(&parent, Status::Blocked);
        let linked = host.sees(&parent, "child_run_linked");
        let child = linked["run_id"].as_str().unwrap_or_else(|| panic!("{linked}")).to_owned();
        host.reaches(&child, Status::Blocked);
        let (retries, plans, calls) = (spawn(retries), spawn(plans), spawn(calls));
        host.sees(&retries, "step_failed");
        host.wait(self.scene.second.has_sent(4));
        host.sees(&calls, "tool_call_scheduled");
        host.reaches(&queued, Status::Queued);
        host.die();
        native_code::give(&self.data().join(CACHE_DIR));
        let ids = [answer, queued, consent, parent, retries, plans, calls];
        let runs = self.outside.block_on(self.left(&ids));
        self.scene.is_cut_off(&runs[5].events);
        Left { runs, child, pause_is_over: false }
    }

    /// The runs with these ids, which no host has.
    async fn left(&self, ids: &[String]) -> Vec<LeftRun> {
        let storage = Storage::open_existing(&self.data(), StorageOptions::default());
        let (storage, mut runs) = (storage.expect("it opens"), Vec::new());
        for (id, state) in ids.iter().zip(STATES) {
            let run = RunId::new(id).expect("an id");
            let events = storage.store.read(&run, 0, PAGE).await.expect("it can be read");
            assert!(events.iter().all(|recorded| recorded.at == BEGAN), "time stands still");
            let events = events.iter().map(json).collect();
            runs.push(LeftRun { state, id: id.clone(), events });
        }
        runs
    }

    /// Opens a host of a program that binds no components as large as those of the runs, and checks that
    /// it says so, and begins nothing of what it finds.
    pub(super) fn is_held(&self, left: &mut Left) {
        // With an agent that it can bind, so that it has one to accept runs of.
        let small = "[agent.small]\ncomponent = \"components/thinker.wasm\"\nmodel = \"first\"\n\
             allow = [\"prompts: brief\"]\n\n[agent.child]";
        changes::edit(self.path(), "[agent.child]", small);
        let component_bytes_max = THINKER.bytes.len() as u64;
        let host = self.open_with(|options| Options { component_bytes_max, ..options });
        Self::sees_lost(&host, left);
        let found = |run: &LeftRun| (host.view(&run.id)["status"].clone(), host.events(&run.id));
        let before: Vec<_> = left.runs.iter().map(found).collect();
        self.pause_passes(left);
        let under_way = left.under_way().map(|run| run.pin());
        let wanted: BTreeSet<_> = under_way.filter_map(Value::as_str).map(str::to_owned).collect();
        host.tells_of_unusable(&wanted);
        assert_eq!(left.runs.iter().map(found).collect::<Vec<_>>(), before);
        host.shut_down();
    }

    /// Waits until a host knows of those that it finds under way that theirs is dead.
    fn sees_lost(host: &Host, left: &Left) {
        for run in left.under_way() {
            host.sees(&run.id, "lost");
        }
    }

    /// Lets the pause pass after which runs of dead hosts may go on.
    fn pause_passes(&self, left: &mut Left) {
        self.clock.advance(PAUSE_OVER);
        left.pause_is_over = true;
    }

    /// Opens another host, gives what is waited for, and holds each run to how it has to go on after a
    /// change, and then one that is asked for.
    pub(super) fn go_on(self, change: &Change, mut left: Left) {
        let host = self.open(change.program);
        Self::sees_lost(&host, &left);
        if !left.pause_is_over {
            // Nothing is under way while time passes: neither what waits for it, nor what waits for
            // people.
            self.pause_passes(&mut left);
        }
        let [answer, _, consent, ..] = &left.runs[..] else { panic!("one for each state") };
        for asks in [&answer.id, &left.child] {
            host.answer(asks, Answer::Text("the third one".to_owned()));
        }
        host.answer(&consent.id, Answer::Confirmed(true));
        for run in &left.runs {
            if run.state == "is in the middle of a call" {
                // The last one: of no other run time passes, too.
                self.sleeps_out(&host, &run.id);
            }
            host.ends(&run.id);
        }
        for LeftRun { state, id, events } in &left.runs {
            let ended = EndedRun {
                state,
                pin: events[0]["spec"]["pin"].clone(),
                run: host.view(id),
                events: host.events(id),
            };
            ended.went_on(change.ends);
            // It died, and handed nothing over.
            let is_lost = usize::from(UNDER_WAY.contains(state));
            assert_eq!(ended.count("lost"), is_lost, "{state}: {:#?}", ended.events);
            if is_lost == 1 {
                assert_eq!(ended.events[events.len()]["kind"], "lost", "{state}: {events:#?}");
            }
        }
        self.scene.is_paid_once(change.key);
        assert_eq!(later(&host, left.runs[0].pin()), change.later);
        host.shut_down();
        self.is_replayed();
    }

    /// Lets the time pass for which the call that is made again sleeps.
    fn sleeps_out(&self, host: &Host, id: &str) {
        host.sees(id, "tool_call_repeated");
        let ends = host.event(id, "tool_result");
        host.wait(self.clock.run_until(Duration::from_millis(CALL_MS), ends));
    }

    /// Executes every run that is left again, if that is asked for.
    fn is_replayed(&self) {
        if !replays::is_wanted() {
            return;
        }
        let data = self.data();
        // One in the form of another program is none.
        let Ok(storage) = Storage::open_existing(&data, StorageOptions::default()) else {
            return;
        };
        let policy = load_policy(&self.path().join("taskrun.toml")).ok();
        Replays { store: storage.store, data_dir: Some(data), policy }.run();
    }
}

fn request(task: &Task) -> SpawnRequest {
    SpawnRequest {
        owner_user_id: "user-a".into(),
        parent_session_id: "s".into(),
        agent_name: task.agent.into(),
        task: task.task.clone(),
        labels: Labels::from([("approved".to_owned(), "yes".to_owned())]),
        serial: task.is_serial,
        ..SpawnRequest::default()
    }
}

/// The fate of a run that is asked for after the change, where those before had this pin.
fn later(host: &Host, before: &Value) -> Later {
    let client = host.client();
    let Ok(run) = host.wait(client.spawn(&request(&changes::reply()))) else {
        return Later::Refused;
    };
    host.ends(run.id().as_str());
    match host.events(run.id().as_str())[0]["spec"]["pin"] == *before {
        true => Later::PinnedAlike,
        false => Later::PinnedOtherwise,
    }
}
