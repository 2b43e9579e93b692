//! Policies from texts, and the files that they name.

use std::path::Path;

use crate::error::PolicyErrors;
use crate::files::{self, Files};
use crate::parse::{self, ModelTables};
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
        parse::parse(text, path, ModelTables::Read)
    }

    /// Reads a text that was a policy before, for its agents: of its models only the names count,
    /// and [`Policy::models`] is empty. Their tables may say what no program takes any more, as
    /// the models that are asked are those of a later policy.
    ///
    /// # Errors
    ///
    /// As for [`Policy::parse`], without what is wrong in a model's table.
    pub fn parse_without_models(text: &str, path: &Path) -> Result<Self, PolicyErrors> {
        parse::parse(text, path, ModelTables::Named)
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
