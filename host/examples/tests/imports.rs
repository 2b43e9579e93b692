//! The imports that each example asks for are exactly what it uses, and each crate is an example.

use anyhow::{Context as _, Result, bail};
use std::{collections::BTreeSet, fs, path::Path};
use taskrun_examples::{ALL, Example, Kind, evil};
use wit_component::DecodedWasm;
use wit_parser::{Resolve, WorldId, WorldItem};

/// The imports of everything that can panic on `wasm32-wasip2`.
const WASI_BASELINE: &[&str] = &[
    "wasi:cli/environment@0.2.6",
    "wasi:cli/exit@0.2.6",
    "wasi:cli/stderr@0.2.6",
    "wasi:cli/stdin@0.2.6",
    "wasi:cli/stdout@0.2.6",
    "wasi:cli/terminal-input@0.2.6",
    "wasi:cli/terminal-output@0.2.6",
    "wasi:cli/terminal-stderr@0.2.6",
    "wasi:cli/terminal-stdin@0.2.6",
    "wasi:cli/terminal-stdout@0.2.6",
    "wasi:io/error@0.2.6",
    "wasi:io/poll@0.2.6",
    "wasi:io/streams@0.2.6",
];

/// The interfaces with a function or a resource that each example imports, but for the baseline.
const IMPORTS: &[(&str, &[&str])] = &[
    ("workspace", &["log", "workspace-read", "workspace-write"]),
    ("researcher", &["log", "run"]),
    ("briefer", &["log", "prompts"]),
    ("chat", &["conversation", "events", "log", "model", "reminders"]),
    ("minutes", &["conversation", "log"]),
    ("editor", &["events", "log", "model", "state"]),
    ("sorter", &["events", "log", "model"]),
    ("thinker", &["events", "log", "model", "prompts"]),
    ("counter", &["log"]),
    ("words", &["log"]),
    (
        "dice",
        &[
            "clock",
            "events",
            "log",
            "model",
            "random",
            "wasi:clocks/monotonic-clock@0.2.6",
            "wasi:clocks/wall-clock@0.2.6",
            "wasi:random/insecure-seed@0.2.6",
        ],
    ),
    ("finalizer", &["log"]),
    ("coordinator", &["controller", "log", "state"]),
    ("scripted", &["cancellation", "clock", "events", "log", "reminders", "run", "state"]),
    ("scripted-tool", &["clock", "log"]),
    ("ledger", &["log", "workspace-write"]),
    ("notes", &["log", "memory", "memory-write"]),
    ("meter", &["log", "metrics"]),
    ("recaller", &["log", "memory"]),
    ("inspector", &["http", "log", "run", "workspace-read", "workspace-write"]),
    ("delegate", &["controller", "log"]),
    ("wasi-files", &["log", "wasi:filesystem/preopens@0.2.6", "wasi:filesystem/types@0.2.6"]),
    ("fetch", &["http", "log"]),
    ("cautious", &["log"]),
    ("evil-tool", &["clock", "log", "workspace-read", "workspace-write"]),
    ("evil-describe", &["log"]),
    ("evil-fetch", &["http", "log"]),
    ("evil-schema", &["log"]),
    ("evil-agent", &["clock", "events", "log"]),
    ("evil-media", &["controller", "events", "log", "model"]),
    ("evil-stream", &["log", "model"]),
    (
        "evil-deep",
        &[
            "controller",
            "conversation",
            "events",
            "http",
            "log",
            "memory",
            "metrics",
            "model",
            "prompts",
            "random",
            "reminders",
            "run",
            "state",
            "workspace-read",
            "workspace-write",
        ],
    ),
    (
        "evil-wasi",
        &[
            "log",
            "wasi:clocks/monotonic-clock@0.2.6",
            "wasi:filesystem/preopens@0.2.6",
            "wasi:filesystem/types@0.2.6",
        ],
    ),
];

fn every_example() -> impl Iterator<Item = &'static Example> {
    ALL.iter().chain(evil::ALL)
}

fn decode(example: &Example) -> Result<(Resolve, WorldId)> {
    match wit_component::decode(example.bytes)? {
        DecodedWasm::Component(resolve, world) => Ok((resolve, world)),
        DecodedWasm::WitPackage(..) => bail!("{} is not a component", example.name),
    }
}

/// Importing types alone grants nothing, so such imports are left out.
fn imports(example: &Example) -> Result<BTreeSet<String>> {
    let (resolve, world) = decode(example)?;
    let mut names = BTreeSet::new();
    for (key, item) in &resolve.worlds[world].imports {
        match item {
            WorldItem::Interface { id, .. } => {
                let interface = &resolve.interfaces[*id];
                let has_resource = interface
                    .types
                    .values()
                    .any(|id| matches!(resolve.types[*id].kind, wit_parser::TypeDefKind::Resource));
                if !interface.functions.is_empty() || has_resource {
                    names.insert(resolve.name_world_key(key));
                }
            }
            WorldItem::Function(_) => bail!("{} imports a bare function", example.name),
            WorldItem::Type { .. } => {}
        }
    }
    Ok(names)
}

#[test]
fn each_example_imports_exactly_what_it_uses() -> Result<()> {
    let mut wrong = String::new();
    for example in every_example() {
        let found = imports(example)?;
        let (_, expected) = IMPORTS
            .iter()
            .find(|(name, _)| *name == example.name)
            .with_context(|| format!("{} has no row", example.name))?;
        let mut expected: BTreeSet<String> = expected
            .iter()
            .map(|name| {
                if name.contains(':') {
                    (*name).to_owned()
                } else {
                    format!("taskrun:plugin/{name}@0.1.0")
                }
            })
            .collect();
        if found.iter().any(|name| name.starts_with("wasi:")) {
            expected.extend(WASI_BASELINE.iter().map(|name| (*name).to_owned()));
        }
        if found != expected {
            let more: Vec<_> = found.difference(&expected).collect();
            let less: Vec<_> = expected.difference(&found).collect();
            wrong.push_str(&format!("{}: also {more:?}, not {less:?}\n", example.name));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert_eq!(IMPORTS.len(), every_example().count());
    Ok(())
}

#[test]
fn each_example_exports_its_world() -> Result<()> {
    for example in every_example() {
        let (resolve, world) = decode(example)?;
        let exports: Vec<String> =
            resolve.worlds[world].exports.keys().map(|key| resolve.name_world_key(key)).collect();
        let mut wanted = match example.kind {
            Kind::Agent => vec!["taskrun:plugin/planner@0.1.0"],
            Kind::Tool => vec!["taskrun:plugin/tools@0.1.0"],
            Kind::Policy => vec!["taskrun:plugin/policy@0.1.0"],
        };
        if example.name == "finalizer" {
            wanted.push("taskrun:plugin/finalizer@0.1.0");
        }
        let exports: BTreeSet<&str> = exports.iter().map(String::as_str).collect();
        assert_eq!(exports, BTreeSet::from_iter(wanted), "{}", example.name);
    }
    Ok(())
}

#[test]
fn every_guest_crate_is_an_example() -> Result<()> {
    let guests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-examples");
    let mut crates = BTreeSet::new();
    for family in ["agents", "tools", "policies", "evil"] {
        for folder in fs::read_dir(guests.join(family))? {
            crates.insert(folder?.file_name().to_string_lossy().into_owned());
        }
    }
    let examples: BTreeSet<String> =
        every_example().map(|example| example.name.to_owned()).collect();
    assert_eq!(examples, crates);
    Ok(())
}

#[test]
fn examples_are_small() {
    const BYTES_MAX: usize = 256 << 10;
    for example in every_example() {
        let bytes = example.bytes.len();
        assert!(bytes <= BYTES_MAX, "{} has {bytes} bytes", example.name);
    }
}
