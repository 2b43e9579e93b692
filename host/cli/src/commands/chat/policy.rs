//! The policy of a conversation. It is looked at before each line: an edit that has stood for a
//! moment is in force for the lines that are said after it.

use taskrun::ports::deployments::{UNSETTLED_AT_MOST, UNSETTLED_PAUSE};
use taskrun_policy::Policy;
use taskrun_runtime::{FilesSeen, UnsettledFiles};
use tokio::time::Instant;

use super::Chat;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};

/// The codes of failures that may be over in a moment, though nothing is edited: files that could
/// not be opened, and copies that could not be kept, as the disk is full.
const PASSING: [&str; 4] =
    ["policy-unreadable", "component-unreadable", "component-changed", "component-kept"];

/// The policy that was looked at last: the one in force, or one with a fault.
pub(super) struct PolicyRead {
    policy: Policy,
    /// Its files as they were at the last look.
    files: FilesSeen,
    /// The files as they are found since, where they are others.
    unsettled: UnsettledFiles,
}

/// The outcome of a look at the files of the policy.
#[derive(Debug)]
pub(super) enum FilesLook {
    /// They are as they were.
    Same,
    /// They were changed just now, and may be changed further.
    Unsettled,
    /// They were changed, and are these.
    Changed(FilesSeen),
}

impl PolicyRead {
    /// Reads the policy of the command.
    ///
    /// # Errors
    /// If there is none, or anything is wrong with it.
    pub(super) fn new(context: &Context) -> Outcome<Self> {
        let (policy, files) = context.load_policy(&context.named_policy()?)?;
        Ok(Self::of(policy, files))
    }

    fn of(policy: Policy, files: FilesSeen) -> Self {
        Self { policy, files, unsettled: UnsettledFiles::default() }
    }

    pub(super) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Looks at the files. A look before a line is to be said saves that line the wait.
    pub(super) fn look(&mut self) -> FilesLook {
        let found = FilesSeen::of(&self.policy);
        if found == self.files {
            self.unsettled.forget();
            return FilesLook::Same;
        }
        match self.unsettled.have_settled(&found) {
            true => FilesLook::Changed(found),
            false => FilesLook::Unsettled,
        }
    }

    /// Looks at the files until they stand as they are, but not for long.
    async fn settle(&mut self) -> FilesLook {
        let began = Instant::now();
        loop {
            let look = self.look();
            match look {
                FilesLook::Same | FilesLook::Changed(_) => return look,
                FilesLook::Unsettled if began.elapsed() >= UNSETTLED_AT_MOST => return look,
                FilesLook::Unsettled => tokio::time::sleep(UNSETTLED_PAUSE).await,
            }
        }
    }

    /// Notes a fault of these files, which are not read again before they are changed again.
    fn note_fault(&mut self, files: FilesSeen) {
        self.files = files;
        self.unsettled.forget();
    }
}

impl Chat<'_> {
    /// Takes an edit of the policy up. One that cannot be used is told of, and changes nothing. One
    /// with a fault is not read again before it is changed again; after any other failure, such as
    /// that of a store that is busy, it is tried again with the next line.
    pub(super) async fn take_up_policy(&mut self) {
        let found = match self.policy_read.settle().await {
            FilesLook::Same => return,
            FilesLook::Unsettled => {
                self.view.note("files of the policy keep changing; the one before stays in force");
                return;
            }
            FilesLook::Changed(found) => found,
        };
        let failure = match self.context.load_policy(&self.policy_read.policy.path) {
            Ok((policy, files)) => {
                let accepting = self.context.accepting_all(self.storage, &policy).await;
                let read = PolicyRead::of(policy, files);
                match accepting {
                    Ok(controller) => {
                        self.client = self.context.client(&controller);
                        self.policy = read.policy.clone();
                        self.policy_read = read;
                        return;
                    }
                    Err(failure) => {
                        if is_fault(&failure) {
                            self.policy_read = read;
                        }
                        failure
                    }
                }
            }
            Err(failure) => {
                if is_fault(&failure) {
                    self.policy_read.note_fault(found);
                }
                failure
            }
        };
        self.tell("the policy stays as it was", &failure);
    }
}

/// True if the policy, or a component of it, has to be changed before it can be used.
fn is_fault(failure: &Failure) -> bool {
    matches!(failure.exit, Exit::Usage | Exit::Denied) && !PASSING.contains(&&*failure.code)
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use std::time::Duration;

    use taskrun_runtime::{LoadError, PolicyLoadError};
    use tempfile::TempDir;
    use tokio::time::sleep;

    use super::*;
    use crate::failure::{load_failure, policy_failure};

    /// The time for which a change has to stand, by which editors are done.
    const MOMENT: Duration = Duration::from_millis(300);

    /// A policy that was read, and its file.
    fn read() -> (TempDir, PathBuf, PolicyRead) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("taskrun.toml");
        std::fs::write(&path, "[prompt.p]\ntemplate = \"x\"\n").expect("written");
        let (policy, files) = FilesSeen::load(&path, &Arc::default()).expect("a policy");
        (folder, path, PolicyRead::of(policy, files))
    }

    /// Writes a piece more of a file.
    fn grow(path: &Path) {
        let before = std::fs::read_to_string(path).expect("it is there");
        std::fs::write(path, format!("{before}# more\n")).expect("written");
    }

    #[tokio::test(start_paused = true)]
    async fn an_edit_is_waited_for_until_it_has_stood_for_a_moment() {
        let (_folder, path, mut read) = read();
        let began = Instant::now();
        assert!(matches!(read.settle().await, FilesLook::Same));
        assert_eq!(began.elapsed(), Duration::ZERO, "no line waits where nothing was edited");
        grow(&path);
        assert!(matches!(read.settle().await, FilesLook::Changed(_)));
        assert!(began.elapsed() >= MOMENT, "{:?}", began.elapsed());
        assert!(began.elapsed() < UNSETTLED_AT_MOST, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_line_waits_no_more_for_an_edit_that_stood_before_it() {
        let (_folder, path, mut read) = read();
        grow(&path);
        assert!(matches!(read.look(), FilesLook::Unsettled));
        sleep(MOMENT).await;
        let began = Instant::now();
        assert!(matches!(read.settle().await, FilesLook::Changed(_)));
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_policy_that_is_written_without_end_holds_no_line_up_for_long() {
        let (_folder, path, mut read) = read();
        let began = Instant::now();
        let writes = async {
            for _ in 0..1_000 {
                grow(&path);
                sleep(UNSETTLED_PAUSE).await;
            }
        };
        let look = tokio::select! {
            biased;
            () = writes => FilesLook::Same,
            look = read.settle() => look,
        };
        assert!(matches!(look, FilesLook::Unsettled), "{look:?}");
        assert!(began.elapsed() <= UNSETTLED_AT_MOST + UNSETTLED_PAUSE, "{:?}", began.elapsed());
    }

    #[test]
    fn what_may_be_over_in_a_moment_is_no_fault_of_the_policy() {
        let path = || PathBuf::from("taskrun.toml");
        let unreadable =
            PolicyLoadError::Read { path: path(), source: Error::from(ErrorKind::OutOfMemory) };
        assert!(!is_fault(&policy_failure(&unreadable, false)));
        for kind in [None, Some(ErrorKind::StorageFull), Some(ErrorKind::PermissionDenied)] {
            let unkept = LoadError::Kept { detail: "it cannot be kept".to_owned(), kind };
            assert!(!is_fault(&load_failure(&unkept, "agent lead", &path())));
        }
        assert!(is_fault(&load_failure(&LoadError::Empty, "agent lead", &path())));
        assert!(!is_fault(&Failure::unexpected("the store is busy")));
    }
}
