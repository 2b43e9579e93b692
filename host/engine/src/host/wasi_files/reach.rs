//! The objects of `wasi:filesystem`: open files and folders, and places that paths lead to. All
//! work is done on threads for file operations.

use std::fs::File as StdFile;
use std::sync::Arc;

use cap_std::fs::Dir as OpenDir;
use rustix::io::Errno;
use taskrun_policy::Capability;
use wasmtime::component::Resource;
use wasmtime_wasi::filesystem::{Descriptor, Dir, File};
use wasmtime_wasi::p2::bindings::filesystem::types::ErrorCode;
use wasmtime_wasi::p2::{DynOutputStream, FsError, FsResult};

use super::super::wasi_streams::{OpenFile, WriteAccount, Writer};
use super::values::code;
use super::{Fd, GrantCheck, STREAMS_MAX};
use crate::files::disk::{DiskFull, Writes};
use crate::files::{Fault, FileThreads, Guard, OWN_FILES, Place, Workspace};
use crate::handles::{Handle, NoHandle};
use crate::state::CallState;
use crate::wasi::OpenWay;

const READ: Capability = Capability::WorkspaceRead;
const WRITE: Capability = Capability::WorkspaceWrite;

/// The reason of a refusal that no rule is the reason of any more.
const READ_ONLY: &str = "the folder was granted for reading";
const OUT: &str = "the path leads out of the folder that is granted";
const SPECIAL: &str = "WASI moves and links nothing but files and folders";

/// An open folder, and the way by which the guest came to it.
pub(super) struct OpenFolder {
    pub(super) dir: Dir,
    pub(super) way: OpenWay,
    /// The capability that an operation in it is refused under.
    pub(super) capability: Capability,
}

/// Works on a thread for file operations, as soon as one may be used, if the folders of the call are
/// granted then.
///
/// # Cancel safety
/// Dropping the future loses the result. The turn is given back when the thread is back.
pub(in crate::host) async fn on_thread<T: Send + 'static>(
    threads: FileThreads,
    granted: GrantCheck,
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let done = threads.run(move || {
        granted.pass()?;
        work()
    });
    done.await.unwrap_or_else(|| Err(Errno::IO.into()))
}

impl CallState {
    pub(super) fn begin(&mut self) -> FsResult<()> {
        self.enter().map_err(FsError::trap)
    }

    fn reach_files(&self) -> FsResult<()> {
        self.reach_out("reads or changes files through WASI").map_err(FsError::trap)
    }

    /// The error of a fault for the guest. The refusal of a rule or a bound is recorded.
    fn refusal(&mut self, fault: Fault, (capability, path): (Capability, &str)) -> FsError {
        match fault {
            Fault::Io(error) => code(&error).into(),
            Fault::Own => self.refused(capability, path, OWN_FILES),
            Fault::Out => self.refused(capability, path, OUT),
            Fault::Special => self.refused(WRITE, path, SPECIAL),
            Fault::Full(full) => {
                if self.writes().is_some_and(|writes| writes.is_first_refusal()) {
                    self.record_refusal(WRITE, path, full.to_string());
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

    /// The refusal of a path for another reason than a rule.
    pub(super) fn refused(&mut self, capability: Capability, path: &str, reason: &str) -> FsError {
        if self.files.notes_refusal(capability, path) {
            self.record_refusal(capability, path, reason.to_owned());
        }
        ErrorCode::NotPermitted.into()
    }

    /// The refusal of a change of what the guest may only read, with the rule for which that is so.
    pub(super) fn refuse_change(&mut self, way: &OpenWay, path: &str) -> FsError {
        let subject = way.subject(path);
        if self.files.notes_refusal(WRITE, &subject) {
            match self.rules().folder_denial(WRITE, &way.granted) {
                Some(denial) => self.record_denial(WRITE, &subject, &denial),
                None => self.record_refusal(WRITE, &subject, READ_ONLY.to_owned()),
            }
        }
        ErrorCode::NotPermitted.into()
    }

    /// The result of an operation on a path under a capability, for the guest. One whose folders
    /// went meanwhile ends.
    pub(in crate::host) fn done<T>(
        &mut self,
        done: Result<T, Fault>,
        subject: (Capability, &str),
    ) -> FsResult<T> {
        self.review_rules().map_err(FsError::trap)?;
        done.map_err(|fault| self.refusal(fault, subject))
    }

    pub(super) fn guarded(&self) -> FsResult<Workspace> {
        self.workspace.clone().ok_or_else(|| ErrorCode::NotPermitted.into())
    }

    /// An open file or folder, for looking at it.
    pub(super) fn any(&self, fd: &Fd) -> FsResult<Arc<StdFile>> {
        Ok(match self.table.get(fd)? {
            Descriptor::File(file) => Arc::clone(&file.file),
            Descriptor::Dir(dir) => Arc::clone(&dir.dir),
        })
    }

    pub(super) fn file(&self, fd: &Fd) -> FsResult<File> {
        match self.table.get(fd)? {
            Descriptor::File(file) => Ok(file.clone()),
            Descriptor::Dir(_) => Err(ErrorCode::BadDescriptor.into()),
        }
    }

    pub(super) fn writable_file(&mut self, fd: &Fd) -> FsResult<File> {
        let file = self.file(fd)?;
        match file.perms.write_not_permitted() {
            true => Err(self.refuse_change(&self.way(fd), "")),
            false => Ok(file),
        }
    }

    fn way(&self, fd: &Fd) -> OpenWay {
        self.files.ways.get(&fd.rep()).cloned().unwrap_or_default()
    }

    pub(super) fn folder(&self, fd: &Fd) -> FsResult<OpenFolder> {
        match self.table.get(fd)? {
            Descriptor::Dir(dir) => {
                Ok(OpenFolder { dir: dir.clone(), way: self.way(fd), capability: READ })
            }
            Descriptor::File(_) => Err(ErrorCode::NotDirectory.into()),
        }
    }

    /// A folder in which something is to be changed, at this path.
    pub(super) fn writable_folder(&mut self, fd: &Fd, path: &str) -> FsResult<OpenFolder> {
        let folder = self.folder(fd)?;
        match folder.dir.perms.write_not_permitted() {
            true => Err(self.refuse_change(&folder.way, path)),
            false => Ok(OpenFolder { capability: WRITE, ..folder }),
        }
    }

    pub(super) fn counted(&mut self) -> FsResult<Arc<Writes>> {
        self.writes().ok_or_else(|| ErrorCode::NotPermitted.into())
    }

    /// Works on what an open file or folder is.
    pub(super) async fn on_open<T: Send + 'static>(
        &mut self,
        open: Arc<StdFile>,
        work: impl FnOnce(&StdFile) -> Result<T, Fault> + Send + 'static,
    ) -> FsResult<T> {
        self.reach_files()?;
        let (threads, granted) = (self.file_threads(), self.grant_check());
        let done = on_thread(threads, granted, move || work(&open)).await;
        self.done(done, (READ, ""))
    }

    /// Works on the place that a path leads to.
    pub(super) async fn on_place<T: Send + 'static>(
        &mut self,
        OpenFolder { dir, way, capability }: OpenFolder,
        (path, follow): (String, bool),
        work: impl FnOnce(Place, &Guard) -> Result<T, Fault> + Send + 'static,
    ) -> FsResult<T> {
        self.reach_files()?;
        let (workspace, threads, subject) =
            (self.guarded()?, self.file_threads(), way.subject(&path));
        let done = on_thread(threads, self.grant_check(), move || {
            let guard = workspace.guard();
            let root = OpenDir::from_std_file(dir.dir.try_clone()?);
            work(Place::find(&root, &path, follow, &guard)?, &guard)
        });
        let done = done.await;
        self.done(done, (capability, &subject))
    }

    /// Changes two places at once.
    pub(super) async fn on_places<T: Send + 'static>(
        &mut self,
        (from, from_path): (OpenFolder, String),
        (to, to_path): (OpenFolder, String),
        work: impl FnOnce(Place, Place, &Guard) -> Result<T, Fault> + Send + 'static,
    ) -> FsResult<T> {
        self.reach_files()?;
        let (workspace, threads) = (self.guarded()?, self.file_threads());
        let subject = format!("{} -> {}", from.way.subject(&from_path), to.way.subject(&to_path));
        let done = on_thread(threads, self.grant_check(), move || {
            let guard = workspace.guard();
            let find = |dir: &Dir, path: &str| {
                let root = OpenDir::from_std_file(dir.dir.try_clone()?);
                Place::find(&root, path, false, &guard)
            };
            work(find(&from.dir, &from_path)?, find(&to.dir, &to_path)?, &guard)
        });
        let done = done.await;
        self.done(done, (WRITE, &subject))
    }

    /// One more descriptor of the instance.
    pub(super) fn handle(&self) -> FsResult<Handle> {
        let root = &self.scope.context().root_run_id;
        let taken = self.guest.engine.handles().take(root, &self.files.share);
        taken.map_err(|none| match none {
            NoHandle::Share => ErrorCode::Quota.into(),
            NoHandle::Pool => ErrorCode::Busy.into(),
        })
    }

    /// One more stream of a file.
    pub(super) fn open_file(&self, fd: &Fd, file: &File) -> FsResult<OpenFile> {
        self.reach_files()?;
        // The first is the instance's own.
        if Arc::strong_count(&self.files.streams) > STREAMS_MAX as usize {
            return Err(ErrorCode::Quota.into());
        }
        let handle = self.files.handles.get(&fd.rep()).cloned();
        let stream = Arc::clone(&self.files.streams);
        let (threads, granted) = (self.file_threads(), self.grant_check());
        let (file, buffers) = (Arc::clone(&file.file), self.guest.engine.buffers().clone());
        Ok(OpenFile { file, handle, _stream: stream, threads, granted, buffers })
    }

    pub(super) fn writer(
        &mut self,
        fd: &Fd,
        position: Option<u64>,
    ) -> FsResult<Resource<DynOutputStream>> {
        self.begin()?;
        let file = self.writable_file(fd)?;
        let (writes, scope) = (self.counted()?, Arc::clone(&self.scope));
        let counted =
            WriteAccount { writes, scope, is_revoked: Arc::clone(&self.files.is_revoked) };
        let writer = Writer::new(self.open_file(fd, &file)?, position, counted);
        Ok(self.table.push(Box::new(writer) as DynOutputStream)?)
    }
}
