//! Counts of what a component consists of. The time and the memory of its compilation grow with
//! them, some faster than its bytes, so they are looked at first: in one pass over the bytes that
//! keeps nothing, and ends at the first bound.
//!
//! The bounds are four times what the largest components have that known toolchains make (a Python
//! interpreter with its standard library, StarlingMonkey, QuickJS), and rounded up.

mod types;

use std::ops::Range;

use wasmparser::{
    BinaryReader, BinaryReaderError, ComponentInstance, Element, ElementItems, ElementKind,
    FunctionBody, Instance, Operator, Parser, Payload,
};

use self::types::TypeCounts;
use crate::error::LoadError;

/// Core modules. A Python tool has 38.
const MODULES_MAX: u64 = 200;
/// Components, the outer one included. QuickJS has 25.
const COMPONENTS_MAX: u64 = 128;
/// Components inside components. QuickJS has 3.
const DEPTH_MAX: u64 = 16;
/// Imports, exports, types, instances, aliases and adapted functions of components. A Python tool
/// has 2,000.
const ITEMS_MAX: u64 = 20_000;
/// Functions with a body. A Python tool has 13,500; each costs 0.1 ms, however little it does.
const FUNCTIONS_MAX: u64 = 60_000;
/// Types of core modules. A Python tool has 1,340.
const TYPES_MAX: u64 = 10_000;
/// Declarations in types of components, instances and modules, and fields, cases, names and parameters
/// of types. A Python tool has 1,450.
const DECLARATIONS_MAX: u64 = 20_000;
/// Types of components and instances inside each other, as deep as components may be.
const TYPE_DEPTH_MAX: u64 = DEPTH_MAX;
/// Arguments of instances, and exports of those that are made of exports. A Python tool has 1,600.
const ARGUMENTS_MAX: u64 = 20_000;
/// Imports and exports of core modules. A Python tool has 6,900.
const LINKS_MAX: u64 = 40_000;
/// Globals, tables, memories, and segments of tables. A Python tool has 880.
const GLOBALS_MAX: u64 = 10_000;
/// Elements of passive segments of tables, and two more for each such segment. Each core instance
/// has a copy of them on the host's heap, of 16 bytes an element, which is counted nowhere else: of
/// as many instances as a component may have that is 256 KiB. No known toolchain makes any.
const PASSIVE_ELEMENTS_MAX: u64 = 256;
/// Segments of memory. StarlingMonkey has 10,000.
const SEGMENTS_MAX: u64 = 50_000;
/// Bytes of one function. A Python tool has one of 427 KB.
const BODY_BYTES_MAX: u64 = 2 << 20;
/// Locals of one function. A Python tool has 271 in one; compilers without optimisation make
/// thousands.
const LOCALS_MAX: u64 = 8_000;
/// Blocks within blocks of one function.
const NESTING_MAX: u64 = 4_096;
/// Locals times blocks of one function: each local may have to be carried into each block.
const LOCALS_TIMES_BLOCKS_MAX: u64 = 4_000_000;
/// The same of all functions together.
const CARRIED_MAX: u64 = 40_000_000;

/// The counts so far.
#[derive(Debug, Default)]
struct Shape {
    modules: u64,
    components: u64,
    items: u64,
    functions: u64,
    types: TypeCounts,
    arguments: u64,
    links: u64,
    globals: u64,
    passive_elements: u64,
    segments: u64,
    carried: u64,
}

/// Counts a component's parts.
///
/// # Errors
/// [`LoadError::Shape`] at the first bound that it exceeds; [`LoadError::Invalid`] for bytes that
/// cannot be read as a component.
pub(crate) fn check(bytes: &[u8]) -> Result<(), LoadError> {
    let mut shape = Shape::default();
    let mut depth = 0;
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload.map_err(unreadable)?;
        if matches!(payload, Payload::Version { .. }) {
            depth += 1;
            at_most("components inside components", depth, DEPTH_MAX)?;
        } else if matches!(payload, Payload::End(_)) {
            depth -= 1;
        }
        shape.count_types(&payload, bytes)?;
        shape.count_arguments(&payload)?;
        shape.count(&payload)?;
        shape.count_passive_elements(&payload)?;
    }
    Ok(())
}

impl Shape {
    fn count_types(&mut self, payload: &Payload<'_>, bytes: &[u8]) -> Result<(), LoadError> {
        let section = |range: Range<usize>| BinaryReader::new(&bytes[range.clone()], range.start);
        if let Payload::TypeSection(types) = payload {
            self.types.count_of_module(section(types.range()))
        } else if let Payload::CoreTypeSection(types) = payload {
            self.types.count_core(section(types.range()))
        } else if let Payload::ComponentTypeSection(types) = payload {
            self.types.count(section(types.range()))
        } else {
            Ok(())
        }
    }

    fn count_arguments(&mut self, payload: &Payload<'_>) -> Result<(), LoadError> {
        let mut count = |more| {
            let what = "arguments and exports of instances";
            add(&mut self.arguments, more as u64, what, ARGUMENTS_MAX)
        };
        if let Payload::InstanceSection(instances) = payload {
            for instance in instances.clone() {
                match instance.map_err(unreadable)? {
                    Instance::Instantiate { args, .. } => count(args.len())?,
                    Instance::FromExports(exports) => count(exports.len())?,
                }
            }
        } else if let Payload::ComponentInstanceSection(instances) = payload {
            for instance in instances.clone() {
                match instance.map_err(unreadable)? {
                    ComponentInstance::Instantiate { args, .. } => count(args.len())?,
                    ComponentInstance::FromExports(exports) => count(exports.len())?,
                }
            }
        }
        Ok(())
    }

    fn count_passive_elements(&mut self, payload: &Payload<'_>) -> Result<(), LoadError> {
        let Payload::ElementSection(segments) = payload else { return Ok(()) };
        for segment in segments.clone() {
            let Element { kind, items, .. } = segment.map_err(unreadable)?;
            if !matches!(kind, ElementKind::Passive) {
                continue;
            }
            let elements = match items {
                ElementItems::Functions(functions) => functions.count(),
                ElementItems::Expressions(_, expressions) => expressions.count(),
            };
            let (more, what) = (u64::from(elements) + 2, "elements of passive segments");
            add(&mut self.passive_elements, more, what, PASSIVE_ELEMENTS_MAX)?;
        }
        Ok(())
    }

    fn count(&mut self, payload: &Payload<'_>) -> Result<(), LoadError> {
        use Payload as P;

        if let P::ModuleSection { .. } = payload {
            add(&mut self.modules, 1, "core modules", MODULES_MAX)
        } else if let P::ComponentSection { .. } = payload {
            add(&mut self.components, 1, "components", COMPONENTS_MAX)
        } else if let P::CodeSectionStart { count, .. } = payload {
            add(&mut self.functions, (*count).into(), "functions", FUNCTIONS_MAX)
        } else if let P::CodeSectionEntry(body) = payload {
            let carried = body_cost(body)?;
            add(&mut self.carried, carried, "locals times blocks in all", CARRIED_MAX)
        } else if let P::FunctionSection(functions) = payload {
            // Each has a body, which is counted where the bodies are.
            at_most("functions", functions.count().into(), FUNCTIONS_MAX)
        } else if let P::DataSection(segments) = payload {
            add(&mut self.segments, segments.count().into(), "segments of memory", SEGMENTS_MAX)
        } else if let Some(links) = links(payload) {
            add(&mut self.links, links, "imports and exports of modules", LINKS_MAX)
        } else if let Some(globals) = globals(payload) {
            add(&mut self.globals, globals, "globals, tables and their segments", GLOBALS_MAX)
        } else if let Some(items) = items(payload) {
            add(&mut self.items, items, "items of components", ITEMS_MAX)
        } else {
            Ok(())
        }
    }
}

fn links(payload: &Payload<'_>) -> Option<u64> {
    if let Payload::ImportSection(imports) = payload {
        Some(imports.count().into())
    } else if let Payload::ExportSection(exports) = payload {
        Some(exports.count().into())
    } else {
        None
    }
}

fn globals(payload: &Payload<'_>) -> Option<u64> {
    if let Payload::GlobalSection(globals) = payload {
        Some(globals.count().into())
    } else if let Payload::TableSection(tables) = payload {
        Some(tables.count().into())
    } else if let Payload::MemorySection(memories) = payload {
        Some(memories.count().into())
    } else if let Payload::ElementSection(segments) = payload {
        Some(segments.count().into())
    } else {
        None
    }
}

fn items(payload: &Payload<'_>) -> Option<u64> {
    if let Payload::InstanceSection(items) = payload {
        Some(items.count().into())
    } else if let Payload::CoreTypeSection(items) = payload {
        Some(items.count().into())
    } else if let Payload::ComponentInstanceSection(items) = payload {
        Some(items.count().into())
    } else if let Payload::ComponentAliasSection(items) = payload {
        Some(items.count().into())
    } else if let Payload::ComponentTypeSection(items) = payload {
        Some(items.count().into())
    } else if let Payload::ComponentCanonicalSection(items) = payload {
        Some(items.count().into())
    } else if let Payload::ComponentImportSection(items) = payload {
        Some(items.count().into())
    } else if let Payload::ComponentExportSection(items) = payload {
        Some(items.count().into())
    } else {
        None
    }
}

/// Locals times blocks of a function.
fn body_cost(body: &FunctionBody<'_>) -> Result<u64, LoadError> {
    let range = body.range();
    at_most("bytes of a function", range.len() as u64, BODY_BYTES_MAX)?;
    let mut locals = 0_u64;
    for group in body.get_locals_reader().map_err(unreadable)? {
        let (count, _) = group.map_err(unreadable)?;
        locals = locals.saturating_add(count.into());
    }
    at_most("locals of a function", locals, LOCALS_MAX)?;
    let mut operators = body.get_operators_reader().map_err(unreadable)?;
    let (mut blocks, mut nesting) = (0_u64, 0_u64);
    while !operators.eof() {
        let operator = operators.read().map_err(unreadable)?;
        if begins_block(&operator) {
            blocks += 1;
            nesting += 1;
            at_most("blocks within blocks", nesting, NESTING_MAX)?;
        } else if matches!(operator, Operator::End) {
            nesting = nesting.saturating_sub(1);
        }
    }
    let cost = locals.saturating_mul(blocks);
    at_most("locals times blocks of a function", cost, LOCALS_TIMES_BLOCKS_MAX)?;
    Ok(cost)
}

fn begins_block(operator: &Operator<'_>) -> bool {
    matches!(
        operator,
        Operator::Block { .. }
            | Operator::Loop { .. }
            | Operator::If { .. }
            | Operator::Try { .. }
            | Operator::TryTable { .. }
    )
}

fn add(counted: &mut u64, more: u64, what: &'static str, limit: u64) -> Result<(), LoadError> {
    *counted = counted.saturating_add(more);
    at_most(what, *counted, limit)
}

fn at_most(what: &'static str, found: u64, limit: u64) -> Result<(), LoadError> {
    if found > limit { Err(LoadError::Shape { what, found, limit }) } else { Ok(()) }
}

fn unreadable(error: BinaryReaderError) -> LoadError {
    LoadError::from_compiler_text(&error.to_string())
}

#[cfg(test)]
mod tests;
