//! Files of a data directory that others may enter.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use serde_json::json;

use crate::descriptors::run_in_shell;
use crate::project::Project;

/// The files that a host makes for others of its user, with their permissions.
fn made_by_host(project: &Project) -> Vec<(PathBuf, u32)> {
    let entries = std::fs::read_dir(project.path().join(".taskrun")).expect("a folder").flatten();
    let is_of_host = |name: &str| {
        ["background-", "policy-", "loads-"].iter().any(|begin| name.starts_with(begin))
    };
    // One that is removed meanwhile is none.
    let made = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_of_host));
    made.filter_map(|entry| {
        let mode = entry.metadata().ok()?.permissions().mode() & 0o777;
        Some((entry.path(), mode))
    })
    .collect()
}

#[test]
fn only_their_owner_opens_the_files_of_a_host_whatever_the_umask_and_the_folder() {
    let project = Project::new();
    let block = json!({ "steps": [["block"]] }).to_string();
    let start = || {
        let args = ["run", "worker", &block, "-d"];
        let script = "umask 022 && exec \"$@\"";
        let id = run_in_shell(&project, Command::new("sh"), script, &args).id();
        project.reach(&id, "running");
        let made = made_by_host(&project);
        assert!(made.iter().all(|(_, mode)| *mode == 0o600), "{made:?}");
        for begin in ["background-", "policy-"] {
            let found = made.iter().any(|(path, _)| path.display().to_string().contains(begin));
            assert!(found, "{begin}: {made:?}");
        }
        made
    };
    let made = start();
    project.kill_hosts_and_wait();
    // As an earlier program left it.
    let is_lock = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "lock");
    for lock in made.into_iter().map(|(path, _)| path).filter(is_lock) {
        std::fs::set_permissions(lock, Permissions::from_mode(0o644)).expect("set");
    }
    start();
}
