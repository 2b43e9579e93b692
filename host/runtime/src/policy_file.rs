//! Policy files, read from the disk.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use taskrun_engine::AgentError;
use taskrun_policy::{
    AgentPolicy, Defaults, FileKind, Files, POLICY_BYTES_MAX, Policy, PolicyErrors,
};
use taskrun_store::open_regular_file;

/// The reason why a policy could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum PolicyLoadError {
    /// The file cannot be read, or is not UTF-8.
    #[error("cannot read the policy {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The words of the operating system.
        source: io::Error,
    },
    /// The file was read and is wrong.
    #[error(transparent)]
    Invalid(#[from] PolicyErrors),
}

/// The files of the machine.
pub(crate) struct Disk;

impl Files for Disk {
    fn read(&self, path: &Path, bytes_max: usize) -> io::Result<String> {
        let Some((file, _)) = open_regular_file(path)? else {
            return Err(io::Error::other("it is no regular file"));
        };
        let mut text = String::new();
        // One byte more than allowed, so that a file that is too large is seen to be.
        file.take(bytes_max as u64 + 1).read_to_string(&mut text)?;
        Ok(text)
    }

    fn kind(&self, path: &Path) -> io::Result<FileKind> {
        let kind = path.metadata()?.file_type();
        Ok(match (kind.is_file(), kind.is_dir()) {
            (true, _) => FileKind::File,
            (false, true) => FileKind::Folder,
            (false, false) => FileKind::Other,
        })
    }

    fn real_path(&self, path: &Path) -> io::Result<PathBuf> {
        path.canonicalize()
    }
}

/// Reads a policy file to use it, and the files of its prompts. An agent whose component or folder is
/// missing, or a prompt that it may use, or the model that it asks, keeps the others from nothing: it is
/// refused where it is loaded.
///
/// # Errors
/// [`PolicyLoadError::Read`] if the file cannot be read, [`PolicyLoadError::Invalid`] if anything in
/// it is wrong.
pub fn load_policy(path: &Path) -> Result<Policy, PolicyLoadError> {
    load_policy_with(path, &Arc::default())
}

/// The same as a program with these defaults reads it.
///
/// # Errors
/// As for [`load_policy`].
pub fn load_policy_with(path: &Path, defaults: &Arc<Defaults>) -> Result<Policy, PolicyLoadError> {
    let mut policy = parse_policy(&Disk, path, defaults)?;
    read_prompts(&mut policy);
    Ok(policy)
}

/// Reads a policy file, and no file that it names.
///
/// # Errors
/// [`PolicyLoadError`].
pub(crate) fn parse_policy(
    files: &dyn Files,
    path: &Path,
    defaults: &Arc<Defaults>,
) -> Result<Policy, PolicyLoadError> {
    let text = files.read(path, POLICY_BYTES_MAX);
    let text = text.map_err(|source| PolicyLoadError::Read { path: path.to_owned(), source })?;
    Ok(Policy::parse_with(&text, path, defaults)?)
}

/// Reads the files of a policy's prompts.
pub(crate) fn read_prompts(policy: &mut Policy) {
    policy.read_prompts(&Disk);
}

/// Reads a policy file to check it, and looks for every file that it names.
///
/// # Errors
/// [`PolicyLoadError`], with everything that is wrong with it.
pub fn read_whole_policy(path: &Path, defaults: &Arc<Defaults>) -> Result<Policy, PolicyLoadError> {
    let policy = load_policy_with(path, defaults)?;
    policy.check_files(&Disk)?;
    Ok(policy)
}

/// Looks for the folder of an agent, for its components and for its prompts.
///
/// # Errors
/// [`AgentError::Files`], with each that cannot be used.
pub(crate) fn check_files_of(policy: &Policy, agent: &AgentPolicy) -> Result<(), AgentError> {
    let agent_error = |errors| AgentError::Files { agent: agent.name.clone(), errors };
    policy.check_files_of(agent, &Disk).map_err(agent_error)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn files_that_are_named_must_be_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("taskrun.toml");
        let text = "[workspace]\nroot = \"work\"\n[model.m]\nprovider = \"scripted\"\nscript = \"work\"\n\
                    [agent.a]\ncomponent = \"a.wasm\"\nworkspace = \"out\"\n[agent.b]\ncomponent = \"b.wasm\"\n";
        fs::write(&path, text).unwrap();
        fs::write(folder.path().join("a.wasm"), "").unwrap();
        fs::create_dir_all(folder.path().join("work")).unwrap();
        std::os::unix::fs::symlink(folder.path(), folder.path().join("work/out")).unwrap();
        let errors = load_policy(&path).unwrap().check_files(&Disk).unwrap_err();
        let seen: Vec<String> = errors
            .errors
            .iter()
            .map(|error| {
                format!("{}:{} {}", error.location.line, error.location.column, error.kind)
            })
            .map(|message| message.replace(&folder.path().display().to_string(), "DIR"))
            .collect();
        assert_eq!(
            seen,
            [
                "5:10 script DIR/work is not a file",
                "8:13 folder DIR/work/out leads out of the workspace's root",
                "10:13 component DIR/b.wasm cannot be used: No such file or directory (os error 2)",
            ]
        );

        fs::write(folder.path().join("b.wasm"), "").unwrap();
        fs::remove_file(folder.path().join("work/out")).unwrap();
        fs::create_dir(folder.path().join("work/out")).unwrap();
        fs::write(&path, text.replace("script = \"work\"", "script = \"a.wasm\"")).unwrap();
        assert_eq!(load_policy(&path).unwrap().check_files(&Disk), Ok(()));
    }

    #[test]
    fn prompts_in_files_are_read_with_the_policy_and_part_of_its_digest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("taskrun.toml");
        let text = "[prompt.p]\ntemplate = \"\"\"\nHi {{ a }}\"\"\"\n\
                    overrides = [{ session = \"s\", file = \"p.md\" }]\n";
        fs::write(&path, text).unwrap();
        let load = |template: &str| {
            fs::write(folder.path().join("p.md"), template).unwrap();
            load_policy(&path)
        };
        let render = |policy: &Policy, session: &str| {
            let rendered =
                policy.prompts().render("p", r#"{"a": "x"}"#, session, &Default::default());
            rendered.unwrap().text
        };
        let first = load("one {{ a }}").unwrap();
        assert_eq!((render(&first, "s"), render(&first, "other")), ("one x".into(), "Hi x".into()));
        let second = load("two {{ a }}").unwrap();
        assert_eq!(render(&second, "s"), "two x");
        assert_eq!(render(&first, "s"), "one x", "what was read is what is rendered");
        assert_ne!(first.digest, second.digest);
        assert_eq!(load("one {{ a }}").unwrap().digest, first.digest);
        // Without a file of a prompt the digest is that of the policy's text, as it always was.
        fs::write(&path, "[prompt.p]\ntemplate = \"x\"\n").unwrap();
        let plain = load_policy(&path).unwrap();
        assert_eq!(plain.digest, blake3::hash(b"[prompt.p]\ntemplate = \"x\"\n").to_hex().as_str());

        fs::write(&path, text).unwrap();
        for bad in ["{{ ", &"x".repeat((64 << 10) + 1)] {
            let error = load(bad).unwrap().check_files(&Disk).unwrap_err().to_string();
            assert!(error.contains("4:38: prompt") && error.contains("is no template"), "{error}");
        }
        fs::remove_file(folder.path().join("p.md")).unwrap();
        let error = load_policy(&path).unwrap().check_files(&Disk).unwrap_err().to_string();
        assert!(error.contains("4:38: prompt") && error.contains("cannot be used"), "{error}");
    }

    #[test]
    fn a_pipe_is_neither_a_policy_nor_a_prompt_and_nobody_is_waited_for() {
        use rustix::fs::{CWD, Mode, mkfifoat};

        let folder = tempfile::tempdir().expect("a folder");
        let (path, pipe) = (folder.path().join("taskrun.toml"), folder.path().join("p.md"));
        fs::write(&path, "[prompt.p]\nfile = \"p.md\"\n").expect("written");
        mkfifoat(CWD, &pipe, Mode::from_raw_mode(0o600)).expect("a pipe");
        // Should it wait, the test does not wait with it.
        let (told, tells) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let prompt = load_policy(&path).expect("a policy").check_files(&Disk);
            let policy = load_policy(&pipe).map(drop);
            told.send((prompt.map_err(|error| error.to_string()), policy)).ok();
        });
        let patience = std::time::Duration::from_secs(60);
        let (prompt, policy) = tells.recv_timeout(patience).expect("it ends");
        let prompt = prompt.expect_err("it is no file");
        assert!(prompt.contains("2:8: prompt") && prompt.contains("no regular file"), "{prompt}");
        assert!(matches!(policy, Err(PolicyLoadError::Read { .. })), "{policy:?}");
    }

    #[test]
    fn a_policy_that_cannot_be_read_names_its_path() {
        let error = load_policy(Path::new("/no/such/taskrun.toml")).unwrap_err();
        assert_eq!(error.to_string(), "cannot read the policy /no/such/taskrun.toml");
    }
}
