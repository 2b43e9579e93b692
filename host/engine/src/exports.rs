//! The functions that a component exports for its role, held to the types that the host calls them by.
//!
//! Their names alone say little: a component that was built for another form of the interfaces has the
//! same, and each of its calls would end.

use wasmtime::component::types::ComponentItem;
use wasmtime::component::{ComponentExportIndex, ComponentNamedList, InstancePre, Lift, Lower};

use crate::bindings::HOST_VERSION;
use crate::error::LoadError;
use crate::state::CallState;

/// Finds a function of an exported interface with these parameters and results. No instance is made
/// for it.
///
/// # Errors
/// [`LoadError::Mismatch`] if there is no such function, or if it has other types.
pub(crate) fn function<Params, Results>(
    pre: &InstancePre<CallState>,
    interface: &str,
    name: &str,
) -> Result<ComponentExportIndex, LoadError>
where
    Params: ComponentNamedList + Lower,
    Results: ComponentNamedList + Lift,
{
    let component = pre.component();
    let interface = format!("{interface}@{HOST_VERSION}");
    let mismatch = |fault: &str| LoadError::Mismatch {
        detail: format!("the export `{name}` of `{interface}` {fault}"),
    };
    let exported = component.get_export_index(None, interface.as_str());
    let found = exported.and_then(|exported| component.get_export(Some(&exported), name));
    let (item, index) = found.ok_or_else(|| mismatch("is missing"))?;
    let ComponentItem::ComponentFunc(function) = item else {
        return Err(mismatch("is no function"));
    };
    function
        .typecheck::<Params, Results>(&pre.instance_type())
        .map_err(|error| mismatch(&format!("has another form than this host's: {error:#}")))?;
    Ok(index)
}
