//! Bounds on what a component consists of.

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
fn elements_are_counted_of_which_each_instance_has_a_copy() {
    let most = usize::try_from(PASSIVE_ELEMENTS_MAX).expect("a small number");
    let module = |items: String| format!("(component (core module (func $f) {items}))");
    let what = Some("elements of passive segments");
    for [kind, element] in [["func", "$f "], ["funcref", "(ref.null func)"]] {
        let segment = |count| format!("(elem {kind} {})", element.repeat(count));
        assert_eq!(refused(&module(segment(most - 2))), None, "{kind}");
        assert_eq!(refused(&module(segment(most - 1))), what, "{kind}");
        // What an empty one is kept in takes memory, too.
        assert_eq!(refused(&module(segment(0).repeat(most / 2))), None, "{kind}");
        assert_eq!(refused(&module(segment(0).repeat(most / 2 + 1))), what, "{kind}");
        let half = format!("(core module (func $f) {})", segment(most / 2));
        assert_eq!(refused(&format!("(component {})", half.repeat(2))), what, "{kind}");
    }
    // Those of a table that are put there at the beginning, and declarations.
    let elements = "$f ".repeat(10_000);
    let active = format!("(table 10000 funcref) (elem (i32.const 0) func {elements})");
    assert_eq!(refused(&module(active)), None);
    assert_eq!(refused(&module(format!("(elem declare func {elements})"))), None);
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
        let expected =
            matches!(read, Ok(()) | Err(LoadError::Truncated { .. } | LoadError::Invalid { .. }));
        assert!(expected, "{end}: {read:?}");
    }
}

/// A component of one section, in which bytes are followed by others as often as is said.
fn section(kind: u8, first: &[u8], again: &[u8], times: usize) -> Vec<u8> {
    let body = [first, &again.repeat(times)].concat();
    [b"\0asm\x0d\0\x01\0", &[kind][..], &leb(body.len()), &body].concat()
}

fn leb(number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut left = number;
    while left > 0x7f {
        bytes.push((left & 0x7f) as u8 | 0x80);
        left >>= 7;
    }
    bytes.push(left as u8);
    bytes
}

fn refused_bytes(bytes: &[u8]) -> Option<&'static str> {
    match check(bytes) {
        Err(LoadError::Shape { what, .. }) => Some(what),
        Err(other) => panic!("{other}"),
        Ok(()) => None,
    }
}

#[test]
fn the_types_of_a_group_are_counted_one_by_one() {
    let usize = |count: u64| usize::try_from(count).unwrap();
    let group = |count| {
        let first = [&[1, 0x4e][..], &leb(count)].concat();
        let types = section(1, &first, b"\x60\0\0", count);
        let module = [b"\0asm\x01\0\0\0", &types[8..]].concat();
        section(1, &module, b"", 0)
    };
    assert_eq!(refused_bytes(&group(usize(TYPES_MAX))), None);
    assert_eq!(refused_bytes(&group(usize(TYPES_MAX) + 1)), Some("types"));
    // A group that says that it has a million, and has none, is not made room for.
    let module = b"\0asm\x01\0\0\0\x01\x05\x01\x4e\xc0\x84\x3d";
    assert_eq!(refused_bytes(&section(1, module, b"", 0)), Some("types"));
    // In a component, in the type of a module, and there in that of an instance.
    let count = usize(TYPES_MAX) + 1;
    let group = [&[0x4e][..], &leb(count)].concat();
    let of = |first: &[u8]| [first, &group].concat();
    assert_eq!(refused_bytes(&section(3, &of(&[1]), b"\x60\0\0", count)), Some("types"));
    let in_module = of(&[1, 0x50, 1, 1]);
    assert_eq!(refused_bytes(&section(3, &in_module, b"\x60\0\0", count)), Some("types"));
    let in_instance = of(&[1, 0x42, 1, 0, 0x50, 1, 1]);
    assert_eq!(refused_bytes(&section(7, &in_instance, b"\x60\0\0", count)), Some("types"));
}

#[test]
fn the_declarations_of_types_are_counted() {
    let what = Some("declarations and fields of types");
    let count = usize::try_from(DECLARATIONS_MAX).unwrap();
    for kind in [0x41, 0x42] {
        let first = |count| [&[1, kind][..], &leb(count)].concat();
        let of = |count| section(7, &first(count), b"\x01\x7d", count);
        assert_eq!(refused_bytes(&of(count)), None);
        assert_eq!(refused_bytes(&of(count + 1)), what);
    }
    let module = [&[1, 0x50][..], &leb(count + 1)].concat();
    assert_eq!(refused_bytes(&section(3, &module, b"\x01\x60\0\0", count)), what);
    // Types of instances, with as many in all.
    let half = count / 2 + 1;
    let one = [&[0x42][..], &leb(half), &b"\x01\x7d".repeat(half)].concat();
    assert_eq!(refused_bytes(&section(7, &[2], &one, 2)), what);
}

#[test]
fn the_fields_of_types_are_counted() {
    let field = |at: u64| format!("(field \"f{at}\" u8)");
    let fields: String = (0..5_000).map(field).collect();
    let records = |count: u64| {
        let record = format!("(type (record {fields}))");
        let records = record.repeat(usize::try_from(count).unwrap());
        refused(&format!("(component {records})"))
    };
    assert_eq!(records(DECLARATIONS_MAX / 5_000), None);
    assert_eq!(records(DECLARATIONS_MAX / 5_000 + 1), Some("declarations and fields of types"));
    let names: String = (0..5_000).map(|at| format!("\"n{at}\" ")).collect();
    let types = format!("(type (enum {names}))").repeat(5);
    let what = Some("declarations and fields of types");
    assert_eq!(refused(&format!("(component {types})")), what);
}

#[test]
fn types_inside_types_have_a_bound_and_take_no_stack() {
    let deep = |depth| section(7, &[1], b"\x42\x01\x01", depth);
    let ended = |depth| {
        let mut bytes = section(7, &[1], b"\x42\x01\x01", depth);
        bytes.truncate(8);
        let body = [&[1][..], &b"\x42\x01\x01".repeat(depth), &[0x7d]].concat();
        [&bytes[..], &[7], &leb(body.len()), &body].concat()
    };
    let depth = usize::try_from(TYPE_DEPTH_MAX).unwrap();
    assert_eq!(refused_bytes(&ended(depth)), None);
    assert_eq!(refused_bytes(&ended(depth + 1)), Some("types inside types"));
    assert_eq!(refused_bytes(&deep(200_000)), Some("types inside types"));
}

#[test]
fn arguments_and_exports_of_instances_are_counted() {
    let count = usize::try_from(ARGUMENTS_MAX).unwrap() + 1;
    let exports: String = (0..count).map(|at| format!("(export \"e{at}\" (func $f))")).collect();
    let core = format!(
        r#"(component
            (core module $m (func (export "f")))
            (core instance $i (instantiate $m))
            (alias core export $i "f" (core func $f))
            (core instance {exports}))"#
    );
    let what = Some("arguments and exports of instances");
    assert_eq!(refused(&core), what);
    let exports: String = (0..count).map(|at| format!("(export \"e{at}\" (type $t))")).collect();
    assert_eq!(refused(&format!("(component (type $t u8) (instance {exports}))")), what);
}
