//! The values of `wasi:filesystem`: metadata of files, and codes of failures.

use std::io;
use std::sync::LazyLock;

use rustix::fs::{FileType, Stat, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;
use wasmtime_wasi::p2::bindings::clocks::wall_clock::Datetime;
use wasmtime_wasi::p2::bindings::filesystem::types::{
    DescriptorStat, DescriptorType, ErrorCode, MetadataHashValue, NewTimestamp,
};

fn kind(stat: &Stat) -> DescriptorType {
    kind_of(FileType::from_raw_mode(stat.st_mode))
}

pub(in crate::host) fn kind_of(kind: FileType) -> DescriptorType {
    match kind {
        FileType::RegularFile => DescriptorType::RegularFile,
        FileType::Directory => DescriptorType::Directory,
        FileType::Symlink => DescriptorType::SymbolicLink,
        FileType::Fifo => DescriptorType::Fifo,
        FileType::Socket => DescriptorType::Socket,
        FileType::CharacterDevice => DescriptorType::CharacterDevice,
        FileType::BlockDevice => DescriptorType::BlockDevice,
        FileType::Unknown => DescriptorType::Unknown,
    }
}

pub(super) fn described(stat: &Stat) -> DescriptorStat {
    let time = |seconds: i64, nanoseconds: u64| {
        let (seconds, nanoseconds) = (seconds.try_into().ok()?, nanoseconds.try_into().ok()?);
        Some(Datetime { seconds, nanoseconds })
    };
    #[expect(
        clippy::useless_conversion,
        reason = "the type of a number of links differs from system to system"
    )]
    let link_count = stat.st_nlink.into();
    DescriptorStat {
        type_: kind(stat),
        link_count,
        size: stat.st_size.try_into().unwrap_or(0),
        data_access_timestamp: time(stat.st_atime, stat.st_atime_nsec),
        data_modification_timestamp: time(stat.st_mtime, stat.st_mtime_nsec),
        status_change_timestamp: time(stat.st_ctime, stat.st_ctime_nsec),
    }
}

/// The key with which the numbers of files are hashed. Another one in each process: a guest that
/// could work out a hash could find out the number of a file, or know a file again that it once
/// had.
static HASH_KEY: LazyLock<[u8; blake3::KEY_LEN]> = LazyLock::new(|| {
    let mut key = [0; blake3::KEY_LEN];
    getrandom::fill(&mut key).expect("the operating system's random numbers never run out");
    key
});

/// A name for what was looked at that tells nothing of its numbers.
pub(super) fn hash(stat: &Stat) -> MetadataHashValue {
    let mut hasher = blake3::Hasher::new_keyed(&HASH_KEY);
    hasher.update(&stat.st_dev.to_le_bytes()).update(&stat.st_ino.to_le_bytes());
    let (mut output, mut half) = (hasher.finalize_xof(), [0; 8]);
    let mut next = || {
        output.fill(&mut half);
        u64::from_le_bytes(half)
    };
    MetadataHashValue { lower: next(), upper: next() }
}

pub(super) fn times(
    access: NewTimestamp,
    modification: NewTimestamp,
) -> Result<Timestamps, ErrorCode> {
    let time = |time| {
        Ok(match time {
            NewTimestamp::NoChange => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            NewTimestamp::Now => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
            NewTimestamp::Timestamp(at) if at.nanoseconds < 1_000_000_000 => Timespec {
                tv_sec: at.seconds.try_into().map_err(|_| ErrorCode::Overflow)?,
                tv_nsec: at.nanoseconds.into(),
            },
            NewTimestamp::Timestamp(_) => return Err(ErrorCode::Invalid),
        })
    };
    Ok(Timestamps { last_access: time(access)?, last_modification: time(modification)? })
}

pub(super) fn code(error: &io::Error) -> ErrorCode {
    match error.raw_os_error() {
        Some(raw) if raw == Errno::DQUOT.raw_os_error() => ErrorCode::Quota,
        Some(_) | None => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_a_file_is_its_own_and_cannot_be_worked_out_from_its_numbers() {
        let stat = |path: &std::path::Path| rustix::fs::stat(path).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        std::fs::write(&one, "").unwrap();
        std::fs::write(&other, "").unwrap();
        let of = |path| {
            let MetadataHashValue { lower, upper } = hash(&stat(path));
            (lower, upper)
        };
        assert_eq!(of(&one), of(&one));
        assert_ne!(of(&one), of(&other));
        let numbers = stat(&one);
        let mut unkeyed = blake3::Hasher::new();
        unkeyed.update(&numbers.st_dev.to_le_bytes()).update(&numbers.st_ino.to_le_bytes());
        let unkeyed = unkeyed.finalize();
        let (lower, upper) = of(&one);
        for half in unkeyed.as_bytes().chunks_exact(8) {
            let half: [u8; 8] = half.try_into().unwrap();
            for known in [u64::from_le_bytes(half), u64::from_be_bytes(half)] {
                assert!(known != lower && known != upper);
            }
        }
    }
}
