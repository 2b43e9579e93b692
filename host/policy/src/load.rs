//! Policies from texts, and the files that they name.

use std::path::Path;
use std::sync::Arc;

use crate::closure::{prompts_of, tools_of};
use crate::defaults::Defaults;
use crate::error::{PolicyErrors, Problems};
use crate::files::{self, FileUse, Files, NamedFile};
use crate::location::Location;
use crate::parse::{self, ModelTables};
use crate::policy::{AgentPolicy, Policy};
use crate::prompt::PromptPolicy;

impl Policy {
    /// Checks the text of a policy file. `path` says where relative paths start and is named in
    /// locations; it is not read. Prompts whose texts stand in files are read apart; see
    /// [`Policy::read_prompts`].
    ///
    /// # Errors
    ///
    /// Everything that is wrong with the text. If it is not TOML, only that.
    pub fn parse(text: &str, path: &Path) -> Result<Self, PolicyErrors> {
        Self::parse_with(text, path, &Arc::default())
    }

    /// The same as a program with these defaults reads it.
    ///
    /// # Errors
    ///
    /// As for [`Policy::parse`].
    pub fn parse_with(
        text: &str,
        path: &Path,
        defaults: &Arc<Defaults>,
    ) -> Result<Self, PolicyErrors> {
        parse::parse(text, path, ModelTables::Read, defaults)
    }

    /// Reads a text that was a policy before, for its agents, as it was meant under the defaults of
    /// then: of its models only the names count, and [`Policy::models`] is empty. Their tables may
    /// say what no program takes any more, as the models that are asked are those of a later policy.
    /// Subscribers whose tables say nothing, as in an export, are known by their names alone.
    ///
    /// # Errors
    ///
    /// As for [`Policy::parse`], without what is wrong in a model's table.
    pub fn parse_without_models(
        text: &str,
        path: &Path,
        defaults: &Arc<Defaults>,
    ) -> Result<Self, PolicyErrors> {
        parse::parse(text, path, ModelTables::Named, defaults)
    }

    /// Checks that every component, script and prompt that the policy names is a file, that every
    /// workspace is a folder, and that no agent's workspace leads out of the root by a symbolic
    /// link. What is true at this moment need not be true later: whoever opens a file checks
    /// again.
    ///
    /// # Errors
    ///
    /// All files that are not so, each with the place where the policy names it.
    pub fn check_files(&self, files: &dyn Files) -> Result<(), PolicyErrors> {
        let problems = Problems::new(&self.source);
        self.prompts.values().for_each(|prompt| prompt.report_faults(&problems));
        let is_told = |file: &&NamedFile| {
            let mut templates = self.prompts.values().flat_map(PromptPolicy::templates);
            matches!(file.usage, FileUse::Prompt)
                && templates.any(|one| one.span == file.span && one.fault.is_some())
        };
        let named = self.files.iter().filter(|file| !is_told(file));
        files::check(&problems, named, files);
        problems.into_result()
    }

    /// Checks the folder of an agent, its components (its own, its tools', its policy engine's), and
    /// the prompts that it may use, as they were read. The others are of use without them.
    ///
    /// # Errors
    ///
    /// As for [`Self::check_files`].
    pub fn check_files_of(
        &self,
        agent: &AgentPolicy,
        files: &dyn Files,
    ) -> Result<(), PolicyErrors> {
        let engine = agent.engine.iter();
        let engine =
            engine.filter_map(|engine| Some((engine.component.as_ref()?, &engine.location)));
        let own = [(&agent.component, &agent.location), (&agent.workspace, &agent.location)];
        let tools = tools_of(self, agent).map(|tool| (&tool.component, &tool.location));
        let named = own.into_iter().chain(tools).chain(engine);
        let named = named.filter_map(|(path, from)| self.named_after(path, from));
        let root = self.files.iter().filter(|file| matches!(file.usage, FileUse::Workspace));
        let mut all: Vec<&NamedFile> = root.chain(named).collect();
        // An agent without a folder of its own has the root.
        all.sort_by_key(|file| file.span.start);
        all.dedup_by_key(|file| file.span.start);
        let problems = Problems::new(&self.source);
        prompts_of(self, agent).for_each(|prompt| prompt.report_faults(&problems));
        files::check(&problems, all, files);
        problems.into_result()
    }

    /// The first place from one on at which a path is named, or the first of all: other tables may
    /// name it, too.
    fn named_after(&self, path: &Path, from: &Location) -> Option<&NamedFile> {
        let named = || self.files.iter().filter(|file| file.path == path);
        let place = |file: &&NamedFile| self.source.locate(file.span.start);
        let after = named().filter(|file| place(file) >= *from).min_by_key(place);
        after.or_else(|| named().min_by_key(place))
    }
}
