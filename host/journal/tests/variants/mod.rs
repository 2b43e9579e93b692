//! The variants of the enums in events: those that there are, and those that some events have.

use std::any::type_name;
use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use serde::ser::{self, Serialize, Serializer};

type Written = Result<(), serde_json::Error>;

/// An enum, with the words of its variants that are written.
pub(crate) struct Enum {
    names: Vec<&'static str>,
    words: BTreeSet<String>,
}

impl Enum {
    /// One whose word stands alone, or is the key of what belongs to it.
    pub(crate) fn keyed<T: DeserializeOwned>() -> Self {
        Self::of::<T>("\"?\"")
    }

    /// One whose word stands under this key, beside what belongs to it.
    pub(crate) fn tagged<T: DeserializeOwned>(tag: &str) -> Self {
        Self::of::<T>(&format!("{{\"{tag}\":\"?\"}}"))
    }

    /// Its words are in the error of a reader that meets another one.
    fn of<T: DeserializeOwned>(unknown: &str) -> Self {
        let error = serde_json::from_str::<T>(unknown).err().expect("it has no such variant");
        let error = error.to_string();
        let (_, known) = error.split_once(", expected ").expect("it says which there are");
        let words = known.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let path = type_name::<T>().split('<').next().expect("a name");
        Self { names: vec![path.rsplit("::").next().expect("a name")], words }
    }

    /// The same but for a variant that is left out where it is written, as it is the usual one.
    pub(crate) fn but_for(mut self, word: &str) -> Self {
        assert!(self.words.remove(word), "{word} is none of {:?}", self.words);
        self
    }

    /// The same, some variants of which are written as these structs with one more field.
    pub(crate) fn or_named(mut self, structs: &[&'static str]) -> Self {
        self.names.extend(structs);
        self
    }

    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.names.contains(&name)
    }

    /// The variants that are not among those that were found.
    pub(crate) fn missing(&self, found: &Variants) -> Vec<String> {
        let is_found = |word: &&String| {
            self.names.iter().any(|name| found.words.get(name).is_some_and(|of| of.contains(*word)))
        };
        let missing = self.words.iter().filter(|word| !is_found(word));
        missing.map(|word| format!("{} {word}", self.names[0])).collect()
    }
}

/// The variants that were found in what was written.
#[derive(Default)]
pub(crate) struct Variants {
    /// The words, by the names of their enums; also the first texts of structs, as the word of a
    /// variant may be one.
    words: BTreeMap<&'static str, BTreeSet<String>>,
    /// The enums whose word is no such text.
    pub(crate) keyed: BTreeSet<&'static str>,
    /// The struct of which no field was written yet.
    begun: Option<&'static str>,
}

impl Variants {
    pub(crate) fn look(&mut self, at: &impl Serialize) {
        at.serialize(self).expect("it can be written");
    }

    fn add(&mut self, name: &'static str, word: &str) {
        self.words.entry(name).or_default().insert(word.to_owned());
    }

    fn variant(&mut self, name: &'static str, word: &str) {
        self.begun = None;
        self.keyed.insert(name);
        self.add(name, word);
    }
}

macro_rules! without_variants {
    ($($method:ident: $type:ty,)+) => {
        $(fn $method(self, _: $type) -> Written {
            Ok(())
        })+
    };
}

impl Serializer for &mut Variants {
    type Ok = ();
    type Error = serde_json::Error;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    without_variants! {
        serialize_bool: bool,
        serialize_i8: i8,
        serialize_i16: i16,
        serialize_i32: i32,
        serialize_i64: i64,
        serialize_u8: u8,
        serialize_u16: u16,
        serialize_u32: u32,
        serialize_u64: u64,
        serialize_f32: f32,
        serialize_f64: f64,
        serialize_char: char,
        serialize_bytes: &[u8],
        serialize_unit_struct: &'static str,
    }

    fn serialize_str(self, text: &str) -> Written {
        if let Some(name) = self.begun.take() {
            self.add(name, text);
        }
        Ok(())
    }

    fn serialize_none(self) -> Written {
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Written {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Written {
        Ok(())
    }

    fn serialize_unit_variant(self, name: &'static str, _: u32, word: &'static str) -> Written {
        self.variant(name, word);
        Ok(())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Written {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        _: u32,
        word: &'static str,
        value: &T,
    ) -> Written {
        self.variant(name, word);
        value.serialize(self)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self, Self::Error> {
        Ok(self)
    }

    fn serialize_tuple(self, _: usize) -> Result<Self, Self::Error> {
        Ok(self)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self, Self::Error> {
        Ok(self)
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        _: u32,
        word: &'static str,
        _: usize,
    ) -> Result<Self, Self::Error> {
        self.variant(name, word);
        Ok(self)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self, Self::Error> {
        Ok(self)
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Self, Self::Error> {
        self.begun = Some(name);
        Ok(self)
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        _: u32,
        word: &'static str,
        _: usize,
    ) -> Result<Self, Self::Error> {
        self.variant(name, word);
        Ok(self)
    }
}

macro_rules! parts {
    ($($part:ident, $method:ident;)+) => {
        $(impl ser::$part for &mut Variants {
            type Ok = ();
            type Error = serde_json::Error;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Written {
                value.serialize(&mut **self)
            }

            fn end(self) -> Written {
                Ok(())
            }
        })+
    };
}

parts! {
    SerializeSeq, serialize_element;
    SerializeTuple, serialize_element;
    SerializeTupleStruct, serialize_field;
    SerializeTupleVariant, serialize_field;
}

macro_rules! fields {
    ($($part:ident,)+) => {
        $(impl ser::$part for &mut Variants {
            type Ok = ();
            type Error = serde_json::Error;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                _: &'static str,
                value: &T,
            ) -> Written {
                value.serialize(&mut **self)?;
                self.begun = None;
                Ok(())
            }

            fn end(self) -> Written {
                Ok(())
            }
        })+
    };
}

fields! {
    SerializeStruct,
    SerializeStructVariant,
}

impl ser::SerializeMap for &mut Variants {
    type Ok = ();
    type Error = serde_json::Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, _: &T) -> Written {
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Written {
        value.serialize(&mut **self)
    }

    fn end(self) -> Written {
        Ok(())
    }
}
