//! `taskrun inspect`.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use taskrun_policy::toml_string;
use taskrun_runtime::{CheckError, ImportClass, ImportInfo, Inspection, Kind, inspect_component};

use crate::args::{InspectArgs, OutputFormat};
use crate::context::{Context, compile_worker};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, engine_failure, load_failure};
use crate::output::escape::escaped_line;
use crate::output::{human, pairs, versioned};

#[derive(Serialize)]
struct InspectionView {
    component: String,
    digest: String,
    size: u64,
    kind: String,
    imports: Vec<Interface>,
    exports: Vec<Interface>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    policy: Vec<String>,
}

#[derive(Serialize)]
struct Interface {
    interface: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<String>,
    functions: Vec<String>,
}

pub(super) async fn inspect(context: &Context, args: &InspectArgs) -> Outcome {
    let path = &args.component;
    let inspected = inspect_component(path, compile_worker()).await;
    let inspection = &inspected.map_err(|error| failure(&error, path))?;
    let printer = &context.printer;
    match printer.format() {
        OutputFormat::Table => printer.line(text(&path.display().to_string(), inspection)),
        OutputFormat::Json => {
            printer.json(&versioned(shown(&path.display().to_string(), inspection)))
        }
        OutputFormat::Ndjson => {
            printer.json_line(&versioned(shown(&path.display().to_string(), inspection)));
        }
        OutputFormat::Name => printer.line(&inspection.digest),
    }
    Ok(Exit::Completed)
}

fn failure(error: &CheckError, path: &Path) -> Box<Failure> {
    let error = match error {
        CheckError::Engine(error) => return engine_failure(error),
        CheckError::Component(error) => error,
    };
    let mut failure = load_failure(error, "the component", path);
    failure.message = format!("{} is no component that this host can load", path.display());
    // It would say to inspect it.
    if failure.hint.as_deref().is_some_and(|hint| hint.contains("taskrun inspect")) {
        failure.hint = Some("build it again, smaller or for the interfaces in wit/".to_owned());
    }
    failure
}

fn shown(path: &str, inspection: &Inspection) -> InspectionView {
    let imports = inspection.imports.iter().map(|import| Interface {
        interface: import.interface.clone(),
        class: Some(class_of(import, inspection.kind)),
        functions: import.functions.clone(),
    });
    let exports = inspection.exports.iter().map(|export| Interface {
        interface: export.interface.clone(),
        class: None,
        functions: export.functions.clone(),
    });
    InspectionView {
        component: path.to_owned(),
        digest: inspection.digest.clone(),
        size: inspection.size,
        kind: inspection.kind.to_string(),
        imports: imports.collect(),
        exports: exports.collect(),
        refused: refusal(inspection),
        policy: policy_lines(path, inspection),
    }
}

/// The reason that it loads under no policy, if that is known.
fn refusal(inspection: &Inspection) -> Option<String> {
    inspection.refusal().map(|error| error.to_string())
}

fn text(path: &str, inspection: &Inspection) -> String {
    let exports = inspection
        .exports
        .iter()
        .map(|export| format!("{} ({})", export.interface, export.functions.join(", ")));
    let or_none = |lines: Vec<String>| {
        if lines.is_empty() { "nothing".to_owned() } else { lines.join("\n") }
    };
    let mut lines = vec![
        ("component", path.to_owned()),
        ("kind", inspection.kind.to_string()),
        ("size", human::bytes(inspection.size)),
        ("digest", inspection.digest.clone()),
        ("exports", or_none(exports.collect())),
        ("imports", or_none(import_lines(inspection))),
    ];
    if let Some(refusal) = refusal(inspection) {
        lines.push(("refused", escaped_line(&refusal).into_owned()));
    }
    let policy = policy_lines(path, inspection);
    if !policy.is_empty() {
        lines.push(("policy", policy.join("\n")));
    }
    pairs(&lines)
}

/// The imports by what it takes to have them, one line for each class.
pub(super) fn import_lines(inspection: &Inspection) -> Vec<String> {
    let mut versions: BTreeMap<&str, u32> = BTreeMap::new();
    for import in &inspection.imports {
        *versions.entry(import.name()).or_default() += 1;
    }
    let mut by_class: BTreeMap<(u8, String), Vec<&str>> = BTreeMap::new();
    for import in &inspection.imports {
        let is_refused = import.is_refused_to(inspection.kind);
        let rank = if is_refused { 0 } else { rank(class_in(import, inspection.kind)) };
        let class = (rank, class_of(import, inspection.kind));
        let is_alone = versions.get(import.name()) == Some(&1);
        by_class.entry(class).or_default().push(short(import, is_alone));
    }
    by_class
        .into_iter()
        .map(|((_, class), names)| format!("{class}: {}", names.join(", ")))
        .collect()
}

/// The class of an import in a component of a kind: no rule gives files to a policy.
fn class_in(import: &ImportInfo, kind: Kind) -> ImportClass {
    if import.class == ImportClass::WasiFiles && kind == Kind::Policy {
        return ImportClass::WasiInert;
    }
    import.class
}

/// The words for what it takes to have an import in a component of a kind.
fn class_of(import: &ImportInfo, kind: Kind) -> String {
    let class = class_in(import, kind);
    match class {
        // These words say it already.
        ImportClass::Sockets | ImportClass::OtherWasi | ImportClass::Unknown => class.to_string(),
        ImportClass::Types
        | ImportClass::Always
        | ImportClass::Agents
        | ImportClass::Capability(_)
        | ImportClass::WasiFiles
        | ImportClass::WasiInert => match import.is_refused_to(kind) {
            true => format!("refused to this {kind}"),
            false => class.to_string(),
        },
    }
}

/// The name without what goes without saying. The version is told where it may be the reason that
/// the import is never given, and where the interface is imported in another one, too.
fn short(import: &ImportInfo, is_alone: bool) -> &str {
    let name: &str = match import.class {
        ImportClass::Sockets | ImportClass::OtherWasi | ImportClass::Unknown => &import.interface,
        ImportClass::Types
        | ImportClass::Always
        | ImportClass::Agents
        | ImportClass::Capability(_)
        | ImportClass::WasiFiles
        | ImportClass::WasiInert => match is_alone {
            true => import.name(),
            false => &import.interface,
        },
    };
    name.strip_prefix("taskrun:plugin/").unwrap_or(name)
}

/// The order of imports: those that matter to an operator come first.
fn rank(class: ImportClass) -> u8 {
    match class {
        ImportClass::Sockets | ImportClass::OtherWasi | ImportClass::Unknown => 0,
        ImportClass::Capability(_) => 1,
        ImportClass::WasiFiles => 2,
        ImportClass::Agents => 3,
        ImportClass::Always => 4,
        ImportClass::WasiInert => 5,
        ImportClass::Types => 6,
    }
}

/// The lines of a policy with which the component loads; none if it loads with no policy.
fn policy_lines(path: &str, inspection: &Inspection) -> Vec<String> {
    let is_refused = |import: &ImportInfo| import.is_refused_to(inspection.kind);
    if inspection.refused.is_some() || inspection.imports.iter().any(is_refused) {
        return Vec::new();
    }
    let mut rules: Vec<&str> = Vec::new();
    for import in &inspection.imports {
        // With files through WASI alone it is to read some; writing is for who wants that, too.
        if let Some(capability) = import.class.capabilities().first() {
            let rule = capability.grant_rule();
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
    }
    let quoted: Vec<String> = rules.iter().map(|rule| toml_string(rule)).collect();
    let allow = (!rules.is_empty()).then(|| format!("allow = [{}]", quoted.join(", ")));
    let component = format!("component = {}", toml_string(path));
    let mut lines = match inspection.kind {
        Kind::Agent => vec!["[agent.NAME]".to_owned(), component],
        Kind::Tool => {
            let tools = "tools = [\"NAME/*\"]".to_owned();
            vec![
                "[tool.NAME]".to_owned(),
                component,
                String::new(),
                "[agent.CALLER]".to_owned(),
                tools,
            ]
        }
        Kind::AgentAndTool => vec!["[agent.NAME] or [tool.NAME]".to_owned(), component],
        Kind::Policy => {
            return vec!["[agent.NAME]".to_owned(), format!("policy = {{ {component} }}")];
        }
        Kind::Other => return Vec::new(),
    };
    lines.extend(allow);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_loads_under_no_policy_the_reason_is_shown_and_no_policy() {
        let of = |refused: Option<&str>| {
            let inspection = Inspection {
                digest: String::new(),
                size: 0,
                kind: Kind::Tool,
                imports: Vec::new(),
                exports: Vec::new(),
                memory_bytes: 0,
                refused: refused.map(str::to_owned),
            };
            let view = shown("odd.wasm", &inspection);
            (text("odd.wasm", &inspection), view.refused, view.policy)
        };
        let (text, refused, policy) = of(Some("`task.cancel` requires the component model async"));
        assert!(text.contains("async features") && !text.contains("[tool.NAME]"), "{text}");
        assert_eq!((refused.is_some(), policy), (true, Vec::new()));
        let (text, refused, policy) = of(None);
        assert!(text.contains("[tool.NAME]") && !text.contains("refused"), "{text}");
        assert_eq!((refused, policy.is_empty()), (None, false));
    }

    #[test]
    fn versions_are_shown_of_what_is_never_given_and_of_what_is_imported_twice() {
        let imports = [
            ("other:a/b@1.0.0", ImportClass::Unknown),
            ("taskrun:plugin/clock@0.1.0", ImportClass::Always),
            ("taskrun:plugin/clock@0.1.1", ImportClass::Always),
            ("taskrun:plugin/log@0.1.0", ImportClass::Always),
            ("wasi:cli/stdout@0.2.6", ImportClass::WasiInert),
            ("wasi:cli/stdout@0.3.0", ImportClass::OtherWasi),
            ("wasi:random/random@0.2.6", ImportClass::WasiInert),
            ("wasi:sockets/tcp@0.2.6", ImportClass::Sockets),
        ];
        let imports = imports.map(|(interface, class)| ImportInfo {
            interface: interface.to_owned(),
            functions: Vec::new(),
            class,
        });
        let inspection = Inspection {
            digest: String::new(),
            size: 0,
            kind: Kind::Tool,
            imports: imports.to_vec(),
            exports: Vec::new(),
            memory_bytes: 0,
            refused: None,
        };
        let lines = [
            "never given: wasi:sockets/tcp@0.2.6",
            "unknown: other:a/b@1.0.0",
            "unknown, as this host speaks WASI 0.2: wasi:cli/stdout@0.3.0",
            "always given: clock@0.1.0, clock@0.1.1, log",
            "inert: wasi:cli/stdout@0.2.6, wasi:random/random",
        ];
        assert_eq!(import_lines(&inspection), lines);
    }
}
