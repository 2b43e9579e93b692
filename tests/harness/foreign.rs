//! Programs of other makers that use the store's file: Debian's `sqlite3` and Python's module where
//! they are there, and always one of our own, which does the same in a process of its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

/// The test that is the process of our own, where [`act_as_told`] is not called before all tests.
const OURSELVES: &str = "store::a_program_of_another_maker_does_as_it_is_told";
/// Tell the process of our own what it does, and with which file.
const ROLE: &str = "TASKRUN_TEST_FOREIGN_ROLE";
const FILE: &str = "TASKRUN_TEST_FOREIGN_FILE";

/// Locks the file, says so, and frees it when its input ends.
const PYTHON_LOCKS: &str = "
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
db.execute('BEGIN IMMEDIATE')
print('locked', flush=True)
sys.stdin.read()
db.execute('COMMIT')
";
/// Opens the file, reads a row and closes it, again and again until its input ends.
const PYTHON_READS: &str = "
import os, select, sqlite3, sys
while not select.select([sys.stdin], [], [], 0.01)[0]:
    try:
        db = sqlite3.connect(sys.argv[1], timeout=60)
        db.execute('SELECT * FROM runs LIMIT 1').fetchall()
        db.close()
    except sqlite3.Error as error:
        print(error, file=sys.stderr)
";
/// The same for the shell, which is a process each time.
const SHELL_READS: &str = "
while :; do
    read -t 0.01 -r line
    # Beyond 128: there is still nothing to be read.
    [ $? -gt 128 ] || exit 0
    sqlite3 -cmd '.timeout 60000' \"$0\" 'SELECT * FROM runs LIMIT 1' >/dev/null
done
";

/// The program that opens the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// Debian's `sqlite3`, a shell.
    Shell,
    /// Python's module `sqlite3`.
    Python,
    /// A process of our own.
    Ourselves,
}

impl Maker {
    /// Those that are there.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let is_there = |program: &str, args: &[&str]| {
            let status = Command::new(program).args(args).stdout(Stdio::null()).status();
            status.is_ok_and(|status| status.success())
        };
        let mut all = Vec::new();
        all.extend(is_there("sqlite3", &["--version"]).then_some(Self::Shell));
        all.extend(is_there("python3", &["-c", "import sqlite3"]).then_some(Self::Python));
        all.push(Self::Ourselves);
        all
    }
}

/// Such a program under way; it ends with this value.
pub struct Foreign {
    child: Child,
    stdin: Option<ChildStdin>,
    /// Kept, as a program whose output is not read fails.
    stdout: BufReader<ChildStdout>,
}

impl Foreign {
    /// Locks the file for writing until [`Self::end`].
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn locks(maker: Maker, file: &Path) -> Self {
        let mut foreign = Self::start(match maker {
            Maker::Shell => {
                let mut command = Command::new("sqlite3");
                command.args(["-batch", "-cmd", ".timeout 60000"]).arg(file);
                command
            }
            Maker::Python => python(PYTHON_LOCKS, file),
            Maker::Ourselves => ourselves("locks", file),
        });
        if maker == Maker::Shell {
            let stdin = foreign.stdin.as_mut().expect("a pipe");
            stdin.write_all(b"BEGIN IMMEDIATE;\nSELECT 'locked';\n").expect("reads");
        }
        let mut lines = foreign.stdout.by_ref().lines();
        let locked = lines.any(|line| line.is_ok_and(|line| line == "locked"));
        assert!(locked, "{maker:?} locks the file");
        foreign
    }

    /// Opens, reads and closes the file until [`Self::end`].
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn reads(maker: Maker, file: &Path) -> Self {
        Self::start(match maker {
            Maker::Shell => {
                let mut command = Command::new("bash");
                command.args(["-c", SHELL_READS]).arg(file);
                command
            }
            Maker::Python => python(PYTHON_READS, file),
            Maker::Ourselves => ourselves("reads", file),
        })
    }

    fn start(mut command: Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("starts");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, stdin, stdout }
    }

    /// Ends it, and waits until it is gone.
    ///
    /// # Panics
    /// If it failed.
    pub fn end(mut self) {
        self.stdin = None;
        let status = self.child.wait().expect("a child");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.stdin = None;
        // It may have ended.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn python(script: &str, file: &Path) -> Command {
    let mut command = Command::new("python3");
    command.args(["-c", script]).arg(file);
    command
}

fn ourselves(role: &str, file: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["--exact", OURSELVES, "--nocapture"]).env(ROLE, role).env(FILE, file);
    command
}

/// Does what a process of our own was told, if this is one; says whether it is.
///
/// # Panics
/// If it cannot be done.
#[must_use]
pub fn act_as_told() -> bool {
    #[expect(clippy::disallowed_methods, reason = "how the parent tells its child what to do")]
    let told = |name: &str| std::env::var(name).ok();
    let (Some(role), Some(file)) = (told(ROLE), told(FILE)) else { return false };
    let ended = std::thread::spawn(|| std::io::stdin().lines().count());
    if role == "locks" {
        let db = Connection::open(file).expect("opens");
        db.busy_timeout(Duration::from_secs(60)).expect("set");
        db.execute_batch("BEGIN IMMEDIATE").expect("locks");
        println!("\nlocked");
        ended.join().expect("read");
        db.execute_batch("COMMIT").expect("frees");
        return true;
    }
    while !ended.is_finished() {
        // The file may be gone; there may be no row, or no table yet.
        let db = Connection::open_with_flags(&file, OpenFlags::SQLITE_OPEN_READ_WRITE);
        db.and_then(|db| db.query_row("SELECT * FROM runs LIMIT 1", [], |_| Ok(()))).ok();
    }
    true
}
