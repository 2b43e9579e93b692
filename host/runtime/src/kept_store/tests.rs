//! Runs whose components are there, gone, and kept anew.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use taskrun_fixtures::{append, new_run, run_id, spec};
use taskrun_journal::ids::HostId;
use taskrun_journal::machine::decide;
use taskrun_journal::narrowing::{Ancestor, Narrowing};
use taskrun_journal::pin::Ready;
use taskrun_journal::run::Run;
use taskrun_journal::spec::{RunClass, RunSpec};
use taskrun_journal::time::Timestamp;
use taskrun_policy::Policy;
use taskrun_store::{Blobs, MemoryStore};

use super::*;
use crate::snapshot::{self, Digests};

/// An agent in a folder, and where it is kept.
struct Folder {
    dir: tempfile::TempDir,
    blobs: Blobs,
    policy: Policy,
    digests: Digests,
    pin: String,
}

impl Folder {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let component = dir.path().join("worker.wasm");
        std::fs::write(&component, b"component").expect("written");
        let text = "[agent.worker]\ncomponent = \"worker.wasm\"\n";
        let policy = Policy::parse(text, &dir.path().join("taskrun.toml")).expect("a policy");
        let digest = blake3::hash(b"component");
        let files = policy.files_of(&policy.agents["worker"]);
        let digests = files.into_iter().map(|path| (path.to_owned(), digest)).collect();
        let pin = format!("worker@blake3:{}", blake3::hash(b"pin").to_hex());
        let blobs = Blobs::open(dir.path()).expect("opens");
        Self { dir, blobs, policy, digests, pin }
    }

    fn keep(&self) {
        let of = (&self.policy.agents["worker"], self.pin.as_str());
        snapshot::keep(&self.blobs, &self.policy, of, &self.digests).expect("kept");
    }

    fn component(&self) -> PathBuf {
        self.blobs.path(&blake3::hash(b"component"))
    }

    fn snapshot(&self) -> PathBuf {
        let hex = blake3::hash(b"pin").to_hex();
        self.dir.path().join("blobs").join("pins").join(hex.as_str())
    }

    fn store(&self, again: Option<Arc<dyn KeepAgain>>) -> (Arc<MemoryStore>, Box<dyn Store>) {
        let behind = Arc::new(MemoryStore::new());
        let store = KeptStore::new(behind.clone(), KeptAgents::new(self.dir.path()), again);
        (behind, Box::new(store))
    }

    fn spec(&self, id: &str) -> RunSpec {
        RunSpec { pin: self.pin.clone(), ..spec(id) }
    }
}

async fn is_there(store: &MemoryStore, id: &str) -> bool {
    store.get(&run_id(id)).await.expect("gets").is_some()
}

#[tokio::test]
async fn a_run_is_accepted_only_if_all_that_it_needs_is_kept() {
    let folder = Folder::new();
    let (behind, store) = folder.store(None);
    let create = async |id: &str| store.create(new_run(folder.spec(id))).await;
    let refused = create("never-kept").await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
    folder.keep();
    assert!(matches!(create("kept").await, Ok(CreateOutcome::New)));
    type Damage<'a> = (&'a str, Box<dyn Fn() + 'a>);
    let gone: [Damage<'_>; 2] = [
        ("component", Box::new(|| std::fs::remove_file(folder.component()).expect("removed"))),
        ("policy", Box::new(|| std::fs::remove_file(folder.snapshot()).expect("removed"))),
    ];
    for (what, remove) in gone {
        folder.keep();
        remove();
        let refused = create(what).await;
        assert!(matches!(refused, Err(StoreError::Refused { .. })), "{what}: {refused:?}");
        assert!(!is_there(&behind, what).await);
    }
    // Another process knows nothing of the agent's components yet.
    folder.keep();
    std::fs::write(folder.snapshot(), b"{}").expect("written");
    let refused = folder.store(None).1.create(new_run(folder.spec("damaged"))).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
    assert!(is_there(&behind, "kept").await);
}

#[tokio::test]
async fn a_run_is_given_only_a_pin_of_which_all_is_kept() {
    let folder = Folder::new();
    folder.keep();
    let (behind, store) = folder.store(None);
    let new = new_run(folder.spec("r"));
    let run = new.run.clone();
    store.create(new).await.expect("creates");
    let to = format!("worker@blake3:{}", blake3::hash(b"other").to_hex());
    let adopted = |to: &str| {
        let events = decide::adopt(&run, to, "ann").expect("nobody has it");
        append(&run, 1, Timestamp(1), events)
    };
    let refused = store.append(adopted(&to)).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
    let kept = async || behind.get(run.id()).await.expect("gets").expect("it is there");
    assert_eq!((kept().await.pin(), kept().await.state.head), (run.pin(), 1));
    let of = (&folder.policy.agents["worker"], to.as_str());
    snapshot::keep(&folder.blobs, &folder.policy, of, &folder.digests).expect("kept");
    assert_eq!(store.append(adopted(&to)).await.expect("appends"), AppendOutcome::Done);
    assert_eq!(kept().await.pin(), to);
}

#[tokio::test]
async fn what_an_accepted_run_needs_is_young() {
    let folder = Folder::new();
    folder.keep();
    let long_ago = std::time::SystemTime::UNIX_EPOCH;
    let paths = [folder.component(), folder.snapshot()];
    for path in &paths {
        let file = std::fs::File::options().write(true).open(path).expect("opens");
        file.set_modified(long_ago).expect("set");
    }
    folder.store(None).1.create(new_run(folder.spec("r"))).await.expect("creates");
    for path in &paths {
        let modified = path.metadata().and_then(|meta| meta.modified()).expect("a time");
        assert!(modified > long_ago, "{}", path.display());
    }
}

/// Keeps the agent of a folder, and counts how often.
struct Again(Arc<Folder>, AtomicUsize);

impl KeepAgain for Again {
    fn keep_again(&self, pin: &str) -> bool {
        assert_eq!(pin, self.0.pin);
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.keep();
        true
    }
}

#[tokio::test]
async fn what_is_gone_is_kept_anew_where_the_policy_has_it() {
    let folder = Arc::new(Folder::new());
    let again = Arc::new(Again(Arc::clone(&folder), AtomicUsize::new(0)));
    let (behind, store) = folder.store(Some(again.clone()));
    for (times, id) in ["first", "second", "third"].into_iter().enumerate() {
        store.create(new_run(folder.spec(id))).await.expect("creates");
        assert!(is_there(&behind, id).await && folder.component().exists());
        assert_eq!(again.1.load(Ordering::Relaxed), times + 1);
        store.create(new_run(folder.spec(&format!("{id}-more")))).await.expect("creates");
        assert_eq!(again.1.load(Ordering::Relaxed), times + 1, "what is there is not kept anew");
        std::fs::remove_file(folder.component()).expect("removed");
    }
}

#[tokio::test]
async fn entries_and_runs_above_need_nothing_here() {
    let folder = Folder::new();
    let (behind, store) = folder.store(None);
    let entry = RunSpec { class: RunClass::Heartbeat, ..spec("entry") };
    store.create(new_run(entry)).await.expect("creates");
    folder.keep();
    let above = Ancestor {
        agent_name: "boss".to_owned(),
        pin: format!("boss@blake3:{}", "0".repeat(64)),
        narrow: Narrowing::default(),
        autonomous: false,
    };
    let beneath = RunSpec { ancestors: vec![above], ..folder.spec("beneath") };
    store.create(new_run(beneath)).await.expect("creates");
    assert!(is_there(&behind, "entry").await && is_there(&behind, "beneath").await);
}

/// Answers a new run while it says whether blobs could be removed.
struct Watched(MemoryStore, Blobs, AtomicUsize);

impl Watched {
    fn look(&self) {
        if self.1.begin_removal().expect("tries").is_none() {
            self.2.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[async_trait]
impl Layer for Watched {
    fn behind(&self) -> &dyn Store {
        &self.0
    }

    async fn create(&self, run: NewRun) -> Result<CreateOutcome, StoreError> {
        self.look();
        self.0.create(run).await
    }

    async fn create_and_claim(
        &self,
        run: NewRun,
        claim: Claim,
    ) -> Result<JointOutcome, StoreError> {
        self.look();
        self.0.create_and_claim(run, claim).await
    }
}

#[tokio::test]
async fn nothing_is_removed_until_the_run_is_on_record() {
    let folder = Folder::new();
    folder.keep();
    let watched = Arc::new(Watched(MemoryStore::new(), folder.blobs.clone(), AtomicUsize::new(0)));
    let store: &dyn Store =
        &KeptStore::new(watched.clone(), KeptAgents::new(folder.dir.path()), None);
    store.create(new_run(folder.spec("r"))).await.expect("creates");
    assert_eq!(watched.2.load(Ordering::Relaxed), 1);
    assert!(folder.blobs.begin_removal().expect("begins").is_some(), "nobody holds them any more");
    let both = store.create_and_claim(new_run(folder.spec("taken")), claim()).await;
    assert!(matches!(both, Ok(JointOutcome::Done { .. })), "{both:?}");
    assert_eq!(watched.2.load(Ordering::Relaxed), 2);
    assert!(folder.blobs.begin_removal().expect("begins").is_some(), "nobody holds them any more");
}

fn claim() -> Claim {
    Claim {
        host: HostId::new("h"),
        limit: 1,
        finalizers: 0,
        tree_slots: u32::MAX,
        ready: Ready::All,
        resumes: 0,
        now: Timestamp(1),
    }
}

/// A policy comes in force no sooner than a claim that comes with a run has its end.
#[tokio::test]
async fn a_run_that_comes_with_a_claim_waits_for_no_component() {
    let folder = Arc::new(Folder::new());
    folder.keep();
    let again = Arc::new(Again(Arc::clone(&folder), AtomicUsize::new(0)));
    let (behind, store) = folder.store(Some(again.clone()));
    let is_left = async |id: &str| {
        let both = store.create_and_claim(new_run(folder.spec(id)), claim()).await;
        let Ok(JointOutcome::Busy(left)) = both else { panic!("{both:?}") };
        assert!(left.run.id() == &run_id(id) && !is_there(&behind, id).await);
    };
    let removal = folder.blobs.begin_removal().expect("begins").expect("nobody holds any");
    is_left("beside-a-removal").await;
    drop(removal);
    std::fs::remove_file(folder.component()).expect("removed");
    is_left("of-what-is-gone").await;
    assert_eq!(again.1.load(Ordering::Relaxed), 0);
    folder.keep();
    let both = store.create_and_claim(new_run(folder.spec("r")), claim()).await;
    let Ok(JointOutcome::Done { claimed, .. }) = both else { panic!("{both:?}") };
    assert_eq!(claimed.iter().map(Run::id).collect::<Vec<_>>(), [&run_id("r")]);
}

/// Without a runtime, of which another thread would be.
#[test]
fn a_process_that_executes_nothing_looks_for_what_is_kept_on_the_thread_that_asks() {
    let folder = Folder::new();
    folder.keep();
    let (behind, store) = folder.store(None);
    let created = futures::executor::block_on(store.create(new_run(folder.spec("r"))));
    assert!(matches!(created, Ok(CreateOutcome::New)), "{created:?}");
    assert!(futures::executor::block_on(is_there(&behind, "r")));
}

#[tokio::test]
async fn an_agent_that_this_process_kept_just_now_is_only_looked_for() {
    let folder = Folder::new();
    let agents = KeptAgents::new(folder.dir.path());
    let of = (&folder.policy.agents["worker"], folder.pin.as_str());
    agents.keep(&folder.policy, of, &folder.digests).expect("kept");
    let behind = Arc::new(MemoryStore::new());
    let store: &dyn Store = &KeptStore::new(behind.clone(), Arc::clone(&agents), None);
    let create = async |id: &str| store.create(new_run(folder.spec(id))).await;
    // Nobody reads it, and nobody gives it another time.
    std::fs::write(folder.snapshot(), b"{}").expect("written");
    let long_ago = std::time::SystemTime::UNIX_EPOCH;
    for path in [folder.component(), folder.snapshot()] {
        let file = std::fs::File::options().write(true).open(&path).expect("opens");
        file.set_modified(long_ago).expect("set");
        create("kept").await.expect("creates");
        let modified = path.metadata().and_then(|meta| meta.modified()).expect("a time");
        assert_eq!(modified, long_ago, "{}", path.display());
    }
    for (what, path) in [("component", folder.component()), ("policy", folder.snapshot())] {
        agents.keep(&folder.policy, of, &folder.digests).expect("kept");
        std::fs::remove_file(path).expect("removed");
        let refused = create(what).await;
        assert!(matches!(refused, Err(StoreError::Refused { .. })), "{what}: {refused:?}");
        assert!(!is_there(&behind, what).await);
    }
}
