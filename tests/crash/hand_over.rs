//! Hosts that are told to end: they hand over what they execute, alone, beside another host, and
//! while that one is killed.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use taskrun_journal::ids::HostId;
use taskrun_journal::store::Hosts;
use taskrun_journal::time::Timestamp;

use crate::deaths::now;
use crate::process::Process;
use crate::round::{Broken, Round};
use crate::table::Death;

/// Longest time in which a host hands over: longer than it gives its runs, on a busy machine.
const HAND_OVER_MAX: Duration = Duration::from_secs(60);
/// Number of the signal that asks a process to end.
const SIGTERM: i32 = 15;

/// A host that was told to end.
struct Ending {
    name: String,
    at: Timestamp,
    id: Option<HostId>,
}

impl Round<'_> {
    /// A host that is alone is told to end so long after it began; the next one goes on.
    ///
    /// # Errors
    /// The reason that keeps the round from going on.
    pub(crate) async fn hand_over_alone(&mut self, after: Duration) -> Result<(), Broken> {
        let mut host = self.start_host(None)?;
        let ending = self.tell(&host, after, "hand over: to the next host").await?;
        self.has_handed_over(&mut host, ending).await
    }

    /// One of two hosts is told to end, and the other one goes on; if there is a gap, that one is
    /// killed so long after it, and who is started next goes on with both.
    ///
    /// # Errors
    /// The reason that keeps the round from going on.
    pub(crate) async fn hand_over_beside(
        &mut self,
        pair: &mut [Process; 2],
        after: Duration,
        killed_after: Option<Duration>,
    ) -> Result<(), Broken> {
        let [one, other] = pair;
        let name = match killed_after {
            None => "hand over: to the other host",
            Some(_) => "hand over: while the other host is killed",
        };
        let ending = self.tell(one, after, name).await?;
        if let Some(gap) = killed_after {
            tokio::time::sleep(gap).await;
            let at = now();
            other.kill()?;
            let name = "two hosts: one while the other hands over".to_owned();
            self.died(other, name, at, true).await?;
        }
        self.has_handed_over(one, ending).await?;
        *one = self.start_host(None)?;
        if killed_after.is_some() {
            *other = self.start_host(None)?;
        }
        Ok(())
    }

    async fn tell(&self, host: &Process, after: Duration, name: &str) -> Result<Ending, Broken> {
        let id = self.host_of(host).await?;
        tokio::time::sleep(after).await;
        let at = now();
        host.end()?;
        Ok(Ending { name: name.to_owned(), at, id })
    }

    /// A host that was told to end does so, and holds nothing then. One that was not listening yet
    /// dies of the signal, as of any other.
    async fn has_handed_over(&mut self, host: &mut Process, ending: Ending) -> Result<(), Broken> {
        let status = host.gone_within(HAND_OVER_MAX).await?;
        let handed_over = status.is_some_and(|status| status.success());
        let deaf = status.is_some_and(|status| status.signal() == Some(SIGTERM));
        if !handed_over && !deaf {
            host.kill()?;
            let log = host.files.log();
            self.book.say("a host", format!("it did not hand over ({status:?}):\n{log}"));
        }
        if let Some(id) = ending.id.filter(|_| handed_over) {
            let held = self.client.store.held(&id, None, 1).await?;
            for run in held {
                self.book.say(run.id().as_str(), "its host handed over and holds it");
            }
        }
        let Ending { name, at, .. } = ending;
        let pid = host.pid();
        let death = Death { name, pid, at, hit: handed_over, handed_over, failed: false };
        self.note(host, death).await
    }
}
