//! `wasi:filesystem`, on the own layer of files.
//!
//! Each operation is a host call that is counted, and works on a thread for file operations whose
//! turn is kept until the thread is back. Paths are walked as `workspace-read` walks them, but
//! for `..` and links, which are followed where they stay inside of a granted folder. Each file
//! that is opened takes one of the instance's descriptors; what is written is counted with what
//! `workspace-write` writes.

use std::collections::HashMap;
use std::fs::File as StdFile;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use cap_std::fs::Dir as OpenDir;
use rustix::fs::{FileType, Stat, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;
use taskrun::policy::Capability;
use tokio::sync::Semaphore;
use wasmtime::component::Resource;
use wasmtime_wasi::filesystem::{Descriptor, Dir, File, WasiFilesystemView};
use wasmtime_wasi::p2::bindings::clocks::wall_clock::Datetime;
use wasmtime_wasi::p2::bindings::filesystem::preopens;
use wasmtime_wasi::p2::bindings::filesystem::types::{
    Advice, DescriptorFlags, DescriptorStat, DescriptorType, DirectoryEntry, DirectoryEntryStream,
    ErrorCode, Host, HostDescriptor, HostDirectoryEntryStream, MetadataHashValue, NewTimestamp,
    OpenFlags, PathFlags,
};
use wasmtime_wasi::p2::{DynInputStream, DynOutputStream, FsError, FsResult};
use wasmtime_wasi::{FsPerms, OpenMode};

use super::wasi_streams::{Counted, OpenFile, PIECE_BYTES_MAX, Reader, Writer};
use crate::disk::{DiskFull, Writes};
use crate::failure::Violation;
use crate::files::{Fault, Guard, How, OWN_FILES, Opened, Place, by_place};
use crate::handles::{Handle, NoHandle};
use crate::state::{CallState, Mode};

type Fd = Resource<Descriptor>;

/// The files and folders that a guest has open through WASI.
#[derive(Default)]
pub(crate) struct WasiFiles {
    /// How many there are.
    share: Arc<AtomicU32>,
    /// What keeps each counted, by its number in the table of resources.
    handles: HashMap<u32, Arc<Handle>>,
    /// The granted folders, opened when the guest first asks for them.
    granted: Option<Vec<Granted>>,
}

struct Granted {
    dir: Dir,
    name: String,
    _handle: Handle,
}

/// Works on a thread for file operations, as soon as one may be used.
///
/// # Cancel safety
/// Dropping the future loses the result. The turn is given back when the thread is back.
pub(super) async fn on_thread<T: Send + 'static>(
    turns: Arc<Semaphore>,
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let turn = turns.acquire_owned().await.map_err(|_| Errno::IO)?;
    let task = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        work()
    });
    task.await.unwrap_or_else(|error| {
        tracing::error!(%error, "a file operation of WASI panicked");
        Err(Errno::IO.into())
    })
}

fn kind(stat: &Stat) -> DescriptorType {
    kind_of(FileType::from_raw_mode(stat.st_mode))
}

pub(super) fn kind_of(kind: FileType) -> DescriptorType {
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

fn described(stat: &Stat) -> DescriptorStat {
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

/// A name for what was looked at that tells nothing of its numbers.
fn hash(stat: &Stat) -> MetadataHashValue {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&stat.st_dev.to_le_bytes()).update(&stat.st_ino.to_le_bytes());
    let mut halves = hasher
        .finalize()
        .as_bytes()
        .chunks_exact(8)
        .map(|half| half.iter().fold(0_u64, |value, byte| (value << 8) | u64::from(*byte)))
        .collect::<Vec<_>>()
        .into_iter();
    let (lower, upper) = (halves.next().unwrap_or(0), halves.next().unwrap_or(0));
    MetadataHashValue { lower, upper }
}

fn times(access: NewTimestamp, modification: NewTimestamp) -> Result<Timestamps, ErrorCode> {
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

fn code(error: io::Error) -> ErrorCode {
    match error.raw_os_error() {
        Some(raw) if raw == Errno::DQUOT.raw_os_error() => ErrorCode::Quota,
        Some(_) | None => error.into(),
    }
}

impl CallState {
    fn begin(&mut self) -> FsResult<()> {
        self.enter().map_err(FsError::trap)
    }

    /// What a fault is for the guest. What a rule or a bound refused is recorded.
    pub(super) fn refusal(&mut self, fault: Fault, path: &str) -> FsError {
        match fault {
            Fault::Io(error) => code(error).into(),
            Fault::Own => {
                self.record_denial(Capability::WorkspaceRead, path, OWN_FILES.to_owned());
                ErrorCode::NotPermitted.into()
            }
            Fault::Full(full) => {
                if self.writes().is_some_and(|writes| writes.is_first_refusal()) {
                    self.record_denial(Capability::WorkspaceWrite, path, full.to_string());
                }
                match full {
                    DiskFull::Reserve(_) => ErrorCode::InsufficientSpace.into(),
                    DiskFull::CallBytes(_)
                    | DiskFull::CallFiles(_)
                    | DiskFull::WorkspaceBytes(_)
                    | DiskFull::WorkspaceFiles(_) => ErrorCode::Quota.into(),
                }
            }
        }
    }

    fn turns(&self) -> Arc<Semaphore> {
        Arc::clone(self.guest.engine.blocking())
    }

    fn guarded(&self) -> FsResult<crate::files::Workspace> {
        self.guest.workspace.clone().ok_or_else(|| ErrorCode::NotPermitted.into())
    }

    /// An open file or folder, for looking at it.
    fn any(&self, fd: &Fd) -> FsResult<Arc<StdFile>> {
        Ok(match self.table.get(fd)? {
            Descriptor::File(file) => Arc::clone(&file.file),
            Descriptor::Dir(dir) => Arc::clone(&dir.dir),
        })
    }

    fn file(&self, fd: &Fd) -> FsResult<File> {
        match self.table.get(fd)? {
            Descriptor::File(file) => Ok(file.clone()),
            Descriptor::Dir(_) => Err(ErrorCode::BadDescriptor.into()),
        }
    }

    fn writable_file(&self, fd: &Fd) -> FsResult<File> {
        let file = self.file(fd)?;
        match file.perms.write_not_permitted() {
            true => Err(ErrorCode::NotPermitted.into()),
            false => Ok(file),
        }
    }

    fn folder(&self, fd: &Fd) -> FsResult<Dir> {
        match self.table.get(fd)? {
            Descriptor::Dir(dir) => Ok(dir.clone()),
            Descriptor::File(_) => Err(ErrorCode::NotDirectory.into()),
        }
    }

    fn writable_folder(&self, fd: &Fd) -> FsResult<Dir> {
        let folder = self.folder(fd)?;
        match folder.perms.write_not_permitted() {
            true => Err(ErrorCode::NotPermitted.into()),
            false => Ok(folder),
        }
    }

    fn counted(&mut self) -> FsResult<Arc<Writes>> {
        self.writes().ok_or_else(|| ErrorCode::NotPermitted.into())
    }

    /// Works on what an open file or folder is.
    async fn on_open<T: Send + 'static>(
        &mut self,
        open: Arc<StdFile>,
        work: impl FnOnce(&StdFile) -> Result<T, Fault> + Send + 'static,
    ) -> FsResult<T> {
        let turns = self.turns();
        let done = on_thread(turns, move || work(&open)).await;
        done.map_err(|fault| self.refusal(fault, ""))
    }

    /// Works on the place that a path leads to.
    async fn on_place<T: Send + 'static>(
        &mut self,
        folder: Dir,
        (path, follow): (String, bool),
        work: impl FnOnce(Place, &Guard) -> Result<T, Fault> + Send + 'static,
    ) -> FsResult<T> {
        let (workspace, turns, subject) = (self.guarded()?, self.turns(), path.clone());
        let done = on_thread(turns, move || {
            let guard = workspace.guard();
            let root = OpenDir::from_std_file(folder.dir.try_clone()?);
            work(Place::find(&root, &path, follow, &guard)?, &guard)
        });
        let done = done.await;
        done.map_err(|fault| self.refusal(fault, &subject))
    }

    /// Works on two places at once.
    async fn on_places<T: Send + 'static>(
        &mut self,
        (from, from_path): (Dir, String),
        (to, to_path): (Dir, String),
        work: impl FnOnce(Place, Place, &Guard) -> Result<T, Fault> + Send + 'static,
    ) -> FsResult<T> {
        let (workspace, turns) = (self.guarded()?, self.turns());
        let subject = format!("{from_path} -> {to_path}");
        let done = on_thread(turns, move || {
            let guard = workspace.guard();
            let find = |dir: &Dir, path: &str| {
                let root = OpenDir::from_std_file(dir.dir.try_clone()?);
                Place::find(&root, path, false, &guard)
            };
            work(find(&from, &from_path)?, find(&to, &to_path)?, &guard)
        });
        let done = done.await;
        done.map_err(|fault| self.refusal(fault, &subject))
    }

    /// One more descriptor of the instance.
    fn handle(&self) -> FsResult<Handle> {
        let taken = self.guest.engine.handles().take(&self.files.share);
        taken.map_err(|none| match none {
            NoHandle::Share => ErrorCode::Quota.into(),
            NoHandle::Pool => ErrorCode::Busy.into(),
        })
    }

    fn open_file(&self, fd: &Fd, file: &File) -> OpenFile {
        let handle = self.files.handles.get(&fd.rep()).cloned();
        OpenFile { file: Arc::clone(&file.file), handle, turns: self.turns() }
    }

    fn writer(&mut self, fd: &Fd, position: Option<u64>) -> FsResult<Resource<DynOutputStream>> {
        self.begin()?;
        let file = self.writable_file(fd)?;
        let counted = Counted { writes: self.counted()?, scope: Arc::clone(&self.scope) };
        let writer = Writer::new(self.open_file(fd, &file), position, counted);
        Ok(self.table.push(Box::new(writer) as DynOutputStream)?)
    }

    /// Opens the folders that the rules grant to this call. One that is not there is left out, and
    /// so is one in which the host has put a file of its own since the component was loaded.
    fn grant_folders(&self) -> Result<Vec<Granted>, Violation> {
        let mut granted = Vec::new();
        let (Mode::Call, Some(workspace)) = (self.mode, &self.guest.workspace) else {
            return Ok(granted);
        };
        let share = Arc::default();
        for preopen in self.rules().preopens(&self.guest.preopens).iter() {
            let subject = &preopen.dir;
            if let Some(file) = workspace.exposed_in(subject) {
                tracing::warn!(dir = %subject, file = %file.display(), "a granted folder holds a file of the host");
                self.record_denial(Capability::WorkspaceRead, subject, OWN_FILES.to_owned());
                continue;
            }
            let handle = match self.guest.engine.handles().take(&share) {
                Ok(handle) => handle,
                Err(NoHandle::Share | NoHandle::Pool) => {
                    let limit = u64::from(crate::handles::HANDLES_MAX);
                    return Err(Violation::Limit { what: "open folders", limit });
                }
            };
            let folder = match workspace.open_folder(subject) {
                Ok(folder) => folder.into_std_file(),
                Err(error) => {
                    tracing::warn!(dir = %subject, %error, "a folder of the workspace cannot be opened");
                    continue;
                }
            };
            let (perms, mode) = match preopen.writable {
                true => (FsPerms::ReadWrite, OpenMode::READ | OpenMode::WRITE),
                false => (FsPerms::ReadOnly, OpenMode::READ),
            };
            let dir = Dir::new(folder, perms, mode, false);
            granted.push(Granted { dir, name: format!("/{subject}"), _handle: handle });
        }
        Ok(granted)
    }
}

impl preopens::Host for CallState {
    fn get_directories(&mut self) -> wasmtime::Result<Vec<(Fd, String)>> {
        self.enter()?;
        if self.files.granted.is_none() {
            self.files.granted = Some(self.grant_folders()?);
        }
        let granted = self.files.granted.iter().flatten();
        let folders: Vec<_> =
            granted.map(|granted| (granted.dir.clone(), granted.name.clone())).collect();
        let mut opened = Vec::new();
        for (dir, name) in folders {
            opened.push((self.table.push(Descriptor::Dir(dir))?, name));
        }
        Ok(opened)
    }
}

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
        Ok(error.map(|error| match error.raw_os_error() {
            Some(raw) if raw == Errno::DQUOT.raw_os_error() => ErrorCode::Quota,
            Some(_) | None => error.into(),
        }))
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
        let open = match self.table.get(&fd)? {
            Descriptor::File(_) => self.writable_file(&fd)?.file,
            Descriptor::Dir(_) => self.writable_folder(&fd)?.dir,
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
        let counted = Counted { writes, scope: Arc::clone(&self.scope) };
        let written = self
            .on_open(file.file, move |file| Ok(counted.write(file, &bytes, Some(offset))? as u64));
        written.await
    }

    /// Its stream is of a type of the bindings that only they can make: the linker has
    /// [`super::wasi_entries`] in the place of this.
    async fn read_directory(&mut self, fd: Fd) -> FsResult<Resource<DirectoryEntryStream>> {
        self.filesystem().read_directory(fd).await
    }

    async fn create_directory_at(&mut self, fd: Fd, path: String) -> FsResult<()> {
        self.begin()?;
        let (folder, writes) = (self.writable_folder(&fd)?, self.counted()?);
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
        let folder = self.writable_folder(&fd)?;
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
        let (from, to) = (self.writable_folder(&fd)?, self.writable_folder(&to)?);
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
        let folder = self.folder(&fd)?;
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
        let how = How {
            read: flags.contains(DescriptorFlags::READ),
            write: flags.contains(DescriptorFlags::WRITE),
            create: open.contains(OpenFlags::CREATE),
            exclusive: open.contains(OpenFlags::EXCLUSIVE),
            truncate: open.contains(OpenFlags::TRUNCATE),
            folder: open.contains(OpenFlags::DIRECTORY),
        };
        let writes_to_it = how.write || how.create || how.truncate;
        if writes_to_it && folder.perms.write_not_permitted() {
            return Err(ErrorCode::NotPermitted.into());
        }
        let mut mode = OpenMode::empty();
        mode.set(OpenMode::READ, how.read || !how.write);
        mode.set(OpenMode::WRITE, writes_to_it);
        let (handle, writes) = (Arc::new(self.handle()?), self.writes());
        let (perms, follow) = (folder.perms, links.contains(PathFlags::SYMLINK_FOLLOW));
        let kept = Arc::clone(&handle);
        let opened = self.on_place(folder, (path, follow), move |place, guard| {
            // Counted until it is open, also when nobody waits for it any longer.
            let _kept = kept;
            by_place::open(place, how, guard, writes.as_deref())
        });
        let descriptor = match opened.await? {
            Opened::File(file) => Descriptor::File(File::new(file, perms, mode, false)),
            Opened::Folder(folder) => Descriptor::Dir(Dir::new(folder, perms, mode, false)),
        };
        let fd = self.table.push(descriptor)?;
        self.files.handles.insert(fd.rep(), handle);
        Ok(fd)
    }

    fn drop(&mut self, fd: Fd) -> wasmtime::Result<()> {
        let rep = fd.rep();
        self.table.delete(fd)?;
        self.files.handles.remove(&rep);
        Ok(())
    }

    async fn readlink_at(&mut self, fd: Fd, path: String) -> FsResult<String> {
        self.begin()?;
        let folder = self.folder(&fd)?;
        self.on_place(folder, (path, false), by_place::read_link).await
    }

    async fn remove_directory_at(&mut self, fd: Fd, path: String) -> FsResult<()> {
        self.begin()?;
        let (folder, writes) = (self.writable_folder(&fd)?, self.counted()?);
        let remove =
            move |place: Place, guard: &Guard| by_place::remove(place, true, guard, &writes);
        self.on_place(folder, (path, false), remove).await
    }

    async fn rename_at(&mut self, fd: Fd, path: String, to: Fd, to_path: String) -> FsResult<()> {
        self.begin()?;
        let (from, to) = (self.writable_folder(&fd)?, self.writable_folder(&to)?);
        let writes = self.counted()?;
        let rename =
            move |from: Place, to: Place, guard: &Guard| by_place::rename(from, to, guard, &writes);
        self.on_places((from, path), (to, to_path), rename).await
    }

    /// No links are made: the guest could not follow one that leads out, but other programs that
    /// work in the folder would.
    async fn symlink_at(&mut self, fd: Fd, _: String, path: String) -> FsResult<()> {
        self.begin()?;
        self.folder(&fd)?;
        let rule = "WASI makes no symbolic links".to_owned();
        self.record_denial(Capability::WorkspaceWrite, &path, rule);
        Err(ErrorCode::NotPermitted.into())
    }

    async fn unlink_file_at(&mut self, fd: Fd, path: String) -> FsResult<()> {
        self.begin()?;
        let (folder, writes) = (self.writable_folder(&fd)?, self.counted()?);
        let remove =
            move |place: Place, guard: &Guard| by_place::remove(place, false, guard, &writes);
        self.on_place(folder, (path, false), remove).await
    }

    fn read_via_stream(&mut self, fd: Fd, offset: u64) -> FsResult<Resource<DynInputStream>> {
        self.begin()?;
        let file = match self.table.get(&fd)? {
            Descriptor::File(file) => file.clone(),
            Descriptor::Dir(_) => return Err(ErrorCode::IsDirectory.into()),
        };
        let reader = Reader::new(self.open_file(&fd, &file), offset);
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
