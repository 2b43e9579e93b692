//! Components that are needed, and by whom.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Mutex;
use std::thread::ScopedJoinHandle;

use taskrun_fixtures::{new_run, spec};
use taskrun_journal::spec::RunSpec;

use super::*;
use crate::storage::StorageOptions;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A data directory with agents, each with a component of its own bytes.
struct Folder {
    dir: tempfile::TempDir,
    blobs: Blobs,
}

impl Folder {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let blobs = Blobs::open(dir.path()).expect("opens");
        Self { dir, blobs }
    }

    fn policy(&self, name: &str) -> (Policy, Digests, String) {
        let component = format!("{name}.wasm");
        std::fs::write(self.dir.path().join(&component), name).expect("written");
        let text = format!("[agent.worker]\ncomponent = \"{component}\"\n");
        let path = self.dir.path().join("taskrun.toml");
        let policy = Policy::parse(&text, &path).expect("a policy");
        let files = policy.files_of(&policy.agents["worker"]);
        let digest = digest(name);
        let digests: Digests = files.into_iter().map(|path| (path.to_owned(), digest)).collect();
        let pin = pin_of(&policy, &policy.agents["worker"], &digests).expect("a pin");
        (policy, digests, pin)
    }

    /// Keeps the agent whose component has this name for its bytes, as if it was wanted two days
    /// ago, and gives its pin.
    fn keep(&self, name: &str) -> String {
        let (policy, digests, pin) = self.policy(name);
        snapshot::keep(&self.blobs, &policy, (&policy.agents["worker"], &pin), &digests)
            .expect("kept");
        for path in [self.component(name), self.snapshot(&pin)] {
            let file = std::fs::File::options().write(true).open(path).expect("opens");
            let modified = file.metadata().and_then(|meta| meta.modified()).expect("a time");
            file.set_modified(modified - 2 * DAY).expect("set");
        }
        pin
    }

    fn component(&self, name: &str) -> PathBuf {
        self.blobs.path(&digest(name))
    }

    fn snapshot(&self, pin: &str) -> PathBuf {
        let hex = snapshot::digest_of(pin).trim_start_matches("blake3:").to_owned();
        self.dir.path().join("blobs").join("pins").join(hex)
    }

    /// Removes what is older than a day, and says which of these are left.
    fn left<const N: usize>(&self, needed: Needed, open: &[Pins], names: [&str; N]) -> [bool; N] {
        remove((&self.blobs, None), needed, (DAY, false), || Ok(open.to_vec())).expect("removes");
        names.map(|name| self.component(name).exists())
    }
}

fn digest(name: &str) -> blake3::Hash {
    blake3::hash(name.as_bytes())
}

fn pins(pins: &[&str]) -> Pins {
    Pins::from_text(pins.join(" "))
}

#[test]
fn what_open_runs_those_above_them_and_those_that_ended_lately_need_stays() {
    let folder = Folder::new();
    let names = ["own", "above", "lately", "in-use", "nobodys"];
    let [own, above, lately, in_use, nobodys] = names.map(|name| folder.keep(name));
    let mut needed = Needed::default();
    needed.add_recorded(&[pins(&[&own, &above]), pins(&[&lately])]);
    needed.add_ended(&folder.blobs, &[pins(&[&lately]), pins(&["worker@blake3:gone", "entry"])]);
    needed.add_policy(&folder.policy("in-use").0);
    let open = [pins(&[&own, &above]), pins(&["entry"])];
    assert_eq!(folder.left(needed, &open, names), [true, true, true, true, false]);
    let policies = [own, above, lately, in_use, nobodys].map(|pin| folder.snapshot(&pin).exists());
    assert_eq!(policies, [true, true, true, true, false]);
    assert_eq!(folder.left(Needed::default(), &open, names), [true, true, false, false, false]);
}

#[test]
fn the_policy_of_a_run_on_record_stays_longer_than_its_component() {
    let folder = Folder::new();
    let pin = folder.keep("component");
    let mut needed = Needed::default();
    needed.add_recorded(&[pins(&[&pin])]);
    assert_eq!(folder.left(needed, &[], ["component"]), [false]);
    assert!(folder.snapshot(&pin).exists());
}

#[test]
fn nothing_goes_where_it_is_not_known_what_an_open_run_needs() {
    let folder = Folder::new();
    folder.keep("nobodys");
    let pin = folder.keep("own");
    let open = || Ok(vec![pins(&[&pin])]);
    let damages: [&dyn Fn(PathBuf); 3] = [
        &|path| std::fs::write(path, "{}").expect("written"),
        &|path| std::fs::write(path, [0xff, 0xfe]).expect("written"),
        &|path| std::fs::remove_file(path).expect("removed"),
    ];
    for damage in damages {
        damage(folder.snapshot(&pin));
        let removed = remove((&folder.blobs, None), Needed::default(), (DAY, false), open);
        assert!(matches!(removed, Err(KeptRemovalError::Unknown { .. })), "{removed:?}");
        assert!(folder.component("own").exists() && folder.component("nobodys").exists());
    }
}

#[tokio::test]
async fn what_a_store_says_of_its_runs_decides_and_an_hour_is_the_least() {
    let folder = Folder::new();
    let storage = Storage::open(folder.dir.path(), StorageOptions::default()).expect("opens");
    let [open, nobodys] = ["open", "nobodys"].map(|name| folder.keep(name));
    storage.store.create(new_run(RunSpec { pin: open, ..spec("r") })).await.expect("creates");
    let (policy, digests, young) = folder.policy("young");
    snapshot::keep(&folder.blobs, &policy, (&policy.agents["worker"], &young), &digests)
        .expect("kept");
    // By this clock the run was accepted long ago.
    let now = Timestamp(1_000 * millis(DAY));
    let removal = KeptRemoval { older_than: Duration::ZERO, now, policy: None, dry_run: true };
    let would = remove_kept(&storage, removal).await.expect("looks");
    assert_eq!((would.components.count, would.policies.count), (1, 1));
    let exist = || ["open", "nobodys", "young"].map(|name| folder.component(name).exists());
    assert_eq!(exist(), [true, true, true]);
    let did = remove_kept(&storage, KeptRemoval { dry_run: false, ..removal }).await;
    assert_eq!(did.expect("removes"), would);
    assert_eq!(exist(), [true, false, true]);
    assert!(!folder.snapshot(&nobodys).exists() && folder.snapshot(&young).exists());
}

/// Threads accept runs as [`crate::kept_store`] does, of agents whose blobs are always old enough,
/// while another one removes.
#[test]
fn no_component_of_an_accepted_run_goes_however_acceptance_and_removal_meet() {
    const AGENTS: usize = 4;
    let folder = Folder::new();
    let agents: Vec<_> = (0..AGENTS).map(|no| folder.policy(&format!("agent-{no}"))).collect();
    let open = Mutex::new(HashSet::new());
    let mut removed = 0;
    std::thread::scope(|scope| {
        let (folder, open) = (&folder, &open);
        let mut acceptances = Vec::new();
        for (policy, digests, pin) in &agents {
            acceptances.push(scope.spawn(move || {
                for _ in 0..100 {
                    let held = folder.blobs.hold(DAY).expect("held").expect("in time");
                    let of = (&policy.agents["worker"], pin.as_str());
                    snapshot::keep(&folder.blobs, policy, of, digests).expect("kept");
                    std::thread::yield_now();
                    open.lock().expect("a lock").insert(pin.clone());
                    drop(held);
                    std::thread::yield_now();
                    for path in digests.values().map(|digest| folder.blobs.path(digest)) {
                        assert!(path.exists(), "{pin} is open, and its component is gone");
                    }
                    open.lock().expect("a lock").remove(pin);
                }
            }));
        }
        // One that panics has ended, too.
        while !acceptances.iter().all(ScopedJoinHandle::is_finished) {
            let of_now = || {
                let open = open.lock().expect("a lock");
                Ok(open.iter().map(|pin| pins(&[pin])).collect())
            };
            let did =
                remove((&folder.blobs, None), Needed::default(), (Duration::ZERO, false), of_now);
            removed += did.expect("removes").components.count;
        }
    });
    assert!(removed > 0, "nothing was ever removed");
}
