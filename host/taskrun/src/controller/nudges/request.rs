//! The run that a nudge is: its task, its rights and its budget.

use std::collections::BTreeMap;
use std::sync::Arc;

use taskrun_journal::answers::Answers;
use taskrun_journal::channel::Channel;
use taskrun_journal::delivery::Delivery;
use taskrun_journal::ids::RunId;
use taskrun_journal::narrowing::{Ancestor, Narrowing};
use taskrun_journal::spec::{RunSpec, TASK_BYTES_MAX};
use taskrun_journal::store::{Admission, NewRun};

use super::spending::Trees;
use super::{DueReport, LABEL, Place};
use crate::controller::{Controller, channels};
use crate::driver::TreeRemainder;
use crate::error::ControllerError;
use crate::gate::narrowing;
use crate::ports::hook::Moment;
use crate::spawn::{RuntimeStateKeys, SpawnRequest};

/// The task of a nudge unless the delivery names another one.
const TASK: &str = "Background runs have ended: their reports stand above. Tell the user what \
                    matters of them.";

/// Most reports for which a nudge is started; it is told of others that are due then all the same.
const REPORTS_MAX: usize = 64;

/// The position of a nudge: what it inherits of the runs of whose outcomes it is told.
#[derive(PartialEq)]
struct Inherited {
    ancestors: Vec<Ancestor>,
    narrow: Narrowing,
    envelope: BTreeMap<String, String>,
    envelope_keys: Option<[String; 3]>,
    app_name: Option<String>,
    answers: Answers,
    channels: Vec<Channel>,
}

impl Inherited {
    /// That of the agent `notify` for the outcome of a run in the tree of `root`. The agent of the
    /// conversation stands where `root` stood; any other one stands where the run stood, within the
    /// rules of all that was above it.
    fn of(run: &RunSpec, root: &RunSpec, notify: &str) -> Self {
        let is_own = notify == root.agent_name;
        Self {
            ancestors: if is_own { root.ancestors.clone() } else { run.ancestors.clone() },
            narrow: if is_own { root.narrow.clone() } else { Narrowing::default() },
            envelope: root.given_state(),
            envelope_keys: root.envelope_keys.clone(),
            app_name: root.app_name.clone(),
            answers: root.answers.clone(),
            channels: if is_own { root.channels.clone() } else { Vec::new() },
        }
    }
}

/// Due reports of one position, for which there can be one nudge.
pub(super) struct ReportGroup {
    /// The runs of whose outcomes it is told.
    pub(super) told: Vec<Arc<RunSpec>>,
    /// Those of trees that have spent their budget, for which there is none.
    pub(super) spent: Vec<RunId>,
    inherited: Option<Inherited>,
    /// The least of what the trees have left.
    left: TreeRemainder,
}

impl Controller {
    /// The first of these reports, and all that are of the same position.
    pub(super) async fn group_of(
        &self,
        (place, notify): (&Place, &str),
        reports: Vec<DueReport>,
    ) -> Result<ReportGroup, ControllerError> {
        let mut group = ReportGroup {
            told: Vec::new(),
            spent: Vec::new(),
            inherited: None,
            left: TreeRemainder::default(),
        };
        let store = &self.0.parts.store;
        let (mut trees, mut candidates) = (Trees::default(), Vec::new());
        for report in reports.into_iter().take(REPORTS_MAX) {
            let root = store.get(&report.run.root_run_id).await?;
            let root_spec = root.as_ref().map_or(&report.run, |root| &root.spec);
            let inherited = Inherited::of(&report.run, root_spec, notify);
            candidates.push((inherited, Arc::clone(&report.run)));
            if let Some(root) = root.filter(|_| report.run.depth > 0) {
                trees.add(self, root).await?;
            }
        }
        let mut remainders = trees.remainders(&**store, place).await?;
        for (inherited, run) in candidates {
            if group.inherited.as_ref().is_some_and(|common| *common != inherited) {
                continue;
            }
            let left = match run.depth {
                0 => TreeRemainder::default(),
                _ => remainders.left_of(&run.root_run_id).await?,
            };
            if left.met().is_some() {
                group.spent.push(run.id.clone());
                continue;
            }
            group.left = group.left.least(left);
            group.inherited = Some(inherited);
            group.told.push(run);
        }
        Ok(group)
    }

    /// A nudge for a group of reports; or why there can be none.
    pub(super) async fn new_nudge(
        &self,
        (place, notify): (&Place, &str),
        group: ReportGroup,
        serial: bool,
    ) -> Result<Result<NewRun, String>, ControllerError> {
        let agents = self.agents();
        let Some(agent) = agents.by_name.get(notify) else {
            return Ok(Err(format!("agent {notify} is unknown")));
        };
        if agent.conversation.is_none() {
            return Ok(Err(format!("agent {notify} takes part in no conversation")));
        }
        let ReportGroup { told, spent: _, inherited, left } = group;
        let Some(inherited) = inherited else {
            return Ok(Err("the runs that started them have spent their budget".to_owned()));
        };
        let mut narrow = inherited.narrow.clone();
        left.bound(&mut narrow);
        let request = request_of((place, notify), &told, &inherited, serial);
        let now = self.0.parts.clock.now();
        let scope = place.scope();
        let mut spec = match self.accept(&scope, &request, now) {
            Ok(spec) => spec,
            Err(error) => return Ok(Err(error.to_string())),
        };
        spec.nudge_for = told.iter().map(|run| run.id.clone()).collect();
        spec.hops = told.iter().map(|run| run.hops).max().unwrap_or_default() + 1;
        spec.ancestors = inherited.ancestors;
        spec.answers = inherited.answers;
        // Those that the policy of now has instead, where the agents of then are not known any more.
        for ancestor in &mut spec.ancestors {
            if let Some(agent) = self.at_the_door(&ancestor.pin) {
                ancestor.pin.clone_from(&agent.pin);
            }
        }
        spec.narrow = narrow;
        if let Err(error) = channels::bind(&mut spec, inherited.channels) {
            return Ok(Err(error.to_string()));
        }
        let above = self.above_at_the_door(&spec);
        if let Err(error) = narrowing::check_prices(&spec, agent, &above) {
            return Ok(Err(error.to_string()));
        }
        let parts = &self.0.parts;
        if let Some(veto) = parts.hooks.ask(&*parts.machine, &Moment::Spawn { spec: &spec }).await {
            return Ok(Err(veto.to_string()));
        }
        let admission = Admission { queue_max: parts.settings.queue_max, ..Admission::UNBOUNDED };
        let (run, queued) = self.begun(spec);
        let events = vec![queued];
        let (idempotency, task, artifacts) = (None, None, Vec::new());
        Ok(Ok(NewRun { run, events, artifacts, idempotency, task, admission }))
    }
}

fn request_of(
    (place, notify): (&Place, &str),
    told: &[Arc<RunSpec>],
    inherited: &Inherited,
    serial: bool,
) -> SpawnRequest {
    let Place { owner_user_id, conversation, .. } = place;
    let keys = inherited.envelope_keys.clone().map_or_else(
        RuntimeStateKeys::default,
        |[run, run_id, parent_session_id]| RuntimeStateKeys {
            run: Some(run),
            run_id: Some(run_id),
            parent_session_id: Some(parent_session_id),
        },
    );
    SpawnRequest {
        owner_user_id: owner_user_id.clone(),
        parent_session_id: conversation.session.clone(),
        parent_app_name: conversation.app.clone(),
        app_name: inherited.app_name.clone(),
        agent_name: notify.to_owned(),
        task: task_of(told),
        runtime_state: inherited.envelope.clone(),
        runtime_state_keys: keys,
        labels: [(LABEL.to_owned(), notify.to_owned())].into(),
        serial,
        converses: true,
        ..SpawnRequest::default()
    }
}

/// The prompts of all that is told, each once.
fn task_of(told: &[Arc<RunSpec>]) -> String {
    let mut prompts: Vec<&str> = Vec::new();
    for run in told {
        let prompt = run.delivery.as_ref().and_then(Delivery::task).unwrap_or(TASK);
        let bytes: usize = prompts.iter().map(|prompt| prompt.len() + 1).sum();
        if !prompts.contains(&prompt) && bytes + prompt.len() <= TASK_BYTES_MAX {
            prompts.push(prompt);
        }
    }
    prompts.join("\n")
}
