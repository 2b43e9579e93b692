//! Every run that a test leaves in its store is exported and executed again when the test ends,
//! where `TASKRUN_REPLAYS` is set: nothing may differ.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use taskrun_journal::format::JournalFormat;
use taskrun_journal::list::{ListFilter, PAGE_MAX, Scope};
use taskrun_journal::run::Run;
use taskrun_journal::store::Store;
use taskrun_policy::Policy;
use taskrun_runtime::{
    Export, ExportError, ExportOptions, ReplayEngine, ReplayOptions, ReplayedStep, StepComparison,
    export_run,
};

use crate::native_code;

/// The steps that are not compared, by the beginning of the reason that a replay gives. Any other
/// step has to do the same.
const NOT_COMPARED: [&str; 12] = [
    // What a planner does through WASI is not recorded; tools are the place for it.
    "it reads or changes files through WASI",
    "it sends a request through WASI",
    // It was stopped at a moment that is not recorded, or its host went away under it.
    "it was asked to stop",
    "it was stopped",
    "the time of the run was up",
    "its host failed",
    // Or the one that executes it again has no memory left.
    "this host has no memory for it",
    "it lost its host",
    // Its end is not on record.
    "the run came to its end without it",
    // Its record has two halves, each under other rules.
    "its rules changed",
    // There was no step: the agent could not be loaded when it ran, either.
    "its agent did not load",
    // A pin has no digest where components of the agent were missing.
    "it is not on record which rules",
];
/// The same for steps whose policy or components a test has removed or replaced, and for those that were
/// given more than is kept by files and servers.
const NOT_KEPT: [&str; 2] =
    ["is not in the export", "bytes of such answers, which are not recorded"];

/// Most runs of a store that are executed again, those that changed last: they take ten seconds.
const RUNS_MAX: usize = 100;

/// A store with what its runs were accepted under.
pub struct Replays {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Where components and policies are kept, if they are.
    pub data_dir: Option<PathBuf>,
    /// The policy, for what is not kept.
    pub policy: Option<Policy>,
}

/// True if runs are to be executed again.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the switch of this harness")]
pub fn is_wanted() -> bool {
    std::env::var_os("TASKRUN_REPLAYS").is_some()
}

/// One engine for the process; native code is kept for all of them.
fn engine() -> &'static ReplayEngine {
    static ENGINE: OnceLock<ReplayEngine> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let cache = Some(native_code::folder());
        let options = ReplayOptions { cache, ..ReplayOptions::default() };
        ReplayEngine::start(&options).expect("an engine")
    })
}

impl Replays {
    /// Exports all runs and executes them again. Blocks until that is done, whatever runtime the
    /// caller is in.
    ///
    /// # Panics
    /// If a step does something else than its record says.
    pub fn run(self) {
        let faults = self.faults();
        assert!(faults.is_empty(), "of the runs that were left:\n{}", faults.join("\n"));
    }

    /// Does the same, and gives the steps that do something else than their records say, in words.
    ///
    /// # Panics
    /// If the system has no thread for it.
    #[must_use]
    pub fn faults(self) -> Vec<String> {
        let replayed = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
            runtime.expect("a runtime").block_on(self.replay_all())
        });
        replayed.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    async fn replay_all(&self) -> Vec<String> {
        let folder = tempfile::tempdir().expect("a folder");
        let (scope, all) = (Scope::tenant("default"), ListFilter::default());
        let (mut after, mut runs, mut faults) = (None, 0, Vec::new());
        while runs < RUNS_MAX {
            // A store that a test has damaged is none.
            let page = self.store.list(&scope, &all, after.as_ref(), PAGE_MAX).await;
            let Ok(page) = page else { break };
            for run in page.runs.iter().take(RUNS_MAX - runs) {
                runs += 1;
                faults.extend(self.faults_of(run, folder.path()).await);
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        faults
    }

    /// The faults of one run, in words.
    async fn faults_of(&self, run: &Run, folder: &Path) -> Vec<String> {
        let file = folder.join(run.id().as_str());
        let options = ExportOptions {
            policy: self.policy.clone(),
            data_dir: self.data_dir.clone(),
            program: "test".to_owned(),
            format: JournalFormat::CURRENT,
        };
        let named = |fault: String| format!("{} ({}): {fault}", run.id(), run.spec.agent_name);
        match export_run(&*self.store, run, options, &file).await {
            Ok(_) => {}
            Err(ExportError::Store(_)) => return Vec::new(),
            Err(error) => return vec![named(format!("it is not exported: {error}"))],
        }
        let export = match Export::open(&file) {
            Ok(export) => export,
            Err(error) => return vec![named(format!("its export is not read: {error}"))],
        };
        let mut faults = Vec::new();
        let replayed = engine().replay(&export, None, |step| {
            if let Some(fault) = fault(&step) {
                faults.push(named(fault));
            }
        });
        if let Err(error) = replayed.await {
            faults.push(named(error.to_string()));
        }
        std::fs::remove_file(file).ok();
        faults
    }
}

fn fault(step: &ReplayedStep) -> Option<String> {
    match &step.outcome {
        StepComparison::Same => None,
        StepComparison::Skipped(reason) => {
            let is_known = NOT_COMPARED.iter().any(|known| reason.starts_with(known));
            let is_known = is_known || NOT_KEPT.iter().any(|known| reason.contains(known));
            (!is_known).then(|| format!("{step:?}"))
        }
        StepComparison::Differs(_) => Some(format!("{step:#?}")),
    }
}
