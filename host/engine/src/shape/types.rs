//! Counts of what types consist of. The number that a section states is that of its outermost entries:
//! one of them may hold a million types, or as many declarations, or others of its kind within each
//! other.
//!
//! [`wasmparser`] reads an entry whole, and goes down into it by calling itself, however deeply it is
//! nested: 600 KB of instance types, each inside the one before, overflow the stack of whoever reads
//! them. So components' and instances' types are gone through here without reading them, one
//! declaration after the other.

use wasmparser::{
    BinaryReader, ComponentDefinedType, ComponentType, ComponentTypeDeclaration,
    ModuleTypeDeclaration, RecGroup,
};

use super::{DECLARATIONS_MAX, TYPE_DEPTH_MAX, TYPES_MAX, add, at_most, unreadable};
use crate::error::LoadError;

/// First byte of core types that refer to each other.
const GROUP: u8 = 0x4e;
/// First byte of the type of a core module.
const MODULE: u8 = 0x50;
/// Byte before a core type in a component that could be taken for the type of a module.
const NO_MODULE: u8 = 0x00;
/// First bytes of the types of a component and an instance.
const COMPONENT: u8 = 0x41;
const INSTANCE: u8 = 0x42;
/// First bytes of declarations that hold a type.
const CORE_TYPE_DECLARATION: u8 = 0x00;
const TYPE_DECLARATION: u8 = 0x01;
/// First byte of a declaration of a module's type that holds types.
const MODULE_TYPE_DECLARATION: u8 = 0x01;

/// The counts so far, of all sections.
#[derive(Debug, Default)]
pub(super) struct TypeCounts {
    /// Core types, those of a group one by one.
    core: u64,
    /// Declarations in types, fields, cases, names and parameters.
    declarations: u64,
}

impl TypeCounts {
    /// Counts the section of a core module's types.
    pub(super) fn count_of_module(&mut self, mut section: BinaryReader) -> Result<(), LoadError> {
        for _ in 0..number(&mut section)? {
            self.group(&mut section)?;
        }
        Ok(())
    }

    /// Counts a section of core types of a component.
    pub(super) fn count_core(&mut self, mut section: BinaryReader) -> Result<(), LoadError> {
        for _ in 0..number(&mut section)? {
            self.core_type(&mut section)?;
        }
        Ok(())
    }

    /// Counts a section of a component's types.
    pub(super) fn count(&mut self, mut section: BinaryReader) -> Result<(), LoadError> {
        for _ in 0..number(&mut section)? {
            // Declarations that are still to come, of each type that has not come to its end.
            let mut open = Vec::new();
            self.begin(&mut section, &mut open)?;
            while let Some(left) = open.last_mut() {
                match left.checked_sub(1) {
                    Some(rest) => {
                        *left = rest;
                        self.declaration(&mut section, &mut open)?;
                    }
                    None => drop(open.pop()),
                }
            }
        }
        Ok(())
    }

    fn declare(&mut self, parts: u64) -> Result<(), LoadError> {
        add(&mut self.declarations, parts, "declarations and fields of types", DECLARATIONS_MAX)
    }

    /// Reads a type, but of those that hold others only the number of their declarations.
    fn begin(&mut self, section: &mut BinaryReader, open: &mut Vec<u32>) -> Result<(), LoadError> {
        if !matches!(next(section)?, COMPONENT | INSTANCE) {
            let read = section.read().map_err(unreadable)?;
            return self.declare(parts(&read));
        }
        skip(section)?;
        let declarations = number(section)?;
        self.declare(declarations.into())?;
        open.push(declarations);
        at_most("types inside types", open.len() as u64, TYPE_DEPTH_MAX)
    }

    fn declaration(
        &mut self,
        section: &mut BinaryReader,
        open: &mut Vec<u32>,
    ) -> Result<(), LoadError> {
        match next(section)? {
            CORE_TYPE_DECLARATION => {
                skip(section)?;
                self.core_type(section)
            }
            TYPE_DECLARATION => {
                skip(section)?;
                self.begin(section, open)
            }
            // An alias, an import or an export: they name types, and hold none.
            _ => section.read::<ComponentTypeDeclaration>().map(drop).map_err(unreadable),
        }
    }

    fn core_type(&mut self, section: &mut BinaryReader) -> Result<(), LoadError> {
        match next(section)? {
            MODULE => {
                skip(section)?;
                let declarations = number(section)?;
                self.declare(declarations.into())?;
                for _ in 0..declarations {
                    self.module_declaration(section)?;
                }
                Ok(())
            }
            NO_MODULE => {
                skip(section)?;
                self.group(section)
            }
            _ => self.group(section),
        }
    }

    fn module_declaration(&mut self, section: &mut BinaryReader) -> Result<(), LoadError> {
        if next(section)? == MODULE_TYPE_DECLARATION {
            skip(section)?;
            return self.group(section);
        }
        section.read::<ModuleTypeDeclaration>().map(drop).map_err(unreadable)
    }

    /// Counts core types that refer to each other, or one alone, and reads them only then.
    fn group(&mut self, section: &mut BinaryReader) -> Result<(), LoadError> {
        let mut types = 1;
        if next(section)? == GROUP {
            let mut ahead = section.clone();
            skip(&mut ahead)?;
            types = number(&mut ahead)?.max(1);
        }
        add(&mut self.core, types.into(), "types", TYPES_MAX)?;
        section.read::<RecGroup>().map(drop).map_err(unreadable)
    }
}

fn number(section: &mut BinaryReader) -> Result<u32, LoadError> {
    section.read_var_u32().map_err(unreadable)
}

/// The byte that comes next, which is left there.
fn next(section: &BinaryReader) -> Result<u8, LoadError> {
    section.clone().read_u8().map_err(unreadable)
}

fn skip(section: &mut BinaryReader) -> Result<(), LoadError> {
    section.read_u8().map(drop).map_err(unreadable)
}

/// Fields, cases, names or parameters of a type that holds no declarations.
fn parts(read: &ComponentType) -> u64 {
    use ComponentDefinedType as D;

    let parts = match read {
        ComponentType::Func(function) => function.params.len(),
        ComponentType::Defined(D::Record(fields)) => fields.len(),
        ComponentType::Defined(D::Variant(cases)) => cases.len(),
        ComponentType::Defined(D::Tuple(types)) => types.len(),
        ComponentType::Defined(D::Flags(names) | D::Enum(names)) => names.len(),
        ComponentType::Component(_)
        | ComponentType::Instance(_)
        | ComponentType::Resource { .. }
        | ComponentType::Defined(
            D::Primitive(_)
            | D::List(_)
            | D::Map(..)
            | D::FixedLengthList(..)
            | D::Option(_)
            | D::Result { .. }
            | D::Own(_)
            | D::Borrow(_)
            | D::Future(_)
            | D::Stream(_),
        ) => 0,
    };
    parts as u64
}
