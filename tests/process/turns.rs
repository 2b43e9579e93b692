//! The turns of the threads of a host: short ones where the work is short, long ones where guests
//! compute.

use std::collections::{BTreeMap, BTreeSet};

use crate::project::Project;

/// Nanoseconds of a turn on the threads of short work and those that offer the processor by themselves,
/// and on the others of long calls.
const SHORT: &str = "100000";
const LONG: &str = "20000000";

/// True if the kernel has turns for single threads, and tells of them.
fn has_turns() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split('.').map_while(|number| number.parse::<u32>().ok());
    let since = (numbers.next(), numbers.next()) >= (Some(6), Some(12));
    since && !turns(std::process::id()).is_empty()
}

/// Names and turns of the threads of a process; nothing where the kernel does not tell of turns.
fn turns(pid: u32) -> BTreeMap<String, BTreeSet<String>> {
    let mut all = BTreeMap::<_, BTreeSet<_>>::new();
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives") {
        let folder = thread.expect("a thread").path();
        // One that has ended meanwhile tells nothing.
        let text = |name| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        let sched = text("sched");
        let slice = sched.lines().find(|line| line.starts_with("se.slice"));
        if let Some((_, slice)) = slice.and_then(|line| line.rsplit_once(' ')) {
            all.entry(text("comm").trim().to_owned()).or_default().insert(slice.to_owned());
        }
    }
    all
}

#[test]
fn threads_of_a_host_have_the_turns_of_their_work() {
    let project = Project::new();
    let id = project.run(&["run", "spinner", "spin", "-d"]).id();
    project.reach(&id, "running");
    let host = u32::try_from(project.hosts()[0]).expect("a process");
    if !has_turns() {
        return;
    }
    let control = ["tokio-rt-worker", "taskrun-write", "taskrun-read", "taskrun-heart"];
    let short = control.into_iter().chain(["taskrun-watch", "taskrun-guest", "taskrun-epoch"]);
    let short = short.chain(["taskrun-longnet"]).map(|name| (name, SHORT));
    let wanted = short.chain(["taskrun-share", "taskrun-http"].map(|name| (name, LONG)));
    // A thread that begins just now asks for its turns as the first thing that it does.
    project.until("each has its turns", || {
        let found = turns(host);
        wanted
            .clone()
            .all(|(name, slice)| found.get(name).is_some_and(|slices| slices.iter().eq([slice])))
    });
}
