//! `wasi:filesystem`, on the own layer of files.
//!
//! Each operation is a host call that is counted, and works on a thread for file operations whose
//! turn is kept until the thread is back. Paths are walked as `workspace-read` walks them, but
//! for `..` and links, which are followed where they stay inside of a granted folder. Each file
//! that is opened takes one of the instance's descriptors; what is written is counted with what
//! `workspace-write` writes.

mod grant_check;
mod granted;
mod reach;
mod values;

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use taskrun_policy::Capability;
use wasmtime::component::Resource;
use wasmtime_wasi::OpenMode;
use wasmtime_wasi::filesystem::{Descriptor, Dir, File, WasiFilesystemView};
use wasmtime_wasi::p2::bindings::filesystem::types::{
    Advice, DescriptorFlags, DescriptorStat, DescriptorType, DirectoryEntry, DirectoryEntryStream,
    ErrorCode, Host, HostDescriptor, HostDirectoryEntryStream, MetadataHashValue, NewTimestamp,
    OpenFlags, PathFlags,
};
use wasmtime_wasi::p2::{DynInputStream, DynOutputStream, FsError, FsResult};

pub(super) use self::grant_check::GrantCheck;
pub(super) use self::reach::on_thread;
pub(super) use self::values::kind_of;
use self::values::{code, described, hash, times};
use super::wasi_streams::{PIECE_BYTES_MAX, Reader};
use crate::files::{AccessFlags, Guard, OpenEntry, Place, by_place};
use crate::handles::HANDLES_MAX;
use crate::state::CallState;

/// Most streams of files that one instance has: one to read and one to write for each file that it
/// may have open. Each may hold a piece of its file.
const STREAMS_MAX: u32 = 2 * HANDLES_MAX;

type Fd = Resource<Descriptor>;

impl Host for CallState {
    fn convert_error_code(&mut self, error: FsError) -> wasmtime::Result<ErrorCode> {
        error.downcast()
    }

    fn filesystem_error_code(
        &mut self,
        error: Resource<wasmtime::Error>,
    ) -> wasmtime::Result<Option<ErrorCode>> {
        self.enter()?;
        let error = self.table.get(&error)?.downcast_ref::<io::Error>();
        Ok(error.map(code))
    }
}

impl HostDescriptor for CallState {
    async fn advise(&mut self, fd: Fd, _: u64, _: u64, _: Advice) -> FsResult<()> {
        self.begin()?;
        // Advice may be followed or not.
        self.file(&fd).map(|_| ())
    }

    async fn sync_data(&mut self, fd: Fd) -> FsResult<()> {
        self.begin()?;
        let open = self.any(&fd)?;
        self.on_open(open, |file| Ok(file.sync_data()?)).await
    }

    async fn sync(&mut self, fd: Fd) -> FsResult<()> {
        self.begin()?;
        let open = self.any(&fd)?;
        self.on_open(open, |file| Ok(file.sync_all()?)).await
    }

    async fn get_flags(&mut self, fd: Fd) -> FsResult<DescriptorFlags> {
        self.begin()?;
        let (mode, write) = match self.table.get(&fd)? {
            Descriptor::File(file) => (file.open_mode, DescriptorFlags::WRITE),
            Descriptor::Dir(dir) => (dir.open_mode, DescriptorFlags::MUTATE_DIRECTORY),
        };
        let mut flags = DescriptorFlags::empty();
        if mode.contains(OpenMode::READ) {
            flags |= DescriptorFlags::READ;
        }
        if mode.contains(OpenMode::WRITE) {
            flags |= write;
        }
        Ok(flags)
    }

    async fn get_type(&mut self, fd: Fd) -> FsResult<DescriptorType> {
        self.begin()?;
        // Nothing else is ever opened.
        Ok(match self.table.get(&fd)? {
            Descriptor::File(_) => DescriptorType::RegularFile,
            Descriptor::Dir(_) => DescriptorType::Directory,
        })
    }

    async fn set_size(&mut self, fd: Fd, size: u64) -> FsResult<()> {
        self.begin()?;
        let (file, writes) = (self.writable_file(&fd)?, self.counted()?);
        self.on_open(file.file, move |file| by_place::set_size(file, size, Some(&writes))).await
    }

    async fn set_times(
        &mut self,
        fd: Fd,
        access: NewTimestamp,
        modification: NewTimestamp,
    ) -> FsResult<()> {
        self.begin()?;
        let open = match matches!(self.table.get(&fd)?, Descriptor::File(_)) {
            true => self.writable_file(&fd)?.file,
            false => self.writable_folder(&fd, "")?.dir.dir,
        };
        let times = times(access, modification)?;
        self.on_open(open, move |file| Ok(rustix::fs::futimens(file, &times)?)).await
    }

    async fn read(&mut self, fd: Fd, length: u64, offset: u64) -> FsResult<(Vec<u8>, bool)> {
        self.begin()?;
        let file = self.file(&fd)?;
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(PIECE_BYTES_MAX);
        let read = self.on_open(file.file, move |file| {
            let mut bytes = vec![0; length];
            let read = file.read_at(&mut bytes, offset)?;
            bytes.truncate(read);
            Ok(bytes)
        });
        let bytes = read.await?;
        let is_at_end = bytes.is_empty() && length > 0;
        Ok((bytes, is_at_end))
    }

    async fn write(&mut self, fd: Fd, bytes: Vec<u8>, offset: u64) -> FsResult<u64> {
        self.begin()?;
        let (file, writes) = (self.writable_file(&fd)?, self.counted()?);
        let written = self.on_open(file.file, move |file| {
            by_place::write(file, &bytes, Some(offset), &writes)?;
            Ok(bytes.len() as u64)
        });
        written.await
    }

    /// Its stream is of a type of the bindings that only they can make: the linker has
    /// [`super::wasi_entries`] in the place of this.
    async fn read_directory(&mut self, fd: Fd) -> FsResult<Resource<DirectoryEntryStream>> {
        self.filesystem().read_directory(fd).await
    }

    async fn create_directory_at(&mut self, fd: Fd, path: String) -> FsResult<()> {
        self.begin()?;
        let (folder, writes) = (self.writable_folder(&fd, &path)?, self.counted()?);
        let make =
            move |place: Place, guard: &Guard| by_place::create_folder(place, guard, &writes);
        self.on_place(folder, (path, false), make).await
    }

    async fn stat(&mut self, fd: Fd) -> FsResult<DescriptorStat> {
        self.begin()?;
        let open = self.any(&fd)?;
        self.on_open(open, |file| Ok(described(&rustix::fs::fstat(file)?))).await
    }

    async fn stat_at(
        &mut self,
        fd: Fd,
        links: PathFlags,
        path: String,
    ) -> FsResult<DescriptorStat> {
        self.begin()?;
        let (folder, follow) = (self.folder(&fd)?, links.contains(PathFlags::SYMLINK_FOLLOW));
        self.on_place(folder, (path, follow), |place, guard| Ok(described(&place.stat(guard)?)))
            .await
    }

    async fn set_times_at(
        &mut self,
        fd: Fd,
        links: PathFlags,
        path: String,
        access: NewTimestamp,
        modification: NewTimestamp,
    ) -> FsResult<()> {
        self.begin()?;
        let folder = self.writable_folder(&fd, &path)?;
        let (times, follow) =
            (times(access, modification)?, links.contains(PathFlags::SYMLINK_FOLLOW));
        let set = move |place: Place, guard: &Guard| by_place::set_times(place, &times, guard);
        self.on_place(folder, (path, follow), set).await
    }

    async fn link_at(
        &mut self,
        fd: Fd,
        links: PathFlags,
        path: String,
        to: Fd,
        to_path: String,
    ) -> FsResult<()> {
        self.begin()?;
        let (from, to) = (self.writable_folder(&fd, &path)?, self.writable_folder(&to, &to_path)?);
        if links.contains(PathFlags::SYMLINK_FOLLOW) {
            return Err(ErrorCode::Invalid.into());
        }
        let writes = self.counted()?;
        let link =
            move |from: Place, to: Place, guard: &Guard| by_place::link(from, to, guard, &writes);
        self.on_places((from, path), (to, to_path), link).await
    }

    async fn open_at(
        &mut self,
        fd: Fd,
        links: PathFlags,
        path: String,
        open: OpenFlags,
        flags: DescriptorFlags,
    ) -> FsResult<Fd> {
        self.begin()?;
        let mut folder = self.folder(&fd)?;
        let synchronous = DescriptorFlags::FILE_INTEGRITY_SYNC
            | DescriptorFlags::DATA_INTEGRITY_SYNC
            | DescriptorFlags::REQUESTED_WRITE_SYNC;
        if flags.intersects(synchronous) {
            return Err(ErrorCode::Unsupported.into());
        }
        let changes = OpenFlags::CREATE | OpenFlags::EXCLUSIVE | OpenFlags::TRUNCATE;
        if open.contains(OpenFlags::DIRECTORY) && open.intersects(changes) {
            return Err(ErrorCode::Invalid.into());
        }
        let how = AccessFlags {
            read: flags.contains(DescriptorFlags::READ),
            write: flags.contains(DescriptorFlags::WRITE),
            create: open.contains(OpenFlags::CREATE),
            exclusive: open.contains(OpenFlags::EXCLUSIVE),
            truncate: open.contains(OpenFlags::TRUNCATE),
            folder: open.contains(OpenFlags::DIRECTORY),
        };
        let writes_to_it = how.write || how.create || how.truncate;
        if writes_to_it {
            if folder.dir.perms.write_not_permitted() {
                return Err(self.refuse_change(&folder.way, &path));
            }
            folder.capability = Capability::WorkspaceWrite;
        }
        let mut mode = OpenMode::empty();
        mode.set(OpenMode::READ, how.read || !how.write);
        mode.set(OpenMode::WRITE, writes_to_it);
        let (handle, writes) = (Arc::new(self.handle()?), self.writes());
        let (perms, follow) = (folder.dir.perms, links.contains(PathFlags::SYMLINK_FOLLOW));
        let way = folder.way.below(&path);
        let kept = Arc::clone(&handle);
        let opened = self.on_place(folder, (path, follow), move |place, guard| {
            // Counted until it is open, also when nobody waits for it any longer.
            let _kept = kept;
            by_place::open(place, how, guard, writes.as_deref())
        });
        let descriptor = match opened.await? {
            OpenEntry::File(file) => Descriptor::File(File::new(file, perms, mode, false)),
            OpenEntry::Folder(folder) => Descriptor::Dir(Dir::new(folder, perms, mode, false)),
        };
        let fd = self.table.push(descriptor)?;
        self.files.handles.insert(fd.rep(), handle);
        self.files.ways.insert(fd.rep(), way);
        Ok(fd)
    }

    fn drop(&mut self, fd: Fd) -> wasmtime::Result<()> {
        let rep = fd.rep();
        self.table.delete(fd)?;
        self.files.handles.remove(&rep);
        self.files.ways.remove(&rep);
        Ok(())
    }

    async fn readlink_at(&mut self, fd: Fd, path: String) -> FsResult<String> {
        self.begin()?;
        let folder = self.folder(&fd)?;
        self.on_place(folder, (path, false), by_place::read_link).await
    }

    async fn remove_directory_at(&mut self, fd: Fd, path: String) -> FsResult<()> {
        self.begin()?;
        let (folder, writes) = (self.writable_folder(&fd, &path)?, self.counted()?);
        let workspace = self.guarded()?;
        let remove = move |place: Place, guard: &Guard| {
            by_place::remove(place, true, (guard, || workspace.ways()), &writes)
        };
        self.on_place(folder, (path, false), remove).await
    }

    async fn rename_at(&mut self, fd: Fd, path: String, to: Fd, to_path: String) -> FsResult<()> {
        self.begin()?;
        let (from, to) = (self.writable_folder(&fd, &path)?, self.writable_folder(&to, &to_path)?);
        let (writes, workspace) = (self.counted()?, self.guarded()?);
        let rename = move |from: Place, to: Place, guard: &Guard| {
            by_place::rename(from, to, (guard, &workspace.ways()), &writes)
        };
        self.on_places((from, path), (to, to_path), rename).await
    }

    /// No links are made: the guest could not follow one that leads out, but other programs that
    /// work in the folder would.
    async fn symlink_at(&mut self, fd: Fd, _: String, path: String) -> FsResult<()> {
        self.begin()?;
        let subject = self.folder(&fd)?.way.subject(&path);
        Err(self.refused(Capability::WorkspaceWrite, &subject, "WASI makes no symbolic links"))
    }

    async fn unlink_file_at(&mut self, fd: Fd, path: String) -> FsResult<()> {
        self.begin()?;
        let (folder, writes) = (self.writable_folder(&fd, &path)?, self.counted()?);
        let workspace = self.guarded()?;
        let remove = move |place: Place, guard: &Guard| {
            by_place::remove(place, false, (guard, || workspace.ways()), &writes)
        };
        self.on_place(folder, (path, false), remove).await
    }

    fn read_via_stream(&mut self, fd: Fd, offset: u64) -> FsResult<Resource<DynInputStream>> {
        self.begin()?;
        let file = match self.table.get(&fd)? {
            Descriptor::File(file) => file.clone(),
            Descriptor::Dir(_) => return Err(ErrorCode::IsDirectory.into()),
        };
        let reader = Reader::new(self.open_file(&fd, &file)?, offset);
        Ok(self.table.push(Box::new(reader) as DynInputStream)?)
    }

    fn write_via_stream(&mut self, fd: Fd, offset: u64) -> FsResult<Resource<DynOutputStream>> {
        self.writer(&fd, Some(offset))
    }

    fn append_via_stream(&mut self, fd: Fd) -> FsResult<Resource<DynOutputStream>> {
        self.writer(&fd, None)
    }

    async fn is_same_object(&mut self, one: Fd, other: Fd) -> wasmtime::Result<bool> {
        self.enter()?;
        let id = |state: &Self, fd: &Fd| -> wasmtime::Result<_> {
            let stat = match state.table.get(fd)? {
                Descriptor::File(file) => rustix::fs::fstat(&file.file)?,
                Descriptor::Dir(dir) => rustix::fs::fstat(&dir.dir)?,
            };
            Ok((stat.st_dev, stat.st_ino))
        };
        Ok(id(self, &one)? == id(self, &other)?)
    }

    async fn metadata_hash(&mut self, fd: Fd) -> FsResult<MetadataHashValue> {
        self.begin()?;
        let open = self.any(&fd)?;
        self.on_open(open, |file| Ok(hash(&rustix::fs::fstat(file)?))).await
    }

    async fn metadata_hash_at(
        &mut self,
        fd: Fd,
        links: PathFlags,
        path: String,
    ) -> FsResult<MetadataHashValue> {
        self.begin()?;
        let (folder, follow) = (self.folder(&fd)?, links.contains(PathFlags::SYMLINK_FOLLOW));
        self.on_place(folder, (path, follow), |place, guard| Ok(hash(&place.stat(guard)?))).await
    }
}

/// Streams of the bindings' own type, which the linker lets no guest have; see
/// [`super::wasi_entries`].
impl HostDirectoryEntryStream for CallState {
    async fn read_directory_entry(
        &mut self,
        stream: Resource<DirectoryEntryStream>,
    ) -> FsResult<Option<DirectoryEntry>> {
        self.filesystem().read_directory_entry(stream).await
    }

    fn drop(&mut self, stream: Resource<DirectoryEntryStream>) -> wasmtime::Result<()> {
        HostDirectoryEntryStream::drop(&mut self.filesystem(), stream)
    }
}
