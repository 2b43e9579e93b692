//! A component's imports against an agent's grants.

use taskrun_policy::{Capability, CapabilityAccess, Grants, Preopen};

use crate::error::{LoadError, MissingGrant, Need};
use crate::inspect::{
    ImportClass, ImportInfo, Inspection, Kind, LOG, PLANNER, POLICY, TOOLS, WASI_FILES,
};

/// The role in which a component is linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Agent,
    Tool,
    Policy,
}

impl Role {
    fn export(self) -> &'static str {
        match self {
            Self::Agent => PLANNER,
            Self::Tool => TOOLS,
            Self::Policy => POLICY,
        }
    }
}

/// Checks that a component fits its role and imports nothing beyond its grants.
///
/// # Errors
/// [`LoadError::WrongWorld`], or [`LoadError::Denied`] with everything that is missing.
pub(crate) fn check(
    inspection: &Inspection,
    role: Role,
    agent: &str,
    grants: &Grants,
) -> Result<(), LoadError> {
    if !inspection.exports(role.export()) {
        let found = inspection.exports.iter().map(|export| export.interface.clone()).collect();
        return Err(LoadError::WrongWorld { wanted: role.export(), found });
    }
    let missing: Vec<MissingGrant> = inspection
        .imports
        .iter()
        .filter_map(|import| {
            let need = match role {
                Role::Agent | Role::Tool => need(import.class, role, grants)?,
                Role::Policy => need_of_policy(import)?,
            };
            Some(MissingGrant { import: import.interface.clone(), agent: agent.to_owned(), need })
        })
        .collect();
    if missing.is_empty() { Ok(()) } else { Err(LoadError::Denied(missing)) }
}

/// The reason that a policy may not have an import: it decides from its input alone.
fn need_of_policy(import: &ImportInfo) -> Option<Need> {
    match import.class {
        ImportClass::Types | ImportClass::WasiFiles | ImportClass::WasiInert => None,
        ImportClass::Always if import.name() == LOG => None,
        ImportClass::Always
        | ImportClass::Agents
        | ImportClass::Capability(_)
        | ImportClass::Sockets
        | ImportClass::Unknown => Some(Need::NotForPolicies),
        ImportClass::OtherWasi => Some(Need::OtherWasi),
    }
}

/// The reason that an import of a class is missing, if it is.
fn need(class: ImportClass, role: Role, grants: &Grants) -> Option<Need> {
    if let Some(refused) = refusal(class, role) {
        return Some(refused);
    }
    match class {
        ImportClass::Capability(capability) => match grants.access(capability) {
            CapabilityAccess::Selective | CapabilityAccess::Denied(_) => None,
            CapabilityAccess::Unlisted => Some(Need::Rule(capability)),
        },
        ImportClass::Types
        | ImportClass::Always
        | ImportClass::Agents
        | ImportClass::WasiFiles
        | ImportClass::WasiInert
        | ImportClass::Sockets
        | ImportClass::OtherWasi
        | ImportClass::Unknown => None,
    }
}

/// The reason that no rule gives an import of a class to a component of a role, if none does.
fn refusal(class: ImportClass, role: Role) -> Option<Need> {
    match (class, role) {
        (ImportClass::Types | ImportClass::Always, _) => None,
        (ImportClass::WasiFiles | ImportClass::WasiInert, _) => None,
        (ImportClass::Agents, Role::Agent) => None,
        (ImportClass::Agents, Role::Tool | Role::Policy) => Some(Need::AgentsOnly),
        // Tools ask no models: what they cost would be on nobody's account. Prompts are for those
        // who do.
        (ImportClass::Capability(Capability::Model | Capability::Prompts), Role::Tool) => {
            Some(Need::AgentsOnly)
        }
        // A planner only decides. What it wants to be remembered it asks a tool to keep, where it
        // is a call that is recorded, and counted, and made once.
        (ImportClass::Capability(Capability::MemoryWrite), Role::Agent) => Some(Need::ToolsOnly),
        (ImportClass::Capability(_), _) => None,
        (ImportClass::Sockets, _) => Some(Need::Sockets),
        (ImportClass::OtherWasi, _) => Some(Need::OtherWasi),
        (ImportClass::Unknown, _) => Some(Need::Unknown),
    }
}

impl ImportInfo {
    /// True if no component of this kind is given it, whatever the policy says.
    #[must_use]
    pub fn is_refused_to(&self, kind: Kind) -> bool {
        let is_refused = |role| refusal(self.class, role).is_some();
        match kind {
            Kind::Agent => is_refused(Role::Agent),
            Kind::Tool => is_refused(Role::Tool),
            Kind::AgentAndTool => is_refused(Role::Agent) && is_refused(Role::Tool),
            Kind::Policy => need_of_policy(self).is_some(),
            Kind::Other => false,
        }
    }
}

/// The folders for WASI's file system, if the component imports it.
///
/// # Errors
/// [`LoadError::Preopens`] if the rules cannot be expressed in folders.
pub(crate) fn preopens(
    inspection: &Inspection,
    grants: &Grants,
) -> Result<Vec<Preopen>, LoadError> {
    if !inspection.imports(WASI_FILES) {
        return Ok(Vec::new());
    }
    grants.preopens().map_err(|fault| LoadError::Preopens { reason: fault.to_string() })
}
