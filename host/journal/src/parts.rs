//! The pieces of a message, shared by all copies of it.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::message::Part;

/// The pieces of a message, in order of appearance. A copy shares them until one of the two is
/// changed, so a conversation is copied without its texts. As JSON it is a list.
#[derive(Clone, Debug, Default)]
pub struct Parts(Arc<List>);

#[derive(Clone, Debug, Default)]
struct List {
    parts: Vec<Part>,
    /// Their bytes, once somebody asked.
    bytes: OnceLock<usize>,
}

impl Parts {
    /// True if one is a copy of the other, and neither was changed since.
    #[must_use]
    pub fn is_copy_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Bytes of everything in them that somebody outside wrote; counted once.
    pub(crate) fn bytes(&self) -> usize {
        *self.0.bytes.get_or_init(|| self.0.parts.iter().map(Part::bytes).sum())
    }
}

impl From<Vec<Part>> for Parts {
    fn from(parts: Vec<Part>) -> Self {
        Self(Arc::new(List { parts, bytes: OnceLock::new() }))
    }
}

impl FromIterator<Part> for Parts {
    fn from_iter<I: IntoIterator<Item = Part>>(parts: I) -> Self {
        parts.into_iter().collect::<Vec<_>>().into()
    }
}

impl Deref for Parts {
    type Target = Vec<Part>;

    fn deref(&self) -> &Vec<Part> {
        &self.0.parts
    }
}

impl DerefMut for Parts {
    /// The list to change, which is one of its own from here on.
    fn deref_mut(&mut self) -> &mut Vec<Part> {
        let list = Arc::make_mut(&mut self.0);
        list.bytes = OnceLock::new();
        &mut list.parts
    }
}

impl IntoIterator for Parts {
    type Item = Part;
    type IntoIter = std::vec::IntoIter<Part>;

    fn into_iter(self) -> Self::IntoIter {
        Arc::unwrap_or_clone(self.0).parts.into_iter()
    }
}

impl<'a> IntoIterator for &'a Parts {
    type Item = &'a Part;
    type IntoIter = std::slice::Iter<'a, Part>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a> IntoIterator for &'a mut Parts {
    type Item = &'a mut Part;
    type IntoIter = std::slice::IterMut<'a, Part>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl PartialEq for Parts {
    fn eq(&self, other: &Self) -> bool {
        self.is_copy_of(other) || self.0.parts == other.0.parts
    }
}

impl<T> PartialEq<T> for Parts
where
    T: AsRef<[Part]>,
{
    fn eq(&self, other: &T) -> bool {
        self.0.parts == other.as_ref()
    }
}

impl Serialize for Parts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.parts.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Parts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Message, Role};

    #[test]
    fn a_copy_shares_its_parts_until_it_is_changed() {
        let first = Message::text(Role::User, "one");
        let mut second = first.clone();
        assert!(std::ptr::eq(&raw const first.parts[0], &raw const second.parts[0]));
        assert_eq!((first.bytes(), second.bytes()), (3, 3));
        second.parts.push(Part::Text("two, three".into()));
        assert_ne!(first, second);
        assert_eq!((first.bytes(), second.bytes()), (3, 13), "what was counted is counted anew");
        assert_eq!(first.parts, [Part::Text("one".into())]);
        for part in &mut second.parts {
            *part = Part::Json("1".into());
        }
        assert_eq!(second.bytes(), 2);
    }

    #[test]
    fn as_json_it_is_the_list_that_it_always_was() {
        let said = Message::text(Role::Tool, "x");
        let text = r#"{"role":"tool","parts":[{"text":"x"}]}"#;
        assert_eq!(serde_json::to_string(&said).expect("written"), text);
        assert_eq!(serde_json::from_str::<Message>(text).expect("read"), said);
    }
}
