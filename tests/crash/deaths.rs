//! Ways to die, alone and beside another host.

use std::num::NonZeroU32;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use taskrun::clock::SystemClock;
use taskrun_journal::event::Event;
use taskrun_journal::ids::HostId;
use taskrun_journal::list::Scope;
use taskrun_journal::store::{Host, Hosts, Session, SessionKey, Sessions, StoreError};
use taskrun_journal::time::{Clock, Timestamp};
use tokio::time::timeout;

use crate::chance::Chance;
use crate::idle::process_of;
use crate::load::Kind;
use crate::point::{CrashPoint, Persisted, Side};
use crate::process::Process;
use crate::round::{Broken, POLL, Round};

/// Longest wait for a host to come to the point at which it dies.
const POINT_MAX: Duration = Duration::from_secs(5);
/// Longest wait for the runs of a stopped host to be taken from it. It may have been stopped in
/// the middle of a write, and then nobody else can write: it goes on before they give that up.
const TAKEN_MAX: Duration = Duration::from_millis(4_300);
/// Longest wait for a write of the client, if nobody holds the store.
const WRITE_MAX: Duration = Duration::from_millis(500);
/// Longest wait for a host that goes on to be useful again.
const USEFUL_MAX: Duration = Duration::from_secs(60);
/// Kinds of events that every run has several of.
const OFTEN: [&str; 5] =
    ["tool_call_scheduled", "tool_result", "plan_decided", "assistant_message", "finished"];
/// Number of the signal that cannot be refused.
pub(crate) const SIGKILL: i32 = 9;

/// A way in which a host dies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// It is killed so long after it was started.
    After(Duration),
    /// It kills itself at a point.
    At(CrashPoint),
    /// It is stopped, its runs are taken from it, it goes on, and then the other one is killed.
    Stop(Duration),
    /// It is told to end so long after it was started, and hands over.
    HandOver(Duration),
    /// The same, and the other one is killed so long after that.
    HandOverBeside(Duration, Duration),
}

/// The number of the write at which a host dies at a point: what every run writes is worth a few.
pub(crate) fn nth(point: &CrashPoint, chance: &mut Chance) -> NonZeroU32 {
    let often = match point.persisted {
        Persisted::Claim | Persisted::Checkpoint => false,
        Persisted::Append(kind) => OFTEN.contains(&kind),
    };
    let nth = u32::try_from(chance.between(1, if often { 8 } else { 1 })).ok();
    nth.and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN)
}

/// The death before, which leaves what a host needs to come to a point.
pub(crate) fn prepared_by(point: &CrashPoint) -> Option<CrashPoint> {
    match point.persisted {
        Persisted::Append("lost" | "tool_call_repeated") => {
            let persisted = Persisted::Append("tool_result");
            Some(CrashPoint { persisted, side: Side::Before, nth: NonZeroU32::MIN })
        }
        Persisted::Claim | Persisted::Append(_) | Persisted::Checkpoint => None,
    }
}

/// The work of a run that makes its host come to a point.
fn kind_for(point: &CrashPoint) -> Option<Kind> {
    match point.persisted {
        Persisted::Append("asked" | "blocked") => Some(Kind::Asker),
        Persisted::Append("finalize_requested") => Some(Kind::Limited),
        Persisted::Append("finalizer_started") => Some(Kind::Closer),
        Persisted::Append("host_answered" | "assistant_chunk") => Some(Kind::Talker),
        Persisted::Append("clock_read") => Some(Kind::Watcher),
        Persisted::Append("tool_call_parked" | "child_run_linked") => Some(Kind::Delegator),
        Persisted::Append("memory_appended") => Some(Kind::Keeper),
        Persisted::Append("step_failed") => Some(Kind::Faller),
        Persisted::Append("inbox_shown") => Some(Kind::Told),
        Persisted::Claim | Persisted::Append(_) | Persisted::Checkpoint => None,
    }
}

pub(crate) fn now() -> Timestamp {
    SystemClock::new().now()
}

impl Round<'_> {
    /// Starts a run that makes its host come to a point.
    ///
    /// # Errors
    /// If it is not accepted.
    pub(crate) async fn start_run_for(&mut self, point: &CrashPoint) -> Result<(), Broken> {
        match kind_for(point) {
            Some(kind) => self.start_run_of(kind).await,
            None => Ok(()),
        }
    }

    /// One host that is alone dies.
    ///
    /// # Errors
    /// The reason that keeps the round from going on.
    pub(crate) async fn die_alone(&mut self, way: Way) -> Result<(), Broken> {
        match way {
            Way::HandOver(after) | Way::HandOverBeside(after, _) => {
                self.hand_over_alone(after).await
            }
            Way::After(after) | Way::Stop(after) => {
                let mut host = self.start_host(None)?;
                tokio::time::sleep(after).await;
                let at = now();
                host.kill()?;
                self.died(&host, "at random".to_owned(), at, true).await
            }
            Way::At(point) => {
                let mut host = self.start_host(Some(point))?;
                let hit = match host.gone_within(POINT_MAX).await? {
                    Some(status) if status.signal() == Some(SIGKILL) => true,
                    Some(status) => {
                        let log = host.files.log();
                        return Err(format!("the host ended as {status}:\n{log}").into());
                    }
                    None => false,
                };
                if !hit {
                    host.kill()?;
                }
                self.died(&host, point.name(), host.started, hit).await
            }
        }
    }

    /// One of two hosts dies, and another one is started in its place.
    ///
    /// # Errors
    /// The reason that keeps the round from going on.
    pub(crate) async fn die_beside(
        &mut self,
        pair: &mut [Process; 2],
        way: Way,
    ) -> Result<(), Broken> {
        if self.chance.one_in(2) {
            pair.swap(0, 1);
        }
        match way {
            Way::HandOver(after) => return self.hand_over_beside(pair, after, None).await,
            Way::HandOverBeside(after, gap) => {
                return self.hand_over_beside(pair, after, Some(gap)).await;
            }
            Way::After(after) | Way::Stop(after) => tokio::time::sleep(after).await,
            Way::At(_) => {}
        }
        let [victim, other] = pair;
        if let Way::Stop(_) = way {
            self.die_beside_stopped(victim, other).await?;
        } else {
            let at = now();
            victim.kill()?;
            self.died(victim, "two hosts: one at random".to_owned(), at, true).await?;
        }
        *victim = self.start_host(None)?;
        Ok(())
    }

    /// A host is stopped, its runs are taken from it, it goes on, and then the other one dies.
    async fn die_beside_stopped(
        &mut self,
        victim: &mut Process,
        other: &Process,
    ) -> Result<(), Broken> {
        let stopped = now();
        let taken = self.stop(other).await?;
        let name = "two hosts: one stopped, going on".to_owned();
        self.died(other, name, stopped, taken).await?;
        let at = now();
        victim.kill()?;
        let name = "two hosts: the one that was not stopped".to_owned();
        self.died(victim, name, at, true).await?;
        self.is_useful(other).await
    }

    /// Stops a host for longer than its lease; says whether all runs were taken from it.
    async fn stop(&mut self, host: &Process) -> Result<bool, Broken> {
        let Some(id) = self.host_of(host).await? else { return Ok(false) };
        host.stop()?;
        let taken = timeout(TAKEN_MAX, async {
            // Not before its lease ran out, also where it holds nothing.
            tokio::time::sleep(self.lease * 3 / 2).await;
            while !self.client.store.held(&id, None, 1).await?.is_empty() {
                tokio::time::sleep(POLL).await;
            }
            Ok::<(), Broken>(())
        })
        .await;
        let excused = taken.is_ok() || !self.is_writable().await?;
        host.go_on()?;
        if !excused {
            let what = format!("what a stopped host held is not taken within {TAKEN_MAX:?}");
            self.book.say("a host", what);
        }
        match taken {
            Ok(taken) => taken.map(|()| true),
            Err(_) => Ok(false),
        }
    }

    /// True if the store can be written, or a stopped process holds its lock.
    async fn is_writable(&self) -> Result<bool, Broken> {
        let key = SessionKey::of(&Scope::tenant("default"), "probe");
        let session = Session { key, created_at: now(), ended_at: None };
        match timeout(WRITE_MAX, self.client.store.open_session(session)).await {
            Ok(Err(StoreError::Locked { .. })) | Err(_) => Ok(false),
            Ok(written) => Ok(written.map(|_| true)?),
        }
    }

    /// The living host that a process is; it may be starting.
    pub(crate) async fn host_of(&self, process: &Process) -> Result<Option<HostId>, Broken> {
        let is_it = |host: &Host| host.pid == process.pid();
        let search = async {
            loop {
                let hosts = self.client.store.hosts().await?;
                if let Some(host) = hosts.into_iter().find(is_it) {
                    return Ok::<_, Broken>(host.id);
                }
                tokio::time::sleep(POLL).await;
            }
        };
        timeout(USEFUL_MAX, search).await.ok().transpose()
    }

    /// A host that was stopped and goes on takes runs again: it is the only one.
    async fn is_useful(&mut self, host: &Process) -> Result<(), Broken> {
        self.start_runs(2).await?;
        let newest: Vec<String> = self.client.started().keys().rev().take(2).cloned().collect();
        let search = async {
            loop {
                self.book.look(&self.client).await?;
                let by_it = |event: &Event| {
                    matches!(event, Event::Started { host: by, .. }
                        if process_of(by.as_str()) == host.pid())
                };
                let journals = newest.iter().filter_map(|id| self.book.journals.get(id));
                if journals.flatten().any(|recorded| by_it(&recorded.event)) {
                    return Ok::<(), Broken>(());
                }
                tokio::time::sleep(POLL).await;
            }
        };
        match timeout(USEFUL_MAX, search).await {
            Ok(found) => found,
            Err(_) => {
                let what = "a host that was stopped and went on takes no runs any more";
                self.book.say(&newest[0], what);
                Ok(())
            }
        }
    }
}
