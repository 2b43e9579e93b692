//! Policies from files and texts.

use std::io::Read;
use std::path::Path;

use crate::error::{PolicyErrors, PolicyLoadError};
use crate::policy::{POLICY_BYTES_MAX, Policy};
use crate::{files, parse};

impl Policy {
    /// Reads and checks a policy file, and the files of its prompts. The other files that it names
    /// are not looked at; see [`Policy::check_files`].
    ///
    /// # Errors
    ///
    /// [`PolicyLoadError::Read`] if the file cannot be read, [`PolicyLoadError::Invalid`] if
    /// anything in it is wrong.
    pub fn load(path: &Path) -> Result<Self, PolicyLoadError> {
        let unreadable = |source| PolicyLoadError::Read { path: path.to_owned(), source };
        let file = std::fs::File::open(path).map_err(unreadable)?;
        let mut text = String::new();
        // One byte more than allowed, so that a file that is too large is seen to be.
        file.take(POLICY_BYTES_MAX as u64 + 1).read_to_string(&mut text).map_err(unreadable)?;
        let mut policy = Self::parse(&text, path)?;
        policy.read_prompts()?;
        Ok(policy)
    }

    /// Checks the text of a policy file. `path` says where relative paths start and is named in
    /// locations; it is not read.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with the text. If it is not TOML, only that.
    pub fn parse(text: &str, path: &Path) -> Result<Self, PolicyErrors> {
        parse::parse(text, path)
    }

    /// Checks that every component and script that the policy names is a file, that every
    /// workspace is a folder, and that no agent's workspace leads out of the root by a symbolic
    /// link. What is true at this moment need not be true later: whoever opens a file checks
    /// again.
    ///
    /// # Errors
    ///
    /// All files that are not so, each with the place where the policy names it.
    pub fn check_files(&self) -> Result<(), PolicyErrors> {
        files::check(&self.source, &self.files)
    }
}
