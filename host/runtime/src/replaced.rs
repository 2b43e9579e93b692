//! The file of a component, of an agent or of a tool, is replaced while it is kept, and while it is
//! compiled: under an acceptance, and under a host that takes the change up.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use taskrun::agents::{Agent, AgentCode, Agents, CodeSource};
use taskrun::clock::SystemClock;
use taskrun::ports::deployments::{Deployments, PolicyLook, Settling};
use taskrun_engine::AgentError;
use taskrun_examples::{BRIEFER, WORDS};
use taskrun_journal::time::Clock;
use taskrun_store::Blobs;
use tempfile::TempDir;

use crate::files_seen::FilesSeen;
use crate::in_force::InForceNote;
use crate::kept_store::KeepAgain;
use crate::loader::{Loader, LoaderOptions};
use crate::loads::Loads;
use crate::origins::OriginPolicies;
use crate::policy_file::load_policy;
use crate::reload::PolicyWatch;
use crate::snapshot;

/// Moments at which the file of an agent is replaced under an acceptance.
const INTERLEAVINGS: u32 = 100;
/// The same for a tool, and under a host, which keep and load by the same code.
const INTERLEAVINGS_BESIDE: u32 = 30;
/// Loads of the same bytes: the first compiles them.
const OF_THE_SAME: u32 = 5;

/// One in so many is replaced before its load begins.
const BEFORE: u32 = 7;

const POLICY: &str = "[prompt.brief]\ntemplate = \"x\"\n\
                      [tool.words]\ncomponent = \"words.wasm\"\n\
                      [agent.worker]\ncomponent = \"worker.wasm\"\n\
                      tools = [\"words/*\"]\nallow = [\"prompts: brief\"]\n";

/// The part of the agent whose file is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Agent,
    Tool,
}

impl Part {
    fn file(self) -> &'static str {
        match self {
            Self::Agent => "worker.wasm",
            Self::Tool => "words.wasm",
        }
    }

    /// A component with its own bytes: with a section that nobody reads.
    fn component(self, number: u32) -> Vec<u8> {
        let bytes = match self {
            Self::Agent => BRIEFER.bytes,
            Self::Tool => WORDS.bytes,
        };
        let text = format!("{number:05}");
        [bytes, &[0, 6, 5], text.as_bytes()].concat()
    }

    /// Replaces the file by another component, or by rubbish: in one moment, or written over.
    fn replace(self, path: &Path, number: u32) {
        let bytes = match number.is_multiple_of(2) {
            true => self.component(90_000 + number),
            false => vec![7; 50_000],
        };
        if number.is_multiple_of(4) || number % 4 == 3 {
            std::fs::write(path, bytes).expect("written");
        } else {
            let beside = path.with_extension("new");
            std::fs::write(&beside, bytes).expect("written");
            std::fs::rename(beside, path).expect("replaced");
        }
    }
}

/// The components of an agent: those that follow from its pin, and those that would run.
#[derive(Debug)]
struct Loaded {
    pinned: BTreeSet<String>,
    runs: BTreeSet<String>,
}

/// One that is refused with a type, as its file was replaced meanwhile, or is no component.
struct Refused;

/// The outcomes of all interleavings.
#[derive(Debug, Default)]
struct Outcomes {
    old: u32,
    new: u32,
    refused: u32,
}

struct Project {
    folder: TempDir,
    part: Part,
}

impl Project {
    fn new(part: Part) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("data")).expect("made");
        let project = Self { folder, part };
        for part in [Part::Agent, Part::Tool] {
            std::fs::write(project.path(part.file()), part.component(99_999)).expect("written");
        }
        std::fs::write(project.path("taskrun.toml"), POLICY).expect("written");
        project
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn blobs(&self) -> Blobs {
        Blobs::existing(&self.path("data"))
    }

    fn options(&self) -> LoaderOptions {
        LoaderOptions { keeps: true, ..LoaderOptions::of_data_dir(&self.path("data")) }
    }

    /// The components of an agent with this code, which are all kept under its pin.
    fn loaded(&self, agent: &Agent, code: &AgentCode) -> Loaded {
        let blobs = self.blobs();
        let kept = snapshot::components(&blobs, &agent.pin).expect("it is kept");
        for digest in &kept {
            let bytes = std::fs::read(blobs.path(digest)).expect("it is there");
            assert_eq!(blake3::hash(&bytes), *digest, "what is kept is what it is called");
        }
        let pinned: BTreeSet<String> = kept.iter().map(named).collect();
        assert!(pinned.contains(&agent.digest), "{pinned:?} without {}", agent.digest);
        let tool = code.tools.get("words/count").expect("it has the tool");
        let runs = [code.planner.digest(), tool.tool.digest()].map(str::to_owned);
        Loaded { pinned, runs: runs.into() }
    }

    /// Opens the policy and loads its agent, as an acceptance does.
    async fn accept(&self) -> Result<Loaded, Refused> {
        let policy = load_policy(&self.path("taskrun.toml")).expect("a policy");
        let loader = Loader::open(policy, self.options()).expect("opens");
        let agent = match loader.agent(&loader.policy().agents["worker"]).await {
            Ok(agent) => agent,
            Err(AgentError::Component { .. } | AgentError::Files { .. }) => return Err(Refused),
            Err(error) => panic!("{error:?}"),
        };
        let CodeSource::Loaded(code) = &agent.code else { panic!("it is loaded") };
        Ok(self.loaded(&agent, code))
    }

    /// Replaces the file at so many moments of what `load` does with it, and holds each outcome to
    /// the bytes that are pinned.
    async fn interleave(&self, count: u32, mut load: impl AsyncFnMut() -> Result<Loaded, Refused>) {
        let (path, part) = (self.path(self.part.file()), self.part);
        let clock = Arc::new(SystemClock::new());
        let began = clock.monotonic();
        assert!(load().await.is_ok(), "it loads");
        // The moments are spread over what a load takes.
        let span = clock.monotonic() - began;
        let mut outcomes = Outcomes::default();
        for number in 0..count {
            let bytes = part.component(number / OF_THE_SAME);
            std::fs::write(&path, &bytes).expect("written");
            let moment = span * number / count;
            let mut writer = Some(at(&clock, moment, {
                let path = path.clone();
                move || part.replace(&path, number)
            }));
            // However fast the machine is, some are replaced before anything was read.
            if number.is_multiple_of(BEFORE)
                && let Some(writer) = writer.take()
            {
                writer.join().expect("it has written");
            }
            let loaded = load().await;
            if let Some(writer) = writer {
                writer.join().expect("it has written");
            }
            match loaded {
                Ok(Loaded { pinned, runs }) => {
                    assert_eq!(pinned, runs, "{part:?}, interleaving {number}");
                    let is_old = pinned.contains(&named(&blake3::hash(&bytes)));
                    if is_old { outcomes.old += 1 } else { outcomes.new += 1 }
                }
                Err(Refused) => outcomes.refused += 1,
            }
        }
        let Outcomes { old, new, refused } = outcomes;
        assert_eq!(old + new + refused, count);
        assert!(old > 0 && refused > 0, "{part:?}: {outcomes:?}");
    }
}

fn named(digest: &blake3::Hash) -> String {
    format!("blake3:{}", digest.to_hex())
}

/// Does something at a moment from now.
fn at(
    clock: &Arc<SystemClock>,
    moment: Duration,
    then: impl FnOnce() + Send + 'static,
) -> JoinHandle<()> {
    let (clock, began) = (Arc::clone(clock), clock.monotonic());
    thread::spawn(move || {
        while clock.monotonic() - began < moment {
            thread::yield_now();
        }
        then();
    })
}

/// A host that takes up what changes under it.
struct Host {
    watch: PolicyWatch,
    agents: Agents,
}

impl Host {
    async fn new(project: &Project) -> Self {
        let data = project.path("data");
        let (policy, looked_at) =
            FilesSeen::load(&project.path("taskrun.toml"), &Arc::default()).expect("a policy");
        let loader = Arc::new(Loader::open(policy, project.options()).expect("opens"));
        let clock = Arc::new(SystemClock::new());
        let loads = Arc::new(Loads::new(&data, clock.clone()));
        let agents = loader.all_agents_on_demand(&loads, true).await.expect("agents");
        let note = Arc::new(InForceNote::new(&data, (&loader, &agents), clock));
        let origins = OriginPolicies::of_nobody();
        Self { watch: PolicyWatch::new(loader, (loads, note), origins, looked_at), agents }
    }

    /// Looks at the files, has a run accepted, and loads what it is executed with.
    async fn take_up(&mut self, project: &Project) -> Result<Loaded, Refused> {
        if let PolicyLook::Changed(change) = self.watch.look(Settling::Told).await {
            self.agents = change.agents;
        }
        // One whose components cannot be used is left out.
        let agent = self.agents.by_name.get("worker").ok_or(Refused)?;
        // What cannot be kept is not accepted.
        if !self.watch.keep_again(&agent.pin) {
            return Err(Refused);
        }
        let code = match &agent.code {
            CodeSource::Loaded(code) => AgentCode::clone(code),
            CodeSource::OnDemand(source) => source.load().await.map_err(|_| Refused)?,
        };
        Ok(project.loaded(agent, &code))
    }
}

#[tokio::test]
async fn case_62_whenever_a_file_is_replaced_the_bytes_that_are_pinned_are_those_that_run() {
    for (part, count) in [(Part::Agent, INTERLEAVINGS), (Part::Tool, INTERLEAVINGS_BESIDE)] {
        let project = Project::new(part);
        project.interleave(count, async || project.accept().await).await;
    }
}

#[tokio::test]
async fn case_62_whenever_a_file_is_replaced_a_host_that_takes_it_up_runs_the_bytes_that_are_pinned()
 {
    for part in [Part::Agent, Part::Tool] {
        let project = Project::new(part);
        let mut host = Host::new(&project).await;
        project.interleave(INTERLEAVINGS_BESIDE, async || host.take_up(&project).await).await;
    }
}
