//! Asking both worlds for runs.

use std::time::Duration;

use taskrun::spawn::{SpawnRequest, WhenFull};
use taskrun_journal::hold::Lane;
use taskrun_journal::ids::RunId;
use taskrun_journal::pin::{Pins, Ready};
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_journal::time::Clock;

use super::act::{Codes, expect};
use super::bench::{Bench, DEPTH_MAX, OWNERS, QUEUE_MAX, SESSIONS, TREE_MAX};
use super::guests::PAYLOAD;
use super::known::{Known, State};
use super::ops::Spawn;
use super::queue;

impl Bench {
    pub(super) async fn spawn(&mut self, spawn: &Spawn) -> Result<(), String> {
        let own = format!("r{}", self.asked.len());
        let id = spawn.id_of.and_then(|back| self.pick(back)).unwrap_or_else(|| own.clone());
        let parent = spawn.parent.and_then(|back| self.pick(back));
        let above = parent.as_ref().and_then(|id| self.model.runs.get(id));
        let owner = (above.map_or(0, |above| above.owner) + spawn.owner) % 2;
        let name = |back: &_| match *back {
            0 => id.clone(),
            back => self.pick(back - 1).unwrap_or_else(|| "nobody".to_owned()),
        };
        let awaited: Vec<String> = spawn.awaited.iter().map(name).collect();
        let ms = spawn.wait_ms.map_or(String::new(), |ms| format!(",\"ms\":{ms}"));
        let payload = format!("{{\"runs\":{awaited:?},\"any\":{}{ms}}}", spawn.any);
        let request = SpawnRequest {
            id: Some(id.clone()),
            owner_user_id: OWNERS[owner].to_owned(),
            parent_session_id: SESSIONS[spawn.session].to_owned(),
            agent_name: spawn.kind.agent().to_owned(),
            task: "x".to_owned(),
            timeout: spawn.timeout_ms.map(Duration::from_millis),
            runtime_state: [(PAYLOAD.to_owned(), payload)].into(),
            priority: spawn.priority,
            idempotency_key: spawn.key.map(|key| format!("k{key}")),
            parent_run_id: parent.clone(),
            serial: spawn.serial,
            when_full: if spawn.refuse { WhenFull::Refuse } else { WhenFull::Wait },
            ..SpawnRequest::default()
        };
        let known = Known {
            kind: spawn.kind,
            root: id.clone(),
            parent,
            depth: 0,
            owner,
            session: spawn.session,
            root_session: spawn.session,
            key: spawn.key,
            serial: spawn.serial,
            timeout_ms: spawn.timeout_ms,
            wait_ms: spawn.wait_ms,
            awaited,
            any: spawn.any,
            state: State::Queued,
            ran_ms: 0,
            in_tool: false,
            crashes: (0, 0),
            answer: None,
            paused: false,
            looks: false,
            tool_answered: false,
            told: false,
        };
        self.asked.push(id.clone());
        self.submit(&id, request, known).await
    }

    pub(super) async fn repeat(&mut self, back: u8) -> Result<(), String> {
        let Some(id) = self.pick(back) else { return Ok(()) };
        let Some((request, known)) = self.requests.get(&id).cloned() else { return Ok(()) };
        self.submit(&id, request, known).await
    }

    async fn submit(
        &mut self,
        id: &str,
        request: SpawnRequest,
        mut known: Known,
    ) -> Result<(), String> {
        if let Some(above) = known.parent.as_ref().and_then(|id| self.model.runs.get(id)) {
            (known.root, known.depth) = (above.root.clone(), above.depth + 1);
            known.root_session = above.root_session;
        }
        let holder =
            |one: &Known| one.key.is_some() && one.key == known.key && one.owner == known.owner;
        let holder = self.model.runs.iter().find(|(_, one)| holder(one)).map(|(id, _)| id.clone());
        let same = self.requests.get(id).is_some_and(|(before, _)| *before == request);
        let repeated = same && holder.as_deref() == Some(id);
        let mut codes = match repeated {
            true => self.parent_codes(&known),
            false => self.spawn_codes(id, &request, &known, holder.is_some()).await,
        };
        // What waits may be taken before this one is kept, which then has room, or none.
        let counts_slots = request.when_full == WhenFull::Refuse;
        if !repeated && (counts_slots || codes.contains("limit")) {
            self.rest().await?;
            codes = self.spawn_codes(id, &request, &known, holder.is_some()).await;
        }
        let submitted = self.any(known.awaited.len() as u8).at(&self.scope).submit(&request).await;
        let Some(spawned) = expect(&format!("spawn of {id}"), submitted, &codes)? else {
            return Ok(());
        };
        if spawned.run.id().as_str() != id || spawned.reused != repeated {
            return Err(format!("spawn of {id} gave {}: {}", spawned.run.id(), spawned.reused));
        }
        if !repeated {
            self.requests.insert(id.to_owned(), (request, known.clone()));
            self.model.runs.insert(id.to_owned(), known);
        }
        Ok(())
    }

    /// The fault of the parent, before anything else is looked at.
    fn parent_codes(&self, known: &Known) -> Codes {
        let Some(parent) = &known.parent else { return Codes::new() };
        match self.model.runs.get(parent) {
            None => Codes::from(["not-found"]),
            Some(parent) if parent.owner != known.owner => Codes::from(["forbidden"]),
            Some(parent) if parent.depth >= DEPTH_MAX => Codes::from(["limit"]),
            Some(_) => Codes::new(),
        }
    }

    /// Why a run may not be accepted; any of the reasons will do.
    async fn spawn_codes(
        &self,
        id: &str,
        request: &SpawnRequest,
        known: &Known,
        key_is_taken: bool,
    ) -> Codes {
        let mut codes = self.parent_codes(known);
        if !codes.is_empty() {
            return codes;
        }
        if key_is_taken || self.model.runs.contains_key(id) {
            codes.insert("already-exists");
        }
        if self.model.ended_sessions.contains(&known.session) {
            codes.insert("session-ended");
        }
        let takes = |one: &Known| match one.status() {
            Status::Queued | Status::Running | Status::Blocked => true,
            Status::Canceling
            | Status::Finalizing
            | Status::Completed
            | Status::Failed
            | Status::Canceled => false,
        };
        let parent = known.parent.as_ref().and_then(|parent| self.model.runs.get(parent));
        if parent.is_some_and(|parent| !takes(parent)) {
            codes.insert("parent-ended");
        }
        let runs = || self.model.runs.values();
        let queued = runs().filter(|one| one.state == State::Queued).count();
        let tree = runs().filter(|one| one.root == known.root).count();
        if queued >= QUEUE_MAX || parent.is_some() && tree >= TREE_MAX {
            codes.insert("limit");
        }
        if request.when_full == WhenFull::Refuse && !self.begins_at_once(request, known).await {
            codes.insert("limit");
        }
        codes
    }

    async fn begins_at_once(&self, request: &SpawnRequest, known: &Known) -> bool {
        let all = self.all().await;
        let (settings, now) = (&self.world.settings, self.world.clock.now());
        let mut wanted = queue::wanted(&all, now, settings.tree_slots);
        // Without a host only runs that the same ones would execute are before it.
        if self.workers.is_empty() {
            let ready = self.same_pins(&all, request, known);
            let run = |id: &RunId| all.iter().find(|(_, run)| run.id() == id);
            let is_same = |id: &RunId, lane| {
                run(id).is_some_and(|(_, run)| ready.includes(&Pins::of(run), lane))
            };
            wanted.retain(|one| is_same(&one.id, one.lane));
        }
        let before =
            wanted.iter().any(|one| one.lane == Lane::Resume || one.priority.0 >= request.priority);
        let root = RunId::new(&known.root).expect("ids of the table are valid");
        let turn = |one: &Known| (one.owner, one.session);
        let open = |one: &Known| one.serial && turn(one) == turn(known) && one.is_open();
        let free = |worker| self.held(&all, worker) < settings.slots;
        let behind = before || (known.serial && self.model.runs.values().any(open));
        !behind
            && queue::held_in_tree(&all, &root) < settings.tree_slots as usize
            && (self.workers.is_empty() || self.workers.iter().any(free))
    }

    /// The runs that are executed wherever a new one is.
    fn same_pins(&self, all: &[(usize, Run)], request: &SpawnRequest, known: &Known) -> Ready {
        let agents = self.any(0).agents();
        let parent = known.parent.as_deref();
        let parent = all.iter().map(|(_, run)| run).find(|run| Some(run.id().as_str()) == parent);
        let mut pins = vec![agents.by_name[&request.agent_name].pin.clone()];
        if let Some(parent) = parent {
            pins.push(parent.spec.pin.clone());
            pins.extend(parent.spec.ancestors.iter().map(|one| one.pin.clone()));
        }
        Ready::only(pins.iter().map(String::as_str))
    }

    pub(super) async fn bad(&self, which: u8) -> Result<(), String> {
        let good = crate::native::request("quick", "x");
        let (request, code) = match which {
            0 => (SpawnRequest { owner_user_id: " ".into(), ..good }, "invalid"),
            1 => (SpawnRequest { parent_session_id: String::new(), ..good }, "invalid"),
            2 => (SpawnRequest { task: " ".into(), ..good }, "invalid"),
            3 => (SpawnRequest { agent_name: "nobody".into(), ..good }, "invalid"),
            _ => (SpawnRequest { parent_run_id: Some("nobody".into()), ..good }, "not-found"),
        };
        let spawned = self.any(which).at(&self.scope).spawn(&request).await;
        expect("a bad request", spawned, &Codes::from([code])).map(|_| ())
    }
}
