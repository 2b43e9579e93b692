//! Values held to schemas.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::fuel::{Fuel, Spent};
use super::issue::{ISSUES_MAX, Issue, Problem, Shown, Step, pointer};
use super::pattern::Pattern;
use super::rule::{Applicator, Counts, Node, NodeId};

/// True if a value fits, as far as there is fuel.
type Verdict = Result<bool, Spent>;

/// A look at one value.
pub(super) struct Look<'s, 'v> {
    nodes: &'s [Node],
    fuel: &'s mut Fuel,
    /// The number of branches around this one that may fail without a mistake.
    trials: u32,
    path: Vec<Step<'v>>,
    issues: Vec<Issue>,
}

impl<'s, 'v> Look<'s, 'v> {
    pub(super) fn new(nodes: &'s [Node], fuel: &'s mut Fuel) -> Self {
        Self { nodes, fuel, trials: 0, path: Vec::new(), issues: Vec::new() }
    }

    /// The first mistakes in a value.
    pub(super) fn at(mut self, root: NodeId, value: &'v Value) -> Result<Vec<Issue>, Spent> {
        let fits = self.fits(root, value)?;
        debug_assert_eq!(fits, self.issues.is_empty(), "a mistake is told");
        Ok(self.issues)
    }

    /// True if nothing more is to be found: one mistake decides, and so many are told.
    fn is_done(&self) -> bool {
        self.trials > 0 || self.issues.len() >= ISSUES_MAX
    }

    fn fits(&mut self, node: NodeId, value: &'v Value) -> Verdict {
        self.fuel.enter()?;
        let node = &self.nodes[node];
        let mut fits = true;
        for assertion in &node.assertions {
            if !assertion.holds(value, self.fuel)? {
                fits = false;
                if self.trials == 0 {
                    self.tell(assertion.problems(value));
                }
                if self.is_done() {
                    break;
                }
            }
        }
        for applicator in &node.applicators {
            if !fits && self.is_done() {
                break;
            }
            fits &= self.holds(applicator, value)?;
        }
        self.fuel.leave();
        Ok(fits)
    }

    fn tell(&mut self, problems: Vec<Problem>) {
        for problem in problems {
            let issue = Issue { field: pointer(&self.path), problem };
            if self.issues.len() < ISSUES_MAX && !self.issues.contains(&issue) {
                self.issues.push(issue);
            }
        }
    }

    /// Tells a mistake, if there is one.
    fn unless(&mut self, holds: bool, text: impl FnOnce() -> String) -> Verdict {
        if !holds && self.trials == 0 {
            self.tell(vec![Problem::Other(text())]);
        }
        Ok(holds)
    }

    /// True if a value fits, where it may not.
    fn tried(&mut self, node: NodeId, value: &'v Value) -> Verdict {
        self.trials += 1;
        let fits = self.fits(node, value);
        self.trials -= 1;
        fits
    }

    fn within(&mut self, step: Step<'v>, node: NodeId, value: &'v Value) -> Verdict {
        self.path.push(step);
        let fits = self.fits(node, value);
        self.path.pop();
        fits
    }

    fn holds(&mut self, applicator: &'s Applicator, value: &'v Value) -> Verdict {
        match applicator {
            Applicator::Items { first, rest } => match value.as_array() {
                Some(items) => self.items(first, *rest, items),
                None => Ok(true),
            },
            Applicator::Contains { schema, counts } => match value.as_array() {
                Some(items) => self.contains(*schema, *counts, items),
                None => Ok(true),
            },
            Applicator::Members { named, matched, rest } => match value.as_object() {
                Some(members) => self.members(named, matched, *rest, members),
                None => Ok(true),
            },
            Applicator::Names(schema) => match value.as_object() {
                Some(members) => self.names(*schema, members),
                None => Ok(true),
            },
            Applicator::DependentSchemas(of) => match value.as_object() {
                Some(members) => self.dependent(of, members, value),
                None => Ok(true),
            },
            Applicator::Ref(node) => self.fits(*node, value),
            Applicator::AllOf(nodes) => self.all(nodes, value),
            Applicator::AnyOf(nodes) => self.any(nodes, value),
            Applicator::OneOf(nodes) => self.one(nodes, value),
            Applicator::Not(node) => {
                let fits = self.tried(*node, value)?;
                self.unless(!fits, || format!("{} is not allowed", Shown(value)))
            }
            Applicator::If { condition, then, otherwise } => {
                let next = if self.tried(*condition, value)? { then } else { otherwise };
                next.map_or(Ok(true), |node| self.fits(node, value))
            }
        }
    }

    fn all(&mut self, nodes: &[NodeId], value: &'v Value) -> Verdict {
        let mut fits = true;
        for node in nodes {
            fits &= self.fits(*node, value)?;
            if !fits && self.is_done() {
                break;
            }
        }
        Ok(fits)
    }

    fn any(&mut self, nodes: &[NodeId], value: &'v Value) -> Verdict {
        // The mistakes in the only one that it may be are those of the value.
        if let [only] = nodes {
            return self.fits(*only, value);
        }
        for node in nodes {
            if self.tried(*node, value)? {
                return Ok(true);
            }
        }
        self.unless(false, || format!("{} fits none of the schemas allowed", Shown(value)))
    }

    fn one(&mut self, nodes: &[NodeId], value: &'v Value) -> Verdict {
        let mut fitting = 0;
        for node in nodes {
            fitting += u32::from(self.tried(*node, value)?);
            if fitting > 1 {
                let text = || format!("{} fits more than one of the schemas allowed", Shown(value));
                return self.unless(false, text);
            }
        }
        self.unless(fitting == 1, || format!("{} fits none of the schemas allowed", Shown(value)))
    }

    fn items(&mut self, first: &[NodeId], rest: Option<NodeId>, items: &'v [Value]) -> Verdict {
        let mut fits = true;
        for (index, item) in items.iter().enumerate() {
            let Some(node) = first.get(index).copied().or(rest) else { break };
            fits &= self.within(Step::Item(index), node, item)?;
            if !fits && self.is_done() {
                break;
            }
        }
        Ok(fits)
    }

    fn contains(&mut self, schema: NodeId, counts: Counts, items: &'v [Value]) -> Verdict {
        let mut fitting = 0;
        for item in items {
            fitting += u64::from(self.tried(schema, item)?);
        }
        self.unless(counts.allow(fitting), || "the wrong number of items fits".to_owned())
    }

    fn members(
        &mut self,
        named: &BTreeMap<String, NodeId>,
        matched: &[(Arc<Pattern>, NodeId)],
        rest: Option<NodeId>,
        members: &'v Map<String, Value>,
    ) -> Verdict {
        let mut fits = true;
        for (name, member) in members {
            self.fuel.take(1)?;
            let mut known = false;
            if let Some(node) = named.get(name) {
                known = true;
                fits &= self.within(Step::Member(name), *node, member)?;
            }
            for (pattern, node) in matched {
                self.fuel.take(pattern.steps(name))?;
                if pattern.is_in(name) {
                    known = true;
                    fits &= self.within(Step::Member(name), *node, member)?;
                }
            }
            if let (false, Some(node)) = (known, rest) {
                fits &= self.within(Step::Member(name), node, member)?;
            }
            if !fits && self.is_done() {
                break;
            }
        }
        Ok(fits)
    }

    fn names(&mut self, schema: NodeId, members: &'v Map<String, Value>) -> Verdict {
        for name in members.keys() {
            self.fuel.take(super::equal::text_steps(name))?;
            let value = Value::from(name.as_str());
            let mut look = Look::new(self.nodes, self.fuel);
            look.trials = 1;
            if !look.fits(schema, &value)? {
                let text = || format!("the name {} is not allowed", Shown(&value));
                return self.unless(false, text);
            }
        }
        Ok(true)
    }

    fn dependent(
        &mut self,
        of: &BTreeMap<String, NodeId>,
        members: &'v Map<String, Value>,
        value: &'v Value,
    ) -> Verdict {
        let mut fits = true;
        for (name, node) in of {
            self.fuel.take(1)?;
            if members.contains_key(name) {
                fits &= self.fits(*node, value)?;
            }
            if !fits && self.is_done() {
                break;
            }
        }
        Ok(fits)
    }
}
