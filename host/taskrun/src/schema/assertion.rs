//! Assertions about a value itself.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::equal::{canonical, equal, steps, text_steps};
use super::fuel::{Fuel, Spent};
use super::issue::{Problem, Shown, listed};
use super::number;
use super::rule::{Assertion, Counts, Edge, Type};

impl Assertion {
    /// True if it holds for a value.
    pub(super) fn holds(&self, value: &Value, fuel: &mut Fuel) -> Result<bool, Spent> {
        fuel.take(1)?;
        Ok(match self {
            Self::Never => false,
            Self::Type(types) => types.iter().any(|one| one.is_of(value)),
            Self::Enum(values, cost) => {
                fuel.take(*cost)?;
                values.iter().any(|one| equal(one, value))
            }
            Self::Const(one, cost) => {
                fuel.take(*cost)?;
                equal(one, value)
            }
            Self::Minimum(bound, edge) => value.as_number().is_none_or(|number| {
                let order = number::compare(number, bound);
                order.is_gt() || (order.is_eq() && *edge == Edge::Included)
            }),
            Self::Maximum(bound, edge) => value.as_number().is_none_or(|number| {
                let order = number::compare(number, bound);
                order.is_lt() || (order.is_eq() && *edge == Edge::Included)
            }),
            Self::MultipleOf(of) => {
                value.as_number().is_none_or(|number| number::is_multiple(number, of))
            }
            Self::Length(counts) => match value.as_str() {
                Some(text) => {
                    fuel.take(text_steps(text))?;
                    counts.allow(text.chars().count() as u64)
                }
                None => true,
            },
            Self::Pattern(pattern) => match value.as_str() {
                Some(text) => {
                    fuel.take(pattern.steps(text))?;
                    pattern.is_in(text)
                }
                None => true,
            },
            Self::ItemCount(counts) => {
                value.as_array().is_none_or(|items| counts.allow(items.len() as u64))
            }
            Self::UniqueItems => value.as_array().map_or(Ok(true), |items| unique(items, fuel))?,
            Self::MemberCount(counts) => {
                value.as_object().is_none_or(|members| counts.allow(members.len() as u64))
            }
            Self::Required(names) => {
                fuel.take(names.len() as u64)?;
                value.as_object().is_none_or(|members| missing(names, members).next().is_none())
            }
            Self::DependentRequired(of) => {
                fuel.take(of.values().map(|names| 1 + names.len() as u64).sum())?;
                value.as_object().is_none_or(|members| {
                    let mut there = of.iter().filter(|(name, _)| members.contains_key(*name));
                    there.all(|(_, names)| missing(names, members).next().is_none())
                })
            }
        })
    }

    /// The mistakes in a value for which it does not hold.
    pub(super) fn problems(&self, value: &Value) -> Vec<Problem> {
        let shown = Shown(value);
        let text = match self {
            Self::Never => "nothing is allowed here".to_owned(),
            Self::Type(types) => {
                let names: Vec<_> = types.iter().map(|one| format!("\"{}\"", one.name())).collect();
                match names.as_slice() {
                    [one] => format!("{shown} is not of type {one}"),
                    some => format!("{shown} is not of types {}", some.join(", ")),
                }
            }
            Self::Enum(values, _) => return vec![Problem::NotListed(listed(values))],
            Self::Const(one, _) => format!("{} was expected", Shown(one)),
            Self::Minimum(bound, Edge::Included) => format!("{shown} is less than {bound}"),
            Self::Minimum(bound, Edge::Excluded) => format!("{shown} is not more than {bound}"),
            Self::Maximum(bound, Edge::Included) => format!("{shown} is more than {bound}"),
            Self::Maximum(bound, Edge::Excluded) => format!("{shown} is not less than {bound}"),
            Self::MultipleOf(of) => format!("{shown} is not a multiple of {of}"),
            Self::Length(counts) => format!("{shown} does not have {}", counts.of("character")),
            Self::Pattern(pattern) => format!("{shown} does not match \"{}\"", pattern.source),
            Self::ItemCount(counts) => format!("{shown} does not have {}", counts.of("item")),
            Self::UniqueItems => format!("{shown} has equal items"),
            Self::MemberCount(counts) => format!("{shown} does not have {}", counts.of("member")),
            Self::Required(names) => {
                let members = value.as_object().into_iter();
                let missing = members.flat_map(|members| missing(names, members));
                return missing.map(|name| Problem::Missing(name.clone())).collect();
            }
            Self::DependentRequired(of) => {
                let all = value.as_object().into_iter().flat_map(|members| {
                    let there = of.iter().filter(|(name, _)| members.contains_key(*name));
                    there.flat_map(|(_, names)| missing(names, members))
                });
                return all.map(|name| Problem::Missing(name.clone())).collect();
            }
        };
        vec![Problem::Other(text)]
    }
}

fn missing<'n>(
    names: &'n [String],
    members: &Map<String, Value>,
) -> impl Iterator<Item = &'n String> {
    names.iter().filter(|name| !members.contains_key(*name))
}

fn unique(items: &[Value], fuel: &mut Fuel) -> Result<bool, Spent> {
    let mut seen = HashSet::with_capacity(items.len());
    for item in items {
        fuel.take(steps(item))?;
        let mut text = String::new();
        canonical(item, &mut text);
        if !seen.insert(text) {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Type {
    fn is_of(self, value: &Value) -> bool {
        match self {
            Self::Null => value.is_null(),
            Self::Boolean => value.is_boolean(),
            Self::Integer => value.as_number().is_some_and(number::is_whole),
            Self::Number => value.is_number(),
            Self::String => value.is_string(),
            Self::Array => value.is_array(),
            Self::Object => value.is_object(),
        }
    }
}

impl Counts {
    fn of(self, what: &str) -> String {
        let plural = |count: u64| if count == 1 { "" } else { "s" };
        match self {
            Self { min, max: u64::MAX } => format!("at least {min} {what}{}", plural(min)),
            Self { min: 0, max } => format!("at most {max} {what}{}", plural(max)),
            Self { min, max } => format!("{min} to {max} {what}s"),
        }
    }
}
