//! The committed bindings are what the generator makes of `wit/`. After a change of the contract:
//! `TASKRUN_BLESS=1 cargo test -p taskrun-guest --test bindings`.

use anyhow::{Context as _, Result, bail};
use std::{fs, path::Path};
use wit_bindgen_core::{Files, WorldGenerator as _};
use wit_bindgen_rust::{Opts, WithOption};
use wit_parser::{Resolve, WorldItem};

/// Bindings of one world, with the imports in `shared` taken from the bindings of `agent`.
fn generate(resolve: &mut Resolve, world: &str, shared: &[String]) -> Result<String> {
    let package = *resolve.package_names.values().next().context("wit/ holds one package")?;
    let world_id = resolve.select_world(&[package], Some(world))?;
    let module = world.replace('-', "_");
    let mut generator = Opts {
        format: true,
        generate_all: true,
        runtime_path: Some("::wit_bindgen::rt".into()),
        additional_derive_attributes: vec!["PartialEq".into()],
        default_bindings_module: Some(format!("$crate::bindings::{module}")),
        export_macro_name: Some(format!("export_{module}_world")),
        pub_export_macro: true,
        type_section_suffix: Some(format!("-{world}")),
        with: shared
            .iter()
            .map(|interface| (interface.clone(), WithOption::Path(path_in_agent(interface))))
            .collect(),
        ..Opts::default()
    }
    .build();
    let mut files = Files::default();
    generator.generate(resolve, world_id, &mut files)?;
    let mut texts = files.iter();
    let (Some((_, text)), None) = (texts.next(), texts.next()) else {
        bail!("the generator makes one file per world");
    };
    Ok(sort_shared(std::str::from_utf8(text)?))
}

/// The generator writes the `use` lines of shared interfaces in another order each time.
fn sort_shared(text: &str) -> String {
    let number = |line: &str| -> Option<u32> {
        line.strip_prefix("use ")?.split_once(" as __with_name")?.1.strip_suffix(';')?.parse().ok()
    };
    let mut shared: Vec<&str> = text.lines().filter(|line| number(line).is_some()).collect();
    shared.sort_by_key(|line| number(line));
    let mut shared = shared.into_iter();
    text.lines()
        .map(|line| {
            let line = if number(line).is_some() { shared.next().unwrap_or(line) } else { line };
            format!("{line}\n")
        })
        .collect()
}

/// `taskrun:plugin/workspace-read@0.1.0` is the module `workspace_read`.
fn path_in_agent(interface: &str) -> String {
    let name = interface.rsplit('/').next().unwrap_or(interface);
    let name = name.split('@').next().unwrap_or(name);
    format!("crate::bindings::agent::taskrun::plugin::{}", name.replace('-', "_"))
}

fn imports(resolve: &Resolve, world: &str) -> Result<Vec<String>> {
    let package = *resolve.package_names.values().next().context("wit/ holds one package")?;
    let id = resolve.select_world(&[package], Some(world))?;
    resolve.worlds[id]
        .imports
        .values()
        .map(|item| match item {
            WorldItem::Interface { id, .. } => resolve.id_of(*id).context("an unnamed interface"),
            WorldItem::Function(_) | WorldItem::Type { .. } => bail!("worlds import interfaces"),
        })
        .collect()
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test has no command line")]
fn committed_bindings_match_the_contract() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut resolve = Resolve::default();
    resolve.push_path(root.join("../../wit"))?;
    let of_tool = imports(&resolve, "tool")?;
    let of_agent = imports(&resolve, "agent")?;
    let of_finalizer = imports(&resolve, "agent-finalizer")?;
    let of_policy = imports(&resolve, "policy-engine")?;
    let of_conversation = imports(&resolve, "agent-conversation")?;
    for interface in of_finalizer.iter().chain(&of_policy) {
        assert!(of_agent.contains(interface), "others may import {interface}, an agent may not");
    }
    // What only tools may import is made with their world, and so is what has a world of its own.
    let known = |imports: Vec<String>| -> Vec<String> {
        imports.into_iter().filter(|interface| of_agent.contains(interface)).collect()
    };
    let (of_tool, of_conversation) = (known(of_tool), known(of_conversation));

    let worlds = [
        ("agent", Vec::new()),
        ("agent-conversation", of_conversation),
        ("agent-finalizer", of_finalizer),
        ("policy-engine", of_policy),
        ("tool", of_tool),
    ];
    for (world, shared) in worlds {
        let made = generate(&mut resolve, world, &shared)?;
        let file = format!("{}.rs", world.replace('-', "_"));
        let path = root.join("src/bindings").join(&file);
        if std::env::var_os("TASKRUN_BLESS").is_some() {
            fs::write(&path, &made)?;
        }
        let committed = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == made,
            "src/bindings/{file} differs from what wit/ says; \
             run TASKRUN_BLESS=1 cargo test -p taskrun-guest --test bindings"
        );
    }
    Ok(())
}
