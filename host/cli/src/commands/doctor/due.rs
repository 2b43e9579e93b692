//! Runs that wait for a time, a heartbeat or a host, where no host is there to go on with them.

use std::collections::BTreeMap;

use taskrun_journal::list::{ListFilter, PAGE_MAX};
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_journal::store::StoreError;
use taskrun_journal::time::Timestamp;
use taskrun_runtime::Storage;

use super::{Check, Health};
use crate::context::Context;
use crate::follow::{Attendance, Lack};
use crate::output::escape::escaped_line;
use crate::output::human;

/// The runs that no host goes on with, counted by the reasons. Of those whose own agent is gone,
/// and of agents that do not load, other checks tell.
#[derive(Default)]
struct Alone {
    /// Those that could go on at once.
    waiting: u64,
    /// Those whose time comes later.
    later: u64,
    /// The first of these times.
    next: Option<Timestamp>,
    /// Entries by agents that have no heartbeat.
    heartless: BTreeMap<String, u64>,
    /// Runs by agents of runs above them that are gone.
    beneath: BTreeMap<String, u64>,
}

impl Alone {
    fn count(&mut self, run: &Run, lack: Lack) {
        let own = &run.spec.agent_name;
        match lack {
            Lack::Agent(agent) if agent == *own => {}
            Lack::Load(_) => {}
            Lack::Agent(agent) => *self.beneath.entry(agent).or_default() += 1,
            Lack::Heartbeat => *self.heartless.entry(own.clone()).or_default() += 1,
            Lack::Host(None) => self.waiting += 1,
            Lack::Host(Some(due)) => {
                self.later += 1;
                self.next = Some(self.next.map_or(due, |next| due.min(next)));
            }
        }
    }
}

/// Says how many runs could go on that no living host executes, how many are due later, and when
/// the next of these is; and which wait for what the policy lacks.
pub(super) async fn check(
    context: &Context,
    storage: &Storage,
    attendance: &Attendance,
) -> Result<Vec<Check>, StoreError> {
    let (scope, now) = (context.principal().scope, context.now());
    let status = vec![Status::Queued, Status::Running, Status::Blocked];
    let filter = ListFilter { status, ..ListFilter::default() };
    let (mut after, mut alone) = (None, Alone::default());
    loop {
        let page = storage.store.list(&scope, &filter, after.as_ref(), PAGE_MAX).await?;
        for run in &page.runs {
            if let Some(lack) = attendance.lack(run, now) {
                alone.count(run, lack);
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let Alone { waiting, later, next, heartless, beneath } = alone;
    let waits = (waiting > 0).then(|| {
        let (wait, them) = if waiting == 1 { ("waits", "it") } else { ("wait", "them") };
        let runs = human::count(waiting, "run");
        let detail = format!("{runs} {wait} for a host, and none that lives executes {them}");
        Check::new("waiting", Health::Note, detail)
            .hint("`taskrun wait RUN` starts one, as `taskrun run` does")
    });
    let due = next.map(|next| {
        let is = if later == 1 { "is" } else { "are" };
        let (runs, next) = (human::count(later, "run"), human::due(next, now));
        let nobody = match attendance.hosts() {
            [] => "no host runs",
            [..] => "and no host that lives executes them",
        };
        let detail = format!("{runs} {is} due later, the next {next}, {nobody}");
        Check::new("due", Health::Note, detail)
            .hint("`taskrun host --service` stays and goes on with them when they are due")
    });
    Ok(waits.into_iter().chain(due).chain(lacks(&heartless, &beneath)).collect())
}

/// The agents that the policy has without a heartbeat, and those that it does not have, as far as
/// runs wait for them.
fn lacks(heartless: &BTreeMap<String, u64>, beneath: &BTreeMap<String, u64>) -> Option<Check> {
    let entries = heartless.iter().map(|(agent, count)| {
        let wait = if *count == 1 { "waits" } else { "wait" };
        let entries = match count {
            1 => "1 entry".to_owned(),
            many => format!("{many} entries"),
        };
        format!("{}: has no heartbeat now; {entries} of it {wait} for one", escaped_line(agent))
    });
    let runs = beneath.iter().map(|(agent, count)| {
        let begin = if *count == 1 { "begins" } else { "begin" };
        let runs = human::count(*count, "open run");
        format!("{}: not in the policy; {runs} beneath it {begin} nothing", escaped_line(agent))
    });
    let lines: Vec<String> = entries.chain(runs).collect();
    (!lines.is_empty()).then(|| {
        Check::new("agents", Health::Note, lines.join("\n")).hint(
            "give the policy what it lacks again, or cancel the runs; `taskrun ps` shows them",
        )
    })
}
