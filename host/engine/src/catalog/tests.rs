//! Components that are known by what is kept of them.

use taskrun::agents::{AgentCode, LoadFault};
use taskrun_journal::tool::ToolHints;

use super::*;

fn catalog(dir: &Path) -> Catalog {
    let cache = Cache::open(&dir.join("native")).expect("a cache");
    let policy = Policy::parse("", &dir.join("taskrun.toml")).expect("an empty policy");
    Catalog::new(cache, [], &policy)
}

#[test]
fn a_file_is_not_read_again_until_it_changes() {
    let dir = tempfile::tempdir().expect("a folder");
    let (catalog, path) = (catalog(dir.path()), dir.path().join("a.wasm"));
    std::fs::write(&path, "one").expect("written");
    let meta = std::fs::metadata(&path).expect("it is there");
    let kept = blake3::hash(b"kept");
    catalog.cache.put_file_digest(FileIdentity::of(&meta).entry(), kept.as_bytes());
    assert_eq!(catalog.digest_file(&path, 100).expect("known"), kept);
    let (limit, longer) = (100, "three");
    std::fs::write(&path, longer).expect("written");
    let found = catalog.digest_file(&path, limit).expect("read");
    assert_eq!(found, blake3::hash(longer.as_bytes()));
    // It has just changed, and may change again without a trace.
    let meta = std::fs::metadata(&path).expect("it is there");
    assert!(catalog.cache.file_digest(FileIdentity::of(&meta).entry()).is_none());
}

/// The findings about a component.
fn inspection(bytes: &[u8]) -> Inspection {
    let outline = crate::inspect::outline::outline(bytes).expect("a component");
    let found = Inspection::of(&blake3::hash(bytes), bytes.len() as u64, outline);
    found.expect("it has names as in WIT")
}

#[test]
fn a_description_tells_what_an_inspection_found_but_functions_and_memory() {
    let dir = tempfile::tempdir().expect("a folder");
    let catalog = catalog(dir.path());
    let bytes = taskrun_examples::WORKSPACE.bytes;
    let digest = blake3::hash(bytes);
    let mut found = inspection(bytes);
    assert!(catalog.find(Some(&digest), Role::Tool).is_none());
    crate::description::keep(&catalog.cache, (digest, Role::Tool), &found, &[]);
    let (known, Description { specs, .. }) =
        catalog.find(Some(&digest), Role::Tool).expect("it was kept");
    found.imports.iter_mut().for_each(|import| import.functions.clear());
    found.exports.iter_mut().for_each(|export| export.functions.clear());
    found.memory_bytes = 0;
    assert_eq!((known, specs), (found, Vec::new()));
    assert!(catalog.find(Some(&digest), Role::Agent).is_none(), "in that role only");
}

/// A source of code that is not asked for any.
struct NoCode;

#[async_trait]
impl LoadCode for NoCode {
    async fn load(&self) -> Result<AgentCode, LoadFault> {
        Err(LoadFault::Host("no code".to_owned()))
    }

    fn functions(&self) -> Option<Arc<Vec<ToolSpec>>> {
        None
    }
}

const POLICY: &str = r#"
[tool.t]
component = "tool.wasm"

[tool.u]
component = "tool.wasm"
tags = ["stated"]

[agent.a]
component = "agent.wasm"
tools = ["t/*", "u/second", "agent/b", "host/list_task_runs"]
allow = ["controller: spawn", "controller: list"]

[agent.b]
component = "agent.wasm"
description = "says something"
"#;

/// The functions of the agent `a`, whose tools have two functions that take arguments of this schema
/// and are said to be usable or not; `None` of a description that says nothing of it.
fn functions_of(schema: &str, is_usable: Option<bool>) -> Result<Vec<ToolSpec>, AgentError> {
    let dir = tempfile::tempdir().expect("a folder");
    let policy = Policy::parse(POLICY, &dir.path().join("taskrun.toml")).expect("a policy");
    let catalog = catalog(dir.path());
    let mut digests = BTreeMap::new();
    let spec = |name: &str| ToolSpec {
        name: name.to_owned(),
        title: None,
        description: "of a test".to_owned(),
        input_schema: schema.to_owned(),
        output_schema: None,
        hints: ToolHints::default(),
        timeout: None,
        tags: vec!["own".to_owned()],
        stated_tags: Vec::new(),
    };
    for (name, bytes, role, specs) in [
        ("agent.wasm", taskrun_examples::SCRIPTED.bytes, Role::Agent, Vec::new()),
        (
            "tool.wasm",
            taskrun_examples::SCRIPTED_TOOL.bytes,
            Role::Tool,
            vec![spec("second"), spec("first")],
        ),
    ] {
        let digest = blake3::hash(bytes);
        let description = Description::of(&inspection(bytes), &specs);
        let mut description = serde_json::to_value(&description).expect("it is written");
        match is_usable {
            Some(is_usable) => description["is_usable"] = is_usable.into(),
            None => drop(description.as_object_mut().expect("an object").remove("is_usable")),
        }
        let text = description.to_string();
        catalog.cache.put_description(entry(digest, role), text.as_bytes());
        digests.insert(dir.path().join(name), digest);
    }
    let mut functions = None;
    let (agent, models) = (&policy.agents["a"], BTreeMap::new());
    let pinned = (agent, "a@pin".to_owned());
    let found = catalog.agent(&policy, &models, pinned, &digests, |found| {
        functions = Some(found.to_vec());
        Arc::new(NoCode)
    });
    found.map(|agent| assert!(agent.is_some(), "its components are known"))?;
    Ok(functions.expect("it was found"))
}

#[test]
fn functions_are_the_same_whether_their_schemas_are_read_or_known_to_be_usable() {
    let schema = r#"{"type":"object"}"#;
    let read = functions_of(schema, None).expect("they are usable");
    assert_eq!(functions_of(schema, Some(false)).expect("they are usable"), read);
    assert_eq!(functions_of(schema, Some(true)).expect("they are usable"), read);
    let names: Vec<_> = read.iter().map(|spec| spec.name.as_str()).collect();
    assert_eq!(names, ["agent/b", "host/list_task_runs", "t/first", "t/second", "u/second"]);
    assert_eq!((&*read[2].tags, &*read[2].stated_tags), (&["own".to_owned()][..], &[][..]));
    let stated = ["stated".to_owned()];
    assert_eq!((&*read[4].tags, &*read[4].stated_tags), (&stated[..], &stated[..]));
}

#[test]
fn schemas_that_are_known_to_be_usable_are_not_read_again() {
    let schema = r#"{"type":5}"#;
    for unknown in [None, Some(false)] {
        let refused = functions_of(schema, unknown).expect_err("it is no schema");
        assert!(matches!(refused, AgentError::Tools { .. }), "{refused:?}");
    }
    assert_eq!(functions_of(schema, Some(true)).expect("nobody looks").len(), 5);
}

#[test]
fn a_description_says_whether_the_schemas_of_all_functions_can_be_used() {
    let inspection = inspection(taskrun_examples::SCRIPTED_TOOL.bytes);
    let spec = |input: &str, output: Option<&str>| ToolSpec {
        name: "f".to_owned(),
        title: None,
        description: String::new(),
        input_schema: input.to_owned(),
        output_schema: output.map(str::to_owned),
        hints: ToolHints::default(),
        timeout: None,
        tags: Vec::new(),
        stated_tags: Vec::new(),
    };
    let is_usable = |specs: &[ToolSpec]| Description::of(&inspection, specs).is_usable;
    let good = spec("{}", Some("{}"));
    assert!(is_usable(&[]) && is_usable(&[good.clone(), good.clone()]));
    assert!(!is_usable(&[good.clone(), spec(r#"{"type":5}"#, None)]));
    assert!(!is_usable(&[good, spec("{}", Some("no JSON"))]));
}
