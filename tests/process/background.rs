//! The hosts of a project that a command starts in the background, listed or not.

use std::path::Path;

use rustix::process::Signal;

use crate::project::Project;

/// The processes of a project that are a background host, or wait to become one: those that begin,
/// or wait for the lock of another, are in no list. One that a test starts by itself, in the folder
/// of the project, is not among them.
pub(crate) fn processes(project: &Path) -> Vec<i32> {
    let Ok(data) = project.join(".taskrun").canonicalize() else { return Vec::new() };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_one = |pid: &i32| {
        // One that ends meanwhile is none.
        let folder = std::fs::read_link(format!("/proc/{pid}/cwd"));
        folder.is_ok_and(|folder| folder == data)
            && std::fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|words| String::from_utf8_lossy(&words).contains("--background"))
    };
    pids.filter(is_one).collect()
}

impl Project {
    /// Sends a signal to the hosts that are listed and to all in the background, to each once, as a
    /// second one may be an order to end at once, and waits until they are gone. A host that is
    /// started meanwhile, by a command that goes on, is let be. Says how many were listed.
    pub(crate) fn end_hosts_by(&self, signal: Signal) -> usize {
        let mut found = self.hosts();
        let listed = found.len();
        found.extend(processes(self.path()));
        found.sort_unstable();
        found.dedup();
        Self::signal(&found, signal);
        let are_gone = |pids: Vec<i32>| pids.iter().all(|pid| !found.contains(pid));
        self.until("the hosts have ended", || {
            are_gone(self.hosts()) && are_gone(processes(self.path()))
        });
        listed
    }
}
