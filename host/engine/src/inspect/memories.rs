//! The memories that an instance of a component begins with, counted from the component's bytes: those
//! of a core module once for each of its instances, also within components that are instantiated.
//!
//! Modules and components that come from an import or an instance are not looked into, so that there
//! may be more, and never fewer.

use taskrun_policy::MEMORY_BYTES_MAX;
use wasmparser::{
    BinaryReaderError, ComponentAlias, ComponentExternalKind, ComponentInstance,
    ComponentOuterAliasKind, ComponentTypeRef, Encoding, Instance, Payload,
};

use crate::config::MEMORIES_MAX;

const PAGE_BYTES_LOG2: u32 = 16;

/// Memories of an instance as it begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Memories {
    count: u64,
    /// Bytes of all of them.
    pub(super) bytes: u64,
}

impl Memories {
    fn add(&mut self, more: Self) {
        self.count = self.count.saturating_add(more.count);
        self.bytes = self.bytes.saturating_add(more.bytes);
    }

    /// The need that no instance has met, in words as of the compiler, if there is one.
    pub(super) fn excess(self) -> Option<String> {
        let Self { count, bytes } = self;
        let most = |most: &str| format!("which exceeds the {most} that an instance has at most");
        if count > u64::from(MEMORIES_MAX) {
            Some(format!("it has {count} memories, {}", most(&MEMORIES_MAX.to_string())))
        } else if bytes > MEMORY_BYTES_MAX {
            let most = most(&size_words(MEMORY_BYTES_MAX));
            Some(format!("it begins with {} of memory, {most}", size_words(bytes)))
        } else {
            None
        }
    }
}

/// A size of memory in words.
pub(crate) fn size_words(bytes: u64) -> String {
    match bytes % (1 << 20) {
        0 => format!("{} MiB", bytes >> 20),
        _ => format!("{} KiB", bytes >> 10),
    }
}

/// The memories that are counted so far, payload by payload.
#[derive(Debug, Default)]
pub(super) struct MemoryCount {
    /// The components and the module that are open, the outermost first.
    open: Vec<Part>,
    whole: Memories,
}

/// A component, or a module, which has nothing but memories.
#[derive(Debug, Default)]
struct Part {
    is_module: bool,
    memories: Memories,
    /// The modules of a component, by their indices, with the memories of an instance of each.
    modules: Vec<Memories>,
    /// The same of its components.
    components: Vec<Memories>,
}

impl MemoryCount {
    /// Counts the next payload, which was found valid.
    pub(super) fn count(&mut self, payload: &Payload<'_>) -> Result<(), BinaryReaderError> {
        if let Payload::Version { encoding, .. } = payload {
            let is_module = matches!(encoding, Encoding::Module);
            self.open.push(Part { is_module, ..Part::default() });
        } else if let Payload::End(_) = payload {
            self.end();
        } else if let Payload::ComponentAliasSection(aliases) = payload {
            for alias in aliases.clone() {
                self.alias(&alias?);
            }
        } else if let Some(part) = self.open.last_mut() {
            part.count(payload)?;
        }
        Ok(())
    }

    /// The memories of the outermost component, once its end was counted.
    pub(super) fn whole(&self) -> Memories {
        self.whole
    }

    fn end(&mut self) {
        let Some(part) = self.open.pop() else { return };
        match self.open.last_mut() {
            Some(around) if part.is_module => around.modules.push(part.memories),
            Some(around) => around.components.push(part.memories),
            None => self.whole = part.memories,
        }
    }

    fn alias(&mut self, alias: &ComponentAlias<'_>) {
        let (of_module, memories) = match alias {
            ComponentAlias::InstanceExport { kind: ComponentExternalKind::Module, .. } => {
                (true, Memories::default())
            }
            ComponentAlias::InstanceExport { kind: ComponentExternalKind::Component, .. } => {
                (false, Memories::default())
            }
            ComponentAlias::Outer { kind: ComponentOuterAliasKind::CoreModule, count, index } => {
                (true, self.outer(*count, |part| &part.modules, *index))
            }
            ComponentAlias::Outer { kind: ComponentOuterAliasKind::Component, count, index } => {
                (false, self.outer(*count, |part| &part.components, *index))
            }
            ComponentAlias::InstanceExport { .. }
            | ComponentAlias::CoreInstanceExport { .. }
            | ComponentAlias::Outer { .. } => return,
        };
        if let Some(part) = self.open.last_mut() {
            let all = if of_module { &mut part.modules } else { &mut part.components };
            all.push(memories);
        }
    }

    /// The memories of a module or a component of a component so far outside of the innermost one.
    fn outer(&self, count: u32, all: impl Fn(&Part) -> &Vec<Memories>, index: u32) -> Memories {
        let part = self.open.iter().rev().nth(count as usize);
        part.map_or_else(Memories::default, |part| at(all(part), index))
    }
}

impl Part {
    fn count(&mut self, payload: &Payload<'_>) -> Result<(), BinaryReaderError> {
        if let Payload::MemorySection(memories) = payload {
            for memory in memories.clone() {
                let memory = memory?;
                let page = 1_u64 << memory.page_size_log2.unwrap_or(PAGE_BYTES_LOG2).min(32);
                let bytes = memory.initial.saturating_mul(page);
                self.memories.add(Memories { count: 1, bytes });
            }
        } else if let Payload::InstanceSection(instances) = payload {
            for instance in instances.clone() {
                if let Instance::Instantiate { module_index, .. } = instance? {
                    self.memories.add(at(&self.modules, module_index));
                }
            }
        } else if let Payload::ComponentInstanceSection(instances) = payload {
            for instance in instances.clone() {
                if let ComponentInstance::Instantiate { component_index, .. } = instance? {
                    self.memories.add(at(&self.components, component_index));
                }
            }
        } else if let Payload::ComponentImportSection(imports) = payload {
            for import in imports.clone() {
                match import?.ty {
                    ComponentTypeRef::Module(_) => self.modules.push(Memories::default()),
                    ComponentTypeRef::Component(_) => self.components.push(Memories::default()),
                    ComponentTypeRef::Func(_)
                    | ComponentTypeRef::Value(_)
                    | ComponentTypeRef::Type(_)
                    | ComponentTypeRef::Instance(_) => {}
                }
            }
        } else if let Payload::ComponentExportSection(exports) = payload {
            // An export is one more index of what it exports.
            for export in exports.clone() {
                let export = export?;
                match export.kind {
                    ComponentExternalKind::Module => {
                        self.modules.push(at(&self.modules, export.index));
                    }
                    ComponentExternalKind::Component => {
                        self.components.push(at(&self.components, export.index));
                    }
                    ComponentExternalKind::Func
                    | ComponentExternalKind::Value
                    | ComponentExternalKind::Type
                    | ComponentExternalKind::Instance => {}
                }
            }
        }
        Ok(())
    }
}

fn at(all: &[Memories], index: u32) -> Memories {
    all.get(index as usize).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use wasmparser::Parser;

    use super::*;

    fn memories(parts: &str) -> (u64, u64) {
        let bytes = wat::parse_str(format!("(component {parts})")).expect("it is text");
        let mut counted = MemoryCount::default();
        for payload in Parser::new(0).parse_all(&bytes) {
            counted.count(&payload.expect("it can be read")).expect("it can be read");
        }
        let Memories { count, bytes } = counted.whole();
        (count, bytes >> PAGE_BYTES_LOG2)
    }

    #[test]
    fn memories_are_counted_for_each_instance() {
        let module = "(core module $m (memory 3) (memory 4))";
        let two = "(core instance (instantiate $m)) (core instance (instantiate $m))";
        assert_eq!(memories(module), (0, 0), "of no instance");
        assert_eq!(memories(&format!("{module} {two}")), (4, 14));
        // One that imports its memory has none.
        let imports = "(core module $i (import \"m\" \"m\" (memory 1)))
            (core module $o (memory (export \"m\") 9))
            (core instance $o (instantiate $o))
            (core instance (instantiate $i (with \"m\" (instance $o))))";
        assert_eq!(memories(imports), (1, 9));
    }

    #[test]
    fn memories_of_components_within_are_counted_as_these_are_instantiated() {
        let within = "(core module $m (memory 3))
            (component $c (core instance (instantiate $m)) (core instance (instantiate $m)))
            (component $d (instance (instantiate $c)) (instance (instantiate $c)))";
        assert_eq!(memories(within), (0, 0));
        let with = |more: &str| memories(&format!("{within} {more}"));
        assert_eq!(with("(instance (instantiate $c))"), (2, 6));
        assert_eq!(with("(instance (instantiate $d)) (core instance (instantiate $m))"), (5, 15));
        // By the index that an export adds.
        let exported = "(export $e \"e\" (component $d)) (instance (instantiate $e))";
        assert_eq!(with(exported), (4, 12));
    }

    #[test]
    fn indices_of_what_is_imported_are_counted_and_not_looked_into() {
        let imported = "(import \"m\" (core module $i)) (import \"c\" (component $c))
            (core module $m (memory 2))
            (core instance (instantiate $i)) (instance (instantiate $c))
            (core instance (instantiate $m))";
        assert_eq!(memories(imported), (1, 2));
    }

    #[test]
    fn what_no_instance_has_is_told_with_its_bound() {
        let of = |count, pages: u64| Memories { count, bytes: pages << PAGE_BYTES_LOG2 }.excess();
        assert_eq!(of(4, 1_024), None);
        let many = "it has 5 memories, which exceeds the 4 that an instance has at most";
        assert_eq!(of(5, 0).as_deref(), Some(many));
        let large = "it begins with 65600 KiB of memory, which exceeds the 64 MiB that an instance \
                     has at most";
        assert_eq!(of(1, 1_025).as_deref(), Some(large));
    }
}
