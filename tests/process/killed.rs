//! Nothing is lost by a `kill -9` in the middle of a removal, and in the middle of a keep: of a
//! terminal that is about to have a run accepted, and of a host that takes a policy up.
//!
//! A kill comes when its middle is seen, and may come too late all the same. Then it is tried again on
//! other bytes; that none of [`ATTEMPTS`] came where it was to is a failure.

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::between::{component, goes_on, kept_components, project, says, version, waits};
use crate::kept::GC;
use crate::project::{Project, deadline};

/// Kills that may come too late.
const ATTEMPTS: u8 = 10;
/// Components, and as many policies, that nobody needs.
const OLD: usize = 2_000;
/// Bytes of a component that takes a while to be kept.
const LARGE_BYTES: usize = 48 << 20;

/// The moment at which a removal is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// Some components are gone.
    OfComponents,
    /// All components are gone, and some policies.
    OfPolicies,
}

/// Components and policies that nobody has wanted for hours.
struct Old {
    components: Vec<PathBuf>,
    policies: Vec<PathBuf>,
}

impl Old {
    fn new(project: &Project, attempt: u8) -> Self {
        let blobs = project.path().join(".taskrun/blobs");
        let write = |path: PathBuf, text: &str| {
            std::fs::create_dir_all(path.parent().expect("beneath the folder")).expect("a folder");
            std::fs::write(&path, text).expect("written");
            let file = std::fs::File::options().write(true).open(&path).expect("opens");
            let modified = file.metadata().and_then(|meta| meta.modified()).expect("a time");
            file.set_modified(modified - Duration::from_secs(5 * 60 * 60)).expect("set");
            path
        };
        let texts = || (0..OLD).map(|number| format!("{attempt}: {number}"));
        let hex = |text: &str| blake3::hash(text.as_bytes()).to_hex().to_string();
        let component = |text: String| {
            let hex = hex(&text);
            write(blobs.join(&hex[..2]).join(&hex[2..]), &text)
        };
        let policy = |text: String| write(blobs.join("pins").join(hex(&text)), &text);
        let (mut components, policies): (Vec<_>, Vec<_>) =
            (texts().map(component).collect(), texts().map(policy).collect());
        // In the order in which they are removed.
        components.sort();
        Self { components, policies }
    }

    fn left(paths: &[PathBuf]) -> usize {
        paths.iter().filter(|path| path.exists()).count()
    }

    /// True as soon as something of the kind is gone.
    fn is_begun(&self, moment: Moment) -> bool {
        let paths = match moment {
            Moment::OfComponents => &self.components,
            Moment::OfPolicies => &self.policies,
        };
        paths.iter().any(|path| !path.exists())
    }

    /// True if it stopped in the middle of the kind.
    fn is_in_the_middle(&self, moment: Moment) -> bool {
        let left = (Self::left(&self.components), Self::left(&self.policies));
        match moment {
            Moment::OfComponents => left.0 > 0 && left.0 < OLD && left.1 == OLD,
            Moment::OfPolicies => left.0 == 0 && left.1 > 0 && left.1 < OLD,
        }
    }
}

/// Kills a removal in the middle, and checks that everything goes on.
fn removal_dies(moment: Moment) {
    let project = project();
    let id = waits(&project);
    version(&project, 2);
    let ran = project.run(&["run", "worker", &says("two"), "--wait"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    project.end_hosts();
    let hit = (0..ATTEMPTS).find_map(|attempt| {
        let old = Old::new(&project, attempt);
        let mut gc = project.start(&GC);
        let deadline = deadline();
        while !old.is_begun(moment) {
            assert!(!deadline.is_over(), "it removes nothing");
        }
        gc.kill().expect("killed");
        gc.wait().expect("gone");
        let is_hit = old.is_in_the_middle(moment);
        if !is_hit {
            // Nothing is left of it for the next one.
            assert_eq!(project.run(&GC).code, 0);
        }
        is_hit.then_some(old)
    });
    let old = hit.unwrap_or_else(|| panic!("none of {ATTEMPTS} kills came {moment:?}"));
    assert_eq!(kept_components(&project), [true, true], "an open run and the policy need them");
    goes_on(&project, &id, 1);
    let left = [&old.components, &old.policies].map(|paths| Old::left(paths));
    let removed = project.run(&GC);
    assert_eq!(removed.code, 0, "{removed:?}");
    let told = removed.json();
    let told = ["components", "policies"].map(|kind| told[kind]["count"].clone());
    assert_eq!(told, left.map(|count| json!(count)), "the rest is removed");
    assert_eq!(Old::left(&old.components) + Old::left(&old.policies), 0);
}

#[test]
fn a_removal_that_dies_among_the_components_takes_nothing_that_is_needed_and_the_next_one_the_rest()
{
    removal_dies(Moment::OfComponents);
}

#[test]
fn a_removal_that_dies_among_the_policies_takes_nothing_that_is_needed_and_the_next_one_the_rest() {
    removal_dies(Moment::OfPolicies);
}

/// A component of many bytes: with a section that nobody reads.
fn large(number: u8) -> Vec<u8> {
    let mut bytes = component(number);
    // The length of the section as the format has it: seven bits a byte, the lowest first.
    let mut length = LARGE_BYTES;
    bytes.push(0);
    while length >= 0x80 {
        bytes.push(u8::try_from(length & 0x7f).expect("seven bits") | 0x80);
        length >>= 7;
    }
    bytes.push(u8::try_from(length).expect("seven bits"));
    // A section of no name.
    bytes.resize(bytes.len() + LARGE_BYTES, 0);
    bytes
}

fn digest_of(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// Puts a version with a large component into the policy.
fn large_version(project: &Project, number: u8) -> Vec<u8> {
    let bytes = large(number);
    // Whoever reads the policy meanwhile finds the whole component.
    project.write(&format!("components/own-{number}.wasm"), &bytes);
    let policy = format!("[agent.worker]\ncomponent = \"components/own-{number}.wasm\"\n");
    project.write("taskrun.toml", policy.as_bytes());
    bytes
}

/// The files that are half written.
fn half_written(project: &Project) -> usize {
    let folder = project.path().join(".taskrun/blobs/tmp");
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

fn is_kept(project: &Project, digest: &str) -> bool {
    project.path().join(".taskrun/blobs").join(&digest[..2]).join(&digest[2..]).exists()
}

/// True if a process that was killed had begun to keep these bytes and did not come to the end. The
/// others that it left half written were there before.
fn died_within(project: &Project, digest: &str, before: usize) -> bool {
    half_written(project) > before && !is_kept(project, digest)
}

fn until_it_keeps(project: &Project, before: usize) {
    project.until("a component is being kept", || half_written(project) > before);
}

#[test]
fn a_terminal_that_dies_while_it_keeps_a_component_leaves_nothing_behind() {
    let project = project();
    let id = waits(&project);
    project.end_hosts();
    let hit = (2..2 + ATTEMPTS).find_map(|number| {
        let digest = digest_of(&large_version(&project, number));
        let (before, run) = (half_written(&project), format!("run-{number}"));
        let mut terminal = project.start(&["run", "worker", &says("lost"), "-d", "--id", &run]);
        until_it_keeps(&project, before);
        terminal.kill().expect("killed");
        terminal.wait().expect("gone");
        died_within(&project, &digest, before).then_some((run, digest))
    });
    let (run, digest) = hit.unwrap_or_else(|| panic!("none of {ATTEMPTS} kills came in time"));
    assert_ne!(project.run(&["get", &run]).code, 0, "it was not accepted");
    let again = project.run(&["run", "worker", &says("found"), "--id", &run, "--wait"]);
    assert_eq!((again.code, again.stdout.trim()), (0, "found"), "{again:?}");
    assert!(is_kept(&project, &digest), "it is kept by now");
    let pinned = project.events(&run)[0]["spec"]["agent_digest"].clone();
    assert_eq!(pinned, json!(format!("blake3:{digest}")));
    goes_on(&project, &id, 1);
}

#[test]
fn a_host_that_dies_while_it_keeps_what_a_policy_names_now_strands_no_run() {
    let project = project();
    let id = waits(&project);
    let hit = (2..2 + ATTEMPTS).find_map(|number| {
        // One that waits for work, as somebody looks for it.
        let mut host = project.start(&["host", "--idle-exit", "0"]);
        project.until("it lives", || project.hosts().contains(&pid_of(&host)));
        for other in project.hosts().into_iter().filter(|other| *other != pid_of(&host)) {
            let other = Pid::from_raw(other).expect("a process");
            // One that ended by itself meanwhile has ended.
            kill_process(other, Signal::KILL).ok();
        }
        let before = half_written(&project);
        let digest = digest_of(&large_version(&project, number));
        until_it_keeps(&project, before);
        host.kill().expect("killed");
        host.wait().expect("gone");
        died_within(&project, &digest, before).then_some(digest)
    });
    let digest = hit.unwrap_or_else(|| panic!("none of {ATTEMPTS} kills came in time"));
    // Also of one that is accepted under the policy that the host was about to take up.
    let later = project.run(&["run", "worker", &says("later"), "-d"]).id();
    assert_eq!(project.ends_by_itself(&later)["result"], json!("later"));
    let pinned = project.events(&later)[0]["spec"]["agent_digest"].clone();
    assert_eq!(pinned, json!(format!("blake3:{digest}")));
    goes_on(&project, &id, 1);
}

fn pid_of(child: &std::process::Child) -> i32 {
    i32::try_from(child.id()).expect("a process")
}
