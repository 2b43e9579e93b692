//! The mixed load: what the runs do, and how each may end.

use std::time::Duration;

use serde_json::{Value, json};
use taskrun::spawn::SpawnRequest;
use taskrun_journal::ending::{EndStatus, Ending};
use taskrun_journal::run::RunView;
use taskrun_journal::status::StopReason;

use crate::chance::Chance;

/// The work of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Calls tools, several in each of several turns.
    Notes,
    /// Asks, and goes on with the answer.
    Asker,
    /// Asks, and is answered when the run beneath it has ended.
    Parent,
    /// Is beneath a parent; calls tools.
    Child,
    /// Has a finalizer.
    Closer,
    /// Lets a model decide, which calls a tool.
    Talker,
    /// Takes longer than it may.
    Late,
    /// Looks at the clock for a while, and calls a tool.
    Watcher,
    /// Meets a limit and is asked for its last word.
    Limited,
    /// Waits for its turn in its session, and calls tools.
    Serial,
    /// Calls slow tools that must not be repeated unless somebody agrees.
    Careful,
    /// Waits for a run of another agent that it calls as a tool.
    Delegator,
    /// Calls a tool that keeps a fact for the session.
    Keeper,
    /// Has a step that fails however often it is tried.
    Faller,
    /// Is told something when it was just accepted, and calls tools.
    Told,
}

impl Kind {
    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Notes => "notes",
            Self::Asker => "asker",
            Self::Parent => "parent",
            Self::Child => "child",
            Self::Closer => "closer",
            Self::Talker => "talker",
            Self::Late => "late",
            Self::Watcher => "watcher",
            Self::Limited => "limited",
            Self::Serial => "serial",
            Self::Careful => "careful",
            Self::Delegator => "delegator",
            Self::Keeper => "keeper",
            Self::Faller => "faller",
            Self::Told => "told",
        }
    }
}

/// The session of the runs that take turns.
pub(crate) const SERIAL_SESSION: &str = "session-serial";

/// The runs that are started in turn; a child comes with its parent.
const CYCLE: [Kind; 17] = [
    Kind::Notes,
    Kind::Asker,
    Kind::Serial,
    Kind::Closer,
    Kind::Careful,
    Kind::Talker,
    Kind::Notes,
    Kind::Parent,
    Kind::Serial,
    Kind::Watcher,
    Kind::Limited,
    Kind::Careful,
    Kind::Late,
    Kind::Delegator,
    Kind::Keeper,
    Kind::Faller,
    Kind::Told,
];

/// A run to be started, and what is done about it from outside.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) id: String,
    pub(crate) kind: Kind,
    pub(crate) request: SpawnRequest,
    /// The time from its start to its cancellation, if it is canceled.
    pub(crate) cancel_after: Option<Duration>,
    /// The time after its start at which it is paused, if it is, and the length of that pause.
    pub(crate) pause: Option<(Duration, Duration)>,
    /// The time for which a question is left unanswered.
    pub(crate) answer_after: Duration,
    /// The answer where a call that was cut off asks whether it may begin again.
    pub(crate) accepts: bool,
}

/// The load of one round.
pub(crate) struct Load {
    chance: Chance,
    made: usize,
}

impl Load {
    pub(crate) fn new(chance: Chance) -> Self {
        Self { chance, made: 0 }
    }

    /// The next runs, of every kind in turn; one more where a parent has a child.
    pub(crate) fn next(&mut self, count: usize) -> Vec<Planned> {
        let mut all = Vec::new();
        while all.len() < count {
            let kind = CYCLE[self.made % CYCLE.len()];
            let first = self.plan(kind, None);
            let parent = first.id.clone();
            all.push(first);
            if kind == Kind::Parent {
                all.push(self.plan(Kind::Child, Some(parent)));
            }
        }
        all
    }

    /// One more of a kind.
    pub(crate) fn of(&mut self, kind: Kind) -> Planned {
        self.plan(kind, None)
    }

    fn plan(&mut self, kind: Kind, parent: Option<String>) -> Planned {
        let number = self.made;
        // A child does not move the cycle on.
        self.made += usize::from(kind != Kind::Child);
        let suffix = if kind == Kind::Child { "-child" } else { "" };
        let id = format!("run-{number:04}{suffix}");
        let chance = &mut self.chance;
        let cancel = chance.one_in(10).then(|| Duration::from_millis(chance.between(0, 2_500)));
        let length = Duration::from_millis(chance.between(50, 1_000));
        let pause = chance.one_in(4).then(|| Duration::from_millis(chance.between(0, 1_500)));
        let pause = pause.map(|after| (after, length));
        let late = if chance.one_in(2) { chance.between(200, 1_500) } else { 0 };
        let (agent, task) = match kind {
            Kind::Closer => ("closer", format!("{id} has ended")),
            Kind::Talker => ("talker", format!("keep a word for {id}")),
            Kind::Limited => ("limited", script(&id, kind, chance)),
            Kind::Delegator => ("delegator", script(&id, kind, chance)),
            Kind::Keeper => ("keeper", script(&id, kind, chance)),
            Kind::Faller => ("faller", script(&id, kind, chance)),
            Kind::Notes
            | Kind::Asker
            | Kind::Parent
            | Kind::Child
            | Kind::Late
            | Kind::Watcher
            | Kind::Serial
            | Kind::Told
            | Kind::Careful => ("worker", script(&id, kind, chance)),
        };
        let accepts = chance.one_in(2);
        let serial = kind == Kind::Serial;
        let session = if serial { SERIAL_SESSION } else { "session-a" };
        let request = SpawnRequest {
            id: Some(id.clone()),
            owner_user_id: "user-a".to_owned(),
            parent_session_id: session.to_owned(),
            agent_name: agent.to_owned(),
            task,
            timeout: (kind == Kind::Late).then_some(Duration::from_millis(600)),
            parent_run_id: parent,
            serial,
            ..SpawnRequest::default()
        };
        let answer_after = Duration::from_millis(late);
        Planned { id, kind, request, cancel_after: cancel, pause, answer_after, accepts }
    }
}

impl Planned {
    /// An error in words if the run may not have ended so. Every run may have lost too
    /// many hosts, or been canceled if somebody asked for that.
    pub(crate) fn check_end(&self, view: &RunView, ending: &Ending) -> Result<(), String> {
        let reason = ending.stop_reason;
        let fits = match (ending.status, self.kind) {
            (EndStatus::Canceled, _) => self.may_be_canceled() && is_cancel(reason),
            (EndStatus::Failed, Kind::Late) => {
                matches!(reason, StopReason::RunTimeout | StopReason::InterruptedByRestart)
            }
            (EndStatus::Failed, Kind::Faller) => {
                matches!(reason, StopReason::RetryAborted | StopReason::InterruptedByRestart)
            }
            (EndStatus::Failed, _) => reason == StopReason::InterruptedByRestart,
            (EndStatus::Completed, Kind::Late | Kind::Faller) => false,
            (EndStatus::Completed, Kind::Limited) => {
                ending.partial && reason == StopReason::MaxTurns
            }
            (EndStatus::Completed, _) => {
                let words = view.metadata.contains_key("words");
                reason == StopReason::FinalResponse
                    && view.result == self.answer()
                    && (self.kind != Kind::Closer || words || finalizer_was_cut(view))
            }
        };
        if fits {
            return Ok(());
        }
        Err(format!("a run of kind {:?} ended as {ending:?} with {:?}", self.kind, view.result))
    }

    /// A child is canceled with its parent.
    fn may_be_canceled(&self) -> bool {
        self.cancel_after.is_some() || self.kind == Kind::Child
    }

    fn answer(&self) -> Option<String> {
        match self.kind {
            Kind::Closer => Some(self.request.task.clone()),
            Kind::Talker => Some("It is kept.".to_owned()),
            Kind::Notes
            | Kind::Asker
            | Kind::Parent
            | Kind::Child
            | Kind::Late
            | Kind::Watcher
            | Kind::Limited
            | Kind::Serial
            | Kind::Delegator
            | Kind::Keeper
            | Kind::Faller
            | Kind::Told
            | Kind::Careful => Some(format!("{} is done", self.id)),
        }
    }
}

/// A finalizer begins once; one that died with its host adds nothing.
fn finalizer_was_cut(view: &RunView) -> bool {
    !view.metadata.contains_key("status")
}

fn is_cancel(reason: StopReason) -> bool {
    matches!(reason, StopReason::CanceledByOwner | StopReason::CanceledByParent)
}

fn call(id: &str, name: &str, args: Value) -> Value {
    json!({ "call": { "id": id, "name": name, "args": args } })
}

/// A call of the ledger; its text is of no other call.
fn ledger(run: &str, turn: usize, name: &str) -> Value {
    let id = name.replace('/', "-");
    let text = format!("{run}.{turn}.{id}");
    call(&id, name, json!({ "text": text }))
}

fn slow(chance: &mut Chance) -> Value {
    call("slow", "slow/lookup", json!({ "sleep_ms": chance.between(5, 900) }))
}

/// A slow call that must not be repeated unless somebody agrees.
fn hesitant(chance: &mut Chance) -> Value {
    call("hesitant", "hesitant/change", json!({ "sleep_ms": chance.between(5, 900) }))
}

/// The steps of a scripted agent.
fn script(id: &str, kind: Kind, chance: &mut Chance) -> String {
    let note = |turn| ledger(id, turn, "ledger/note");
    let put = |turn| ledger(id, turn, "ledger/put");
    let careful = |turn| ledger(id, turn, "careful/note");
    let done = vec![json!({ "reply": format!("{id} is done") })];
    let ask = json!({ "plan": { "await": [
        { "clarification": { "id": format!("q-{id}"), "question": "Go on?" } }
    ] } });
    let steps = match kind {
        Kind::Notes => {
            let third = vec![put(2), slow(chance), note(2)];
            vec![vec![note(0), put(0)], vec![careful(1), slow(chance), put(1)], third, done]
        }
        Kind::Asker | Kind::Parent => vec![vec![note(0)], vec![ask], vec![put(2), note(2)], done],
        Kind::Child => vec![vec![note(0), slow(chance)], vec![put(1)], done],
        Kind::Late => vec![vec![note(0)], vec![json!({ "sleep": 30_000 })], done],
        Kind::Watcher => {
            // What is told of the time goes to the journal with a remark that is made before.
            let remark = json!({ "thought": "I look at the clock" });
            let look = json!({ "ignore_cancel": chance.between(100, 300) });
            vec![
                vec![remark, look, note(0)],
                vec![json!({ "sleep": chance.between(1, 100) }), put(1)],
                done,
            ]
        }
        Kind::Limited => (0..5).map(|turn| vec![note(turn), put(turn)]).collect(),
        Kind::Serial => vec![vec![note(0), slow(chance)], vec![put(1)], done],
        Kind::Careful => {
            let both = |turn, chance: &mut Chance| vec![careful(turn), hesitant(chance)];
            vec![both(0, chance), both(1, chance), done]
        }
        Kind::Delegator => {
            let work = json!({ "sleep": chance.between(1, 300) });
            let task = json!({ "steps": [[work, { "reply": "it is looked up" }]] }).to_string();
            let helper = call("helper", "agent/helper", json!({ "task": task }));
            vec![vec![note(0), helper], vec![put(1)], done]
        }
        Kind::Keeper => {
            let fact = json!({ "key": id, "text": format!("{id} was here") });
            vec![vec![note(0), call("keep", "notes/keep", fact)], vec![put(1)], done]
        }
        Kind::Faller => vec![vec![note(0)], vec![json!({ "err": "no luck" })], done],
        Kind::Told => {
            let first = vec![json!({ "sleep": chance.between(1, 100) }), note(0)];
            vec![first, vec![put(1)], vec![note(2)], done]
        }
        Kind::Closer | Kind::Talker => Vec::new(),
    };
    json!({ "steps": steps, "finalize": [{ "reply": format!("{id} is done") }] }).to_string()
}
