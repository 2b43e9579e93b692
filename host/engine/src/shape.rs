//! Counts of what a component consists of. The time and the memory of its compilation grow with
//! them, some faster than its bytes, so they are looked at first: in one pass over the bytes that
//! keeps nothing, and ends at the first bound.
//!
//! The bounds are four times what the largest components have that known toolchains make (a Python
//! interpreter with its standard library, StarlingMonkey, QuickJS), and rounded up.

use wasmparser::{BinaryReaderError, FunctionBody, Operator, Parser, Payload};

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
/// Imports and exports of core modules. A Python tool has 6,900.
const LINKS_MAX: u64 = 40_000;
/// Globals, tables, memories, and segments of tables. A Python tool has 880.
const GLOBALS_MAX: u64 = 10_000;
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
    types: u64,
    links: u64,
    globals: u64,
    segments: u64,
    carried: u64,
}

/// Counts a component's parts.
///
/// # Errors
/// [`LoadError::Shape`] at the first bound that it exceeds; for bytes that cannot be read as a
/// component [`LoadError::Invalid`] or [`LoadError::Truncated`].
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
        shape.count(&payload)?;
    }
    Ok(())
}

impl Shape {
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
        } else if let P::TypeSection(types) = payload {
            add(&mut self.types, types.count().into(), "types", TYPES_MAX)
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
mod tests {
    use super::*;

    fn refused(text: &str) -> Option<&'static str> {
        match check(&wat::parse_str(text).unwrap()) {
            Err(LoadError::Shape { what, .. }) => Some(what),
            Err(other) => panic!("{other}"),
            Ok(()) => None,
        }
    }

    fn function(locals: usize, body: &str) -> String {
        let locals = "i32 ".repeat(locals);
        format!("(component (core module (func (local {locals}) {body})))")
    }

    #[test]
    fn each_count_has_a_bound() {
        let many = |item: &str, count: u64| item.repeat(usize::try_from(count).unwrap() + 1);
        let module = |items: String| format!("(component (core module {items}))");
        assert_eq!(refused(&module(many("(func)", FUNCTIONS_MAX))), Some("functions"));
        assert_eq!(refused(&module(many("(type (func))", TYPES_MAX))), Some("types"));
        let imports = many(r#"(import "a" "b" (func))"#, LINKS_MAX);
        assert_eq!(refused(&module(imports)), Some("imports and exports of modules"));
        let globals = many("(global i32 (i32.const 0))", GLOBALS_MAX);
        assert_eq!(refused(&module(globals)), Some("globals, tables and their segments"));
        let data = many("(data \"\")", SEGMENTS_MAX);
        assert_eq!(refused(&module(data)), Some("segments of memory"));
        let modules = format!("(component {})", many("(core module)", MODULES_MAX));
        assert_eq!(refused(&modules), Some("core modules"));
        let components = format!("(component {})", many("(component)", COMPONENTS_MAX));
        assert_eq!(refused(&components), Some("components"));
        let types = format!("(component {})", many("(type u8)", ITEMS_MAX));
        assert_eq!(refused(&types), Some("items of components"));
        let deep = format!(
            "{}{}",
            many("(component ", DEPTH_MAX),
            ")".repeat(usize::try_from(DEPTH_MAX).unwrap() + 1)
        );
        assert_eq!(refused(&deep), Some("components inside components"));
    }

    #[test]
    fn each_function_has_bounds() {
        let usize = |bound: u64| usize::try_from(bound).unwrap();
        assert_eq!(refused(&function(10_000, "")), Some("locals of a function"));
        let long = "nop ".repeat(usize(BODY_BYTES_MAX) + 1);
        assert_eq!(refused(&function(0, &long)), Some("bytes of a function"));
        let depth = usize(NESTING_MAX) + 1;
        let deep = format!("{}{}", "block ".repeat(depth), "end ".repeat(depth));
        assert_eq!(refused(&function(0, &deep)), Some("blocks within blocks"));
        let wide = "block end ".repeat(4_001);
        assert_eq!(refused(&function(1_000, &wide)), Some("locals times blocks of a function"));
        let one = format!("(func (local {}) {})", "i32 ".repeat(1_000), "block end ".repeat(4_000));
        let all = format!("(component (core module {}))", one.repeat(11));
        assert_eq!(refused(&all), Some("locals times blocks in all"));
    }

    #[test]
    fn four_times_the_largest_known_fits() {
        let usize = |count: u64| usize::try_from(count).unwrap();
        assert_eq!(refused(&function(4 * 271, &"block end ".repeat(3_000))), None);
        let functions = "(func)".repeat(4 * 13_500);
        assert_eq!(refused(&format!("(component (core module {functions}))")), None);
        assert_eq!(refused(&function(0, &"nop ".repeat(usize(4 * 427_000)))), None);
    }

    #[test]
    fn what_cannot_be_read_is_no_panic() {
        let whole = wat::parse_str("(component (core module (func nop)))").unwrap();
        for end in 8..whole.len() {
            let read = check(&whole[..end]);
            let expected = matches!(
                read,
                Ok(()) | Err(LoadError::Truncated { .. } | LoadError::Invalid { .. })
            );
            assert!(expected, "{end}: {read:?}");
        }
    }
}
