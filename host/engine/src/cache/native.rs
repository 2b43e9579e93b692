//! Native code on its way from its file into the engine.

use std::fs::File;
use std::io::{self, Read};
#[cfg(target_os = "linux")]
use std::os::unix::fs::FileExt;

use super::HEADER_BYTES;
use super::mac::Mac;
#[cfg(target_os = "linux")]
use super::mac::PIECE_BYTES;
#[cfg(target_os = "linux")]
use crate::digest::HashThreads;

/// Largest file that is read. Native code is three to ten times the component.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// Bytes of a file from which on its code is mapped: below, that costs more than a copy.
const MAPPED_FROM: u64 = 512 << 10;

/// Native code whose hash was found right.
#[derive(Debug)]
pub(crate) enum NativeCode {
    /// The code itself.
    Bytes(Vec<u8>),
    /// A sealed file in memory, without a name and with nothing but the code: not the one that was read,
    /// which other processes of our user could change after it was hashed.
    Sealed(File),
}

impl NativeCode {
    /// Reads a file of `len` bytes: `magic`, the hash, and the code. `None` if the hash is another one than
    /// that of `mac` with the code.
    ///
    /// # Errors
    /// The operating system's; [`io::ErrorKind::FileTooLarge`].
    pub(super) fn read(
        mut file: &File,
        len: u64,
        magic: &[u8; 8],
        mac: &Mac,
    ) -> io::Result<Option<Self>> {
        if len > FILE_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("{len} bytes")));
        }
        let mut header = [0; HEADER_BYTES];
        match file.read_exact(&mut header) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let code_len = len.saturating_sub(HEADER_BYTES as u64);
        let fits = |hash: blake3::Hash| {
            let (found, wanted) = header.split_at(magic.len());
            // `blake3::Hash` compares in constant time.
            found == magic && hash == *wanted
        };
        if len >= MAPPED_FROM {
            match sealed(file, code_len, mac) {
                Ok((sealed, hash)) => return Ok(fits(hash).then_some(Self::Sealed(sealed))),
                // There are no such files, or there is no room for one.
                Err(error) => tracing::debug!(%error, "native code is copied"),
            }
        }
        let mut code = Vec::with_capacity(usize::try_from(code_len).unwrap_or(0));
        file.take(code_len).read_to_end(&mut code)?;
        Ok(fits(mac.of(&code)).then_some(Self::Bytes(code)))
    }
}

/// A sealed file in memory with the `len` bytes of a file behind its header, and their hash. Pieces are
/// read, hashed and written by all processors.
#[cfg(target_os = "linux")]
fn sealed(source: &File, len: u64, mac: &Mac) -> io::Result<(File, blake3::Hash)> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know that it is no program.
    let made = memfd_create("native", flags | MemfdFlags::NOEXEC_SEAL);
    let sealed = File::from(made.or_else(|_| memfd_create("native", flags))?);
    let pieces = usize::try_from(len.div_ceil(PIECE_BYTES as u64)).unwrap_or(usize::MAX);
    let copies = HashThreads::for_bytes(len).map(pieces, |piece, n| {
        let begin = n as u64 * PIECE_BYTES as u64;
        let piece_len = usize::try_from(len - begin).unwrap_or(usize::MAX).min(PIECE_BYTES);
        piece.resize(piece_len, 0);
        source.read_exact_at(piece, HEADER_BYTES as u64 + begin)?;
        sealed.write_all_at(piece, begin)?;
        Ok(mac.piece(piece))
    });
    let hashes: Vec<blake3::Hash> = copies.into_iter().collect::<io::Result<_>>()?;
    // Refused if anything could still be written to it.
    let all = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    fcntl_add_seals(&sealed, all)?;
    Ok((sealed, mac.of_pieces(len, hashes)))
}

#[cfg(not(target_os = "linux"))]
fn sealed(_: &File, _: u64, _: &Mac) -> io::Result<(File, blake3::Hash)> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::{Seek, Write};

    use super::*;

    fn read(bytes: &[u8]) -> Option<NativeCode> {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(bytes).expect("written");
        file.rewind().expect("a file");
        let mac = Mac::new(&[1; 32], []);
        NativeCode::read(&file, bytes.len() as u64, b"8 bytes.", &mac).expect("reads")
    }

    fn file_of(code: &[u8]) -> Vec<u8> {
        [b"8 bytes.", &Mac::new(&[1; 32], []).of(code).as_bytes()[..], code].concat()
    }

    #[test]
    fn large_native_code_is_in_a_file_that_nobody_can_change() {
        let code = vec![7; 3 << 20];
        let Some(NativeCode::Sealed(mut file)) = read(&file_of(&code)) else {
            panic!("it is mapped");
        };
        file.rewind().expect("a file");
        assert!(file.write(b"x").is_err() && file.set_len(1).is_err());
        let again = File::options()
            .write(true)
            .open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)));
        assert!(again.map_or(true, |mut file| file.write(b"x").is_err()));
        let mut found = Vec::new();
        file.read_to_end(&mut found).expect("reads");
        assert_eq!(found, code);
    }

    #[test]
    fn native_code_that_was_changed_is_none_however_large_it_is() {
        for len in [100, 3 << 20, 9 << 20] {
            let good = file_of(&vec![7; len]);
            assert!(read(&good).is_some());
            for at in [0, 8, 39, 40, len / 2, good.len() - 1] {
                let mut bad = good.clone();
                bad[at] ^= 1;
                assert!(read(&bad).is_none(), "byte {at} of {len}");
            }
            assert!(read(&good[..good.len() - 1]).is_none() && read(&good[..20]).is_none());
        }
    }
}
