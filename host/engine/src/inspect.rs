//! The imports and exports of a component, read from its type, before anything is compiled.

pub(crate) mod given;
pub(crate) mod kept;
pub(crate) mod memories;
pub(crate) mod outline;

use std::fmt;

use taskrun_policy::Capability;

use self::given::GivenInterface;
use self::outline::Outline;
use crate::bindings::HOST_VERSION;
use crate::error::LoadError;

/// Our package in `wit/`.
const PACKAGE: &str = "taskrun:plugin";
/// The export of agents.
pub(crate) const PLANNER: &str = "taskrun:plugin/planner";
/// The import of agents that ask about the conversation of their run where the host has it. Their
/// later steps are shown what is new of it.
pub(crate) const CONVERSATION: &str = "taskrun:plugin/conversation";
/// The export that agents may have besides.
pub(crate) const FINALIZER: &str = "taskrun:plugin/finalizer";
/// The export of tools.
pub(crate) const TOOLS: &str = "taskrun:plugin/tools";
/// The export of policies.
pub(crate) const POLICY: &str = "taskrun:plugin/policy";
/// All that policies import of ours.
pub(crate) const LOG: &str = "taskrun:plugin/log";
/// Longest name of an import, an export or a function of one. WIT's are words and a version.
const NAME_BYTES_MAX: usize = 512;
/// Characters that are shown of a name which is refused.
const NAME_CHARS_SHOWN: usize = 80;
/// WASI's own files; needs folders to be expressed in.
pub(crate) const WASI_FILES: &str = "wasi:filesystem/types";

/// The kind of a component, with its imports and exports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// `blake3:` and the hash of its bytes in hexadecimal digits.
    pub digest: String,
    /// Bytes of the component.
    pub size: u64,
    /// The component's role.
    pub kind: Kind,
    /// Its imports, sorted by name.
    pub imports: Vec<ImportInfo>,
    /// Its exports, sorted by name.
    pub exports: Vec<ExportInfo>,
    /// Bytes of memory that an instance begins with, at least; 0 if that is not known.
    pub memory_bytes: u64,
    /// The reason that no host like this one loads it, though it can be looked at, as the compiler
    /// says it; `None` if none is known.
    pub refused: Option<String>,
}

/// Role of a component, by what it exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An agent: exports `planner`.
    Agent,
    /// A tool: exports `tools`.
    Tool,
    /// Both at once.
    AgentAndTool,
    /// Exports `policy` and neither of them.
    Policy,
    /// Exports none of them.
    Other,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Agent => "agent",
            Self::Tool => "tool",
            Self::AgentAndTool => "agent and tool",
            Self::Policy => "policy",
            Self::Other => "neither agent nor tool",
        })
    }
}

/// An import of a component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportInfo {
    /// As the component names it, with its version.
    pub interface: String,
    /// Functions that it imports from there, sorted; methods as in `[method]stream.next`.
    pub functions: Vec<String>,
    /// The condition on which it is given.
    pub class: ImportClass,
}

/// An export of a component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportInfo {
    /// As the component names it, with its version.
    pub interface: String,
    /// Functions that it offers there, sorted.
    pub functions: Vec<String>,
}

/// The condition on which an import is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportClass {
    /// Only types: nothing to be had.
    Types,
    /// Given to every component, within bounds.
    Always,
    /// Given to every agent and to no tool.
    Agents,
    /// A rule that grants the capability.
    Capability(Capability),
    /// WASI's own files: given to every component, with the folders that the workspace rules grant,
    /// and with none where there is no such rule.
    WasiFiles,
    /// The imports that languages' standard libraries always have; given to every component and
    /// leads nowhere: no variables, no arguments.
    WasiInert,
    /// Sockets, never given.
    Sockets,
    /// WASI in a version that the host does not speak.
    OtherWasi,
    /// Unknown to the host.
    Unknown,
}

impl fmt::Display for ImportClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Types => f.write_str("types only"),
            Self::Always => f.write_str("always given"),
            Self::Agents => f.write_str("given to agents"),
            Self::Capability(capability) => write!(f, "needs {capability}"),
            Self::WasiFiles => f.write_str("files, by the workspace-* rules"),
            Self::WasiInert => f.write_str("inert"),
            Self::Sockets => f.write_str("never given"),
            Self::OtherWasi => f.write_str("unknown, as this host speaks WASI 0.2"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

impl ImportClass {
    /// The capabilities whose rules say what an import of this class gives.
    #[must_use]
    pub fn capabilities(&self) -> &[Capability] {
        match self {
            Self::Capability(capability) => std::slice::from_ref(capability),
            Self::WasiFiles => &[Capability::WorkspaceRead, Capability::WorkspaceWrite],
            Self::Types
            | Self::Always
            | Self::Agents
            | Self::WasiInert
            | Self::Sockets
            | Self::OtherWasi
            | Self::Unknown => &[],
        }
    }
}

impl ImportInfo {
    /// Its name without the version.
    #[must_use]
    pub fn name(&self) -> &str {
        split_version(&self.interface).0
    }
}

impl Inspection {
    /// The findings about a component of `size` bytes, by its outline.
    ///
    /// # Errors
    /// - [`LoadError::Name`] if it names anything otherwise than WIT does.
    /// - [`LoadError::Version`] if it uses our interfaces in a version that this host does not speak.
    pub(crate) fn of(
        digest: &blake3::Hash,
        size: u64,
        outline: Outline,
    ) -> Result<Self, LoadError> {
        let Outline { imports, exports, memory_bytes, refused } = outline;
        let found = Self::known(digest, size, imports.into_iter(), exports.into_iter());
        let found = Self { memory_bytes, refused, ..found };
        let imports = found.imports.iter().map(|one| (&one.interface, &one.functions));
        let exports = found.exports.iter().map(|one| (&one.interface, &one.functions));
        let items = imports.chain(exports);
        check_names(
            items.clone().flat_map(|(name, functions)| [name].into_iter().chain(functions)),
        )?;
        check_versions(items.map(|(name, _)| name))?;
        Ok(found)
    }

    /// An inspection made of what was kept: imports with their functions and whether they have only
    /// types, and exports with their functions.
    pub(crate) fn known(
        digest: &blake3::Hash,
        size: u64,
        imports: impl Iterator<Item = (String, Vec<String>, bool)>,
        exports: impl Iterator<Item = (String, Vec<String>)>,
    ) -> Self {
        let imports = imports.map(|(interface, functions, only_types)| {
            let class = if only_types { ImportClass::Types } else { classify(&interface) };
            ImportInfo { interface, functions, class }
        });
        let exports = exports.map(|(interface, functions)| ExportInfo { interface, functions });
        let mut known = Self {
            digest: named(digest),
            size,
            kind: Kind::Other,
            imports: imports.collect(),
            exports: exports.collect(),
            memory_bytes: 0,
            refused: None,
        };
        known.kind = known.found_kind();
        known
    }

    /// The error with which it does not load under any policy, if that is known.
    #[must_use]
    pub fn refusal(&self) -> Option<LoadError> {
        self.refused.as_deref().map(LoadError::from_compiler_text)
    }

    /// The role, by what is exported.
    fn found_kind(&self) -> Kind {
        match (self.exports(PLANNER), self.exports(TOOLS)) {
            (true, false) => Kind::Agent,
            (false, true) => Kind::Tool,
            (true, true) => Kind::AgentAndTool,
            (false, false) if self.exports(POLICY) => Kind::Policy,
            (false, false) => Kind::Other,
        }
    }

    /// True if an interface is imported, whatever its version, with something in it.
    pub(crate) fn imports(&self, name: &str) -> bool {
        self.imports
            .iter()
            .any(|import| import.name() == name && import.class != ImportClass::Types)
    }

    /// True if an interface is exported in a version that this host speaks.
    pub(crate) fn exports(&self, name: &str) -> bool {
        self.exports.iter().any(|export| {
            let (found, version) = split_version(&export.interface);
            found == name && is_compatible(version)
        })
    }
}

/// A component's digest as it is shown.
pub(crate) fn named(digest: &blake3::Hash) -> String {
    format!("blake3:{}", digest.to_hex())
}

/// Checks the names, which are read by people, who decide by them. Besides WIT's own names the
/// format has some that are any text, such as URLs, and lead nowhere here.
fn check_names<'a>(mut names: impl Iterator<Item = &'a String>) -> Result<(), LoadError> {
    match names.find(|name| !is_plain(name)) {
        None => Ok(()),
        Some(name) => {
            let shown: String = name.chars().take(NAME_CHARS_SHOWN).collect();
            Err(LoadError::Name { name: shown.escape_default().to_string() })
        }
    }
}

/// True if a name is of such characters as `ns:pkg/iface@1.0.0`, `a-function` and
/// `[method]stream.next` are made of.
fn is_plain(name: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || "-:/@.+[]".contains(c);
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(is_word)
}

fn check_versions<'a>(names: impl Iterator<Item = &'a String>) -> Result<(), LoadError> {
    for name in names {
        let (interface, version) = split_version(name);
        if interface.split('/').next() == Some(PACKAGE) && !is_compatible(version) {
            let found = version.unwrap_or("(none)").to_owned();
            return Err(LoadError::Version { interface: interface.to_owned(), found });
        }
    }
    Ok(())
}

fn classify(name: &str) -> ImportClass {
    let (interface, version) = split_version(name);
    if let Some(ours) = interface.strip_prefix("taskrun:plugin/") {
        return match ours {
            "types" | "log" | "clock" | "random" | "run" | "cancellation" => ImportClass::Always,
            "events" | "state" | "reminders" => ImportClass::Agents,
            // It is there to ask models.
            "conversation" => ImportClass::Capability(Capability::Model),
            other => Capability::ALL
                .into_iter()
                .find(|capability| capability.as_str() == other)
                .map_or(ImportClass::Unknown, ImportClass::Capability),
        };
    }
    if !version.is_some_and(|version| version.starts_with("0.2.") && is_release(version)) {
        return match interface.starts_with("wasi:") {
            true => ImportClass::OtherWasi,
            false => ImportClass::Unknown,
        };
    }
    match GivenInterface::named(interface) {
        Some(given) if given.is_of_files() => return ImportClass::WasiFiles,
        Some(_) => return ImportClass::WasiInert,
        None => {}
    }
    match interface.split_once('/') {
        Some(("wasi:http", "types" | "outgoing-handler")) => {
            ImportClass::Capability(Capability::Http)
        }
        Some(("wasi:sockets", _)) => ImportClass::Sockets,
        Some(_) | None => ImportClass::Unknown,
    }
}

/// True for a version that is no preview of another one: nothing is compatible with those.
fn is_release(version: &str) -> bool {
    version.split('+').next().is_some_and(|release| !release.contains('-'))
}

fn split_version(name: &str) -> (&str, Option<&str>) {
    match name.split_once('@') {
        Some((interface, version)) => (interface, Some(version)),
        None => (name, None),
    }
}

/// True if a version of our package fits this host's: below 1.0 the second number must agree.
fn is_compatible(version: Option<&str>) -> bool {
    let head = |version: &str| version.splitn(3, '.').take(2).collect::<Vec<_>>().join(".");
    version.is_some_and(|version| is_release(version) && head(version) == head(HOST_VERSION))
}

#[cfg(test)]
mod tests;
