//! Bounds on what the guests of all agents put into a workspace.

use super::read::Section;
use crate::defaults::Defaults;

/// Bytes of a workspace unless the policy says otherwise.
pub const WORKSPACE_BYTES_DEFAULT: u64 = 4 << 30;
/// Most bytes that a policy can let a workspace have: a pebibyte, beyond any disk.
pub const WORKSPACE_BYTES_MAX: u64 = 1 << 50;

/// Files and folders of a workspace unless the policy says otherwise.
pub const WORKSPACE_FILES_DEFAULT: u32 = 200_000;
/// Most files and folders that a policy can let a workspace have: each is looked at when they
/// are counted.
pub const WORKSPACE_FILES_MAX: u32 = 1_000_000;

/// Free space under which guests write nothing, unless the policy says otherwise: the store of a
/// host commits some minutes of heavy work in it.
pub const WORKSPACE_RESERVE_DEFAULT: u64 = 256 << 20;

/// Bounds of each workspace: `limits` of `[workspace]`. They hold for guests; people may put in
/// it what they like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkspaceLimits {
    /// Room of all folders together in which rules let guests write, in bytes of length,
    /// so that a file without contents counts as if it had them. `bytes`; see
    /// [`WORKSPACE_BYTES_DEFAULT`], at most [`WORKSPACE_BYTES_MAX`].
    pub bytes: u64,
    /// Files and folders in them. `files`; see [`WORKSPACE_FILES_DEFAULT`], at most
    /// [`WORKSPACE_FILES_MAX`].
    pub files: u32,
    /// Free bytes of the disk that guests leave alone. `reserve`; see
    /// [`WORKSPACE_RESERVE_DEFAULT`], at most [`WORKSPACE_BYTES_MAX`].
    pub reserve_bytes: u64,
}

impl Default for WorkspaceLimits {
    fn default() -> Self {
        Defaults::default().workspace_limits()
    }
}

pub(super) fn read_workspace_limits(
    workspace: &Section<'_, '_>,
    defaults: &Defaults,
) -> WorkspaceLimits {
    let default = defaults.workspace_limits();
    let Some(table) = workspace.section("limits") else { return default };
    table.expect_keys(&["bytes", "files", "reserve"]);
    WorkspaceLimits {
        bytes: table.size("bytes", 0..=WORKSPACE_BYTES_MAX).unwrap_or(default.bytes),
        files: table.count("files", 0..=WORKSPACE_FILES_MAX).unwrap_or(default.files),
        reserve_bytes: table
            .size("reserve", 0..=WORKSPACE_BYTES_MAX)
            .unwrap_or(default.reserve_bytes),
    }
}
