//! `taskrun policy apply`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use taskrun_journal::store::{Host, PresentHost};
use taskrun_runtime::{Loader, Storage, check_keeping, policies_in_force};
use tokio::time::{Instant, sleep};

use super::policy_check::{Checked, look};
use super::policy_show::{HostView, OwnPolicy, views};
use crate::args::{ApplyArgs, OutputFormat};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, loader_failure};
use crate::output::versioned;
use crate::paths::shown;
use crate::signals::Interrupts;

/// The pause between two looks at the hosts.
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[derive(Serialize)]
struct Report {
    policy: PathBuf,
    digest: String,
    /// The number of texts of the file that were in force, with this one; without a data directory
    /// there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<u64>,
    hosts: Vec<HostView>,
    /// Process ids of the hosts under this file that do not have it in force.
    behind: Vec<u32>,
}

/// Checks the policy in use, puts it in force in the store, and waits until all hosts that were
/// started with its file have it in force.
///
/// # Errors
/// If anything of it cannot be used, or the time is up.
pub(super) async fn apply(context: &Context, args: &ApplyArgs) -> Outcome {
    let mut interrupts = Interrupts::new();
    tokio::select! {
        biased;
        () = interrupts.pressed() => Ok(Exit::Interrupted),
        outcome = apply_in_time(context, args.timeout) => outcome,
    }
}

async fn apply_in_time(context: &Context, timeout: Duration) -> Outcome {
    let Checked { loader, failure, .. } = look(context, None).await?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    let (mut hosts, mut behind, mut revision) = (Vec::new(), Vec::new(), None);
    if context.data_dir()?.is_dir() {
        // A policy that is in force, and under which no run is accepted, would be of no use.
        check_keeping(&context.data_dir()?).map_err(|error| loader_failure(&error))?;
        let storage = context.existing_storage()?;
        let applied = storage.apply(loader.policy(), context.now()).await?;
        // The file has another text by now, and that is in force or will be.
        if applied.policy.digest != loader.policy().digest {
            return Err(changed(&loader.policy().path));
        }
        revision = Some(applied.number);
        (hosts, behind) = in_force(context, (&storage, &loader), timeout).await?;
    }
    let policy = loader.policy();
    let own = OwnPolicy { path: &policy.path, digest: Some(&policy.digest) };
    let report = Report {
        policy: policy.path.clone(),
        digest: policy.digest.clone(),
        revision,
        hosts: views(&context.data_dir()?, &hosts, Some(own)),
        behind,
    };
    print(context, &report);
    if report.behind.is_empty() {
        return Ok(Exit::Completed);
    }
    if context.read_policy(&policy.path)?.digest != policy.digest {
        return Err(changed(&policy.path));
    }
    let pids: Vec<String> = report.behind.iter().map(u32::to_string).collect();
    let message = format!("the time is up, and it is not in force in process {}", pids.join(", "));
    Err(Failure::new(Exit::WaitTimedOut, "wait-timed-out", message)
        .hint("see why with `taskrun policy show`, and in the log of that host"))
}

/// The failure where the file has another text than the one that was checked.
fn changed(path: &Path) -> Box<Failure> {
    let message = format!("{} was changed while it was applied", shown(path));
    Failure::new(Exit::WaitTimedOut, "wait-timed-out", message).hint("apply it again")
}

/// The hosts, and of those under this file the ones that do not have it in force when the time is
/// up: also those that stand still, as they may go on.
async fn in_force(
    context: &Context,
    (storage, loader): (&Storage, &Loader),
    timeout: Duration,
) -> Outcome<(Vec<PresentHost>, Vec<u32>)> {
    let (policy, pins) = (loader.policy(), loader.pins_digest());
    let (data_dir, began) = (context.data_dir()?, Instant::now());
    loop {
        let present = storage.hosts.present_hosts().await?;
        let hosts = present.iter().map(|one| &one.host);
        let told = policies_in_force(&data_dir, hosts.clone());
        let is_in_force = |host: &Host| {
            told.iter().any(|told| {
                told.host == host.id && told.digest == policy.digest && told.pins == pins
            })
        };
        let of_file = hosts.filter(|host| Path::new(&host.policy) == policy.path);
        let behind: Vec<u32> =
            of_file.filter(|host| !is_in_force(host)).map(|host| host.pid).collect();
        if behind.is_empty() || began.elapsed() >= timeout {
            return Ok((present, behind));
        }
        sleep(LOOK_EVERY).await;
    }
}

fn print(context: &Context, report: &Report) {
    let printer = &context.printer;
    match printer.format() {
        OutputFormat::Table => {
            let now = context.now();
            report.hosts.iter().for_each(|host| printer.line(host.text(now)));
            if report.hosts.is_empty() {
                printer.talk(format!(
                    "no host lives; the next one executes runs under {}",
                    shown(&report.policy)
                ));
            }
        }
        OutputFormat::Json => printer.json(&versioned(report)),
        OutputFormat::Ndjson => {
            report.hosts.iter().for_each(|host| printer.json_line(&versioned(host)));
        }
        OutputFormat::Name => printer.line(report.policy.display()),
    }
}
