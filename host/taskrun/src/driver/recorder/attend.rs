//! Waiting for a call while the rest of the world goes on.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use taskrun_journal::stop::{CallAbort, StopCause};
use taskrun_journal::store::RunWatch;

use super::Recorder;
use super::gathering::Gathering;
use crate::driver::lease::Standstill;
use crate::driver::stop::{Halt, Next};
use crate::driver::time_up::TimeUp;
use crate::scope::DurabilityWaiters;

impl Recorder {
    /// Waits for a call while writing down what it reports, listening for others who write to
    /// the journal, and keeping the time; `time_up` stops what is under way when that is up. While
    /// the host stands still, so does the call: it is not executed, and only others are listened
    /// for.
    pub(in crate::driver) async fn attend<T>(
        &mut self,
        time_up: &mut TimeUp,
        call: impl Future<Output = T> + Send,
    ) -> Result<T, Halt> {
        self.check_time();
        tokio::pin!(call);
        let live = Arc::clone(&self.live);
        let clock = Arc::clone(&self.env.clock);
        let store = Arc::clone(&self.env.store);
        let (grace, times_out_at) = (self.grace, self.times_out_at());
        let stopping = async {
            live.asked().await;
            // From when it was first seen, however many calls end meanwhile.
            let since = live.asked_at(clock.monotonic());
            clock.sleep_until(since.saturating_add(grace)).await;
        };
        let timeout = async {
            match times_out_at {
                Some(at) => clock.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(stopping, timeout);
        let (mut timed_out, mut forced) = (false, false);
        let mut gathering = Gathering::default();
        let mut standstill = Standstill::new(&self.env.lease, &live, &self.env.stalls);
        let (mut watch, mut has_looked) = (None::<Box<dyn RunWatch>>, true);
        loop {
            if !has_looked {
                watch = None;
            }
            let id = self.journal.run().id().clone();
            let head = self.journal.run().state.head;
            let (wake, urgent) = (Arc::clone(&self.wake), Arc::clone(&self.urgent));
            let gathered = gathering;
            let flush = async {
                wake.notified().await;
                let due = gathered.due();
                tokio::time::sleep_until(due).await;
                due
            };
            let others = async {
                tokio::time::sleep(gathered.silence()).await;
                match &mut watch {
                    Some(watch) => watch.moved(head).await,
                    // The journal is read after that in any case.
                    None => watch = Some(store.watch(&id)),
                }
            };
            let moment = time_up.moment();
            tokio::pin!(flush, others, moment);
            loop {
                let stands = standstill.holds();
                tokio::select! {
                    biased;
                    () = standstill.changed() => {}
                    result = &mut call, if !stands => {
                        self.check_time();
                        return Ok(result);
                    }
                    () = &mut timeout, if !timed_out => {
                        timed_out = true;
                        live.stop(StopCause::RunTimeout);
                    }
                    () = &mut stopping, if !forced => {
                        forced = true;
                        live.force();
                    }
                    () = &mut moment, if !stands => {
                        // What was paid for until now is on record before anybody hears of it.
                        self.flush().await?;
                        time_up.stop();
                        break;
                    }
                    () = urgent.notified(), if !stands => {
                        self.flush().await?;
                        break;
                    }
                    due = &mut flush, if !stands => {
                        // Nothing is left where it was reported while the last was written.
                        if self.flush().await? {
                            gathering.written(due);
                        }
                        break;
                    }
                    () = &mut others => {
                        match self.catch_up().await {
                            Ok(()) => has_looked = true,
                            // What cannot be read now is asked for again.
                            Err(Halt::Store(_)) => has_looked = false,
                            Err(halt) => return Err(halt),
                        }
                        // The wait for more to write may have been cut short by this: what was
                        // reported is written here, or waited for anew once that may be written.
                        if stands {
                            self.wake.notify_one();
                        } else {
                            self.flush().await?;
                        }
                        break;
                    }
                }
            }
        }
    }

    /// Writes down what the calls under way have reported; false if that was nothing.
    async fn flush(&mut self) -> Result<bool, Halt> {
        // What a step does that is about to be given back is not to be found by whoever takes it
        // up: it would have to do the same.
        // The same holds for what it does on hearing that its time is up: should the host die now,
        // it would run again and hear nothing. Only a cancellation is on record already.
        let canceled = CallAbort::Stopped { cause: StopCause::Canceled };
        let cut_short = self.scopes.iter().any(|scope| scope.is_cut_short());
        if cut_short || self.asked().is_some_and(|failure| failure != canceled) {
            return Ok(false);
        }
        let (mut events, mut waiting) = (Vec::new(), DurabilityWaiters::default());
        for scope in &self.scopes {
            let taken = scope.take_events();
            events.extend(taken.events);
            waiting.join(taken.waiting);
        }
        let reported = !events.is_empty();
        self.record(events).await?;
        waiting.release();
        Ok(reported)
    }

    /// Waits, unless somebody asks to stop or pauses the run, or did so already.
    pub(in crate::driver) async fn pause(&mut self, pause: Duration) -> Result<(), Halt> {
        if self.stop(Next::Anything).is_some() {
            return Ok(());
        }
        let (clock, live) = (Arc::clone(&self.env.clock), Arc::clone(&self.live));
        let halted = Arc::clone(&self.halted);
        let waits = async move {
            tokio::select! {
                biased;
                () = live.asked() => {}
                () = halted.notified() => {}
                () = clock.sleep(pause) => {}
            }
        };
        let mut time_up = TimeUp::never(Arc::clone(&self.env.clock));
        self.attend(&mut time_up, waits).await
    }

    /// Waits for what is left of a pause that the end of another host cut short; never for longer
    /// than that pause, whatever was done to the time of day meanwhile, nor than the run has time. True
    /// if there was something left.
    pub(in crate::driver) async fn rest_of_pause(&mut self) -> Result<bool, Halt> {
        let failed = self.run().state.failed_attempts > 0;
        let Some((over_at, pause)) = self.cut_pause.take().filter(|_| failed) else {
            return Ok(false);
        };
        let left = over_at.since(self.env.clock.now()).min(pause);
        let left = self.time_for_work().map_or(left, |time| left.min(time));
        if left.is_zero() {
            return Ok(false);
        }
        self.pause(left).await?;
        Ok(true)
    }

    /// Calls that answer at once leave no moment in which a timer is looked at.
    fn check_time(&self) {
        if self.is_timed_out() {
            self.live.stop(StopCause::RunTimeout);
        }
    }
}
