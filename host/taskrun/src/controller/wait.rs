//! Waiting for runs. Nobody who waits cancels anything.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use taskrun_journal::hold::WaitMode;
use taskrun_journal::run::Run;

use super::Client;
use super::client::run_id;
use crate::error::ControllerError;

/// Most runs that are waited for at once.
pub const WAIT_RUNS_MAX: usize = 1_000;

/// A wait that began without a look at its run looks after this time. Real time: it only trades latency
/// against reads.
const TRUSTED_FOR: Duration = Duration::from_secs(1);

/// The end of a wait.
#[derive(Clone, Debug)]
pub struct WaitOutcome {
    /// The run as it stands.
    pub run: Run,
    /// True if the run is not what was waited for: the time was up, or it ended otherwise.
    pub timed_out: bool,
}

impl WaitOutcome {
    /// The end of a wait for the end of a run.
    fn of(run: Run) -> Self {
        let timed_out = !run.status().is_terminal();
        Self { run, timed_out }
    }
}

impl Client {
    /// Waits until the run has ended, at most `timeout`; zero looks once, `None` waits for
    /// [`super::Settings::wait_max`].
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::Storage`].
    ///
    /// # Cancel safety
    /// Dropping the future gives up the wait and leaves the run as it is.
    pub async fn wait(
        &self,
        id: &str,
        timeout: Option<Duration>,
    ) -> Result<WaitOutcome, ControllerError> {
        let time_is_up = self.controller.0.parts.clock.sleep(self.longest(timeout));
        tokio::pin!(time_is_up);
        let key = run_id(id)?;
        let mut is_first = timeout != Some(Duration::ZERO);
        loop {
            // First, so that one who writes after the run is read tells this wait. Anew, as a later run
            // may have the id.
            let mut watch = self.controller.0.parts.store.watch(&key);
            // Once, as a wait that was told to look has to look.
            let known_open = std::mem::take(&mut is_first).then(|| watch.known_open()).flatten();
            let known_open = known_open.filter(|spec| self.scope().admits_spec(spec));
            let is_trusted = known_open.is_some();
            let spec = match known_open {
                Some(spec) => spec,
                None => {
                    let run = self.get(id).await?;
                    if timeout == Some(Duration::ZERO) || run.status().is_terminal() {
                        return Ok(WaitOutcome::of(run));
                    }
                    run.spec
                }
            };
            tokio::select! {
                biased;
                // First, so that a wait which is told again and again to look comes to an end.
                () = &mut time_is_up => return Ok(WaitOutcome::of(self.get(id).await?)),
                ended = watch.ended() => {
                    // Another run may have the id by now.
                    if let Some(ended) = ended.filter(|ended| ended.spec == spec) {
                        return Ok(WaitOutcome::of(ended));
                    }
                }
                () = async { tokio::time::sleep(TRUSTED_FOR).await }, if is_trusted => {}
            }
        }
    }

    /// Waits until `reached` says yes of the run, which it is asked after every change.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::Storage`].
    ///
    /// # Cancel safety
    /// Dropping the future gives up the wait.
    pub async fn wait_for(
        &self,
        id: &str,
        timeout: Option<Duration>,
        reached: impl Fn(&Run) -> bool + Send,
    ) -> Result<WaitOutcome, ControllerError> {
        let time_is_up = self.controller.0.parts.clock.sleep(self.longest(timeout));
        tokio::pin!(time_is_up);
        let key = run_id(id)?;
        loop {
            let mut watch = self.controller.0.parts.store.watch(&key);
            let run = self.get(id).await?;
            let timed_out = !reached(&run);
            // An ended run changes no more: whoever waits for anything else of it waits in vain.
            let is_over = timeout == Some(Duration::ZERO) || run.status().is_terminal();
            if !timed_out || is_over {
                return Ok(WaitOutcome { run, timed_out });
            }
            tokio::select! {
                biased;
                // First, as in [`Self::wait`].
                () = &mut time_is_up => {
                    let run = self.get(id).await?;
                    let timed_out = !reached(&run);
                    return Ok(WaitOutcome { run, timed_out });
                }
                () = watch.moved(run.state.head) => {}
            }
        }
    }

    /// Waits for several runs, at most `timeout`, until all of them or one of them has ended, and
    /// says of each how it stands, in the order asked for. Those that had not ended when the wait
    /// was over are marked as timed out.
    ///
    /// # Errors
    /// [`ControllerError::Invalid`] for no or too many runs; [`ControllerError::NotFound`] if any
    /// of them is not there, also outside the scope; [`ControllerError::Storage`].
    ///
    /// # Cancel safety
    /// Dropping the future gives up the wait.
    pub async fn wait_all(
        &self,
        ids: &[&str],
        mode: WaitMode,
        timeout: Option<Duration>,
    ) -> Result<Vec<WaitOutcome>, ControllerError> {
        if ids.is_empty() || ids.len() > WAIT_RUNS_MAX {
            let reason = match ids {
                [] => "no task IDs provided".to_owned(),
                [..] => format!("at most {WAIT_RUNS_MAX} runs can be waited for at once"),
            };
            return Err(ControllerError::Invalid { field: "ids", reason });
        }
        for id in ids {
            self.get(id).await?;
        }
        let time_is_up = self.controller.0.parts.clock.sleep(self.longest(timeout));
        tokio::pin!(time_is_up);
        // Each waits without a limit of its own: there is one clock for all.
        let endless = Some(Duration::MAX);
        let mut waits: FuturesUnordered<_> = ids.iter().map(|id| self.wait(id, endless)).collect();
        loop {
            let ended = tokio::select! {
                biased;
                ended = waits.next() => ended,
                () = &mut time_is_up => None,
            };
            match ended {
                Some(waited) => {
                    waited?;
                    if mode == WaitMode::Any || waits.is_empty() {
                        break;
                    }
                }
                None => break,
            }
        }
        let mut all = Vec::with_capacity(ids.len());
        for id in ids {
            all.push(WaitOutcome::of(self.get(id).await?));
        }
        Ok(all)
    }

    fn longest(&self, timeout: Option<Duration>) -> Duration {
        timeout.unwrap_or(self.controller.0.parts.settings.wait_max)
    }
}
