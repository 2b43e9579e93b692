//! Opening the files that a policy names for its models.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file without waiting: a pipe would have its reader wait for a writer, and a host
/// executes nothing meanwhile.
///
/// # Errors
/// Those of the operating system, and that it is of another kind.
pub(crate) fn open_regular(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = options.custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is no regular file")),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::fs::{CWD, Mode, mkfifoat};
    use taskrun_policy::KeySource;

    use crate::cassette;
    use crate::key::Secret;
    use crate::scripted::ScriptedModel;

    fn refusal<T>(opened: Result<T, impl Debug>) -> String {
        opened.err().map(|error| format!("{error:?}")).unwrap_or_default()
    }

    #[test]
    fn a_pipe_is_refused_and_nobody_is_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        mkfifoat(CWD, &pipe, Mode::from_raw_mode(0o600)).expect("a pipe");
        // Should one wait, the test does not wait with it.
        let (refuse, refused) = mpsc::channel();
        std::thread::spawn(move || {
            let key = refusal(Secret::read(&KeySource::File(pipe.clone())));
            let script = refusal(ScriptedModel::load(&pipe, false, None));
            let played = refusal(cassette::load(&pipe));
            let recorded = refusal(cassette::Writer::new(&pipe));
            refuse.send(([key, script, played], recorded)).ok();
        });
        let (read, recorded) = refused.recv_timeout(Duration::from_secs(60)).expect("it ends");
        assert!(read.iter().all(|refusal| refusal.contains("it is no regular file")), "{read:?}");
        assert!(!recorded.is_empty(), "a pipe that nobody reads");
    }
}
