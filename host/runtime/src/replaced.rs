//! The file of a component is replaced while it is kept, and while it is compiled.

use std::path::Path;
use std::sync::Arc;
use std::thread;

use taskrun::agents::CodeSource;
use taskrun::clock::SystemClock;
use taskrun_engine::AgentError;
use taskrun_examples::BRIEFER;
use taskrun_journal::time::Clock;
use taskrun_store::Blobs;

use crate::loader::{Loader, LoaderOptions};
use crate::policy_file::load_policy;
use crate::snapshot;

/// Moments at which the file is replaced.
const INTERLEAVINGS: u32 = 100;
/// Loads of the same bytes: the first compiles them.
const OF_THE_SAME: u32 = 5;

/// One in so many is replaced before its load begins.
const BEFORE: u32 = 7;

/// A component with its own bytes: with a section that nobody reads.
fn component(number: u32) -> Vec<u8> {
    let text = format!("{number:05}");
    [BRIEFER.bytes, &[0, 6, 5], text.as_bytes()].concat()
}

/// Replaces the file by another component, or by rubbish: in one moment, or written over.
fn replace(path: &Path, number: u32) {
    let bytes = if number.is_multiple_of(2) { component(90_000 + number) } else { vec![7; 50_000] };
    if number.is_multiple_of(4) || number % 4 == 3 {
        std::fs::write(path, bytes).expect("written");
    } else {
        let beside = path.with_extension("new");
        std::fs::write(&beside, bytes).expect("written");
        std::fs::rename(beside, path).expect("replaced");
    }
}

/// Opens the policy and loads its agent, as an acceptance does; gives the digests of what is pinned, of
/// what is kept under that, and of what would run.
async fn load(folder: &Path) -> Result<[String; 3], AgentError> {
    let policy = load_policy(&folder.join("taskrun.toml")).expect("a policy");
    let data = folder.join("data");
    let options = LoaderOptions { keeps: true, ..LoaderOptions::of_data_dir(&data) };
    let loader = Loader::open(policy, options).expect("opens");
    let agent = loader.agent(&loader.policy().agents["worker"]).await?;
    let CodeSource::Loaded(code) = &agent.code else { panic!("it is loaded") };
    let kept = snapshot::components(&Blobs::existing(&data), &agent.pin).expect("it is kept");
    let [kept] = kept[..] else { panic!("one component: {kept:?}") };
    let named = |hash: blake3::Hash| format!("blake3:{}", hash.to_hex());
    let bytes = std::fs::read(Blobs::existing(&data).path(&kept)).expect("it is there");
    assert_eq!(blake3::hash(&bytes), kept, "what is kept is what it is called");
    Ok([agent.digest.clone(), named(kept), code.planner.digest().to_owned()])
}

#[tokio::test]
async fn case_62_whenever_a_file_is_replaced_the_bytes_that_are_pinned_are_those_that_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("worker.wasm");
    std::fs::create_dir(folder.path().join("data")).expect("made");
    let policy = "[prompt.brief]\ntemplate = \"x\"\n\
                  [agent.worker]\ncomponent = \"worker.wasm\"\nallow = [\"prompts: brief\"]\n";
    std::fs::write(folder.path().join("taskrun.toml"), policy).expect("written");
    let clock = SystemClock::new();
    std::fs::write(&path, component(99_999)).expect("written");
    let began = clock.monotonic();
    load(folder.path()).await.expect("it loads");
    // The moments are spread over what a load takes.
    let span = clock.monotonic() - began;
    let (mut old, mut new, mut refused) = (0, 0, 0);
    for number in 0..INTERLEAVINGS {
        let bytes = component(number / OF_THE_SAME);
        std::fs::write(&path, &bytes).expect("written");
        let moment = span * number / INTERLEAVINGS;
        let (replaced, clock) = (path.clone(), Arc::new(SystemClock::new()));
        let began = clock.monotonic();
        let writer = thread::spawn(move || {
            while clock.monotonic() - began < moment {
                thread::yield_now();
            }
            replace(&replaced, number);
        });
        let mut writer = Some(writer);
        // However fast the machine is, some are replaced before anything was read.
        if number.is_multiple_of(BEFORE)
            && let Some(writer) = writer.take()
        {
            writer.join().expect("it has written");
        }
        let loaded = load(folder.path()).await;
        if let Some(writer) = writer {
            writer.join().expect("it has written");
        }
        match loaded {
            Ok([pinned, kept, runs]) => {
                assert_eq!((&kept, &runs), (&pinned, &pinned), "interleaving {number}");
                let is_old = pinned == format!("blake3:{}", blake3::hash(&bytes).to_hex());
                if is_old { old += 1 } else { new += 1 }
            }
            // With a type: it was replaced meanwhile, or is no component.
            Err(AgentError::Component { .. } | AgentError::Files { .. }) => refused += 1,
            Err(error) => panic!("interleaving {number}: {error:?}"),
        }
    }
    assert_eq!(old + new + refused, INTERLEAVINGS);
    assert!(old > 0 && refused > 0, "{old} old, {new} new, {refused} refused");
}
