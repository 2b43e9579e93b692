//! Closures: all that a policy says about the runs of one agent, as one canonical text, and its
//! digest, the *pin* of the agent.
//!
//! Two policies in which an agent has the same pin treat its runs alike, whatever else stands in
//! them: comments, the order of keys, other agents, the agent's own description and heartbeat, how
//! its runs go on by themselves, the
//! keys and prices of models, the paths of files. Hosts compare pins, so each byte of the text
//! matters, and nobody reads a closure back: the policy of then is parsed again from its own text
//! and has the same pin.

mod canonical;
mod rules;
mod settings;

use std::path::{Path, PathBuf};

use self::canonical::{Canonical, Object};
use crate::capability::Use;
use crate::chain::AgentRules;
use crate::defaults::Defaults;
use crate::engine::EnginePolicy;
use crate::grants::Grants;
use crate::host_tools::HostFunction;
use crate::parse_host_tools::default_host_tools;
use crate::policy::{AgentPolicy, Policy, ToolPolicy};
use crate::prompt::{PromptOverridePolicy, PromptPolicy, PromptTemplate};
use crate::verdict::Verdict;
use crate::workspace::WorkspaceLimits;

/// The form of closures. It is raised when the same text of a policy comes to mean something
/// else; a setting that the language gains does not raise it.
const FORM: u32 = 1;

/// All that a policy says about the runs of one agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closure {
    text: String,
}

/// A file that a closure is made of, and of which it is not known what is in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it is not known what is in {}", path.display())]
pub struct MissingDigest {
    /// A component without a digest, or a prompt's file that
    /// [`Policy::read_prompts`] has not read.
    pub path: PathBuf,
}

impl Closure {
    /// The canonical JSON.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The digest of the text: `blake3:` and 64 hexadecimal digits.
    #[must_use]
    pub fn pin(&self) -> String {
        named(&self.text)
    }
}

impl AgentRules {
    /// A digest of the rules alone, in the form of a closure's: `blake3:` and 64 hexadecimal digits.
    /// Those that allow the same have the same, wherever they stand in the policy.
    #[must_use]
    pub fn digest(&self) -> String {
        let Self { agent, workspace, grants } = self;
        let content = Object::new()
            .with("v", FORM)
            .with("agent", agent.as_str())
            .with("folder", hex(workspace.as_os_str().as_encoded_bytes()))
            .with("allow", rules::rules(grants, Verdict::Allow))
            .with("deny", rules::rules(grants, Verdict::Deny));
        named(&content.to_string())
    }
}

fn named(text: &str) -> String {
    format!("blake3:{}", blake3::hash(text.as_bytes()).to_hex())
}

impl Policy {
    /// The closure of one of the policy's agents, whose prompts were read. `digests` gives the
    /// digest of a component, `blake3:` and 64 hexadecimal digits, by the path in the policy.
    ///
    /// The folder of the workspace is in it as the policy resolved it: from the path under which
    /// the policy was parsed, which has to be absolute for pins to be the same wherever a host is
    /// started.
    ///
    /// # Errors
    /// [`MissingDigest`], the first of [`Policy::files_of`] of which there is no digest, or a file
    /// of a prompt.
    pub fn closure(
        &self,
        agent: &AgentPolicy,
        digests: &impl Fn(&Path) -> Option<String>,
    ) -> Result<Closure, MissingDigest> {
        let content = content(self, agent, &|path| {
            digests(path).ok_or_else(|| MissingDigest { path: path.to_owned() })
        })?;
        Ok(Closure { text: content.to_string() })
    }

    /// The components whose digests are in the closure of an agent, each once: its own, those of
    /// the tools that it uses, its policy engine's.
    #[must_use]
    pub fn files_of<'p>(&'p self, agent: &'p AgentPolicy) -> Vec<&'p Path> {
        let engine = agent.engine.as_ref().and_then(|engine| engine.component.as_deref());
        let mut files = vec![agent.component.as_path()];
        let others = tools_of(self, agent).map(|tool| tool.component.as_path()).chain(engine);
        for file in others {
            if !files.contains(&file) {
                files.push(file);
            }
        }
        files
    }
}

/// The digest of a component.
type Digests<'d> = &'d dyn Fn(&Path) -> Result<String, MissingDigest>;

/// The tools that an agent uses.
pub(super) fn tools_of<'p>(
    policy: &'p Policy,
    agent: &'p AgentPolicy,
) -> impl Iterator<Item = &'p ToolPolicy> {
    policy.tools.values().filter(|tool| agent.uses_tool(&tool.name))
}

// All structs are taken apart without `..`: a new field is a compile error here, until somebody
// decides if it is part of a closure. If it is, and policies could be without it before, it is
// written only where it is not what programs did before (`with_some`, `Defaults::first`), unlike the
// settings of today: so the pins of policies that do not have it stay, and no run is left behind by a
// program that knows more.
fn content(
    policy: &Policy,
    agent: &AgentPolicy,
    digests: Digests<'_>,
) -> Result<Object, MissingDigest> {
    // Models are the current ones, whatever a run was accepted under.
    let Policy {
        path: _,
        digest: _,
        workspace_root: _,
        components_kept: _,
        models: _,
        prompts: _,
        tools: _,
        agents: _,
        // Those of agents that are called stand with these; of others nothing is decided by them.
        descriptions: _,
        subscribers: _,
        channels: _,
        // What they come to stands in the settings.
        defaults: _,
        source: _,
        files: _,
    } = policy;
    // The description is in the closures of those who call the agent. No run reads a heartbeat; how
    // outcomes are delivered is settled when a run is accepted.
    let AgentPolicy {
        name,
        description: _,
        component,
        tools,
        callees: _,
        host_tools,
        tree,
        members,
        model,
        workspace: folder,
        // Each folder has one, as the file says it.
        workspace_root: _,
        workspace_limits,
        grants,
        limits,
        stated_limits,
        timeouts,
        budget,
        durable,
        retry,
        retry_on,
        // What follows from them is kept with each run.
        autonomous: _,
        heartbeat: _,
        delivery: _,
        max_nudges: _,
        conversation,
        engine: stated_engine,
        ask,
        // They stand in the rules that name them.
        named_functions: _,
        on_missing_fields,
        // Of the policy as it is now.
        upgrade: _,
        // They are settled when a run is accepted.
        interrupts: _,
        subscribers: _,
        channels: _,
        delegation: _,
        defaults: _,
        location: _,
    } = agent;
    let component = digests(component)?;
    let used = used_tools(policy, agent, digests)?;
    let engine = stated_engine.as_ref().map(|stated| engine(stated, digests)).transpose()?;
    Ok(Object::new()
        .with("v", FORM)
        .with("agent", name.as_str())
        .with("component", component)
        .with("functions", Canonical::set(tools))
        .with("tools", used)
        .with("callees", callees(policy, agent))
        .with_some("host_tools", stated_host_tools(host_tools, members, grants))
        .with_some("tree", settings::tree(tree))
        .with("members", Canonical::set(members))
        .with_some("model", model.as_deref())
        .with("workspace", workspace(folder, workspace_limits))
        .with("allow", rules::rules(grants, Verdict::Allow))
        .with("deny", rules::rules(grants, Verdict::Deny))
        .with("ask", rules::ask(ask))
        .with("limits", settings::limits(limits))
        .with("stated_limits", settings::stated_limits(stated_limits))
        .with("timeouts_ms", rules::timeouts(timeouts))
        .with("budget", settings::budget(budget))
        .with("durable", *durable)
        .with("retry", settings::retry(retry, retry_on))
        .with("conversation", conversation.as_str())
        .with_some("engine", engine)
        .with("on_missing_fields", settings::missing_fields(*on_missing_fields))
        .with("prompts", prompts(policy, agent)?))
}

/// The tools that the agent uses, by name.
fn used_tools(
    policy: &Policy,
    agent: &AgentPolicy,
    digests: Digests<'_>,
) -> Result<Object, MissingDigest> {
    tools_of(policy, agent).try_fold(Object::new(), |all, used| {
        // The limits of the tool where no agent is concerned follow from those that are stated.
        let ToolPolicy {
            name,
            component,
            limits: _,
            stated_limits,
            interrupted,
            tags,
            location: _,
        } = used;
        let tool = Object::new()
            .with("component", digests(component)?)
            .with("stated_limits", settings::stated_limits(stated_limits))
            .with("interrupted", settings::interrupted(*interrupted))
            .with_some("tags", tags.as_ref().map(Canonical::set));
        Ok(all.with(name.as_str(), tool))
    })
}

/// The agents that it calls as tools, by name, with what a model reads about them.
fn callees(policy: &Policy, agent: &AgentPolicy) -> Object {
    agent.callees.iter().fold(Object::new(), |all, name| {
        let callee = policy.agents.get(name);
        let description = callee.and_then(|callee| callee.description.as_deref());
        all.with(name.as_str(), Object::new().with_some("description", description))
    })
}

/// The tools of the host, where they are others than follow from the members and the rules, as the
/// first programs had it.
fn stated_host_tools(
    functions: &[HostFunction],
    members: &[String],
    grants: &Grants,
) -> Option<Canonical> {
    let first = default_host_tools(members, grants, &Defaults::first());
    (*functions != first).then(|| Canonical::set(functions))
}

fn engine(stated: &EnginePolicy, digests: Digests<'_>) -> Result<Object, MissingDigest> {
    let EnginePolicy { lists, component, timeout, location: _ } = stated;
    let component = component.as_deref().map(digests).transpose()?;
    Ok(Object::new()
        .with("lists", rules::lists(lists))
        .with_some("component", component)
        .with("timeout_ms", *timeout))
}

/// The folder that rules about files start at, without which they mean nothing, and its bounds.
fn workspace(folder: &Path, limits: &WorkspaceLimits) -> Object {
    let WorkspaceLimits { bytes, files, reserve_bytes } = limits;
    let object = match folder.to_str() {
        Some(text) => Object::new().with("folder", text),
        // A lossy text would be that of another folder as well.
        None => Object::new().with("folder_bytes", hex(folder.as_os_str().as_encoded_bytes())),
    };
    object.with("bytes", *bytes).with("files", *files).with("reserve_bytes", *reserve_bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The prompts that the agent's rules let it use.
pub(super) fn prompts_of<'p>(
    policy: &'p Policy,
    agent: &'p AgentPolicy,
) -> impl Iterator<Item = &'p PromptPolicy> {
    let may_use = |prompt: &&PromptPolicy| agent.grants.decide(&Use::Prompt(&prompt.id)).allowed;
    policy.prompts.values().filter(may_use)
}

/// The same in a closure, by id.
fn prompts(policy: &Policy, agent: &AgentPolicy) -> Result<Object, MissingDigest> {
    prompts_of(policy, agent).try_fold(Object::new(), |all, prompt| {
        let PromptPolicy { id, template: own, overrides, location: _ } = prompt;
        let overrides = overrides.iter().map(prompt_override).collect::<Result<Vec<_>, _>>()?;
        let prompt = Object::new().with("template", template(own)?).with("overrides", overrides);
        Ok(all.with(id.as_str(), prompt))
    })
}

/// One template of several for a prompt: the first that fits a run is taken.
fn prompt_override(stated: &PromptOverridePolicy) -> Result<Canonical, MissingDigest> {
    let PromptOverridePolicy { session, labels, template: own } = stated;
    let labels = labels
        .iter()
        .fold(Object::new(), |all, (key, value)| all.with(key.as_str(), value.as_str()));
    let stated = Object::new().with_some("session", session.as_deref()).with("labels", labels);
    Ok(stated.with("template", template(own)?).into())
}

fn template(stated: &PromptTemplate) -> Result<&str, MissingDigest> {
    let PromptTemplate { file, text, fault: _, span: _ } = stated;
    text.as_deref().ok_or_else(|| MissingDigest { path: file.clone().unwrap_or_default() })
}
