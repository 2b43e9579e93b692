//! The flat form of a schema.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Number, Value};

use super::pattern::Pattern;

/// A schema's place among all of them.
pub(super) type NodeId = usize;

/// A schema: all that it says holds for a value that fits it.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) assertions: Vec<Assertion>,
    pub(super) applicators: Vec<Applicator>,
}

/// An assertion about a value itself. One about a kind of value holds for every other kind.
#[derive(Debug)]
pub(super) enum Assertion {
    /// No value fits.
    Never,
    /// The value is of one of these types.
    Type(Vec<Type>),
    /// It is one of these. The second is the steps that it takes to compare them.
    Enum(Vec<Value>, u64),
    /// It is this one, with the same steps.
    Const(Value, u64),
    /// A number is at least this, or more than this.
    Minimum(Number, Edge),
    /// It is at most this, or less than this.
    Maximum(Number, Edge),
    /// It is a multiple of this, which is more than zero.
    MultipleOf(Number),
    /// A string has so many characters.
    Length(Counts),
    /// A part of it matches.
    Pattern(Arc<Pattern>),
    /// An array has so many items.
    ItemCount(Counts),
    /// No two of them are equal.
    UniqueItems,
    /// An object has so many members.
    MemberCount(Counts),
    /// It has these.
    Required(Vec<String>),
    /// With one it has others.
    DependentRequired(BTreeMap<String, Vec<String>>),
}

/// Other schemas that a value, or what is within it, has to fit.
#[derive(Debug)]
pub(super) enum Applicator {
    /// The first items of an array, each with its schema, and all others.
    Items { first: Vec<NodeId>, rest: Option<NodeId> },
    /// So many of its items fit a schema.
    Contains { schema: NodeId, counts: Counts },
    /// Members of an object, by name, by patterns of names, and those that neither is about.
    Members {
        named: BTreeMap<String, NodeId>,
        matched: Vec<(Arc<Pattern>, NodeId)>,
        rest: Option<NodeId>,
    },
    /// Their names.
    Names(NodeId),
    /// With a member the whole object fits a schema.
    DependentSchemas(BTreeMap<String, NodeId>),
    /// The value fits this, too.
    Ref(NodeId),
    /// It fits all of these.
    AllOf(Vec<NodeId>),
    /// It fits at least one.
    AnyOf(Vec<NodeId>),
    /// It fits exactly one.
    OneOf(Vec<NodeId>),
    /// It does not fit.
    Not(NodeId),
    /// If it fits the first, it fits the second, else the third.
    If { condition: NodeId, then: Option<NodeId>, otherwise: Option<NodeId> },
}

/// The edge of a range: the bound belongs to it, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edge {
    Included,
    Excluded,
}

/// The least and the greatest number of things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) min: u64,
    pub(super) max: u64,
}

impl Counts {
    pub(super) fn allow(self, count: u64) -> bool {
        (self.min..=self.max).contains(&count)
    }
}

/// A type of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Null,
    Boolean,
    Integer,
    Number,
    String,
    Array,
    Object,
}

impl Type {
    const ALL: [(Self, &'static str); 7] = [
        (Self::Null, "null"),
        (Self::Boolean, "boolean"),
        (Self::Integer, "integer"),
        (Self::Number, "number"),
        (Self::String, "string"),
        (Self::Array, "array"),
        (Self::Object, "object"),
    ];

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, own)| *own == name).map(|(one, _)| one)
    }

    pub(super) fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(one, _)| *one == self).map_or("", |(_, name)| name)
    }
}

impl Applicator {
    /// Schemas that the very value meets on account of this.
    pub(super) fn in_place(&self) -> Vec<NodeId> {
        match self {
            Self::Ref(one) | Self::Not(one) => vec![*one],
            Self::AllOf(all) | Self::AnyOf(all) | Self::OneOf(all) => all.clone(),
            Self::If { condition, then, otherwise } => {
                [Some(*condition), *then, *otherwise].into_iter().flatten().collect()
            }
            Self::DependentSchemas(all) => all.values().copied().collect(),
            Self::Items { .. } | Self::Contains { .. } | Self::Members { .. } | Self::Names(_) => {
                Vec::new()
            }
        }
    }
}
