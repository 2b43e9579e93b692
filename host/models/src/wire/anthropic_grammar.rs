//! The schemas of which Anthropic can make a grammar, once the words are taken out that only
//! narrow what fits
//! (<https://platform.claude.com/docs/en/build-with-claude/structured-outputs#json-schema-limitations>).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::list_of;

/// Words that say of which parts a value is made, and that no grammar is made of.
const NOT_TAKEN: [&str; 6] =
    ["dependentSchemas", "else", "if", "patternProperties", "prefixItems", "then"];
/// Words of which a schema has one, unless every value fits it: that is refused, too.
const KINDS: [&str; 9] =
    ["$ref", "allOf", "anyOf", "const", "enum", "items", "oneOf", "properties", "type"];
/// Words by which an object has other members than those that it names.
const COMBINATIONS: [&str; 4] = ["$ref", "allOf", "anyOf", "oneOf"];

/// Tells if a grammar can be made of a schema: each object in it names its members and may be
/// closed, and no definition leads back to itself.
pub(super) fn has_grammar(schema: &Value) -> bool {
    let definitions = ["$defs", "definitions"].into_iter().flat_map(|group| {
        let all = schema.get(group).and_then(Value::as_object).into_iter().flatten();
        all.map(move |(name, inner)| (format!("#/{group}/{name}"), inner))
    });
    let all = definitions.chain([("#".to_owned(), schema)]);
    let refs: Option<BTreeMap<String, BTreeSet<&str>>> =
        all.map(|(pointer, inner)| Some((pointer, refs_of(inner)?))).collect();
    refs.is_some_and(|refs| is_finite(&refs))
}

/// True for the members of a schema that objects fit.
pub(super) fn is_of_objects(members: &Map<String, Value>) -> bool {
    match members.get("type") {
        Some(Value::Array(kinds)) => kinds.contains(&json!("object")),
        Some(kind) => kind == "object",
        None => false,
    }
}

/// The references in a schema, definitions left out; `None` where no grammar can be made of it.
fn refs_of(schema: &Value) -> Option<BTreeSet<&str>> {
    let mut refs = BTreeSet::new();
    is_taken(schema, false, &mut refs).then_some(refs)
}

/// `within_all` says that other schemas hold for the same value.
fn is_taken<'s>(schema: &'s Value, within_all: bool, refs: &mut BTreeSet<&'s str>) -> bool {
    let Value::Object(members) = schema else { return false };
    let has = |word: &&str| members.contains_key(*word);
    let has_both_choices = ["anyOf", "oneOf"].iter().all(has);
    if has_both_choices || NOT_TAKEN.iter().any(has) || !KINDS.iter().any(has) {
        return false;
    }
    if let Some(reference) = members.get("$ref") {
        let Some(pointer) = reference.as_str().filter(|_| !within_all) else { return false };
        refs.insert(pointer);
    }
    if list_of(schema, "enum").iter().any(|value| value.is_array() || value.is_object()) {
        return false;
    }
    if is_of_objects(members) && !is_closable(members, within_all) {
        return false;
    }
    let named = members.get("properties").and_then(Value::as_object).into_iter();
    let named = named.flat_map(|named| named.values());
    let choices = ["anyOf", "oneOf"].into_iter().flat_map(|word| list_of(schema, word));
    let mut inner = named.chain(choices).chain(members.get("items"));
    inner.all(|inner| is_taken(inner, within_all, refs))
        && list_of(schema, "allOf").iter().all(|inner| is_taken(inner, true, refs))
}

/// Tells if an object is closed, or can be without having nothing fit it, and without being kept
/// from members that its schema is there for.
fn is_closable(members: &Map<String, Value>, within_all: bool) -> bool {
    if COMBINATIONS.iter().any(|word| members.contains_key(*word)) {
        return false;
    }
    let more = members.get("additionalProperties");
    if more == Some(&Value::Bool(false)) {
        return true;
    }
    let is_any = more.is_none_or(|more| *more == json!(true) || *more == json!({}));
    let named = members.get("properties").and_then(Value::as_object);
    let Some(named) = named.filter(|named| !named.is_empty()) else { return false };
    let is_named = |name: &Value| name.as_str().is_some_and(|name| named.contains_key(name));
    let required = members.get("required").and_then(Value::as_array);
    let least = members.get("minProperties").and_then(Value::as_f64).unwrap_or(0.0);
    is_any
        && !within_all
        && required.is_none_or(|all| all.iter().all(is_named))
        && least <= named.len() as f64
}

/// Tells if each reference leads to a definition, and none back to where it stands. They are
/// followed without recursion, as the agent that writes a schema decides how many there are.
fn is_finite(refs: &BTreeMap<String, BTreeSet<&str>>) -> bool {
    if !refs.values().flatten().all(|pointer| refs.contains_key(*pointer)) {
        return false;
    }
    let mut users: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut left: BTreeMap<&str, usize> = BTreeMap::new();
    for (user, used) in refs {
        left.insert(user, used.len());
        used.iter().for_each(|pointer| users.entry(pointer).or_default().push(user));
    }
    // Those without references end; then those whose references all end; and so on.
    let without = refs.iter().filter(|(_, used)| used.is_empty());
    let mut ending: Vec<&str> = without.map(|(pointer, _)| pointer.as_str()).collect();
    let mut count = 0;
    while let Some(pointer) = ending.pop() {
        count += 1;
        for user in users.remove(pointer).unwrap_or_default() {
            let Some(left) = left.get_mut(user) else { continue };
            *left -= 1;
            if *left == 0 {
                ending.push(user);
            }
        }
    }
    count == refs.len()
}
