//! A schema's text, brought into its flat form.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use serde_json::Value;
use taskrun_journal::text::cut;

use super::Schema;
use super::pattern::Pattern;
use super::rule::{Node, NodeId};

/// Most schemas within those of one tool.
const SCHEMAS_MAX: u32 = 10_000;
/// Most bytes of the automata of all patterns in those of one tool: two thousand small ones, and at
/// most some hundred milliseconds in which they are made.
const PATTERN_BYTES_MAX: u32 = 8 << 20;
/// Most schemas that one value meets at once, each way to it counted: twice `allOf` of the same is
/// twice.
const AT_ONE_VALUE_MAX: u64 = 10_000;
/// Most schemas within each other that one value meets.
const CHAIN_MAX: u32 = 48;
/// Most bytes of each step in a place that an error names.
const STEP_BYTES_MAX: usize = 64;

/// Dialects that are understood, without their scheme.
const DIALECTS: [&str; 5] = [
    "json-schema.org/draft-04/schema",
    "json-schema.org/draft-06/schema",
    "json-schema.org/draft-07/schema",
    "json-schema.org/draft/2019-09/schema",
    "json-schema.org/draft/2020-12/schema",
];
/// Of these, so many take nothing that stands beside `$ref`.
const DIALECTS_WITH_LONE_REF: usize = 3;

/// The sizes that the schemas of one tool may have in all.
#[derive(Debug)]
pub(crate) struct Allowance {
    schemas: u32,
    pattern_bytes: u32,
}

impl Default for Allowance {
    fn default() -> Self {
        Self { schemas: SCHEMAS_MAX, pattern_bytes: PATTERN_BYTES_MAX }
    }
}

pub(super) fn compile(document: &Value, allowance: &mut Allowance) -> Result<Schema, String> {
    let mut compiler = Compiler::new(document, allowance)?;
    let root = compiler.schema(None, String::new(), document)?;
    while let Some((id, schema)) = compiler.pending.pop_front() {
        let node = compiler.node(id, schema);
        let node = node.map_err(|problem| compiler.at(id, &problem))?;
        compiler.nodes[id] = node;
    }
    compiler.check_places()?;
    Ok(Schema { nodes: compiler.nodes, root })
}

/// A schema on its way.
pub(super) struct Compiler<'a> {
    pub(super) document: &'a Value,
    /// True if nothing that stands beside `$ref` counts.
    pub(super) lone_ref: bool,
    allowance: &'a mut Allowance,
    nodes: Vec<Node>,
    /// From where each was first found: the one around it, and the way from there.
    found: Vec<(Option<NodeId>, String)>,
    /// Where each value of the document is among the nodes, by its address.
    known: HashMap<usize, NodeId>,
    pending: VecDeque<(NodeId, &'a Value)>,
    patterns: BTreeMap<&'a str, Arc<Pattern>>,
}

impl<'a> Compiler<'a> {
    fn new(document: &'a Value, allowance: &'a mut Allowance) -> Result<Self, String> {
        let lone_ref = match document.get("$schema").map(|dialect| dialect.as_str()) {
            None => false,
            Some(name) => {
                let name = name.ok_or("its \"$schema\" is no text")?;
                let own = name.trim_end_matches('#').split_once("://").map_or(name, |(_, own)| own);
                let known = DIALECTS.iter().position(|dialect| *dialect == own);
                let name = cut(name, STEP_BYTES_MAX);
                known.ok_or_else(|| format!("the dialect {name:?} is not known"))?
                    < DIALECTS_WITH_LONE_REF
            }
        };
        Ok(Self {
            document,
            lone_ref,
            allowance,
            nodes: Vec::new(),
            found: Vec::new(),
            known: HashMap::new(),
            pending: VecDeque::new(),
            patterns: BTreeMap::new(),
        })
    }

    /// The place of a schema among the nodes; each is brought into its form once.
    pub(super) fn schema(
        &mut self,
        around: Option<NodeId>,
        way: String,
        schema: &'a Value,
    ) -> Result<NodeId, String> {
        let address = std::ptr::from_ref(schema) as usize;
        if let Some(id) = self.known.get(&address) {
            return Ok(*id);
        }
        self.allowance.schemas = self.allowance.schemas.checked_sub(1).ok_or_else(|| {
            format!("the schemas of one tool hold more than {SCHEMAS_MAX} schemas")
        })?;
        let id = self.nodes.len();
        self.nodes.push(Node::default());
        self.found.push((around, cut(&way, STEP_BYTES_MAX).to_owned()));
        self.known.insert(address, id);
        self.pending.push_back((id, schema));
        Ok(id)
    }

    pub(super) fn pattern(&mut self, source: &'a str) -> Result<Arc<Pattern>, String> {
        if let Some(known) = self.patterns.get(source) {
            return Ok(Arc::clone(known));
        }
        let pattern = Arc::new(Pattern::new(source)?);
        let left = self.allowance.pattern_bytes.checked_sub(pattern.bytes);
        self.allowance.pattern_bytes =
            left.ok_or("the patterns in the schemas of one tool are too many, or too large")?;
        self.patterns.insert(source, Arc::clone(&pattern));
        Ok(pattern)
    }

    /// The schema that a reference is about.
    pub(super) fn referred(&self, reference: &str) -> Result<&'a Value, String> {
        let shown = cut(reference, STEP_BYTES_MAX);
        let (whose, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let own = self.document.get("$id").and_then(Value::as_str);
        if !whose.is_empty() && own.map(|own| own.trim_end_matches('#')) != Some(whose) {
            return Err(format!("{shown:?} leaves the schema; a reference begins with \"#/\""));
        }
        if !fragment.is_empty() && !fragment.starts_with('/') {
            return Err(format!("{shown:?} is about a name; a reference begins with \"#/\""));
        }
        let pointer = decoded(fragment).ok_or_else(|| format!("{shown:?} is no reference"))?;
        self.document.pointer(&pointer).ok_or_else(|| format!("there is no {shown:?}"))
    }

    /// A problem with where it is.
    fn at(&self, id: NodeId, problem: &str) -> String {
        let mut ways = Vec::new();
        let mut next = Some(id);
        while let Some(id) = next {
            let (around, way) = &self.found[id];
            if !way.is_empty() {
                ways.push(way.as_str());
            }
            next = *around;
        }
        ways.truncate(8);
        ways.reverse();
        if ways.is_empty() { problem.to_owned() } else { format!("{}: {problem}", ways.join("/")) }
    }

    /// Holds what one value meets at once to its bounds: no schema is found again on a way that
    /// leads into no value, and there are not too many ways.
    fn check_places(&self) -> Result<(), String> {
        // Of each: the schemas that a value meets there, and the longest chain of them.
        let mut done: Vec<Option<(u64, u32)>> = vec![None; self.nodes.len()];
        let mut open = vec![false; self.nodes.len()];
        for start in 0..self.nodes.len() {
            let mut ways = vec![start];
            while let Some(&id) = ways.last() {
                if done[id].is_some() {
                    ways.pop();
                    continue;
                }
                let next = self.in_place(id);
                if !open[id] {
                    open[id] = true;
                    if let Some(again) = next.iter().find(|next| open[**next]) {
                        let text = "it refers to itself without a value between";
                        return Err(self.at(*again, text));
                    }
                    ways.extend(next.iter().filter(|next| done[**next].is_none()));
                    continue;
                }
                let (mut all, mut chain) = (1_u64, 1);
                for (below, longest) in next.iter().filter_map(|next| done[*next]) {
                    all = all.saturating_add(below);
                    chain = chain.max(longest + 1);
                }
                if all > AT_ONE_VALUE_MAX {
                    let text = format!("one value meets more than {AT_ONE_VALUE_MAX} schemas");
                    return Err(self.at(id, &text));
                }
                if chain > CHAIN_MAX {
                    let text = format!("more than {CHAIN_MAX} schemas within each other");
                    return Err(self.at(id, &format!("one value meets {text}")));
                }
                done[id] = Some((all, chain));
                open[id] = false;
                ways.pop();
            }
        }
        Ok(())
    }

    fn in_place(&self, id: NodeId) -> Vec<NodeId> {
        self.nodes[id].applicators.iter().flat_map(super::rule::Applicator::in_place).collect()
    }
}

/// A fragment without its escapes.
fn decoded(fragment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}
