//! Trust in policies and data directories that are found and not named.
//!
//! A policy decides which files, hosts and keys agents get, so one that another user left where a
//! person works must not be used by itself. What is found belongs to that person or to root, cannot
//! be written by others, and is trusted once: by path, device and owner, in the state folder of the
//! person. Edits do not ask again. Who names a file trusts it by that.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{BufRead, IsTerminal, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use taskrun_runtime::user_state_folder;

use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::escape::escaped_line;
use crate::output::stream::BlockingStream;
use crate::shell;
use crate::terminal::discard_typed;

/// The folders that are trusted, one JSON object a line.
const TRUST_FILE: &str = "trusted";
/// Most bytes of it that are read: some ten thousand folders.
const TRUST_BYTES_MAX: u64 = 4 << 20;
/// Number of the user who may everything.
const ROOT: u32 = 0;

/// The user, and the place where their trust is kept.
#[derive(Clone, Debug)]
pub(crate) struct Trust {
    user: User,
    /// The state folder of this program; none where the environment names none.
    state: Option<PathBuf>,
    home: Option<PathBuf>,
}

/// The user whose files are one's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct User {
    id: u32,
    /// For root: who became root, or whose files are to count.
    behind: Option<u32>,
}

impl User {
    /// True if a file of this owner can be trusted: it is the user's own, or root's.
    fn may_own(self, owner: u32) -> bool {
        owner == ROOT || owner == self.id || (self.id == ROOT && self.behind == Some(owner))
    }
}

/// A folder that is trusted.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    folder: PathBuf,
    device: u64,
    owner: u32,
}

/// The reason that the search for a policy ended before the root of the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    /// Others may write to this folder, or another user owns it.
    Open(PathBuf),
    /// This folder is on another file system.
    Mount(PathBuf),
}

/// True if others than the owner can change what this describes. A group of the same number as the
/// owner is the owner's alone, as most systems make them.
fn others_may_write(meta: &Metadata) -> bool {
    let group_is_own = meta.gid() == meta.uid();
    meta.mode() & 0o002 != 0 || (meta.mode() & 0o020 != 0 && !group_is_own)
}

/// The surroundings of the process, which are no setting of a command.
#[expect(
    clippy::disallowed_methods,
    reason = "a variable that is always set, such as HOME, would pass for an argument with the parser"
)]
fn surrounding(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

impl Trust {
    /// As the surroundings of this process say.
    #[must_use]
    pub(crate) fn new() -> Self {
        let home = surrounding("HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let number = |name: &str| surrounding(name)?.to_str()?.parse().ok();
        let behind = number("TASKRUN_POLICY_OWNER").or_else(|| number("SUDO_UID"));
        let id = rustix::process::geteuid().as_raw();
        Self { user: User { id, behind }, state: user_state_folder(), home }
    }

    /// The nearest folder from `here` upward, `here` included, of which `look` says yes.
    pub(crate) fn upward(&self, here: &Path, look: impl Fn(&Path) -> bool) -> Option<PathBuf> {
        let (folders, _) = self.reach(here);
        folders.into_iter().find(|folder| look(folder))
    }

    /// The reason that nothing was found, where that is not as nothing is there.
    #[must_use]
    pub(crate) fn end_of_search(&self, here: &Path) -> Option<String> {
        match self.reach(here).1? {
            End::Open(folder) => Some(format!(
                "the search ends below {}, which belongs to somebody else or can be written by others",
                folder.display()
            )),
            End::Mount(folder) => Some(format!(
                "the search ends below {}, which is on another file system",
                folder.display()
            )),
        }
    }

    /// The folders in which something may be found, the nearest first, and what ended them: the home
    /// folder and the root are the last; a border of file systems ends them, and so does a folder in
    /// which others could have put it.
    fn reach(&self, here: &Path) -> (Vec<PathBuf>, Option<End>) {
        let mut folders = Vec::new();
        let mut device = None;
        for folder in here.ancestors() {
            let Ok(meta) = std::fs::metadata(folder) else { return (folders, None) };
            if *device.get_or_insert(meta.dev()) != meta.dev() {
                return (folders, Some(End::Mount(folder.to_owned())));
            }
            if others_may_write(&meta) || !self.user.may_own(meta.uid()) {
                return (folders, Some(End::Open(folder.to_owned())));
            }
            folders.push(folder.to_owned());
            if self.home.as_deref() == Some(folder) {
                break;
            }
        }
        (folders, None)
    }

    /// Makes sure that what was found in a folder may be used; in a terminal, by asking.
    ///
    /// # Errors
    /// If another user owns it, if others may write it, or if it is not trusted.
    pub(crate) fn check(&self, folder: &Path, found: &Path) -> Outcome<()> {
        let entry = self.entry(folder, found)?;
        if self.knows(&entry) {
            return Ok(());
        }
        let asks = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
        if asks && self.agrees(&entry, found) {
            return self.add(&entry);
        }
        let (shown, folder) = (found.display(), shell::path(folder, "FOLDER"));
        Err(Failure::new(
            Exit::Forbidden,
            "untrusted",
            format!("{shown} was found, not named, and nobody has said that it is to be used"),
        )
        .with_places()
        .hint(format!(
            "trust it from now on with `taskrun policy trust {folder}`, or name a policy each time: \
             `--config FILE`, or TASKRUN_CONFIG"
        )))
    }

    /// Checks that a file beside a policy that is used is not another user's either.
    ///
    /// # Errors
    /// If another user owns it, or if others may write it.
    pub(crate) fn is_safe(&self, folder: &Path, found: &Path) -> Outcome<()> {
        self.entry(folder, found).map(|_| ())
    }

    /// Trusts what is in a folder from now on.
    ///
    /// # Errors
    /// If another user owns it, if others may write it, or if that cannot be kept.
    pub(crate) fn trust(&self, folder: &Path, found: &Path) -> Outcome<()> {
        let entry = self.entry(folder, found)?;
        if self.knows(&entry) { Ok(()) } else { self.add(&entry) }
    }

    /// The entry that is kept of a folder, if the files in it may be trusted at all.
    fn entry(&self, folder: &Path, found: &Path) -> Outcome<Entry> {
        let unreadable = |error: std::io::Error| {
            Failure::usage("unreadable", format!("{} cannot be read", found.display()))
                .because(&error)
                .with_places()
                .hint("correct its owner and mode, or name a policy with --config FILE")
        };
        let folder = folder.canonicalize().map_err(unreadable)?;
        let about = std::fs::metadata(&folder).map_err(unreadable)?;
        let link = std::fs::symlink_metadata(found).map_err(unreadable)?;
        let meta = std::fs::metadata(found).map_err(unreadable)?;
        for (path, meta) in [(&*folder, &about), (found, &link), (found, &meta)] {
            // Modes of links say nothing.
            let is_open = !meta.is_symlink() && others_may_write(meta);
            if !self.user.may_own(meta.uid()) || is_open {
                return Err(self.unsafe_place(path, meta));
            }
        }
        Ok(Entry { folder, device: about.dev(), owner: meta.uid() })
    }

    fn unsafe_place(&self, path: &Path, meta: &Metadata) -> Box<Failure> {
        let (shown, owner) = (path.display(), meta.uid());
        let (what, remedy) = if self.user.may_own(owner) {
            let remedy = format!("`chmod go-w {}`, or ", shell::path(path, "FILE"));
            (format!("{shown} can be written by others"), remedy)
        } else if self.user.id == ROOT {
            let remedy = format!("set TASKRUN_POLICY_OWNER={owner} if that user is to count, or ");
            (format!("{shown} belongs to user {owner}, and not to root"), remedy)
        } else {
            (format!("{shown} belongs to user {owner}"), String::new())
        };
        Failure::new(Exit::Forbidden, "untrusted", format!("{what}, and was found, not named"))
            .with_places()
            .hint(format!(
                "{remedy}name the policy that you mean: `--config FILE`, or TASKRUN_CONFIG"
            ))
    }

    /// Asks the person at the terminal.
    fn agrees(&self, entry: &Entry, found: &Path) -> bool {
        let shown = found.display().to_string();
        let whose = if entry.owner == self.user.id { " (you)" } else { "" };
        let mut output = BlockingStream(std::io::stderr().lock());
        let asked = write!(
            output,
            "{} was found here and is not trusted yet. It belongs to user {}{whose}, and decides which\n\
             files, hosts and keys agents get. ",
            escaped_line(&shown),
            entry.owner,
        );
        let mut answer = String::new();
        let read = asked
            .and_then(|()| output.flush())
            // A key that was pressed before is no answer to what nobody had seen.
            .and_then(|()| discard_typed())
            .and_then(|()| write!(output, "Use it, now and from now on? [y/N] "))
            .and_then(|()| output.flush())
            .and_then(|()| BlockingStream(std::io::stdin().lock()).read_line(&mut answer));
        read.is_ok() && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
    }

    fn file(&self) -> Option<PathBuf> {
        self.state.as_ref().map(|state| state.join(TRUST_FILE))
    }

    /// True if a folder is among those that are trusted. A list that others could have written does
    /// not count.
    fn knows(&self, entry: &Entry) -> bool {
        let Some(file) = self.file().and_then(|file| File::open(file).ok()) else { return false };
        let is_own = |meta: &Metadata| self.user.may_own(meta.uid()) && !others_may_write(meta);
        if !file.metadata().is_ok_and(|meta| is_own(&meta)) {
            return false;
        }
        let mut text = String::new();
        if file.take(TRUST_BYTES_MAX).read_to_string(&mut text).is_err() {
            return false;
        }
        text.lines()
            .any(|line| serde_json::from_str(line).is_ok_and(|known: Entry| known == *entry))
    }

    fn add(&self, entry: &Entry) -> Outcome<()> {
        let file = self.file().ok_or_else(|| {
            Failure::usage(
                "no-state-folder",
                "neither HOME nor XDG_STATE_HOME says where to keep whom you trust",
            )
            .hint("name the policy each time: `--config FILE`, or TASKRUN_CONFIG")
        })?;
        self.append(&file, entry).map_err(|error| {
            Failure::new(
                Exit::Unreachable,
                "state-folder",
                format!("{} cannot be written", file.display()),
            )
            .because(&error)
            .hint("name the policy each time: `--config FILE`, or TASKRUN_CONFIG")
        })
    }

    /// One line in one write, so that two who do so at once do not mix.
    fn append(&self, file: &Path, entry: &Entry) -> std::io::Result<()> {
        let mut line = serde_json::to_string(entry).map_err(std::io::Error::other)?;
        line.push('\n');
        if let Some(folder) = file.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(file)?;
        file.write_all(line.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A user with a home below a folder.
    fn somebody(root: &Path) -> Trust {
        let id = rustix::process::geteuid().as_raw();
        Trust {
            user: User { id, behind: None },
            state: Some(root.join("state/taskrun")),
            home: Some(root.join("home")),
        }
    }

    fn folder(root: &Path, path: &str) -> PathBuf {
        let path = root.join(path);
        std::fs::create_dir_all(&path).expect("made");
        path
    }

    fn mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("its mode");
    }

    fn policy(folder: &Path) -> PathBuf {
        let file = folder.join("taskrun.toml");
        std::fs::write(&file, "").expect("written");
        mode(&file, 0o644);
        file
    }

    #[test]
    fn the_search_ends_at_home_and_where_others_may_write() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path().canonicalize().expect("a path");
        let trust = somebody(&root);
        let deep = folder(&root, "home/a/b");
        policy(&root);
        let has_policy = |folder: &Path| folder.join("taskrun.toml").exists();
        assert_eq!(trust.upward(&deep, has_policy), None, "above the home folder");
        policy(&root.join("home"));
        assert_eq!(trust.upward(&deep, has_policy), Some(root.join("home")));
        for open in [0o757, 0o777, 0o1777] {
            mode(&root.join("home/a"), open);
            assert_eq!(trust.upward(&deep, has_policy), None, "{open:o}");
            let end = trust.end_of_search(&deep).expect("it ends early");
            assert!(end.contains("home/a,"), "{end}");
        }
        policy(&root.join("home/a"));
        assert_eq!(
            trust.upward(&root.join("home/a"), has_policy),
            None,
            "not in such a folder either"
        );
        assert_eq!(trust.upward(&deep, |folder| folder.ends_with("b")), Some(deep));
    }

    #[test]
    fn the_search_does_not_leave_the_file_system() {
        let trust = somebody(Path::new("/nowhere"));
        let (folders, end) = trust.reach(Path::new("/proc/self"));
        let device = |path: &Path| std::fs::metadata(path).expect("it is there").dev();
        assert!(folders.iter().all(|folder| device(folder) == device(Path::new("/proc/self"))));
        assert_eq!(end, Some(End::Mount(PathBuf::from("/"))));
    }

    #[test]
    fn what_is_found_is_used_once_it_is_trusted_and_edits_do_not_ask_again() {
        let root = tempfile::tempdir().expect("a folder");
        let trust = somebody(root.path());
        let here = folder(root.path(), "home/project");
        let file = policy(&here);
        let refused = trust.check(&here, &file).expect_err("nobody trusts it");
        assert_eq!((refused.exit, &*refused.code), (Exit::Forbidden, "untrusted"));
        let hint = refused.hint.expect("what to do");
        assert!(hint.contains("taskrun policy trust") && hint.contains("--config"), "{hint}");
        trust.trust(&here, &file).expect("trusted");
        trust.check(&here, &file).expect("used");
        std::fs::write(&file, "# changed").expect("written");
        trust.check(&here, &file).expect("used");
        let other = folder(root.path(), "home/other");
        trust.check(&other, &policy(&other)).expect_err("another folder");
        let list = std::fs::metadata(root.path().join("state/taskrun/trusted")).expect("kept");
        assert_eq!(list.mode() & 0o777, 0o600);
    }

    #[test]
    fn what_others_may_write_is_not_used_even_if_it_was_trusted() {
        let root = tempfile::tempdir().expect("a folder");
        let trust = somebody(root.path());
        let here = folder(root.path(), "home/project");
        let file = policy(&here);
        trust.trust(&here, &file).expect("trusted");
        for (path, open, closed) in [(&file, 0o646, 0o644), (&here, 0o777, 0o755)] {
            mode(path, open);
            let refused = trust.check(&here, &file).expect_err("others may write it");
            assert!(refused.message.contains("written by others"), "{}", refused.message);
            mode(path, closed);
            trust.check(&here, &file).expect("used");
        }
        let list = root.path().join("state/taskrun/trusted");
        mode(&list, 0o666);
        trust.check(&here, &file).expect_err("others may write the list");
    }

    #[test]
    fn another_owner_or_device_is_another_folder() {
        let root = tempfile::tempdir().expect("a folder");
        let trust = somebody(root.path());
        let here = folder(root.path(), "home/project");
        let entry = trust.entry(&here, &policy(&here)).expect("it may be trusted");
        trust.add(&entry).expect("kept");
        assert!(trust.knows(&entry));
        let device = entry.device + 1;
        assert!(!trust.knows(&Entry { device, folder: entry.folder.clone(), owner: entry.owner }));
        let owner = entry.owner + 1;
        assert!(!trust.knows(&Entry { owner, folder: entry.folder.clone(), device: entry.device }));
    }

    #[test]
    fn ones_own_is_ones_own_and_roots_and_for_root_that_of_who_became_it() {
        let ann = User { id: 1_000, behind: Some(7) };
        assert!(ann.may_own(1_000) && ann.may_own(ROOT));
        assert!(!ann.may_own(1_001) && !ann.may_own(7));
        let root = User { id: ROOT, behind: None };
        assert!(root.may_own(ROOT) && !root.may_own(1_000));
        assert!(User { id: ROOT, behind: Some(1_000) }.may_own(1_000));
    }
}
