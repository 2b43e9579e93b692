//! The state of a store: one call of one guest.

use std::sync::Arc;
use std::time::Duration;

use taskrun::clock::process_time;
use taskrun::scope::{CallScope, StopNotice};
use taskrun_journal::stop::StopCause;
use taskrun_journal::time::millis;
use taskrun_policy::{CallRules, Capability, Denial, Use};
use wasmtime::component::ResourceTable;

use crate::call::put_off;
use crate::course::Course;
use crate::failure::{RESOURCES_MAX, Violation};
use crate::files::disk::Writes;
use crate::files::{FileThreads, Workspace};
use crate::guest::{Guest, Mode};
use crate::guest_memory::CallMemory;
use crate::limiter::Limiter;
use crate::wasi::{WasiFiles, WasiState};

/// Bytes of a guest's choice that a host function works on where the guest is. With more it first
/// goes behind the other guests: the epoch does not interrupt a host function, and this much takes
/// a tenth of a millisecond.
pub(crate) const WORK_BYTES_MAX: usize = 64 << 10;

/// State of one call.
pub(crate) struct CallState {
    pub(crate) guest: Arc<Guest>,
    pub(crate) scope: Arc<CallScope>,
    pub(crate) mode: Mode,
    pub(crate) table: ResourceTable,
    pub(crate) limiter: Limiter,
    /// The end of its time, by [`process_time`].
    pub(crate) deadline: Duration,
    /// The slice of a processor that the call has, shared with its owner.
    pub(crate) course: Course,
    /// Made when the guest first uses WASI.
    pub(crate) wasi: Option<Box<WasiState>>,
    /// Answers of models that are not dropped yet, in the order of their questions: each by its
    /// number in the table.
    pub(crate) open_streams: Vec<u32>,
    /// The workspace, which the call opens for itself when it first uses a file.
    pub(crate) workspace: Option<Workspace>,
    /// Files and folders that are open through WASI.
    pub(crate) files: WasiFiles,
    /// Directories that are read through WASI.
    pub(crate) open_directories: u32,
    /// Bytes of the entries of these.
    pub(crate) listing_bytes: u64,
    /// The growth of the workspace by the call; made when it first writes.
    writes: Option<Arc<Writes>>,
    /// True once it is in the journal that a metric was refused.
    pub(crate) metrics_denied: bool,
    host_calls: u32,
    /// The changes of the rules that the open folders were looked at after.
    rule_changes: u64,
    pending: Option<Violation>,
}

impl CallState {
    pub(crate) fn new(
        guest: Arc<Guest>,
        scope: Arc<CallScope>,
        mode: Mode,
        memory: Arc<CallMemory>,
        (deadline, course): (Duration, Course),
    ) -> Self {
        let mut table = ResourceTable::new();
        table.set_max_capacity(RESOURCES_MAX);
        Self {
            limiter: Limiter::new(&guest.limits, memory),
            workspace: guest.workspace.as_ref().map(Workspace::anew),
            guest,
            scope,
            mode,
            table,
            deadline,
            course,
            wasi: None,
            open_streams: Vec::new(),
            files: WasiFiles::default(),
            open_directories: 0,
            listing_bytes: 0,
            writes: None,
            metrics_denied: false,
            host_calls: 0,
            rule_changes: 0,
            pending: None,
        }
    }

    fn count(&mut self) -> Result<(), Violation> {
        if let Some(violation) = &self.pending {
            return Err(violation.clone());
        }
        if self.course.is_over() {
            return Err(Violation::Stopped(StopCause::Canceled));
        }
        let limit = self.guest.limits.host_calls;
        self.host_calls = self.host_calls.saturating_add(1);
        if self.host_calls > limit {
            return Err(Violation::Limit { what: "host calls", limit: limit.into() });
        }
        self.review_rules()
    }

    /// Ends the guest if the rules have changed and it has a folder that they do not grant it.
    pub(crate) fn review_rules(&mut self) -> Result<(), Violation> {
        let changes = self.scope.rule_changes();
        match changes == self.rule_changes {
            true => Ok(()),
            false => {
                self.rule_changes = changes;
                self.review_folders()
            }
        }
    }

    /// The number of changes of the rules that the guest was held to last.
    pub(crate) fn rule_changes(&self) -> u64 {
        self.rule_changes
    }

    /// Every host function of ours that a tool may use while it describes itself begins with
    /// this.
    pub(crate) fn enter(&mut self) -> Result<(), Violation> {
        self.count()
    }

    /// Every other host function of ours begins with this.
    pub(crate) fn enter_capability(&mut self, interface: &str) -> Result<(), Violation> {
        self.count()?;
        match self.mode {
            Mode::Call => Ok(()),
            Mode::Describe => {
                Err(Violation::Contract(format!("`describe` may not use {interface}")))
            }
        }
    }

    /// Whatever reads or changes something outside that no record is made of asks this first, once
    /// rules and bounds have allowed it.
    pub(crate) fn reach_out(&self, for_what: &str) -> Result<(), Violation> {
        let stopped = |StopNotice| Violation::Stopped(StopCause::Diverged);
        self.scope.reach_out(for_what).map_err(stopped)
    }

    /// Host functions that work on what may be many bytes wait for this before.
    pub(crate) fn before_work(&self, bytes: usize) -> impl Future<Output = ()> + use<> {
        let course = (bytes > WORK_BYTES_MAX).then(|| self.course.clone());
        async move {
            if let Some(course) = course {
                course.give_up();
                tokio::task::yield_now().await;
            }
        }
    }

    /// As [`Self::enter_capability`], for functions of WASI, whose implementation asks for its
    /// state and cannot be refused it: a guest past its limit is ended where it next looks at the
    /// epoch.
    pub(crate) fn enter_wasi(&mut self) {
        if let Err(violation) = self.count() {
            self.violate(violation);
        }
    }

    /// Ends the guest at the next look at the epoch, for the first reason that there was.
    pub(crate) fn violate(&mut self, violation: Violation) {
        if self.pending.is_none() {
            self.pending = Some(violation);
            self.guest.engine.wasmtime().increment_epoch();
        }
    }

    /// The reason that the guest ends, if a host function found one.
    pub(crate) fn violation(&self) -> Option<&Violation> {
        self.pending.as_ref()
    }

    /// The way to the threads for file operations.
    pub(crate) fn file_threads(&self) -> FileThreads {
        FileThreads::new(self.guest.engine.blocking(), &self.course)
    }

    /// The reason that the guest must end, if it must.
    pub(crate) fn must_end(&self) -> Option<Violation> {
        if let Some(violation) = &self.pending {
            return Some(violation.clone());
        }
        if self.course.is_over() {
            return Some(Violation::Stopped(StopCause::Canceled));
        }
        let stop = self.scope.stop();
        if stop.is_forced() {
            return stop.cause().map(Violation::Stopped);
        }
        let is_late = process_time() >= put_off(self.deadline, &self.scope);
        let limit = self.course.cpu_limit_met().or(is_late.then(|| self.scope.deadline()))?;
        Some(Violation::Deadline { limit_ms: millis(limit) })
    }

    /// The growth of the workspace that the call may still cause, if it has one.
    pub(crate) fn writes(&mut self) -> Option<Arc<Writes>> {
        if self.writes.is_none()
            && let (Some(bounds), Some(workspace)) = (&self.guest.bounds, &self.workspace)
        {
            self.writes = Some(Arc::new(bounds.for_call(workspace)));
        }
        self.writes.clone()
    }

    /// The rules for everything that the guest does in this call.
    pub(crate) fn rules(&self) -> CallRules {
        self.scope.rules()
    }

    /// Asks the rules about a use; records a refusal, and gives it in words for the guest.
    pub(crate) fn allow(&self, used: &Use<'_>) -> Result<(), String> {
        self.scope.allow(used)
    }

    /// Records that a rule refused the guest something.
    pub(crate) fn record_denial(&self, capability: Capability, subject: &str, denial: &Denial) {
        self.scope.record_denial(capability, subject, denial);
    }

    /// Records that the guest was refused something for another reason than a rule.
    pub(crate) fn record_refusal(&self, capability: Capability, subject: &str, reason: String) {
        self.scope.record_refusal(capability, subject, reason);
    }
}
