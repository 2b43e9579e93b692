use std::collections::VecDeque;

use async_trait::async_trait;
use taskrun::clock::SystemClock;
use taskrun_journal::store::{PolicyRevision, PolicyText};
use taskrun_journal::time::Timestamp;
use taskrun_policy::Policy;
use taskrun_store::MemoryStore;
use tempfile::TempDir;

use super::*;
use crate::loader::LoaderOptions;

/// A host of one file, and another file that runs on it were accepted under.
struct Project {
    folder: TempDir,
    store: Arc<MemoryStore>,
    host: Arc<Loader>,
    origins: OriginPolicies,
}

impl Project {
    fn new() -> Self {
        let (folder, store) =
            (tempfile::tempdir().expect("a folder"), Arc::new(MemoryStore::new()));
        let path = folder.path().join("host.toml");
        std::fs::write(&path, limited(100)).expect("written");
        let (policy, _) = FilesSeen::load(&path, &Arc::default()).expect("a policy");
        let host = Arc::new(Loader::open(policy, LoaderOptions::default()).expect("opens"));
        let origins = origins(&store);
        Self { folder, store, host, origins }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("other.toml")
    }

    fn write(&self, text: &str) {
        std::fs::write(self.path(), text).expect("written");
    }

    /// The calls that the other file leaves to runs of its agent.
    async fn calls(&self) -> Option<u32> {
        let loader = self.origins.of(&self.path(), &self.host).await.expect("the store answers");
        loader.and_then(|loader| calls(loader.policy()))
    }

    async fn is_changed(&self, settling: Settling) -> bool {
        let origins = self.origins.look(&self.host, settling).await;
        if let Some(origins) = &origins {
            let agents = origins.get(&self.path().display().to_string()).expect("it is known");
            assert_eq!(agents.keys().collect::<Vec<_>>(), ["worker"]);
        }
        origins.is_some()
    }

    /// The number and the calls of the text in force.
    async fn in_force(&self) -> Option<(u64, Option<u32>)> {
        let path = self.path();
        let kept =
            self.store.policy_in_force(&path.display().to_string()).await.expect("it answers");
        let kept = kept?;
        let policy = Policy::parse(&kept.policy.text, &path).expect("it was read");
        Some((kept.number, calls(&policy)))
    }
}

fn origins(store: &Arc<MemoryStore>) -> OriginPolicies {
    let policies = Arc::clone(store) as Arc<dyn Policies>;
    OriginPolicies::new(policies, Arc::new(SystemClock::new()))
}

fn calls(policy: &Policy) -> Option<u32> {
    policy.agents["worker"].limits.tool_calls
}

fn limited(tool_calls: u32) -> String {
    format!(
        "[agent.worker]\ncomponent = \"worker.wasm\"\nlimits = {{ tool_calls = {tool_calls} }}\n"
    )
}

#[tokio::test]
async fn a_text_is_put_in_force_when_it_is_read_and_a_mistake_changes_nothing() {
    let project = Project::new();
    project.write(&limited(1));
    assert_eq!((project.calls().await, project.in_force().await), (Some(1), Some((1, Some(1)))));
    project.write("no policy");
    assert!(!project.is_changed(Settling::Over).await);
    assert_eq!(project.calls().await, Some(1));
    project.write(&limited(2));
    assert!(project.is_changed(Settling::Over).await);
    assert_eq!((project.calls().await, project.in_force().await), (Some(2), Some((2, Some(2)))));
    assert!(!project.is_changed(Settling::Told).await, "it is as it was");
}

#[tokio::test]
async fn another_host_has_the_text_in_force_where_the_file_cannot_be_read() {
    let mut project = Project::new();
    assert_eq!(project.calls().await, None, "nobody knows of such a file");
    project.write(&limited(1));
    assert!(project.is_changed(Settling::Over).await, "it is there");
    for text in [None, Some("no policy")] {
        match text {
            Some(text) => project.write(text),
            None => std::fs::remove_file(project.path()).expect("it is there"),
        }
        project.origins = origins(&project.store);
        assert_eq!(project.calls().await, Some(1), "{text:?}");
    }
}

#[tokio::test]
async fn a_change_is_read_once_it_has_stood_for_a_moment() {
    let project = Project::new();
    project.write(&limited(1));
    assert_eq!(project.calls().await, Some(1));
    project.write(&limited(2));
    assert!(!project.is_changed(Settling::Awaited).await);
    let has_stood = || {
        let mut known = project.origins.known();
        known.get_mut(&project.path()).expect("it is known").unsettled.age();
    };
    has_stood();
    project.write(&limited(33));
    assert!(!project.is_changed(Settling::Awaited).await, "it has changed further");
    assert_eq!(project.calls().await, Some(1));
    has_stood();
    assert!(project.is_changed(Settling::Awaited).await);
    assert_eq!(project.calls().await, Some(33));
}

#[tokio::test]
async fn a_text_that_the_file_had_before_replaces_none_that_it_has() {
    let project = Project::new();
    project.write(&limited(1));
    let (before, _) = FilesSeen::load(&project.path(), &Arc::default()).expect("a policy");
    assert_eq!((project.calls().await, project.in_force().await), (Some(1), Some((1, Some(1)))));
    project.write(&limited(2));
    assert!(project.is_changed(Settling::Over).await);
    // A host that read it before the edit has loaded its agents only by now.
    origins(&project.store).apply(&before).await;
    assert_eq!(project.in_force().await, Some((2, Some(2))));
}

#[tokio::test]
async fn a_text_is_put_in_force_though_the_clock_was_set_back_since_the_one_before() {
    let project = Project::new();
    let path = project.path().display().to_string();
    let (digest, text, read_at) = ("of before".to_owned(), limited(1), Timestamp(u64::MAX / 2));
    let ahead = PolicyText { path, digest, text, read_at };
    project.store.apply_policy(ahead).await.expect("it is kept");
    project.write(&limited(2));
    assert_eq!((project.calls().await, project.in_force().await), (Some(2), Some((2, Some(2)))));
}

/// A store before whose writes the other file is edited, with so many calls, and another process
/// reads it.
struct LateStore<'a> {
    project: &'a Project,
    edits: Mutex<VecDeque<u32>>,
}

#[async_trait]
impl Policies for LateStore<'_> {
    async fn apply_policy(&self, text: PolicyText) -> Result<PolicyRevision, StoreError> {
        let edit = self.edits.lock().expect("nobody panics with it").pop_front();
        if let Some(tool_calls) = edit {
            self.project.write(&limited(tool_calls));
            let read = FilesSeen::load(&self.project.path(), &Arc::default());
            let (policy, _) = read.expect("a policy");
            origins(&self.project.store).apply(&policy).await;
        }
        self.project.store.apply_policy(text).await
    }

    async fn policy_in_force(&self, path: &str) -> Result<Option<PolicyRevision>, StoreError> {
        self.project.store.policy_in_force(path).await
    }
}

#[tokio::test]
async fn a_text_that_the_file_has_again_is_in_force_though_another_one_is_written_late() {
    // Whoever reads the one that is in force writes nothing, and the late one replaces it.
    for (edits, expected) in [(vec![1], (3, Some(1))), (vec![1, 2], (4, Some(2)))] {
        let project = Project::new();
        project.write(&limited(1));
        assert_eq!(project.calls().await, Some(1));
        project.write(&limited(2));
        let (other, _) = FilesSeen::load(&project.path(), &Arc::default()).expect("a policy");
        let late = LateStore { project: &project, edits: Mutex::new(edits.into()) };
        let now = SystemClock::new().now();
        let applied = put_in_force(&late, &other, now).await.expect("it is kept");
        assert_eq!(project.in_force().await, Some(expected));
        assert_eq!(applied.number, expected.0);
    }
}
