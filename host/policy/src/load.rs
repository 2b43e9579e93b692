//! Policies from texts, and the files that they name.

use std::path::Path;

use crate::error::PolicyErrors;
use crate::files::{self, Files};
use crate::parse;
use crate::policy::Policy;

impl Policy {
    /// Checks the text of a policy file. `path` says where relative paths start and is named in
    /// locations; it is not read. Prompts whose texts stand in files are read apart; see
    /// [`Policy::read_prompts`].
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
    pub fn check_files(&self, files: &dyn Files) -> Result<(), PolicyErrors> {
        files::check(&self.source, &self.files, files)
    }
}
