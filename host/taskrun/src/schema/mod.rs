//! JSON schemas of tools, and arguments held to them, in a bounded number of steps.
//!
//! A schema is written by whoever made the tool, arguments by a model or another component: both
//! may be hostile, and neither has a share of the host's time. So a schema is brought into a flat
//! form when its tool is loaded ([`Schema::new`]), which takes time in proportion to its text, and
//! arguments are looked at in steps that are counted ([`Fuel`]): each schema that meets a value is
//! a step, each key, each piece of a string that is compared, each byte that a pattern reads. When
//! the steps are used up the arguments are refused. Recursion is counted, too.
//!
//! The common part of the dialects from draft 4 to 2020-12 is understood, read as the last one
//! reads it. Keywords that say something about values without naming them here (`unevaluated*`,
//! `$dynamicRef`, `$recursiveRef`), references that leave the schema, and dialects of others keep a
//! tool from loading rather than being passed over. `format` and `content*` are descriptions.

mod assertion;
mod compile;
mod compile_keywords;
mod equal;
mod fuel;
mod issue;
mod look;
mod number;
mod pattern;
mod rule;
#[cfg(test)]
mod tests;

pub(crate) use self::compile::Allowance;
pub(crate) use self::fuel::{Fuel, Spent};
pub(crate) use self::issue::{Issue, Problem};
use self::look::Look;
use self::rule::{Node, NodeId};
use serde_json::Value;

/// A schema that arguments can be held to.
#[derive(Debug)]
pub(crate) struct Schema {
    /// All schemas in it.
    nodes: Vec<Node>,
    /// The whole.
    root: NodeId,
}

impl Schema {
    /// Brings a schema into its flat form. What it takes of its tool's allowance is subtracted,
    /// also where it is refused.
    ///
    /// # Errors
    /// The mistake in it, and its place.
    pub(crate) fn new(schema: &Value, allowance: &mut Allowance) -> Result<Self, String> {
        compile::compile(schema, allowance)
    }

    /// The first mistakes in a value, at most [`issue::ISSUES_MAX`]; none if it fits.
    ///
    /// # Errors
    /// [`Spent`], if that cannot be said with the fuel there is.
    pub(crate) fn issues(&self, value: &Value, fuel: &mut Fuel) -> Result<Vec<Issue>, Spent> {
        Look::new(&self.nodes, fuel).at(self.root, value)
    }
}
