//! The worlds in `wit/` against what the host gives.

use taskrun_engine::ImportClass;
use wit_parser::{Resolve, WorldItem};

use crate::support::*;

/// Worlds whose components load without a rule, whatever toolchain made them.
const WITHOUT_RULES: [&str; 2] = ["tool-pure", "agent-pure"];

fn contract() -> Resolve {
    let mut resolve = Resolve::default();
    resolve.push_dir(wit()).unwrap();
    resolve
}

/// A component that imports all of a world, as the toolchains for Python and JavaScript make them.
fn importer(resolve: &Resolve, world: &str) -> Vec<u8> {
    let package = *resolve.package_names.values().next().unwrap();
    let world = resolve.select_world(&[package], Some(world)).unwrap();
    let mut text = "(component".to_owned();
    for item in resolve.worlds[world].imports.values() {
        let WorldItem::Interface { id, .. } = item else { panic!("worlds import interfaces") };
        let name = resolve.id_of(*id).unwrap();
        let function = match resolve.interfaces[*id].functions.is_empty() {
            true => "",
            false => r#"(export "f" (func))"#,
        };
        text.push_str(&format!("(import \"{name}\" (instance {function}))"));
    }
    text.push(')');
    wat::parse_str(text).unwrap()
}

#[tokio::test]
async fn every_world_imports_only_what_the_host_provides() {
    let resolve = contract();
    let engine = engine();
    for world in resolve.worlds.iter().map(|(_, world)| &world.name) {
        let loaded = engine.load(importer(&resolve, world)).await.unwrap();
        for import in &loaded.inspect().imports {
            let class = import.class;
            assert_ne!(class, ImportClass::Unknown, "{world}: {}", import.interface);
            if WITHOUT_RULES.contains(&&**world) {
                let is_given = !matches!(class, ImportClass::Capability(_));
                assert!(is_given, "{world}: {} needs a rule", import.interface);
            }
        }
    }
}

#[test]
fn every_interface_that_can_be_imported_stands_in_a_world() {
    let resolve = contract();
    let named: Vec<_> = resolve
        .worlds
        .iter()
        .flat_map(|(_, world)| world.imports.values().chain(world.exports.values()))
        .filter_map(|item| match item {
            WorldItem::Interface { id, .. } => Some(*id),
            WorldItem::Function(_) | WorldItem::Type { .. } => None,
        })
        .collect();
    for (id, interface) in resolve.interfaces.iter() {
        assert!(named.contains(&id), "{:?} stands in no world", interface.name);
    }
}
