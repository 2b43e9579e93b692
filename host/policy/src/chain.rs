//! The bounds of a run beside the rules of its own agent: the rules of every agent above it, and
//! the rules that requests added. All of them have to allow; nothing in a chain ever adds to
//! another.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::capability::{Capability, Use};
use super::explanation::{LayerExplanation, LayerOutcome, RuleLayer};
use super::grants::{Decision, Grants, Preopen, deeper, widest};
use super::rule::Rule;
use super::workspace_relation::{FolderView, WorkspaceRelation};
use crate::policy::AgentPolicy;

/// The rules of an agent, as those beneath its runs are bound by them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRules {
    /// The agent.
    pub agent: String,
    /// Folder that its rules about files start at. Two agents have the same one if the paths are
    /// equal, so links are to be resolved in them.
    pub workspace: PathBuf,
    /// Its rules: the one copy that all who ask about the agent share.
    pub grants: Arc<Grants>,
}

impl AgentRules {
    /// Those of an agent that a policy does not have any more: they allow nothing.
    #[must_use]
    pub fn gone(agent: &str) -> Self {
        let (workspace, grants) = (PathBuf::new(), Arc::new(Grants::nothing()));
        Self { agent: agent.to_owned(), workspace, grants }
    }

    /// Those that a policy says of an agent.
    #[must_use]
    pub fn of(agent: &AgentPolicy) -> Self {
        Self {
            agent: agent.name.clone(),
            workspace: agent.workspace.clone(),
            grants: Arc::clone(&agent.grants),
        }
    }
}

/// The bounds of a run beside the rules of its own agent.
#[derive(Debug, Clone)]
pub struct Chain {
    workspace: PathBuf,
    /// The nearest first.
    links: Vec<Link>,
}

/// An agent or a request that has to allow.
#[derive(Debug, Clone)]
struct Link {
    layer: RuleLayer,
    place: WorkspaceRelation,
    /// `None` if it is not known what it allows: then it allows nothing.
    allows: Option<LinkRules>,
}

#[derive(Debug, Clone)]
enum LinkRules {
    /// Everything that an agent's rules allow.
    Agent(Arc<AgentRules>),
    /// Everything but what a request took away.
    Request(Grants),
}

/// The rules for the calls of one run: those of its agent, and what bounds the run beside them. All
/// that is decided for a component that is called is decided by them. Cheap to clone.
#[derive(Debug, Clone)]
pub struct CallRules {
    own: Arc<Grants>,
    chain: Option<Arc<Chain>>,
}

/// A refusal by a rule, or for want of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// For the guest: which rule, without the policy file.
    pub for_guest: String,
    /// For operators: which rule and where it stands, or what to add.
    pub rule: String,
}

impl Chain {
    /// Begins a chain for a run whose agent has this workspace.
    #[must_use]
    pub fn new(workspace: &Path) -> Self {
        Self { workspace: workspace.to_owned(), links: Vec::new() }
    }

    /// Adds an agent that stands above those added before. Where its rules are not known here,
    /// nothing that rules govern is allowed.
    pub fn push_agent(&mut self, agent: &str, rules: Option<Arc<AgentRules>>) {
        self.push(RuleLayer::Above { agent: agent.to_owned() }, rules);
    }

    /// Adds what a policy as it is now gives the agent that was added last, or before all others
    /// the run's own.
    pub fn push_now(&mut self, rules: Arc<AgentRules>) {
        self.push(RuleLayer::Now { agent: rules.agent.clone() }, Some(rules));
    }

    fn push(&mut self, layer: RuleLayer, rules: Option<Arc<AgentRules>>) {
        let place =
            rules.as_ref().map_or(WorkspaceRelation::Apart, |rules| self.place(&rules.workspace));
        self.links.push(Link { layer, place, allows: rules.map(LinkRules::Agent) });
    }

    /// Adds what a request took away. `of` says for whom it is, `workspace` is that of the run's
    /// agent. A rule that cannot be read takes everything away.
    pub fn push_request(&mut self, of: String, workspace: &Path, deny: Result<Vec<Rule>, String>) {
        let allows = deny.ok().map(|denials| LinkRules::Request(Grants::all_but(denials)));
        let place = self.place(workspace);
        self.links.push(Link { layer: RuleLayer::Request { of }, place, allows });
    }

    /// Adds that it is not known who else stands above: nothing that rules govern is allowed.
    pub fn push_unknown(&mut self) {
        self.push(RuleLayer::Unrecorded, None);
    }

    fn place(&self, theirs: &Path) -> WorkspaceRelation {
        WorkspaceRelation::of(&self.workspace, theirs)
    }

    /// The parts of the folders that everybody grants with all that is below them. A folder that
    /// may be written and not read is none of them: WASI knows no such.
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
            LinkRules::Agent(rules) => Some(&rules.grants),
            LinkRules::Request(grants) => Some(grants),
        }
    }

    /// Asks its rules about a use of a run below.
    fn ask<'r, T>(
        &'r self,
        used: &Use<'_>,
        ask: impl FnOnce(&'r Grants, &Use<'_>) -> T,
    ) -> LayerOutcome<T> {
        let Some(grants) = self.grants() else { return LayerOutcome::Unknown };
        match self.in_its_words(used, |used| ask(grants, used)) {
            Some(answer) => LayerOutcome::Asked(answer),
            None => LayerOutcome::Outside,
        }
    }

    /// Asks about the use in the words of its own workspace; `None` for a path outside of that.
    fn in_its_words<T>(&self, used: &Use<'_>, ask: impl FnOnce(&Use<'_>) -> T) -> Option<T> {
        match used {
            Use::Path(capability, path) => match self.place.theirs(path) {
                FolderView::At(theirs) => Some(ask(&Use::Path(*capability, &theirs))),
                FolderView::Above | FolderView::Outside => None,
            },
            Use::Http(..)
            | Use::Model(_)
            | Use::Prompt(_)
            | Use::Operation(_)
            | Use::Memory(..)
            | Use::Metric(_) => Some(ask(used)),
        }
    }

    fn may_contain(&self, capability: Capability, dir: &str) -> bool {
        let Some(grants) = self.grants() else { return false };
        match self.place.theirs(dir) {
            FolderView::At(theirs) => grants.may_contain(capability, &theirs),
            FolderView::Above => {
                let all = Use::Path(capability, "");
                grants.decide(&all).allowed || grants.may_contain(capability, "")
            }
            FolderView::Outside => false,
        }
    }

    /// The parts of these folders that it grants too.
    fn common(&self, capability: Capability, dirs: &[String]) -> Vec<String> {
        let Some(grants) = self.grants() else { return Vec::new() };
        let theirs = dirs.iter().flat_map(|dir| match self.place.theirs(dir) {
            FolderView::At(theirs) => grants.folders_within(capability, &theirs),
            FolderView::Above => grants.folders_within(capability, ""),
            FolderView::Outside => Vec::new(),
        });
        let mut common: Vec<String> =
            theirs.filter_map(|folder| self.place.ours(&folder)).collect();
        // Each is one of theirs or one of ours, so there are never more than both have.
        common.sort();
        common.dedup();
        common
    }
}

impl CallRules {
    /// The rules of an agent, and what bounds the run beside them.
    #[must_use]
    pub fn new(own: Arc<Grants>, chain: Option<Arc<Chain>>) -> Self {
        Self { own, chain }
    }

    /// Allows nothing: for calls that no agent makes.
    #[must_use]
    pub fn nothing() -> Self {
        Self::new(Arc::new(Grants::nothing()), None)
    }

    fn links(&self) -> impl Iterator<Item = &Link> {
        self.chain.iter().flat_map(|chain| &chain.links)
    }

    /// Asks all layers about one use: the agent's own rules, then from the nearest above to the
    /// root. Each is asked when its answer is wanted.
    fn ask<'r, T>(
        &'r self,
        used: &Use<'_>,
        ask: impl Fn(&'r Grants, &Use<'_>) -> T,
    ) -> impl Iterator<Item = (&'r RuleLayer, LayerOutcome<T>)> {
        std::iter::once(None).chain(self.links().map(Some)).map(move |link| match link {
            None => (&RuleLayer::Own, LayerOutcome::Asked(ask(&self.own, used))),
            Some(link) => (&link.layer, link.ask(used, &ask)),
        })
    }

    fn decisions(
        &self,
        used: &Use<'_>,
    ) -> impl Iterator<Item = (&RuleLayer, LayerOutcome<Decision<'_>>)> {
        self.ask(used, |grants, used| grants.decide(used))
    }

    /// Decides about one use.
    ///
    /// # Errors
    /// The first refusal: of the agent's own rules, then from the nearest above to the root.
    pub fn decide(&self, used: &Use<'_>) -> Result<(), Denial> {
        self.decisions(used).find_map(denial).map_or(Ok(()), Err)
    }

    /// The refusal of a use by a rule that denies it, for what a policy grants otherwise than by a
    /// rule: a layer that has none about it lets it pass. One that is not known does not.
    #[must_use]
    pub fn stated_denial(&self, used: &Use<'_>) -> Option<Denial> {
        self.decisions(used).filter(|(_, outcome)| !outcome.is_unlisted()).find_map(denial)
    }

    /// The refusal of every use of a capability at once; `None` where no rule denies all of it.
    #[must_use]
    pub fn denial_of_all(&self, capability: Capability) -> Option<Denial> {
        let links = self.links().map(|link| (&link.layer, link.grants()));
        let mut layers = std::iter::once((&RuleLayer::Own, Some(&*self.own))).chain(links);
        layers.find_map(|(layer, grants)| {
            let decision = grants?.denial_of_all(capability)?;
            denial((layer, LayerOutcome::Asked(decision)))
        })
    }

    /// Tells if [`Self::decide`] allows it, without the words of a refusal.
    #[must_use]
    pub fn allows(&self, used: &Use<'_>) -> bool {
        self.decisions(used).all(|(_, outcome)| outcome.allowed())
    }

    /// Explains what [`Self::decide`] says of one use: every layer in the order in which it asks
    /// them, those behind the first refusal too, each with what would turn it.
    #[must_use]
    pub fn explain(&self, used: &Use<'_>) -> Vec<LayerExplanation<'_>> {
        let all = self.ask(used, |grants, used| grants.decision_and_change(used));
        all.map(|(layer, outcome)| LayerExplanation::new(layer, outcome)).collect()
    }

    /// The refusal of a folder with all that is below it; `None` if everybody grants it, so that
    /// [`Self::preopens`] may have it.
    #[must_use]
    pub fn folder_denial(&self, capability: Capability, dir: &str) -> Option<Denial> {
        let used = Use::Path(capability, dir);
        let mut all = self.ask(&used, |grants, used| grants.decide_folder(used));
        all.find_map(denial)
    }

    /// Tells if something strictly below a folder may be allowed, so that the folder may be visited
    /// even where it is not allowed itself. `false` is certain, `true` is not.
    #[must_use]
    pub fn may_contain(&self, capability: Capability, dir: &str) -> bool {
        self.own.may_contain(capability, dir)
            && self.links().all(|link| link.may_contain(capability, dir))
    }

    /// The folders for WASI's file system: of those that the agent's own rules come to, the parts
    /// that everybody grants.
    #[must_use]
    pub fn preopens<'p>(&self, own: &'p [Preopen]) -> Cow<'p, [Preopen]> {
        match &self.chain {
            None => Cow::Borrowed(own),
            Some(chain) => Cow::Owned(chain.preopens(own)),
        }
    }
}

/// The refusal of a layer; `None` if it lets the use pass.
fn denial((layer, outcome): (&RuleLayer, LayerOutcome<Decision<'_>>)) -> Option<Denial> {
    if outcome.allowed() {
        return None;
    }
    let (for_guest, rule) = match (&outcome, layer) {
        (LayerOutcome::Asked(decision), RuleLayer::Own) => {
            return Some(Denial { for_guest: decision.for_guest(), rule: decision.to_string() });
        }
        (LayerOutcome::Asked(decision), layer) => match decision.rule {
            Some(rule) => {
                let text = format!("\"{}\"", rule.text);
                let placed = match layer {
                    // It stands in no file.
                    RuleLayer::Request { .. } => text.clone(),
                    RuleLayer::Own
                    | RuleLayer::Now { .. }
                    | RuleLayer::Above { .. }
                    | RuleLayer::Unrecorded => format!("{text} ({})", rule.location),
                };
                (text, placed)
            }
            None => (decision.for_guest(), decision.to_string()),
        },
        (LayerOutcome::Outside | LayerOutcome::Unknown, _) => {
            (outcome.to_string(), outcome.to_string())
        }
    };
    let say = |why: String| format!("denied by {layer}: {why}");
    Some(Denial { for_guest: say(for_guest), rule: say(rule) })
}
