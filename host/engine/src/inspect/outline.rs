//! Names of a component's imports, exports and functions, read from its type.
//!
//! The memory that this takes is bounded by nothing but the limits of a process: each instance of a
//! component, for one, has a copy of its exports, so that it grows with products of what is counted.

use serde::{Deserialize, Serialize};
use wasmparser::component_types::{
    ComponentAnyTypeId, ComponentEntityType, ComponentInstanceTypeId,
};
use wasmparser::types::Types;
use wasmparser::{BinaryReaderError, Parser, Payload, ValidPayload, Validator, WasmFeatures};

use super::memories::{Memories, MemoryCount};
use crate::config;

/// Most memory that names take in all: of imports and exports, and of what these hold. A Python tool's
/// take some kilobytes.
const NAMES_BYTES_MAX: usize = 2 << 20;

/// Proposals of the component model that are looked at and do not compile: a component that uses them
/// is shown with the words in which it is refused.
const INSPECTED: WasmFeatures = WasmFeatures::CM_ASYNC
    .union(WasmFeatures::CM_ASYNC_STACKFUL)
    .union(WasmFeatures::CM_MORE_ASYNC_BUILTINS)
    .union(WasmFeatures::CM_ERROR_CONTEXT)
    .union(WasmFeatures::CM_THREADING);

/// Names of the outer imports and exports of a component, sorted.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Outline {
    /// Names, functions, and whether there are only types.
    pub(crate) imports: Vec<(String, Vec<String>, bool)>,
    /// Names and functions.
    pub(crate) exports: Vec<(String, Vec<String>)>,
    /// Bytes of memory that an instance begins with, at least.
    pub(crate) memory_bytes: u64,
    /// The reason that it does not compile or no instance is made of it, as the compiler would say
    /// it; `None` if none was found here.
    pub(crate) refused: Option<String>,
}

/// Reads a component's outline from its bytes. Everything but the code of functions is validated;
/// that is the compiler's business.
///
/// # Errors
/// The reason that it is not valid, as the compiler would say it, or that it has too many names.
pub(crate) fn outline(bytes: &[u8]) -> Result<Outline, String> {
    // The validator panics where it meets what it does not expect, such as 128 instances inside each
    // other. That says nothing of the host, and is so each time.
    let read = std::panic::catch_unwind(|| read(bytes));
    read.unwrap_or_else(|_| Err("the validator fails on it".to_owned()))
}

fn read(bytes: &[u8]) -> Result<Outline, String> {
    let (found, unknown) = match outer(bytes, config::features()) {
        Ok(found) => (found, None),
        Err(unknown) => (outer(bytes, config::features() | INSPECTED)?, Some(unknown)),
    };
    let Outer { imports, exports, types, memories } = found;
    let mut names = Names::default();
    // What counts is the outer list: a component inside this one gets what this one hands on,
    // and that is made of the outer imports.
    let mut outline = Outline {
        imports: Vec::new(),
        exports: Vec::new(),
        memory_bytes: memories.bytes,
        refused: unknown.or_else(|| memories.excess()),
    };
    for name in imports {
        let item = types.as_ref().component_item_for_import(&name).map(|item| item.ty);
        names.count(&name, item, &types)?;
        let (functions, is_empty) =
            item.map_or((Vec::new(), false), |item| contents(&types, &item));
        outline.imports.push((name, functions, is_empty));
    }
    for name in exports {
        let item = types.as_ref().component_item_for_export(&name).map(|item| item.ty);
        names.count(&name, item, &types)?;
        let functions = item.map_or(Vec::new(), |item| contents(&types, &item).0);
        outline.exports.push((name, functions));
    }
    outline.imports.sort();
    outline.exports.sort();
    Ok(outline)
}

/// The outer component, found valid.
struct Outer {
    /// Names of its imports.
    imports: Vec<String>,
    /// Names of its exports.
    exports: Vec<String>,
    /// The types to look them up in.
    types: Types,
    memories: Memories,
}

fn outer(bytes: &[u8], features: WasmFeatures) -> Result<Outer, String> {
    let invalid = |error: BinaryReaderError| error.to_string();
    let mut validator = Validator::new_with_features(features);
    let (mut imports, mut exports) = (Vec::new(), Vec::new());
    let mut memories = MemoryCount::default();
    let (mut depth, mut types) = (0_usize, None);
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload.map_err(invalid)?;
        if depth == 1 {
            if let Payload::ComponentImportSection(section) = &payload {
                for import in section.clone() {
                    imports.push(import.map_err(invalid)?.name.name.to_owned());
                }
            } else if let Payload::ComponentExportSection(section) = &payload {
                for export in section.clone() {
                    exports.push(export.map_err(invalid)?.name.name.to_owned());
                }
            }
        }
        if matches!(payload, Payload::Version { .. }) {
            depth += 1;
        }
        if let ValidPayload::End(known) = validator.payload(&payload).map_err(invalid)? {
            depth = depth.saturating_sub(1);
            types = Some(known);
        }
        memories.count(&payload).map_err(invalid)?;
    }
    let (types, memories) = (types.ok_or("unexpected end")?, memories.whole());
    Ok(Outer { imports, exports, types, memories })
}

/// The memory that names take.
#[derive(Default)]
struct Names {
    bytes: usize,
}

impl Names {
    /// Counts the name of an item, and those of all that the item holds, as often as they are in it:
    /// native code has them all.
    fn count(
        &mut self,
        name: &str,
        item: Option<ComponentEntityType>,
        types: &Types,
    ) -> Result<(), String> {
        self.add(name)?;
        let mut open: Vec<_> = item.into_iter().collect();
        while let Some(item) = open.pop() {
            let (imports, exports) = match item {
                ComponentEntityType::Instance(id)
                | ComponentEntityType::Type {
                    referenced: ComponentAnyTypeId::Instance(id), ..
                } => (None, &types[id].exports),
                ComponentEntityType::Component(id)
                | ComponentEntityType::Type {
                    referenced: ComponentAnyTypeId::Component(id), ..
                } => (Some(&types[id].imports), &types[id].exports),
                ComponentEntityType::Type {
                    referenced:
                        ComponentAnyTypeId::Resource(_)
                        | ComponentAnyTypeId::Defined(_)
                        | ComponentAnyTypeId::Func(_),
                    ..
                }
                | ComponentEntityType::Func(_)
                | ComponentEntityType::Module(_)
                | ComponentEntityType::Value(_) => continue,
            };
            for (name, item) in imports.into_iter().flatten().chain(exports) {
                self.add(name)?;
                open.push(item.ty);
            }
        }
        Ok(())
    }

    fn add(&mut self, name: &str) -> Result<(), String> {
        self.bytes += size_of::<String>() + name.len();
        match self.bytes > NAMES_BYTES_MAX {
            true => Err(format!("its names take more than {NAMES_BYTES_MAX} bytes")),
            false => Ok(()),
        }
    }
}

/// Functions of an item, and whether there is nothing to be had from it.
fn contents(types: &Types, item: &ComponentEntityType) -> (Vec<String>, bool) {
    match item {
        ComponentEntityType::Instance(instance) => of_instance(types, *instance),
        ComponentEntityType::Type { referenced, .. } => (Vec::new(), !is_resource(referenced)),
        ComponentEntityType::Func(_)
        | ComponentEntityType::Module(_)
        | ComponentEntityType::Component(_)
        | ComponentEntityType::Value(_) => (Vec::new(), false),
    }
}

fn is_resource(id: &ComponentAnyTypeId) -> bool {
    matches!(id, ComponentAnyTypeId::Resource(_))
}

fn of_instance(types: &Types, instance: ComponentInstanceTypeId) -> (Vec<String>, bool) {
    let mut functions = Vec::new();
    let mut is_empty = true;
    for (name, item) in &types[instance].exports {
        match &item.ty {
            ComponentEntityType::Type { referenced, .. } => is_empty &= !is_resource(referenced),
            ComponentEntityType::Func(_) => {
                functions.push(name.clone());
                is_empty = false;
            }
            ComponentEntityType::Module(_)
            | ComponentEntityType::Component(_)
            | ComponentEntityType::Instance(_)
            | ComponentEntityType::Value(_) => is_empty = false,
        }
    }
    functions.sort();
    (functions, is_empty)
}
