//! The keywords of a schema.

use std::collections::BTreeMap;

use serde_json::{Map, Number, Value};

use super::compile::Compiler;
use super::equal::steps;
use super::number;
use super::rule::{Applicator, Assertion, Counts, Edge, Node, NodeId, Type};

/// Keywords that say something about values in ways that are not understood here.
const REFUSED: [&str; 5] =
    ["$dynamicRef", "$recursiveRef", "unevaluatedItems", "unevaluatedProperties", "extends"];

type Members = Map<String, Value>;

/// A keyword's value as a text, a number or else, or that it is none.
fn wanted<T>(keyword: &str, value: Option<T>, what: &str) -> Result<T, String> {
    value.ok_or_else(|| format!("{keyword:?} must be {what}"))
}

fn texts(keyword: &str, value: &Value) -> Result<Vec<String>, String> {
    let all = value.as_array().map(|all| all.iter().map(|one| one.as_str().map(str::to_owned)));
    wanted(keyword, all.and_then(Iterator::collect), "a list of texts")
}

fn count(keyword: &str, value: &Value) -> Result<u64, String> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "whole, not negative"
    )]
    let float = || value.as_f64().filter(|f| f.fract() == 0.0 && *f >= 0.0).map(|f| f as u64);
    wanted(keyword, value.as_u64().or_else(float), "a whole number that is not negative")
}

/// The counts of two keywords, if there is one of them.
fn counts(of: &Members, least: &str, most: &str) -> Result<Option<Counts>, String> {
    let min = of.get(least).map(|value| count(least, value)).transpose()?;
    let max = of.get(most).map(|value| count(most, value)).transpose()?;
    let any = min.is_some() || max.is_some();
    Ok(any.then(|| Counts { min: min.unwrap_or(0), max: max.unwrap_or(u64::MAX) }))
}

impl<'a> Compiler<'a> {
    /// The assertions and parts of a schema.
    pub(super) fn node(&mut self, id: NodeId, schema: &'a Value) -> Result<Node, String> {
        let mut node = Node::default();
        let of = match schema {
            Value::Bool(true) => return Ok(node),
            Value::Bool(false) => {
                node.assertions.push(Assertion::Never);
                return Ok(node);
            }
            Value::Object(of) => of,
            Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                return Err("a schema is an object, true or false".to_owned());
            }
        };
        self.check_kind(of)?;
        if let Some(reference) = of.get("$ref") {
            let reference = wanted("$ref", reference.as_str(), "a text")?;
            let target = self.referred(reference)?;
            let target = self.schema(Some(id), format!("$ref {reference}"), target)?;
            node.applicators.push(Applicator::Ref(target));
            if self.lone_ref {
                return Ok(node);
            }
        }
        assert_values(of, &mut node)?;
        assert_numbers(of, &mut node)?;
        assert_sizes(of, &mut node)?;
        if let Some(pattern) = of.get("pattern") {
            let pattern = wanted("pattern", pattern.as_str(), "a text")?;
            node.assertions.push(Assertion::Pattern(self.pattern(pattern)?));
        }
        self.apply_to_members(id, of, &mut node)?;
        self.apply_to_items(id, of, &mut node)?;
        self.apply_in_place(id, of, &mut node)?;
        Ok(node)
    }

    /// Refuses what would be passed over, or would mean something else than it says.
    fn check_kind(&self, of: &Members) -> Result<(), String> {
        if let Some(refused) = REFUSED.iter().find(|refused| of.contains_key(**refused)) {
            return Err(format!("{refused:?} is not understood here"));
        }
        let is_root = self.document.as_object().is_some_and(|root| std::ptr::eq(root, of));
        if is_root {
            return Ok(());
        }
        if of.get("$id").is_some_and(Value::is_string) {
            return Err("a schema within a schema has no \"$id\" of its own".to_owned());
        }
        match of.get("$schema") {
            Some(dialect) if self.document.get("$schema") != Some(dialect) => {
                Err("a schema within a schema has no other \"$schema\"".to_owned())
            }
            Some(_) | None => Ok(()),
        }
    }

    fn sub(&mut self, id: NodeId, keyword: &str, schema: &'a Value) -> Result<NodeId, String> {
        self.schema(Some(id), keyword.to_owned(), schema)
    }

    fn list(&mut self, id: NodeId, keyword: &str, value: &'a Value) -> Result<Vec<NodeId>, String> {
        let all = wanted(keyword, value.as_array(), "a list of schemas")?;
        let each = all.iter().enumerate();
        each.map(|(index, one)| self.schema(Some(id), format!("{keyword}/{index}"), one)).collect()
    }

    fn named(
        &mut self,
        id: NodeId,
        keyword: &str,
        value: &'a Value,
    ) -> Result<Vec<(&'a String, NodeId)>, String> {
        let all = wanted(keyword, value.as_object(), "schemas by names")?;
        let each = all.iter();
        each.map(|(name, one)| {
            let way = format!("{keyword}/{}", taskrun_journal::text::cut(name, 64));
            Ok((name, self.schema(Some(id), way, one)?))
        })
        .collect()
    }

    fn apply_to_members(
        &mut self,
        id: NodeId,
        of: &'a Members,
        node: &mut Node,
    ) -> Result<(), String> {
        let (mut named, mut matched, mut rest) = (BTreeMap::new(), Vec::new(), None);
        if let Some(value) = of.get("properties") {
            let all = self.named(id, "properties", value)?;
            named = all.into_iter().map(|(name, node)| (name.clone(), node)).collect();
        }
        if let Some(value) = of.get("patternProperties") {
            for (pattern, schema) in self.named(id, "patternProperties", value)? {
                matched.push((self.pattern(pattern)?, schema));
            }
        }
        if let Some(value) = of.get("additionalProperties") {
            rest = Some(self.sub(id, "additionalProperties", value)?);
        }
        if !named.is_empty() || !matched.is_empty() || rest.is_some() {
            node.applicators.push(Applicator::Members { named, matched, rest });
        }
        if let Some(value) = of.get("propertyNames") {
            let names = self.sub(id, "propertyNames", value)?;
            node.applicators.push(Applicator::Names(names));
        }
        let mut schemas = BTreeMap::new();
        if let Some(value) = of.get("dependentSchemas") {
            let all = self.named(id, "dependentSchemas", value)?;
            schemas.extend(all.into_iter().map(|(name, node)| (name.clone(), node)));
        }
        let mut required = BTreeMap::new();
        if let Some(value) = of.get("dependentRequired") {
            let all = wanted("dependentRequired", value.as_object(), "lists of names by names")?;
            for (name, names) in all {
                required.insert(name.clone(), texts("dependentRequired", names)?);
            }
        }
        // Of older dialects: both of these in one.
        if let Some(value) = of.get("dependencies") {
            for (name, one) in wanted("dependencies", value.as_object(), "an object")? {
                if one.is_array() {
                    required.insert(name.clone(), texts("dependencies", one)?);
                } else {
                    schemas.insert(name.clone(), self.sub(id, "dependencies", one)?);
                }
            }
        }
        if !required.is_empty() {
            node.assertions.push(Assertion::DependentRequired(required));
        }
        if !schemas.is_empty() {
            node.applicators.push(Applicator::DependentSchemas(schemas));
        }
        Ok(())
    }

    fn apply_to_items(
        &mut self,
        id: NodeId,
        of: &'a Members,
        node: &mut Node,
    ) -> Result<(), String> {
        let (mut first, mut rest) = (Vec::new(), None);
        if let Some(value) = of.get("prefixItems") {
            first = self.list(id, "prefixItems", value)?;
        }
        match of.get("items") {
            // Of older dialects: the first ones, and a keyword of its own for all others.
            Some(value) if value.is_array() => {
                first = self.list(id, "items", value)?;
                if let Some(others) = of.get("additionalItems") {
                    rest = Some(self.sub(id, "additionalItems", others)?);
                }
            }
            Some(value) => rest = Some(self.sub(id, "items", value)?),
            None => {}
        }
        if !first.is_empty() || rest.is_some() {
            node.applicators.push(Applicator::Items { first, rest });
        }
        if let Some(value) = of.get("contains") {
            let schema = self.sub(id, "contains", value)?;
            let counts = counts(of, "minContains", "maxContains")?;
            let mut counts = counts.unwrap_or(Counts { min: 1, max: u64::MAX });
            if !of.contains_key("minContains") {
                counts.min = 1;
            }
            node.applicators.push(Applicator::Contains { schema, counts });
        }
        Ok(())
    }

    fn apply_in_place(
        &mut self,
        id: NodeId,
        of: &'a Members,
        node: &mut Node,
    ) -> Result<(), String> {
        if let Some(value) = of.get("allOf") {
            node.applicators.push(Applicator::AllOf(self.list(id, "allOf", value)?));
        }
        if let Some(value) = of.get("anyOf") {
            node.applicators.push(Applicator::AnyOf(self.list(id, "anyOf", value)?));
        }
        if let Some(value) = of.get("oneOf") {
            node.applicators.push(Applicator::OneOf(self.list(id, "oneOf", value)?));
        }
        if let Some(value) = of.get("not") {
            node.applicators.push(Applicator::Not(self.sub(id, "not", value)?));
        }
        if let Some(value) = of.get("if") {
            let condition = self.sub(id, "if", value)?;
            let then = of.get("then").map(|value| self.sub(id, "then", value)).transpose()?;
            let otherwise = of.get("else").map(|value| self.sub(id, "else", value)).transpose()?;
            if then.is_some() || otherwise.is_some() {
                node.applicators.push(Applicator::If { condition, then, otherwise });
            }
        }
        Ok(())
    }
}

fn assert_values(of: &Members, node: &mut Node) -> Result<(), String> {
    if let Some(value) = of.get("type") {
        let names = match value.as_str() {
            Some(one) => vec![one.to_owned()],
            None => texts("type", value)?,
        };
        let types = names.iter().map(|name| {
            Type::named(name).ok_or_else(|| {
                format!("there is no type {:?}", taskrun_journal::text::cut(name, 64))
            })
        });
        node.assertions.push(Assertion::Type(types.collect::<Result<_, _>>()?));
    }
    if let Some(value) = of.get("enum") {
        let values = wanted("enum", value.as_array(), "a list")?.clone();
        let cost = values.iter().map(steps).sum();
        node.assertions.push(Assertion::Enum(values, cost));
    }
    if let Some(value) = of.get("const") {
        node.assertions.push(Assertion::Const(value.clone(), steps(value)));
    }
    Ok(())
}

fn assert_numbers(of: &Members, node: &mut Node) -> Result<(), String> {
    type Bound = fn(Number, Edge) -> Assertion;
    for (included, excluded, assertion) in [
        ("minimum", "exclusiveMinimum", Assertion::Minimum as Bound),
        ("maximum", "exclusiveMaximum", Assertion::Maximum),
    ] {
        // In the oldest dialect the second is said of the first.
        let beside = of.get(excluded).and_then(Value::as_bool);
        if let Some(value) = of.get(included) {
            let bound = wanted(included, value.as_number(), "a number")?.clone();
            let edge = if beside == Some(true) { Edge::Excluded } else { Edge::Included };
            node.assertions.push(assertion(bound, edge));
        }
        if let (Some(value), None) = (of.get(excluded), beside) {
            let bound = wanted(excluded, value.as_number(), "a number")?.clone();
            node.assertions.push(assertion(bound, Edge::Excluded));
        }
    }
    if let Some(value) = of.get("multipleOf") {
        let number = value.as_number().filter(|number| number::is_positive(number));
        let number = wanted("multipleOf", number, "a number of more than zero")?;
        node.assertions.push(Assertion::MultipleOf(number.clone()));
    }
    Ok(())
}

fn assert_sizes(of: &Members, node: &mut Node) -> Result<(), String> {
    for (least, most, assertion) in [
        ("minLength", "maxLength", Assertion::Length as fn(Counts) -> Assertion),
        ("minItems", "maxItems", Assertion::ItemCount),
        ("minProperties", "maxProperties", Assertion::MemberCount),
    ] {
        node.assertions.extend(counts(of, least, most)?.map(assertion));
    }
    if let Some(value) = of.get("uniqueItems")
        && wanted("uniqueItems", value.as_bool(), "true or false")?
    {
        node.assertions.push(Assertion::UniqueItems);
    }
    if let Some(value) = of.get("required") {
        node.assertions.push(Assertion::Required(texts("required", value)?));
    }
    Ok(())
}
