use std::io;
use std::path::{Path, PathBuf};

use taskrun::clock::SystemClock;
use taskrun_policy::{AgentPolicy, FileKind, Files, Policy};
use taskrun_store::Blobs;
use tempfile::TempDir;

use super::*;
use crate::loader::LoaderOptions;
use crate::policy_file::Disk;
use crate::snapshot;

const WORKER: &str = "[agent.worker]\ncomponent = \"worker.wasm\"\n";

/// A project whose policy is watched.
struct Project {
    folder: TempDir,
    watch: PolicyWatch,
}

impl Project {
    fn new(policy: &str, files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("taskrun.toml");
        for (name, text) in files.iter().chain(&[("taskrun.toml", policy)]) {
            std::fs::write(folder.path().join(name), text).expect("written");
        }
        let data = folder.path().join("data");
        std::fs::create_dir(&data).expect("made");
        let (policy, looked_at) = FilesSeen::load(&path, &Arc::default()).expect("a policy");
        let options = LoaderOptions { keeps: true, ..LoaderOptions::of_data_dir(&data) };
        let loader = Arc::new(Loader::open(policy, options).expect("opens"));
        let clock = Arc::new(SystemClock::new());
        let loads = Arc::new(Loads::new(folder.path(), clock.clone()));
        let note = Arc::new(InForceNote::new(&data, (&loader, &Agents::default()), clock));
        let watch = PolicyWatch::new(loader, (loads, note), OriginPolicies::of_nobody(), looked_at);
        Self { folder, watch }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("written");
    }

    /// The pin of the agent under the policy in force.
    fn pin(&self) -> String {
        let loader = self.watch.loader();
        loader.pin(&loader.policy().agents["worker"]).expect("it is there")
    }

    fn agent(&self) -> AgentPolicy {
        self.watch.loader().policy().agents["worker"].clone()
    }

    async fn is_changed(&self) -> bool {
        matches!(self.watch.look(Settling::Over).await, PolicyLook::Changed(_))
    }
}

fn limited(tool_calls: usize) -> String {
    format!("{WORKER}limits = {{ tool_calls = {tool_calls} }}\n")
}

#[tokio::test]
async fn a_run_that_is_accepted_while_the_policy_is_replaced_finds_its_agent_kept() {
    let project = Project::new(&limited(1), &[("worker.wasm", "no component")]);
    let pin = project.pin();
    let blobs = Blobs::existing(&project.path("data"));
    for tool_calls in 2..=1 + EARLIER_MAX {
        project.write("taskrun.toml", &limited(tool_calls));
        assert!(project.is_changed().await);
    }
    assert!(!snapshot::is_there(&blobs, &pin).expect("looked"), "nobody has asked for it");
    assert!(project.watch.keep_again(&pin));
    assert!(snapshot::is_there(&blobs, &pin).expect("looked"));
    project.write("taskrun.toml", &limited(100));
    project.watch.look(Settling::Over).await;
    project.write("taskrun.toml", &limited(101));
    project.watch.look(Settling::Over).await;
    assert!(!project.watch.keep_again(&pin), "policies of long before are let go");
}

#[tokio::test]
async fn what_changes_beside_a_mistake_is_taken_up_when_that_is_mended() {
    let model = "[model.m]\nprovider = \"scripted\"\nscript = \"answers.json\"\n";
    let policy = format!("{model}{WORKER}");
    let files = [("worker.wasm", "first"), ("answers.json", "[]")];
    let project = Project::new(&policy, &files);
    let before = project.pin();
    project.write("worker.wasm", "second");
    project.write("answers.json", "[ ]");
    project.write("taskrun.toml", &format!("{policy}no policy\n"));
    assert!(!project.is_changed().await);
    assert_eq!(project.pin(), before, "a mistake changes nothing");
    project.write("taskrun.toml", &policy);
    let PolicyLook::Changed(change) = project.watch.look(Settling::Over).await else {
        panic!("it was taken up");
    };
    assert_ne!(project.pin(), before, "the component is the new one");
    assert_eq!(change.models, ["m"], "it reads another file");
}

#[tokio::test]
async fn what_could_not_be_opened_is_read_again_though_it_looks_the_same() {
    let project = Project::new(&limited(1), &[("worker.wasm", "no component")]);
    project.write("taskrun.toml", &limited(2));
    // As a read leaves it that met too many open files.
    let path = project.path("taskrun.toml");
    let (_, found) = FilesSeen::load(&path, &Arc::default()).expect("a policy");
    let failed = |at| {
        let mut state = project.watch.state();
        (state.looked_at, state.unread_since) = (found.clone(), at);
    };
    failed(Some(Instant::now()));
    assert!(matches!(project.watch.look(Settling::Awaited).await, PolicyLook::Same));
    failed(Instant::now().checked_sub(READ_AGAIN_AFTER));
    assert!(matches!(project.watch.look(Settling::Awaited).await, PolicyLook::Changed(_)));
    assert_eq!(project.agent().limits.tool_calls, Some(2));
    failed(Instant::now().checked_sub(READ_AGAIN_AFTER));
    assert!(
        matches!(project.watch.look(Settling::Awaited).await, PolicyLook::Same),
        "nothing is other"
    );
    assert_eq!(project.watch.state().unread_since, None);
}

#[tokio::test]
async fn a_component_that_cannot_be_opened_is_looked_for_again() {
    let project = Project::new(WORKER, &[]);
    std::fs::create_dir(project.path("worker.wasm")).expect("made");
    assert!(project.is_changed().await);
    for pause in [1, 2, 4].map(|times| READ_AGAIN_AFTER * times) {
        {
            let mut state = project.watch.state();
            assert_eq!(state.read_again_after, pause, "ever more seldom");
            let since = state.unread_since.expect("a folder cannot be read");
            state.unread_since = since.checked_sub(pause);
        }
        assert!(matches!(project.watch.look(Settling::Awaited).await, PolicyLook::Same));
    }
    std::fs::remove_dir(project.path("worker.wasm")).expect("removed");
    assert!(project.is_changed().await);
    assert_eq!(project.watch.state().unread_since, None, "there is nothing to read");
}

/// The files of the machine, one of which is another by the time that it was read.
struct ReplacedFile<'f> {
    path: &'f Path,
    then: &'f str,
}

impl Files for ReplacedFile<'_> {
    fn read(&self, path: &Path, bytes_max: usize) -> io::Result<String> {
        let text = Disk.read(path, bytes_max)?;
        if path == self.path {
            let other = path.with_extension("other");
            std::fs::write(&other, self.then)?;
            std::fs::rename(&other, path)?;
        }
        Ok(text)
    }

    fn kind(&self, path: &Path) -> io::Result<FileKind> {
        Disk.kind(path)
    }

    fn real_path(&self, path: &Path) -> io::Result<PathBuf> {
        Disk.real_path(path)
    }
}

/// Loads a policy while a file is replaced.
fn load_while(path: &Path, replaced: &ReplacedFile<'_>) -> (Policy, FilesSeen) {
    FilesSeen::load_from(replaced, path, &Arc::default()).expect("a policy")
}

fn load(path: &Path) -> (Policy, FilesSeen) {
    FilesSeen::load(path, &Arc::default()).expect("a policy")
}

#[test]
fn a_policy_that_is_replaced_while_it_is_read_is_another_one_at_the_next_look() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("taskrun.toml");
    std::fs::write(&path, limited(1)).expect("written");
    let (policy, seen) = load_while(&path, &ReplacedFile { path: &path, then: &limited(2) });
    assert_eq!(policy.agents["worker"].limits.tool_calls, Some(1));
    assert_eq!(FilesSeen::of(&policy).changed_since(&seen), std::slice::from_ref(&path));
    let (policy, seen) = load(&path);
    assert_eq!(policy.agents["worker"].limits.tool_calls, Some(2));
    assert!(FilesSeen::of(&policy).changed_since(&seen).is_empty());
}

#[test]
fn a_prompt_that_is_replaced_while_it_is_read_is_another_one_at_the_next_look() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("taskrun.toml");
    std::fs::write(&path, "[prompt.p]\nfile = \"p.md\"\n").expect("written");
    let prompt = folder.path().join("p.md");
    std::fs::write(&prompt, "one").expect("written");
    let (policy, seen) = load_while(&path, &ReplacedFile { path: &prompt, then: "two" });
    assert_eq!(FilesSeen::of(&policy).changed_since(&seen), [prompt]);
}
