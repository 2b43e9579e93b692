//! The memory that this process may have: the machine's, or less where it is in a control group.

use std::fs;
use std::path::{Component, Path};

/// The part of it that is for guests; the rest is the host's, for itself and for what it holds for
/// guests.
const GUESTS_PART: (u64, u64) = (3, 4);
/// Bytes for guests that a host has at least, as fewer are no use.
const GUESTS_BYTES_MIN: u64 = 256 << 20;
/// Bytes of a machine that does not say how many it has.
const UNKNOWN_BYTES: u64 = 4 << 30;

/// Bytes of the memories of all guests of an engine together, unless set otherwise: three quarters
/// of the machine's memory, or of what the control groups of this process allow it if that is less,
/// and 256 MiB at least. It reads a few files of the system, which takes a tenth of a millisecond.
#[must_use]
pub fn guest_memory_default() -> u64 {
    guests_part(process_memory().unwrap_or(UNKNOWN_BYTES))
}

/// Bytes of one compilation, or of a look at a component, at most: of all that this process may
/// have the same part as guests. The system would end one that takes much more than that, which says
/// nothing of the component.
pub(crate) fn compile_memory_max() -> u64 {
    process_memory().map_or(u64::MAX, part)
}

fn guests_part(bytes: u64) -> u64 {
    part(bytes).max(GUESTS_BYTES_MIN)
}

fn part(bytes: u64) -> u64 {
    let (part, whole) = GUESTS_PART;
    (bytes / whole).saturating_mul(part)
}

fn process_memory() -> Option<u64> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| machine_memory(&text));
    let mounted = Path::new("/sys/fs/cgroup");
    let groups = read("/proc/self/cgroup").and_then(|text| group_limit(&text, mounted));
    machine.into_iter().chain(groups).min()
}

fn machine_memory(meminfo: &str) -> Option<u64> {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1 << 10)
}

/// The least limit of the control groups that `/proc/self/cgroup` names, and of those above them,
/// in both versions of these: one for all kinds (`0::/a/b`), or one for memory (`4:memory:/a/b`).
fn group_limit(groups: &str, mounted: &Path) -> Option<u64> {
    let limit = |line: &str| {
        let (kinds, path) = line.split_once(':')?.1.split_once(':')?;
        if kinds.is_empty() {
            return least(mounted, path, "memory.max");
        }
        let is_memory = kinds.split(',').any(|kind| kind == "memory");
        is_memory.then(|| least(&mounted.join("memory"), path, "memory.limit_in_bytes")).flatten()
    };
    groups.lines().filter_map(limit).min()
}

/// The least number in the files of this name in a group and those above it. A group that has no
/// limit says so by a word, or by a number beyond every machine.
fn least(mounted: &Path, group: &str, file: &str) -> Option<u64> {
    let group = Path::new(group.trim_start_matches('/'));
    // A path that leads up is one of a group outside of those that are mounted here.
    let is_here = group.components().all(|part| matches!(part, Component::Normal(_)));
    let group = if is_here { group } else { Path::new("") };
    let limit = |group: &Path| -> Option<u64> {
        fs::read_to_string(mounted.join(group).join(file)).ok()?.trim().parse().ok()
    };
    group.ancestors().filter_map(limit).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn write(folder: &Path, file: &str, text: &str) {
        fs::create_dir_all(folder).expect("a folder");
        fs::write(folder.join(file), text).expect("a file");
    }

    #[test]
    fn guests_have_three_quarters_and_a_quarter_of_a_gibibyte_at_least() {
        assert_eq!(guests_part(512 * MIB), 384 * MIB);
        assert_eq!(guests_part(64 * MIB), 256 * MIB);
        assert!(guest_memory_default() >= 256 * MIB);
    }

    #[test]
    fn a_compilation_has_the_same_part_and_no_least() {
        assert_eq!(part(64 * MIB), 48 * MIB);
        let ends_before = |known| compile_memory_max() < known;
        assert!(process_memory().is_none_or(ends_before), "the system does not end it");
    }

    #[test]
    fn the_memory_of_a_machine_is_read() {
        let text = "MemTotal:       16265520 kB\nMemFree:          264040 kB\n";
        assert_eq!(machine_memory(text), Some(16_265_520 << 10));
        assert_eq!(machine_memory("MemFree: 1 kB\n"), None);
    }

    #[test]
    fn the_least_limit_of_a_group_and_of_those_above_it_counts() {
        let dir = tempfile::tempdir().expect("a folder");
        let mounted = dir.path();
        write(&mounted.join("a/b"), "memory.max", "max\n");
        write(&mounted.join("a"), "memory.max", "536870912\n");
        write(mounted, "memory.max", "1073741824\n");
        assert_eq!(group_limit("0::/a/b\n", mounted), Some(512 * MIB));
        assert_eq!(group_limit("0::/\n", mounted), Some(1_024 * MIB));
        // As in a container that sees itself as the uppermost one, or from a group beside it.
        assert_eq!(group_limit("0::/system/c\n", mounted), Some(1_024 * MIB));
        assert_eq!(group_limit("0::/../a\n", mounted), Some(1_024 * MIB));
        write(&mounted.join("memory/c"), "memory.limit_in_bytes", "268435456\n");
        write(&mounted.join("memory"), "memory.limit_in_bytes", "9223372036854771712\n");
        let first = "5:cpu,cpuacct:/a\n4:memory:/c\n1:name=systemd:/x\n";
        assert_eq!(group_limit(first, mounted), Some(256 * MIB));
        assert_eq!(group_limit("5:cpu,cpuacct:/a\n", mounted), None);
        assert_eq!(group_limit("no line of it", mounted), None);
    }
}
