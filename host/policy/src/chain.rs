//! What bounds a run beside the rules of its own agent: the rules of every agent above it, and
//! what requests took away. All of them have to allow; nothing in a chain ever adds to another.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use taskrun_journal::fact::MemoryScope;
use taskrun_journal::operation::Operation;

use super::grants::{Decision, Grants, Preopen, deeper, widest};
use super::http_request::HttpTarget;
use super::place::{Place, Seen};
use super::rule::{Capability, Rule};
use crate::policy::AgentPolicy;

/// What an agent may do, as those beneath its runs are bound by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRules {
    /// The agent.
    pub agent: String,
    /// Folder that its rules about files start at. Two agents have the same one if the paths are
    /// equal, so links are to be resolved in them.
    pub workspace: PathBuf,
    /// Its rules.
    pub grants: Grants,
}

impl AgentRules {
    /// Those that a policy says of an agent.
    #[must_use]
    pub fn of(agent: &AgentPolicy) -> Self {
        Self {
            agent: agent.name.clone(),
            workspace: agent.workspace.clone(),
            grants: agent.grants.clone(),
        }
    }
}

/// What bounds a run beside the rules of its own agent.
#[derive(Debug, Clone)]
pub struct Chain {
    workspace: PathBuf,
    /// The nearest first.
    links: Vec<Link>,
}

/// One who has to allow.
#[derive(Debug, Clone)]
struct Link {
    /// Who that is, for a denial.
    who: String,
    place: Place,
    /// `None` if it is not known what it allows: then it allows nothing.
    allows: Option<Allows>,
}

#[derive(Debug, Clone)]
enum Allows {
    /// What an agent's rules allow.
    Agent(Arc<AgentRules>),
    /// Everything but what a request took away.
    Request(Grants),
}

/// The rules for one call: those of the agent, and what bounds its run beside them.
#[derive(Debug, Clone, Copy)]
pub struct CallRules<'a> {
    own: &'a Grants,
    chain: Option<&'a Chain>,
}

/// A refusal by a rule, or for want of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// For the guest: which rule, without the policy file.
    pub for_guest: String,
    /// For operators: which rule and where it stands, or what to add.
    pub rule: String,
}

/// Why somebody allows nothing whose rules this host does not have.
const UNKNOWN: &str = "what it allows is not known here";

impl Chain {
    /// Begins a chain for a run whose agent has this workspace.
    #[must_use]
    pub fn new(workspace: &Path) -> Self {
        Self { workspace: workspace.to_owned(), links: Vec::new() }
    }

    /// Adds an agent that stands above those added before. Where its rules are not known here,
    /// nothing that rules govern is allowed.
    pub fn push_agent(&mut self, agent: &str, rules: Option<Arc<AgentRules>>) {
        let place = rules.as_ref().map_or(Place::Apart, |rules| self.place(&rules.workspace));
        let allows = rules.map(Allows::Agent);
        self.links.push(Link { who: format!("agent {agent}"), place, allows });
    }

    /// Adds what a request for a run took away. `who` names the request, `workspace` is that of
    /// the run's agent. A rule that cannot be read takes everything away.
    pub fn push_request(&mut self, who: String, workspace: &Path, deny: Result<Vec<Rule>, String>) {
        let allows = deny.ok().map(|denials| Allows::Request(Grants::all_but(denials)));
        self.links.push(Link { who, place: self.place(workspace), allows });
    }

    /// Adds that it is not known who else stands above: nothing that rules govern is allowed.
    pub fn push_unknown(&mut self) {
        let who = "a run above that is not recorded".to_owned();
        self.links.push(Link { who, place: Place::Apart, allows: None });
    }

    fn place(&self, theirs: &Path) -> Place {
        Place::of(&self.workspace, theirs)
    }

    /// The parts of the folders that everybody grants with all that is below them. Who may write
    /// somewhere and not read gets no folder there: WASI knows no such.
    fn preopens(&self, own: &[Preopen]) -> Vec<Preopen> {
        let mut readable: Vec<String> = own.iter().map(|preopen| preopen.dir.clone()).collect();
        let writable = own.iter().filter(|preopen| preopen.writable);
        let mut writable: Vec<String> = writable.map(|preopen| preopen.dir.clone()).collect();
        for link in &self.links {
            readable = link.common(Capability::WorkspaceRead, &readable);
            writable = link.common(Capability::WorkspaceWrite, &writable);
        }
        let pairs = writable.iter().flat_map(|one| readable.iter().map(move |other| (one, other)));
        let both = pairs.filter_map(|(one, other)| deeper(one, other));
        let mut folders: Vec<Preopen> =
            both.map(|dir| Preopen { dir: dir.to_owned(), writable: true }).collect();
        folders.extend(readable.iter().map(|dir| Preopen { dir: dir.clone(), writable: false }));
        widest(folders)
    }
}

impl Link {
    fn grants(&self) -> Option<&Grants> {
        match self.allows.as_ref()? {
            Allows::Agent(rules) => Some(&rules.grants),
            Allows::Request(grants) => Some(grants),
        }
    }

    /// What becomes of a use that its rules decide about.
    fn check(&self, decide: impl FnOnce(&Grants) -> Decision<'_>) -> Result<(), Denied> {
        let (decision, from_policy) = match &self.allows {
            Some(Allows::Agent(rules)) => (decide(&rules.grants), true),
            Some(Allows::Request(grants)) => (decide(grants), false),
            None => return Err(self.denied(UNKNOWN, UNKNOWN)),
        };
        match (decision.allowed, decision.rule) {
            (true, _) => Ok(()),
            (false, Some(rule)) => {
                let text = format!("\"{}\"", rule.text);
                match from_policy {
                    true => Err(self.denied(&text, &format!("{text} ({})", rule.location))),
                    false => Err(self.denied(&text, &text)),
                }
            }
            (false, None) => Err(self.denied(&decision.for_guest(), &decision.to_string())),
        }
    }

    fn denied(&self, for_guest: &str, for_operator: &str) -> Denied {
        let say = |why: &str| format!("denied by {}: {why}", self.who);
        Denied { for_guest: say(for_guest), rule: say(for_operator) }
    }

    fn check_path(&self, capability: Capability, path: &str) -> Result<(), Denied> {
        match (self.place.theirs(path), &self.allows) {
            (Seen::At(theirs), _) => self.check(|grants| grants.decide_path(capability, &theirs)),
            (Seen::Above | Seen::Outside, Some(_)) => {
                let why = "it is outside of its workspace";
                Err(self.denied(why, why))
            }
            (Seen::Above | Seen::Outside, None) => Err(self.denied(UNKNOWN, UNKNOWN)),
        }
    }

    fn allows_path(&self, capability: Capability, path: &str) -> bool {
        match (self.place.theirs(path), self.grants()) {
            (Seen::At(theirs), Some(grants)) => grants.decide_path(capability, &theirs).allowed,
            (Seen::At(_) | Seen::Above | Seen::Outside, _) => false,
        }
    }

    fn may_contain(&self, capability: Capability, dir: &str) -> bool {
        let Some(grants) = self.grants() else { return false };
        match self.place.theirs(dir) {
            Seen::At(theirs) => grants.may_contain(capability, &theirs),
            Seen::Above => {
                grants.decide_path(capability, "").allowed || grants.may_contain(capability, "")
            }
            Seen::Outside => false,
        }
    }

    /// The parts of these folders that it grants too.
    fn common(&self, capability: Capability, dirs: &[String]) -> Vec<String> {
        let Some(grants) = self.grants() else { return Vec::new() };
        let theirs = dirs.iter().flat_map(|dir| match self.place.theirs(dir) {
            Seen::At(theirs) => grants.folders_within(capability, &theirs),
            Seen::Above => grants.folders_within(capability, ""),
            Seen::Outside => Vec::new(),
        });
        let mut common: Vec<String> =
            theirs.filter_map(|folder| self.place.ours(&folder)).collect();
        // Each is one of theirs or one of ours, so there are never more than both have.
        common.sort();
        common.dedup();
        common
    }
}

impl<'a> CallRules<'a> {
    /// The rules of an agent, and what bounds the run beside them.
    #[must_use]
    pub fn new(own: &'a Grants, chain: Option<&'a Chain>) -> Self {
        Self { own, chain }
    }

    fn links(&self) -> impl Iterator<Item = &'a Link> {
        self.chain.into_iter().flat_map(|chain| &chain.links)
    }

    /// Decides about one file or folder; see [`Grants::decide_path`].
    ///
    /// # Errors
    /// The first refusal: of the agent's own rules, then from the nearest above to the root.
    pub fn decide_path(&self, capability: Capability, path: &str) -> Result<(), Denied> {
        own(&self.own.decide_path(capability, path))?;
        self.links().try_for_each(|link| link.check_path(capability, path))
    }

    /// Whether [`Self::decide_path`] allows it, without saying why not.
    #[must_use]
    pub fn allows_path(&self, capability: Capability, path: &str) -> bool {
        self.own.decide_path(capability, path).allowed
            && self.links().all(|link| link.allows_path(capability, path))
    }

    /// Whether something strictly below a folder may be allowed; see [`Grants::may_contain`].
    #[must_use]
    pub fn may_contain(&self, capability: Capability, dir: &str) -> bool {
        self.own.may_contain(capability, dir)
            && self.links().all(|link| link.may_contain(capability, dir))
    }

    /// Decides about a model by its name in the policy.
    ///
    /// # Errors
    /// As [`Self::decide_path`].
    pub fn decide_model(&self, name: &str) -> Result<(), Denied> {
        own(&self.own.decide_model(name))?;
        self.links().try_for_each(|link| link.check(|grants| grants.decide_model(name)))
    }

    /// Decides about an operation of the controller.
    ///
    /// # Errors
    /// As [`Self::decide_path`].
    pub fn decide_operation(&self, operation: Operation) -> Result<(), Denied> {
        own(&self.own.decide_operation(operation))?;
        self.links().try_for_each(|link| link.check(|grants| grants.decide_operation(operation)))
    }

    /// Decides about a prompt by its id in the policy.
    ///
    /// # Errors
    /// As [`Self::decide_path`].
    pub fn decide_prompt(&self, id: &str) -> Result<(), Denied> {
        own(&self.own.decide_prompt(id))?;
        self.links().try_for_each(|link| link.check(|grants| grants.decide_prompt(id)))
    }

    /// Decides about a memory; see [`Grants::decide_memory`].
    ///
    /// # Errors
    /// As [`Self::decide_path`].
    pub fn decide_memory(&self, capability: Capability, scope: MemoryScope) -> Result<(), Denied> {
        own(&self.own.decide_memory(capability, scope))?;
        let mut links = self.links();
        links.try_for_each(|link| link.check(|grants| grants.decide_memory(capability, scope)))
    }

    /// Decides about a metric; see [`Grants::decide_metric`].
    ///
    /// # Errors
    /// As [`Self::decide_path`].
    pub fn decide_metric(&self, name: &str) -> Result<(), Denied> {
        own(&self.own.decide_metric(name))?;
        self.links().try_for_each(|link| link.check(|grants| grants.decide_metric(name)))
    }

    /// Decides about one HTTP request; see [`Grants::decide_http`].
    ///
    /// # Errors
    /// As [`Self::decide_path`].
    pub fn decide_http(&self, method: &str, target: &HttpTarget<'_>) -> Result<(), Denied> {
        own(&self.own.decide_http(method, target))?;
        self.links().try_for_each(|link| link.check(|grants| grants.decide_http(method, target)))
    }

    /// The folders for WASI's file system: of those that the agent's own rules come to, the parts
    /// that everybody grants.
    #[must_use]
    pub fn preopens(&self, own: &'a [Preopen]) -> Cow<'a, [Preopen]> {
        match self.chain {
            None => Cow::Borrowed(own),
            Some(chain) => Cow::Owned(chain.preopens(own)),
        }
    }
}

fn own(decision: &Decision<'_>) -> Result<(), Denied> {
    match decision.allowed {
        true => Ok(()),
        false => Err(Denied { for_guest: decision.for_guest(), rule: decision.to_string() }),
    }
}
