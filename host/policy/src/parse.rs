//! From the tables of the file to the policy.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use toml::de::DeTable;

use super::error::{PolicyErrorKind, PolicyErrors, Problems, shown, suggest};
use super::files::{FileUse, NamedFile};
use super::location::Source;
use super::parse_limits::{TOOL_LIMIT_KEYS, read_limits};
use super::parse_subscriber::SUBSCRIBER_TABLES;
use super::read::{Section, Text};
use super::subscriber::SUBSCRIBERS_MAX;
use super::workspace::read_workspace_limits;
use super::{InterruptionPolicy, ModelPolicy, Provider, WorkspaceLimits};
use crate::ask::ASK_TIMEOUT_MAX;
use crate::defaults::{Defaults, LimitsOf};
use crate::host_tools::HOST;
use crate::pattern::AGENTS;
use crate::policy::{
    AgentPolicy, COMPONENTS_KEPT_DEFAULT, COMPONENTS_KEPT_MAX, COMPONENTS_KEPT_MIN,
    POLICY_BYTES_MAX, Policy, ToolPolicy,
};

/// The kinds of tables that a policy has.
pub(super) const ROOT_KEYS: [&str; 11] = [
    "defaults",
    "workspace",
    "retention",
    "model",
    "prompt",
    "tool",
    "agent",
    "webhook",
    "command",
    "file",
    "channel",
];

/// The use that is made of the tables of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ModelTables {
    /// They are read, and their faults reported.
    Read,
    /// Their names are known to agents and rules; nobody looks into them.
    Named,
}

/// A policy file that is being read: its folder, its declarations, and the files it names.
pub(super) struct PolicyDraft<'t> {
    pub(super) folder: &'t Path,
    pub(super) root: PathBuf,
    pub(super) workspace_limits: WorkspaceLimits,
    pub(super) models: Vec<&'t str>,
    pub(super) prompts: Vec<&'t str>,
    pub(super) tools: Vec<&'t str>,
    pub(super) agents: Vec<&'t str>,
    /// Their kinds and names, as in `webhook/ci`.
    pub(super) subscribers: Vec<String>,
    pub(super) channels: Vec<String>,
    pub(super) files: Vec<NamedFile>,
    /// `ask_timeout` of `[defaults]`.
    pub(super) ask_timeout: Option<Duration>,
    /// The settings of agents and tools that state none.
    pub(super) defaults: Arc<Defaults>,
    /// True of a text that was a policy before: a check that came later does not hold its runs.
    pub(super) is_kept: bool,
}

pub(super) fn parse(
    text: &str,
    path: &Path,
    model_tables: ModelTables,
    defaults: &Arc<Defaults>,
) -> Result<Policy, PolicyErrors> {
    let source = Source::new(text, path);
    let problems = Problems::new(&source);
    if text.len() > POLICY_BYTES_MAX {
        let kind = PolicyErrorKind::TooLarge { bytes: text.len(), max: POLICY_BYTES_MAX };
        problems.add(0..0, kind, "split the policy, or remove what is not used");
        return Err(problems.into_errors());
    }
    let (document, syntax_errors) = DeTable::parse_recoverable(text);
    for error in &syntax_errors {
        let span = error.span().unwrap_or(text.len()..text.len());
        let kind = PolicyErrorKind::Syntax(shown(error.message()));
        problems.add(span, kind, "see https://toml.io for the form of the file");
    }
    if !syntax_errors.is_empty() {
        // The tables recovered from a broken file would give errors that are not the operator's.
        return Err(problems.into_errors());
    }
    let root = Section::root(&problems, document.get_ref());
    let policy = read_policy(&root, &source, model_tables, defaults);
    problems.into_result()?;
    Ok(policy)
}

fn read_policy(
    file: &Section<'_, '_>,
    source: &Source,
    model_tables: ModelTables,
    defaults: &Arc<Defaults>,
) -> Policy {
    file.expect_keys(&ROOT_KEYS);
    let ask_timeout = read_defaults(file);
    let folder = source.file.parent().unwrap_or(Path::new(""));
    let mut files = Vec::new();
    let (root, workspace_limits) = read_workspace(file, folder, &mut files, defaults);
    let components_kept = read_retention(file);
    let model_sections = file.named("model", "a model");
    let prompt_sections = file.named("prompt", "a prompt");
    let tool_sections = file.named("tool", "a tool");
    let agent_sections = file.named("agent", "an agent");
    let unreported = Problems::new(source);
    let subscriber_sections = match model_tables {
        ModelTables::Read => read_subscribers(file),
        // An export has no more than their names, as nobody is told again what its run did.
        ModelTables::Named => read_subscribers(&Section::root(&unreported, file.table)),
    };
    let channel_sections = file.named("channel", "a channel");
    let names = |sections: &[(String, _)]| {
        sections.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>()
    };
    let (model_names, tool_names) = (names(&model_sections), names(&tool_sections));
    let (prompt_names, agent_names) = (names(&prompt_sections), names(&agent_sections));
    let mut reading = PolicyDraft {
        folder,
        root: root.clone(),
        workspace_limits,
        models: model_names.iter().map(String::as_str).collect(),
        prompts: prompt_names.iter().map(String::as_str).collect(),
        tools: tool_names.iter().map(String::as_str).collect(),
        agents: agent_names.iter().map(String::as_str).collect(),
        subscribers: names(&subscriber_sections),
        channels: names(&channel_sections),
        files,
        ask_timeout,
        defaults: Arc::clone(defaults),
        is_kept: model_tables == ModelTables::Named,
    };
    // A thing with problems is left out: the policy as a whole is refused then.
    let models = match model_tables {
        ModelTables::Read => {
            read_all(&model_sections, |name, section| reading.model(name, section))
        }
        ModelTables::Named => BTreeMap::new(),
    };
    let prompts = read_all(&prompt_sections, |id, section| reading.prompt(id, section));
    let tools = read_all(&tool_sections, |name, section| reading.tool(name, section));
    let agents = read_all(&agent_sections, |name, section| reading.agent(name, section));
    let subscribers =
        read_all(&subscriber_sections, |name, section| reading.subscriber(name, section));
    let channels = read_all(&channel_sections, |name, section| reading.channel(name, section));
    check_faulty(&models, &model_sections);
    let described = |agent: &AgentPolicy| Some((agent.name.clone(), agent.description.clone()?));
    let descriptions = agents.values().filter_map(described).collect();
    Policy {
        path: source.file.to_path_buf(),
        digest: blake3::hash(source.text.as_bytes()).to_hex().to_string(),
        workspace_root: root,
        components_kept,
        models,
        prompts,
        tools,
        agents,
        descriptions: Arc::new(descriptions),
        subscribers,
        channels,
        defaults: reading.defaults,
        source: source.clone(),
        files: reading.files,
    }
}

/// The tables of subscribers, under their kinds and names.
fn read_subscribers<'t, 's>(file: &Section<'t, 's>) -> Vec<(String, Section<'t, 's>)> {
    let of_kind = |(kind, what): (&'static str, &'static str)| {
        let named = file.named(kind, what).into_iter();
        named.map(move |(name, section)| (format!("{kind}/{name}"), section))
    };
    let all: Vec<_> = SUBSCRIBER_TABLES.into_iter().flat_map(of_kind).collect();
    if let Some((_, section)) = all.get(SUBSCRIBERS_MAX) {
        let value = format!("{} tables", all.len());
        let key = "webhook, command and file".to_owned();
        let help = format!("name at most {SUBSCRIBERS_MAX} subscribers");
        section.report(section.span.clone(), PolicyErrorKind::OutOfRange { key, value }, help);
    }
    all
}

/// Reports faulty models of faulty ones: nothing is behind a circle of them.
fn check_faulty(models: &BTreeMap<String, ModelPolicy>, sections: &[(String, Section<'_, '_>)]) {
    for (name, section) in sections {
        let Some(Provider::Faulty { of, .. }) = models.get(name).map(|model| &model.provider)
        else {
            continue;
        };
        if matches!(models.get(of).map(|of| &of.provider), Some(Provider::Faulty { .. })) {
            let kind = PolicyErrorKind::BadValue {
                what: "model",
                value: of.clone(),
                reason: "it is faulty itself".to_owned(),
            };
            section.report(section.value_span("of"), kind, "name a model that answers");
        }
    }
}

fn read_all<'a, 't: 'a, 's: 'a, T>(
    sections: &'a [(String, Section<'t, 's>)],
    mut read: impl FnMut(&str, &Section<'t, 's>) -> Option<T>,
) -> BTreeMap<String, T> {
    sections
        .iter()
        .filter_map(|(name, section)| Some((name.clone(), read(name, section)?)))
        .collect()
}

/// Gives how long consent is waited for.
fn read_defaults(file: &Section<'_, '_>) -> Option<Duration> {
    let defaults = file.section("defaults")?;
    defaults.expect_keys(&["unlisted", "ask_timeout"]);
    if let Some(unlisted) = defaults.string("unlisted").filter(|text| text.value != "deny") {
        let reason = "what no rule lists is always denied";
        report_bad_value(
            &defaults,
            &unlisted,
            "default",
            reason,
            "write \"deny\", or leave it out",
        );
    }
    defaults.duration("ask_timeout", Duration::from_secs(1)..=ASK_TIMEOUT_MAX)
}

/// Gives how long components are kept that nothing needs any more.
fn read_retention(file: &Section<'_, '_>) -> Duration {
    let Some(retention) = file.section("retention") else { return COMPONENTS_KEPT_DEFAULT };
    retention.expect_keys(&["components"]);
    let stated = retention.duration("components", COMPONENTS_KEPT_MIN..=COMPONENTS_KEPT_MAX);
    stated.unwrap_or(COMPONENTS_KEPT_DEFAULT)
}

/// Gives the root of all workspaces, and what each may hold.
fn read_workspace(
    file: &Section<'_, '_>,
    folder: &Path,
    files: &mut Vec<NamedFile>,
    defaults: &Defaults,
) -> (PathBuf, WorkspaceLimits) {
    let here = resolve(folder, ".");
    let Some(workspace) = file.section("workspace") else {
        return (here, defaults.workspace_limits());
    };
    workspace.expect_keys(&["root", "limits"]);
    let limits = read_workspace_limits(&workspace, defaults);
    let Some(root) = workspace.string("root").filter(|text| is_path(&workspace, text, "folder"))
    else {
        return (here, limits);
    };
    let path = resolve(folder, root.value);
    files.push(NamedFile { path: path.clone(), span: root.span, usage: FileUse::Workspace });
    (path, limits)
}

impl PolicyDraft<'_> {
    fn tool(&mut self, name: &str, section: &Section<'_, '_>) -> Option<ToolPolicy> {
        section.expect_keys(&["component", "limits", "interrupted", "tags"]);
        let reason = match name {
            AGENTS => Some(format!("`{AGENTS}/NAME` is an agent that is called as a tool")),
            HOST => Some(format!("`{HOST}/NAME` is a tool of the host itself")),
            _ => None,
        };
        if let Some(reason) = reason {
            let kind =
                PolicyErrorKind::BadValue { what: "name of a tool", value: shown(name), reason };
            section.report(section.span.clone(), kind, "give the tool another name");
        }
        let stated_limits = read_limits(section, TOOL_LIMIT_KEYS);
        let interrupted = read_interrupted(section, &self.defaults);
        let tags = section.has("tags").then(|| crate::read::tags(section, "tags"));
        let component =
            self.file(section, "component", "components/tool.wasm", FileUse::Component)?;
        Some(ToolPolicy {
            name: name.to_owned(),
            component,
            limits: self.defaults.limits(&stated_limits, LimitsOf::Tool),
            stated_limits,
            interrupted,
            tags,
            location: section.problems.source.locate(section.span.start),
        })
    }

    /// The file that `key` names, which must be there.
    pub(super) fn file(
        &mut self,
        section: &Section<'_, '_>,
        key: &'static str,
        example: &str,
        usage: FileUse,
    ) -> Option<PathBuf> {
        let text = section.required_string(key, example)?;
        if !is_path(section, &text, "file") {
            return None;
        }
        Some(self.named(&text, usage))
    }

    /// The file of a path, which must be there.
    pub(super) fn named(&mut self, text: &Text<'_>, usage: FileUse) -> PathBuf {
        let path = resolve(self.folder, text.value);
        self.files.push(NamedFile { path: path.clone(), span: text.span.clone(), usage });
        path
    }
}

fn read_interrupted(section: &Section<'_, '_>, defaults: &Defaults) -> InterruptionPolicy {
    let Some(text) = section.string("interrupted") else {
        return defaults.interrupted;
    };
    match text.value {
        "fail" => InterruptionPolicy::Fail,
        "ask" => InterruptionPolicy::Ask,
        other => {
            let kind = PolicyErrorKind::Unknown { what: "`interrupted` value", name: shown(other) };
            section.report(text.span, kind, suggest(other, "values", ["fail", "ask"]));
            defaults.interrupted
        }
    }
}

/// Tells if a text can name a file; reports why not.
pub(super) fn is_path(section: &Section<'_, '_>, text: &Text<'_>, what: &'static str) -> bool {
    if text.value.is_empty() {
        report_bad_value(
            section,
            text,
            what,
            "it is empty",
            "write a path, as seen from the policy file",
        );
        return false;
    }
    if text.value.contains("://") {
        let help = "write a path, as seen from the policy file";
        report_bad_value(
            section,
            text,
            what,
            "only local files are available in this version",
            help,
        );
        return false;
    }
    true
}

pub(super) fn report_bad_value(
    section: &Section<'_, '_>,
    text: &Text<'_>,
    what: &'static str,
    reason: &str,
    help: &str,
) {
    let (value, reason) = (shown(text.value), reason.to_owned());
    section.report(text.span.clone(), PolicyErrorKind::BadValue { what, value, reason }, help);
}

/// `path` as seen from `folder`, without `.` in it; `.` itself if nothing else is left.
pub(super) fn resolve(folder: &Path, path: &str) -> PathBuf {
    let joined = folder.join(path);
    let resolved: PathBuf =
        joined.components().filter(|part| !matches!(part, Component::CurDir)).collect();
    if resolved.as_os_str().is_empty() { PathBuf::from(".") } else { resolved }
}
