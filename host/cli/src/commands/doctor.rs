//! `taskrun doctor`.

mod due;
mod gone;
mod hosts;
mod kept;
mod outbox;
mod room;

use std::path::Path;

use serde::Serialize;
use taskrun_examples::SCRIPTED_TOOL;
use taskrun_journal::format::JournalFormat;
use taskrun_journal::store::{PresentHost, StoreError};
use taskrun_policy::Policy;
use taskrun_runtime::{
    CACHE_DIR, CheckError, ENGINE_VERSION, Repair, STORE_VERSION, Storage, check_engine,
    check_models, check_native_code, check_store, guest_memory_default, instances_for,
    repair_store, tenant_memory_default,
};

use self::hosts::HostRow;
use self::kept::UnmetView;
use crate::Program;
use crate::args::{DoctorArgs, OutputFormat};
use crate::context::{Context, compile_worker};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, engine_failure, model_failure};
use crate::output::escape::escaped_line;
use crate::output::paint::{BAD, GOOD, NOTE, with};
use crate::output::{human, versioned};
use crate::paths::shown;

/// Fewer instances than that are worth a word: a host executes 64 runs at once, each with a few
/// tool calls.
const INSTANCES_ENOUGH: u32 = 256;
/// Fewer bytes for the guests of a tenant than that are worth a word: eight take them, by their
/// usual limit.
const MEMORY_ENOUGH: u64 = 496 << 20;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Health {
    Good,
    Note,
    Bad,
}

#[derive(Serialize)]
struct Check {
    name: &'static str,
    health: Health,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    /// The needs of open runs that are not met.
    #[serde(skip_serializing_if = "Option::is_none")]
    unmet: Option<UnmetView>,
}

impl Check {
    fn new(name: &'static str, health: Health, detail: impl Into<String>) -> Self {
        Self { name, health, detail: detail.into(), hint: None, unmet: None }
    }

    fn failed(name: &'static str, failure: &Failure) -> Self {
        let hint = failure.hint.clone();
        Self { name, health: Health::Bad, detail: failure.reason(), hint, unmet: None }
    }

    fn hint(mut self, hint: &str) -> Self {
        self.hint = Some(hint.to_owned());
        self
    }

    /// The same where the store was to be made anew: what helps is told there.
    fn beside_repair(mut self, is_repair: bool) -> Self {
        if is_repair {
            self.hint = None;
        }
        self
    }
}

#[derive(Serialize)]
struct Report {
    version: &'static str,
    engine: &'static str,
    store_version: i64,
    journal_format: u16,
    hosts: Vec<HostRow>,
    checks: Vec<Check>,
}

pub(super) async fn doctor(context: &Context, args: &DoctorArgs) -> Outcome {
    let mut checks =
        vec![Check::new("version", Health::Good, version(&context.program)), mappings(), memory()];
    checks.push(smoke(context).await);
    let policy = policy(context, &mut checks);
    checks.extend(policy.as_ref().and_then(models));
    let mut hosts = Vec::new();
    match context.data_dir() {
        // What cannot be looked at, or is no folder, does not open, which is told.
        Ok(dir) if !matches!(dir.try_exists(), Ok(false)) => {
            hosts = store(context, &dir, policy.as_ref(), args, &mut checks).await;
        }
        Ok(dir) => {
            let detail = format!("{} does not exist yet; the first run makes it", shown(&dir));
            checks.push(Check::new("data", Health::Good, detail));
        }
        Err(failure) => {
            checks.push(Check::new("data", Health::Note, failure.message.clone()));
        }
    }
    let bad = checks.iter().filter(|check| check.health == Health::Bad).count();
    print(context, hosts, checks);
    if bad == 0 {
        return Ok(Exit::Completed);
    }
    let is = if bad == 1 { "1 check" } else { "some checks" };
    Err(Failure::new(Exit::Unexpected, "doctor", format!("{is} failed"))
        .hint("each failed check above says what helps"))
}

fn version(program: &Program) -> String {
    let Program { version, format, defaults: _, component_bytes_max: _, store_layer: _ } = program;
    format!(
        "taskrun {version}, {ENGINE_VERSION}, store version {STORE_VERSION}, journal format {format}"
    )
}

fn mappings() -> Check {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count");
    let Some(count) = text.ok().and_then(|text| text.trim().parse::<u32>().ok()) else {
        return Check::new("mappings", Health::Note, "vm.max_map_count cannot be read here");
    };
    let instances = instances_for(count);
    let detail = format!("vm.max_map_count = {count} allows {instances} instances at once");
    if instances >= INSTANCES_ENOUGH {
        Check::new("mappings", Health::Good, detail)
    } else {
        Check::new("mappings", Health::Bad, detail).hint("raise it: sysctl vm.max_map_count=65530")
    }
}

/// Says how much memory all guests of a host have together, and those of a tenant.
fn memory() -> Check {
    let (all, tenant) = (guest_memory_default(), tenant_memory_default());
    let detail = format!(
        "all guests of a host have {} of memory together; those of one tenant, beside 2 MiB each, {}",
        human::bytes(all),
        human::bytes(tenant)
    );
    if tenant >= MEMORY_ENOUGH {
        return Check::new("memory", Health::Good, detail);
    }
    Check::new("memory", Health::Note, detail)
        .hint("give the host more: where guests want more than that, calls wait or are stopped")
}

/// Loads a tool that is part of this program and asks it what it can do.
async fn smoke(context: &Context) -> Check {
    let began = context.clock.monotonic();
    match check_engine(SCRIPTED_TOOL.bytes, compile_worker()).await {
        Ok(functions) => {
            let took = human::duration(context.clock.monotonic().saturating_sub(began));
            let detail = format!(
                "compiled and instantiated a component of {} functions in {took}",
                functions
            );
            Check::new("engine", Health::Good, detail)
        }
        Err(CheckError::Engine(error)) => Check::failed("engine", &engine_failure(&error)),
        Err(CheckError::Component(error)) => Check::new("engine", Health::Bad, error.to_string())
            .hint("the WebAssembly engine does not work here; see -v for more"),
    }
}

fn policy(context: &Context, checks: &mut Vec<Check>) -> Option<Policy> {
    match context.policy_file() {
        Ok(None) => {
            let detail = "no taskrun.toml here or above";
            checks.push(
                Check::new("policy", Health::Note, detail)
                    .hint("go where your policy is, or begin with `taskrun demo`"),
            );
            return None;
        }
        Ok(Some(_)) => {}
        Err(failure) => {
            checks.push(Check::failed("policy", &failure));
            return None;
        }
    }
    match context.whole_policy() {
        Ok(policy) => {
            let detail = format!(
                "{}: {}, {}, {}",
                shown(&policy.path),
                human::count(policy.agents.len() as u64, "agent"),
                human::count(policy.tools.len() as u64, "tool"),
                human::count(policy.models.len() as u64, "model")
            );
            checks.push(
                Check::new("policy", Health::Good, detail)
                    .hint("`taskrun agent check` loads the components of every agent"),
            );
            Some(policy)
        }
        Err(failure) => {
            let mut check = Check::failed("policy", &failure);
            if let Some(report) = &failure.report {
                check.detail.push('\n');
                check.detail.push_str(report.trim_end());
            }
            checks.push(check);
            // With an agent less it may be of use all the same.
            context.policy().ok()
        }
    }
}

/// The provider of each model and its address, and whether scripts, cassettes and keys are there.
/// Asks no model.
fn models(policy: &Policy) -> Option<Check> {
    if policy.models.is_empty() {
        return None;
    }
    let lines: Vec<String> =
        policy.models.values().map(|model| format!("{}: {model}", model.name)).collect();
    let mut check = Check::new("models", Health::Good, lines.join("\n"));
    for error in check_models(policy) {
        let failure = model_failure(&error);
        let causes = std::iter::once(&failure.message).chain(&failure.causes);
        check.detail.extend(causes.map(|cause| format!("\n{cause}")));
        check.health = Health::Bad;
        check.hint = check.hint.or_else(|| failure.hint.clone());
    }
    Some(check)
}

/// Looks at the data directory; gives the hosts whose processes exist.
async fn store(
    context: &Context,
    dir: &Path,
    policy: Option<&Policy>,
    args: &DoctorArgs,
    checks: &mut Vec<Check>,
) -> Vec<PresentHost> {
    if args.repair {
        checks.push(repaired(dir, context.program.format).await);
    }
    let storage = match context.existing_storage() {
        Ok(storage) => storage,
        Err(failure) => {
            checks.push(Check::failed("data", &failure).beside_repair(args.repair));
            return Vec::new();
        }
    };
    checks.push(Check::new("data", Health::Good, format!("{} opens", shown(dir))));
    checks.push(room::check(context, dir, &storage, policy));
    let damage = damage(context, dir, &storage, args.check || args.repair).await;
    checks.extend(damage.map(|check| check.beside_repair(args.repair)));
    checks.extend(kept::checks(context, dir, &storage, args.check || args.repair).await);
    match outbox::check(context, &storage).await {
        Ok(check) => checks.extend(check),
        Err(error) => checks.push(Check::failed("outbox", &Box::<Failure>::from(error))),
    }
    let hosts = match storage.hosts.present_hosts().await {
        Ok(present) => {
            checks.extend(hosts::checks(context, dir, &storage, policy, &present).await);
            present
        }
        Err(error) => {
            checks.push(Check::failed("hosts", &Box::<Failure>::from(error)));
            Vec::new()
        }
    };
    let native = dir.join(CACHE_DIR);
    checks.push(match check_native_code(dir) {
        Ok(kept) => {
            let detail = format!("kept in {}, {}", shown(&native), human::bytes(kept.bytes));
            Check::new("native code", Health::Good, detail)
        }
        Err(error) => Check::new("native code", Health::Bad, error.to_string()).hint(
            "every component is compiled at each start; make the folder private (mode 0700), or remove it",
        ),
    });
    hosts
}

/// The damage in the store: that which a host found beside its work, or, if all is to be checked, that
/// which is found at once.
async fn damage(context: &Context, dir: &Path, storage: &Storage, all: bool) -> Option<Check> {
    let found = match all {
        true => check_store(dir, context.program.format).await,
        false => Ok(storage.findings().to_vec()),
    };
    let findings = match found {
        Ok(findings) => findings,
        Err(error) => return Some(Check::failed("store", &Box::<Failure>::from(error))),
    };
    match (findings.is_empty(), all) {
        (true, true) => Some(Check::new(
            "store",
            Health::Good,
            "every page, run and index is as it was written",
        )),
        (true, false) => None,
        (false, _) => {
            let lines: Vec<_> = findings.iter().map(|finding| escaped_line(finding)).collect();
            Some(Check::new("store", Health::Bad, lines.join("\n")).hint(
                "what is damaged is refused and never shown as something else; `taskrun doctor \
                 --check` tells all of it, and `taskrun doctor --repair` makes the store anew from \
                 the journals in it",
            ))
        }
    }
}

/// Makes the store anew if anything in it is damaged, and says what became of it.
async fn repaired(dir: &Path, format: JournalFormat) -> Check {
    let failed = |error: StoreError| {
        // Those of other commands name this one.
        let hint = match &error {
            StoreError::Locked { .. } => {
                Some("end the hosts and other commands that use this data directory, and try again")
            }
            StoreError::Corrupt { .. } => {
                Some("it was not changed: move it away, or give another --data-dir")
            }
            StoreError::Version { .. } => Some(
                "it was not changed: its journals mean nothing to this version; use the taskrun that \
                 wrote it",
            ),
            StoreError::Format { .. }
            | StoreError::Full { .. }
            | StoreError::NoRoom { .. }
            | StoreError::ReadOnly { .. }
            | StoreError::Unavailable { .. }
            | StoreError::Replaced { .. }
            | StoreError::Refused { .. }
            | StoreError::Closed
            | StoreError::Unknown { .. } => None,
        };
        let check = Check::failed("repair", &Box::<Failure>::from(error));
        match hint {
            Some(hint) => check.hint(hint),
            None => check,
        }
    };
    match check_store(dir, format).await {
        Ok(findings) if findings.is_empty() => {
            return Check::new("repair", Health::Good, "nothing is damaged, and nothing was done");
        }
        Ok(_) | Err(StoreError::Corrupt { .. } | StoreError::Version { .. }) => {}
        Err(error) => return failed(error),
    }
    let folder = dir.to_owned();
    let made = tokio::task::spawn_blocking(move || repair_store(&folder, format)).await;
    let Repair { runs, left_out, lost, kept, other_version } =
        match made.expect("a repair does not panic") {
            Ok(repair) => repair,
            Err(error) => return failed(error),
        };
    let before = match other_version {
        Some(version) => format!("the one of version {version}"),
        None => "the damaged one".to_owned(),
    };
    let mut lines = vec![format!(
        "the store was made anew with {}; {before} is {}",
        human::count(runs, "run"),
        shown(&kept)
    )];
    lines.extend(left_out.iter().map(|line| format!("left out: {}", escaped_line(line))));
    lines.extend(lost);
    let health = if lines.len() == 1 { Health::Good } else { Health::Bad };
    Check::new("repair", health, lines.join("\n"))
}

fn print(context: &Context, hosts: Vec<PresentHost>, mut checks: Vec<Check>) {
    let printer = &context.printer;
    for check in &mut checks {
        check.hint = check.hint.take().map(|hint| printer.completed(&hint));
    }
    match printer.format() {
        OutputFormat::Table => checks.iter().for_each(|check| printer.line(text(check))),
        OutputFormat::Json => printer.json(&versioned(Report {
            version: context.program.version,
            engine: ENGINE_VERSION,
            store_version: STORE_VERSION,
            journal_format: context.program.format.0,
            hosts: hosts.into_iter().map(HostRow::from).collect(),
            checks,
        })),
        OutputFormat::Ndjson => {
            checks.iter().for_each(|check| printer.json_line(&versioned(check)));
        }
        OutputFormat::Name => {
            let bad = checks.iter().filter(|check| check.health == Health::Bad);
            bad.for_each(|check| printer.line(check.name));
        }
    }
}

fn text(check: &Check) -> String {
    let mark = match check.health {
        Health::Good => with(GOOD, "✓"),
        Health::Note => with(NOTE, "!"),
        Health::Bad => with(BAD, "✗"),
    };
    let mut lines = check.detail.lines();
    let mut text = format!("{mark} {:<12} {}", check.name, lines.next().unwrap_or_default());
    for line in lines {
        text.push_str(&format!("\n               {line}"));
    }
    if let Some(hint) = check.hint.as_ref().filter(|_| check.health != Health::Good) {
        text.push_str(&format!("\n               hint: {hint}"));
    }
    text
}
