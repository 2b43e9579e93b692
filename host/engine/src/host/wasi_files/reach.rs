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
    pub(in crate::host) fn refusal(&mut self, fault: Fault, path: &str) -> FsError {
        match fault {
            Fault::Io(error) => code(&error).into(),
            Fault::Own => {
                self.record_refusal(Capability::WorkspaceRead, path, OWN_FILES.to_owned());
                ErrorCode::NotPermitted.into()
            }
            Fault::Full(full) => {
                if self.writes().is_some_and(|writes| writes.is_first_refusal()) {
                    self.record_refusal(Capability::WorkspaceWrite, path, full.to_string());
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

    /// The result of an operation, for the guest. One whose folders went meanwhile ends.
    pub(in crate::host) fn done<T>(&mut self, done: Result<T, Fault>, path: &str) -> FsResult<T> {
        self.review_rules().map_err(FsError::trap)?;
        done.map_err(|fault| self.refusal(fault, path))
    }

    pub(super) fn guarded(&self) -> FsResult<Workspace> {
        self.guest.workspace.clone().ok_or_else(|| ErrorCode::NotPermitted.into())
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

    pub(super) fn writable_file(&self, fd: &Fd) -> FsResult<File> {
        let file = self.file(fd)?;
        match file.perms.write_not_permitted() {
            true => Err(ErrorCode::NotPermitted.into()),
            false => Ok(file),
        }
    }

    pub(super) fn folder(&self, fd: &Fd) -> FsResult<Dir> {
        match self.table.get(fd)? {
            Descriptor::Dir(dir) => Ok(dir.clone()),
            Descriptor::File(_) => Err(ErrorCode::NotDirectory.into()),
        }
    }

    pub(super) fn writable_folder(&self, fd: &Fd) -> FsResult<Dir> {
        let folder = self.folder(fd)?;
        match folder.perms.write_not_permitted() {
            true => Err(ErrorCode::NotPermitted.into()),
            false => Ok(folder),
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
        self.done(done, "")
    }

    /// Works on the place that a path leads to.
    pub(super) async fn on_place<T: Send + 'static>(
        &mut self,
        folder: Dir,
        (path, follow): (String, bool),
        work: impl FnOnce(Place, &Guard) -> Result<T, Fault> + Send + 'static,
    ) -> FsResult<T> {
        self.reach_files()?;
        let (workspace, threads, subject) = (self.guarded()?, self.file_threads(), path.clone());
        let done = on_thread(threads, self.grant_check(), move || {
            let guard = workspace.guard();
            let root = OpenDir::from_std_file(folder.dir.try_clone()?);
            work(Place::find(&root, &path, follow, &guard)?, &guard)
        });
        let done = done.await;
        self.done(done, &subject)
    }

    /// Works on two places at once.
    pub(super) async fn on_places<T: Send + 'static>(
        &mut self,
        (from, from_path): (Dir, String),
        (to, to_path): (Dir, String),
        work: impl FnOnce(Place, Place, &Guard) -> Result<T, Fault> + Send + 'static,
    ) -> FsResult<T> {
        self.reach_files()?;
        let (workspace, threads) = (self.guarded()?, self.file_threads());
        let subject = format!("{from_path} -> {to_path}");
        let done = on_thread(threads, self.grant_check(), move || {
            let guard = workspace.guard();
            let find = |dir: &Dir, path: &str| {
                let root = OpenDir::from_std_file(dir.dir.try_clone()?);
                Place::find(&root, path, false, &guard)
            };
            work(find(&from, &from_path)?, find(&to, &to_path)?, &guard)
        });
        let done = done.await;
        self.done(done, &subject)
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
