//! Seven runs of one policy, each in a state of its own, when their host is killed and something
//! changes.

use rustix::process::Signal;
use serde_json::{Value, json};
use taskrun_tests::changes::{self, Change, EndedRun, Ends, KEY, Later, STATES, Scene, Task};
use tokio::runtime::Runtime;

use crate::project::Project;

/// The project with its runs.
pub(super) struct Stage {
    pub(super) project: Project,
    runtime: Runtime,
    scene: Scene,
    /// A run for each of [`STATES`], in their order, and its pin.
    pub(super) runs: Vec<(String, Value)>,
    child: String,
}

impl Stage {
    /// Brings each run into its state and kills their host.
    pub(super) fn new() -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let project = Project::new();
        let scene = runtime.block_on(Scene::set(project.path()));
        let mut stage = Self { project, runtime, scene, runs: Vec::new(), child: String::new() };
        stage.begin();
        stage
    }

    fn begin(&mut self) {
        let [answer, queued, consent, parent, retries, plans, calls] = changes::tasks();
        let answer = self.spawn(&answer);
        self.project.reach(&answer, "blocked");
        let queued = self.spawn(&queued);
        let (consent, parent) = (self.spawn(&consent), self.spawn(&parent));
        self.project.reach(&consent, "blocked");
        self.project.reach(&parent, "blocked");
        let linked = self.event(&parent, "child_run_linked").expect("it has a child");
        self.child =
            linked["child_run_id"].as_str().unwrap_or_else(|| panic!("{linked}")).to_owned();
        self.project.reach(&self.child, "blocked");
        let plans = self.spawn(&plans);
        self.runtime.block_on(self.scene.second.has_sent(4));
        let is_there = |id: &str, kind: &str| self.event(id, kind).is_some();
        let retries = self.spawn(&retries);
        self.project.until("a step fails", || is_there(&retries, "step_failed"));
        // Looked for before the call begins, which lasts no longer than it says: a command takes its
        // time on a busy machine.
        let hosts = self.project.hosts();
        assert!(!hosts.is_empty(), "a host executes them");
        let calls = self.spawn(&calls);
        self.project.until("a call begins", || is_there(&calls, "tool_call_scheduled"));
        Project::signal(&hosts, Signal::KILL);
        self.project.kill_hosts_and_wait();
        assert!(!is_there(&calls, "tool_result"), "the host died in the middle of the call");
        self.scene.is_cut_off(&self.project.events(&plans));
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

    fn spawn(&self, task: &Task) -> String {
        let label = ["--label", "approved=yes"];
        let serial: &[&str] = if task.is_serial { &["--serial", "--session", "s"] } else { &[] };
        let args = [&["run", task.agent, &task.task, "-d"], &label[..], serial].concat();
        self.project.run(&args).id()
    }

    /// Gives what is waited for, and waits until every run has ended.
    fn finish(&self) -> Vec<EndedRun> {
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
        let end = |((id, pin), state): (&(String, Value), _)| {
            let waited = self.project.run(&["wait", id, "--timeout", "60s"]);
            // Two turns of refusals where no tool is left are the last, and its answer is a part.
            let is_part = state == "waits for consent" && waited.stderr.contains("failure_cap");
            let code = if is_part { 5 } else { 0 };
            assert_eq!(waited.code, code, "{state}: {waited:?} {:#?}", self.project.events(id));
            let (run, events) = (self.project.get(id), self.project.events(id));
            EndedRun { state, pin: pin.clone(), run, events }
        };
        self.runs.iter().zip(STATES).map(end).collect()
    }

    /// Brings every run to its end and holds each to how it has to go on after a change, and then a run
    /// that is asked for.
    pub(super) fn check(&self, change: &Change) {
        self.finish().iter().for_each(|run| run.went_on(change.ends));
        self.scene.is_paid_once(change.key);
        assert_eq!(self.later(), change.later);
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
    pub(super) fn check_adopted(&self, ends: Ends) {
        for run in self.finish() {
            let EndedRun { state, pin, events, .. } = &run;
            assert_eq!(run.run["status"], json!("completed"), "{state}: {}", run.run);
            let adopted = events.iter().find(|event| event["kind"] == "adopted");
            let adopted = adopted.unwrap_or_else(|| panic!("{state}: {events:#?}"));
            assert_eq!(adopted["from"], *pin, "{state}");
            let found = run.ends();
            assert_eq!(found[..], ends[..found.len()], "{state}: {events:#?}");
            assert_eq!(run.count("replay_diverged"), 0, "{state}: {events:#?}");
        }
        self.scene.is_paid_once(KEY);
        assert_eq!(self.later(), Later::PinnedOtherwise);
    }

    /// The fate of a run that is asked for after the change.
    fn later(&self) -> Later {
        let Task { agent, task, .. } = changes::reply();
        let ran = self.project.run(&["run", agent, &task, "-d"]);
        if ran.code != 0 {
            return Later::Refused;
        }
        match self.pin(&ran.id()) == self.runs[0].1 {
            true => Later::PinnedAlike,
            false => Later::PinnedOtherwise,
        }
    }
}
