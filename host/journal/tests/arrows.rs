//! The arrows between the crates of the host, and what the pure ones must not be built on.

use std::collections::BTreeSet;
use std::path::Path;

/// The names under `[dependencies]` of a crate's manifest.
fn dependencies(krate: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(krate).join("Cargo.toml");
    let text = std::fs::read_to_string(&path).expect("each crate has a manifest");
    let begin = text.split_once("\n[dependencies]\n").expect("each crate depends on something").1;
    let table = begin.split("\n[").next().unwrap_or_default();
    let names = table.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
    names.filter(|name| !name.is_empty() && !name.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn each_crate_names_only_those_below_it() {
    let table: &[(&str, &[&str])] = &[
        ("journal", &[]),
        ("priority", &[]),
        ("store", &["taskrun-journal", "taskrun-priority"]),
        ("fixtures", &["taskrun-journal"]),
        ("policy", &["taskrun-journal"]),
        ("taskrun", &["taskrun-journal", "taskrun-policy"]),
        ("engine", &["taskrun", "taskrun-journal", "taskrun-policy", "taskrun-priority"]),
        ("models", &["taskrun", "taskrun-journal", "taskrun-policy"]),
    ];
    for (krate, below) in table {
        let named = dependencies(krate);
        let ours = named.iter().filter(|name| name.starts_with("taskrun"));
        let above: Vec<_> = ours.filter(|name| !below.contains(&name.as_str())).collect();
        assert!(above.is_empty(), "{krate} names {above:?}");
    }
}

#[test]
fn what_is_pure_is_built_on_no_runtime_and_the_journal_on_no_format_of_files() {
    let runtimes = ["futures", "getrandom", "rustix", "tokio", "tokio-util"];
    let formats = ["minijinja", "toml"];
    let table: &[(&str, &[&str])] =
        &[("journal", &runtimes), ("journal", &formats), ("policy", &runtimes)];
    for (krate, refused) in table {
        let named = dependencies(krate);
        let wrong: Vec<_> = refused.iter().filter(|name| named.contains(**name)).collect();
        assert!(wrong.is_empty(), "{krate} names {wrong:?}");
    }
}
