//! A tool whose schemas cost more than they look: a function for each way, and each answers whatever
//! reaches it. The host must neither run out of time nor of memory over them, and go on serving
//! others.

use taskrun_guest::tool::{Failure, Tool, ToolCall, ToolHints, ToolResult, ToolSpec};

/// Each function, and what its member `a` is said to be. `D` stands for definitions.
const FUNCTIONS: [(&str, fn() -> String); 13] = [
    ("double-all", || doubled("allOf")),
    ("double-any", || doubled("anyOf")),
    ("double-one", || doubled("oneOf")),
    ("condition", || {
        chain(30, |next| format!(r#"{{"if":{next},"then":{next},"else":{next}}}"#), "true")
    }),
    ("itself", || with(r##"{"allOf":[{"$ref":"#/properties/a"}]}"##, "")),
    ("long", || chain(1_900, str::to_owned, r##"{"items":{"$ref":"#/$defs/0"}}"##)),
    ("deep", || {
        let item = r##"{"items":{"$ref":"#/$defs/0"}}"##;
        with(r##"{"$ref":"#/$defs/0"}"##, &format!(r#""0":{{"allOf":[{item},{item}]}}"#))
    }),
    ("flood", || {
        let each = repeated(2_000, |_| r#"{"items":{"type":"integer"}}"#.to_owned());
        with(&format!(r#"{{"not":{{"allOf":[{each}]}}}}"#), "")
    }),
    ("backtrack", || with(r#"{"pattern":"^(a|aa)+$"}"#, "")),
    ("large-pattern", || with(r#"{"pattern":"((a{1,100}){1,100}){1,100}"}"#, "")),
    ("patterns", || {
        let each = |n| format!(r#"{{"pattern":"x{n}{{1,500}}$"}}"#);
        with(&format!(r#"{{"allOf":[{}]}}"#, repeated(1_500, each)), "")
    }),
    ("lists", || {
        let options = repeated(8_000, |n| n.to_string());
        with(&format!(r#"{{"uniqueItems":true,"items":{{"enum":[{options}]}}}}"#), "")
    }),
    ("example", || {
        let item = r##"{"items":{"$ref":"#/$defs/0"}}"##;
        let deep = format!("{}{}", "[".repeat(60), "]".repeat(60));
        let definition = format!(r#""0":{{"allOf":[{item},{item}],"default":{deep}}}"#);
        let example = format!(r#"{{"$ref":"{}","default":{deep}}}"#, "#/$defs/0");
        with(&example, &definition)
    }),
];

fn repeated(count: usize, one: impl Fn(usize) -> String) -> String {
    (0..count).map(one).collect::<Vec<_>>().join(",")
}

/// A schema of arguments of which `a` is this, beside definitions.
fn with(a: &str, definitions: &str) -> String {
    format!(
        r#"{{"type":"object","required":["a"],"properties":{{"a":{a}}},"$defs":{{{definitions}}}}}"#
    )
}

/// So many definitions, each made of a reference to the next one.
fn chain(count: usize, made_of: impl Fn(&str) -> String, last: &str) -> String {
    let definition = |n: usize| match n + 1 == count {
        true => format!(r#""{n}":{last}"#),
        false => format!(r#""{n}":{}"#, made_of(&format!(r##"{{"$ref":"#/$defs/{}"}}"##, n + 1))),
    };
    with(r##"{"$ref":"#/$defs/0"}"##, &repeated(count, definition))
}

fn doubled(keyword: &str) -> String {
    chain(40, |next| format!(r#"{{"{keyword}":[{next},{next}]}}"#), r#"{"type":"null"}"#)
}

struct Schemas;

taskrun_guest::export_tool!(Schemas);

impl Tool for Schemas {
    fn describe() -> Vec<ToolSpec> {
        let spec = |(name, schema): &(&str, fn() -> String)| ToolSpec {
            name: (*name).to_owned(),
            title: None,
            description: "Answers.".to_owned(),
            input_schema: schema(),
            output_schema: None,
            hints: ToolHints {
                read_only: true,
                destructive: false,
                idempotent: true,
                terminal: false,
                bounded: false,
            },
            timeout: None,
            tags: Vec::new(),
        };
        FUNCTIONS.iter().map(spec).collect()
    }

    fn call(_: ToolCall) -> Result<ToolResult, Failure> {
        Ok(ToolResult::new("true"))
    }
}
