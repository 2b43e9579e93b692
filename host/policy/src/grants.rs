//! The rules of an agent, and their decisions.

use std::cell::OnceCell;
use std::fmt;
use std::path::Path;

use super::capability::{Capability, Use};
use super::error::shown;
use super::location::Location;
use super::names::NameForms;
use super::path_glob::{PathGlob, split_path};
use super::rule::{Rule, everything};
use super::selector::{Selector, Subject};
use crate::toml_text::toml_string;
use crate::verdict::Verdict;

/// The rules of one agent. Deny beats allow; what no rule allows is denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grants {
    pub(super) rules: Vec<Rule>,
    pub(super) location: Location,
}

/// The standing of an agent towards a capability as a whole, which says how an import of it is
/// linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CapabilityAccess<'a> {
    /// No rule mentions it: a component that imports it does not load.
    Unlisted,
    /// Denied as a whole by this rule and allowed nowhere: linked to an implementation that
    /// always refuses.
    Denied(&'a Rule),
    /// Allowed at least somewhere: linked, and decided at each call.
    Selective,
}

/// A decision of rules about one use of a capability. Its `Display` is for operators: it names
/// the policy file; [`Decision::for_guest`] does not.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Decision<'a> {
    /// The use may happen.
    pub allowed: bool,
    /// The rule that decided; `None` if no rule is about it, or it is malformed.
    pub rule: Option<&'a Rule>,
    reason: Reason<'a>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Reason<'a> {
    Rule,
    Unlisted { capability: Capability, agent: &'a Location, suggestion: String },
    Malformed(&'static str),
}

/// A folder that WASI may open for a component, with all that is below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preopen {
    /// From the workspace, separated by `/`; empty for the workspace itself.
    pub dir: String,
    /// Files below may be written as well as read.
    pub writable: bool,
}

/// The reason that the rules about files cannot be said in folders for WASI. Its `Display` names
/// the rule with its place, and says what to write instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PreopenFault<'a> {
    /// This rule allows something else than `dir/**`.
    Pattern(&'a Rule),
    /// No rule allows reading all of a folder in which this one allows writing.
    Unreadable {
        /// The rule that allows writing.
        rule: &'a Rule,
        /// The folder, from the workspace; empty for the workspace itself.
        folder: String,
    },
    /// This rule denies a part of a folder that another one allows.
    Cut(&'a Rule),
}

impl<'a> PreopenFault<'a> {
    /// The rule that cannot be said so.
    #[must_use]
    pub fn rule(&self) -> &'a Rule {
        match self {
            Self::Pattern(rule) | Self::Unreadable { rule, folder: _ } | Self::Cut(rule) => rule,
        }
    }
}

impl fmt::Display for PreopenFault<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const READ: Capability = Capability::WorkspaceRead;
        const WRITE: Capability = Capability::WorkspaceWrite;
        match self {
            Self::Pattern(rule) => write!(
                f,
                "{rule} cannot be expressed so; write `dir/**`, or use the interfaces {READ} and {WRITE}"
            ),
            Self::Unreadable { rule, folder } => {
                let missing = toml_string(&format!("{READ}: {}", all_below(folder)));
                write!(
                    f,
                    "what may be written there must be readable, too: beside {rule} add {missing}, or use the interface {WRITE}"
                )
            }
            Self::Cut(rule) => write!(
                f,
                "{rule} takes a part out of one that is allowed; allow folders beside that part, or use the interfaces {READ} and {WRITE}"
            ),
        }
    }
}

impl Grants {
    /// Allows nothing, as no policy says anything.
    pub(super) fn nothing() -> Self {
        let location = Location { file: Path::new("no policy").into(), line: 1, column: 1 };
        Self { rules: Vec::new(), location }
    }

    /// Allows everything but what these rules deny.
    pub(super) fn all_but(denials: Vec<Rule>) -> Self {
        let mut rules = Capability::ALL.map(everything).to_vec();
        let location = rules[0].location.clone();
        rules.extend(denials);
        Self { rules, location }
    }

    /// The rules: first the one implied by the agent's `model`, then those of `allow`, then those
    /// of `deny`, each in the order of the file.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The agent's standing towards a capability as a whole.
    pub fn access(&self, capability: Capability) -> CapabilityAccess<'_> {
        if self.of(capability, Verdict::Allow).next().is_some() {
            return CapabilityAccess::Selective;
        }
        // A policy with a deny rule for a part and no allow rule does not load, so any rule that
        // is left denies all of it.
        match self.of(capability, Verdict::Deny).find(|rule| rule.selector.is_everything()) {
            Some(rule) => CapabilityAccess::Denied(rule),
            None => CapabilityAccess::Unlisted,
        }
    }

    /// Decides about one use.
    pub fn decide(&self, used: &Use<'_>) -> Decision<'_> {
        let subject = match Subject::of(used) {
            Ok(subject) => subject,
            Err(reason) => return Decision::malformed(reason),
        };
        let capability = used.capability();
        let first = |verdict| {
            self.of(capability, verdict).find(|rule| rule.selector.matches(&subject, verdict))
        };
        match first(Verdict::Deny).or_else(|| first(Verdict::Allow)) {
            Some(rule) => {
                let allowed = rule.verdict == Verdict::Allow;
                Decision { allowed, rule: Some(rule), reason: Reason::Rule }
            }
            None => {
                let suggestion = shown(&subject.suggestion());
                let agent = &self.location;
                let reason = Reason::Unlisted { capability, agent, suggestion };
                Decision { allowed: false, rule: None, reason }
            }
        }
    }

    /// The refusal of every use of a capability at once, where a rule denies all of it.
    pub(super) fn denial_of_all(&self, capability: Capability) -> Option<Decision<'_>> {
        let mut denials = self.of(capability, Verdict::Deny);
        let rule = denials.find(|rule| rule.selector.is_everything())?;
        Some(Decision { allowed: false, rule: Some(rule), reason: Reason::Rule })
    }

    /// Tells if something strictly below the folder `dir` may be allowed, so that the folder may
    /// be visited and shown even if it is not allowed itself.
    ///
    /// `false` is certain. `true` is not if several deny rules together cover what one rule
    /// allows; then a visit finds nothing.
    pub(crate) fn may_contain(&self, capability: Capability, dir: &str) -> bool {
        let Ok(segments) = split_path(dir) else {
            return false;
        };
        let any = |verdict, test: &dyn Fn(&PathGlob) -> bool| {
            self.globs(capability, verdict).any(|(glob, _)| test(glob))
        };
        let asked = OnceCell::new();
        let asked = || asked.get_or_init(|| NameForms::path(&segments));
        any(Verdict::Allow, &|glob| glob.may_match_below(&segments))
            && !any(Verdict::Deny, &|glob| glob.denies_all_below(asked()))
    }

    /// The folders that WASI's file system may open, in the order of their names, none inside
    /// another that allows as much. Empty if no file is allowed.
    ///
    /// # Errors
    ///
    /// The rule that cannot be expressed in folders, with the reason. A component that imports WASI's
    /// file system must then not load.
    pub fn preopens(&self) -> Result<Vec<Preopen>, PreopenFault<'_>> {
        let readable = self.allowed_directories(Capability::WorkspaceRead)?;
        let mut folders = Vec::new();
        for (dir, rule) in self.allowed_directories(Capability::WorkspaceWrite)? {
            if !readable.iter().any(|(parent, _)| is_inside(&dir, parent)) {
                return Err(PreopenFault::Unreadable { rule, folder: dir });
            }
            folders.push(Preopen { dir, writable: true });
        }
        folders.extend(readable.into_iter().map(|(dir, _)| Preopen { dir, writable: false }));
        Ok(widest(folders))
    }

    /// The folders in which the rules let a guest write at least something, none inside another, in
    /// the order of their names. Deny rules make none of them smaller.
    pub fn writable_folders(&self) -> Vec<String> {
        let allowed = self.globs(Capability::WorkspaceWrite, Verdict::Allow);
        let folders = allowed.map(|(glob, _)| Preopen { dir: glob.base(), writable: true });
        widest(folders.collect()).into_iter().map(|folder| folder.dir).collect()
    }

    /// The folders in `dir`, or `dir` itself, that the rules grant with all that is below them.
    /// Grants about `dir` that cannot be expressed in folders do not count.
    pub(super) fn folders_within(&self, capability: Capability, dir: &str) -> Vec<String> {
        let allowed = self.globs(capability, Verdict::Allow).filter_map(|(glob, _)| {
            let granted = glob.directory()?;
            deeper(&granted, dir).map(str::to_owned)
        });
        let whole = |folder: &String| {
            let asked = NameForms::path(&segments_of(folder));
            !self.globs(capability, Verdict::Deny).any(|(deny, _)| deny.denies_part(&asked))
        };
        allowed.filter(whole).collect()
    }

    /// Decides about a folder with all that is below it.
    pub(super) fn decide_folder(&self, used: &Use<'_>) -> Decision<'_> {
        let Use::Path(capability, dir) = used else { return self.decide(used) };
        let asked = NameForms::path(&segments_of(dir));
        let mut denials = self.globs(*capability, Verdict::Deny);
        if let Some((_, deny)) = denials.find(|(deny, _)| deny.denies_part(&asked)) {
            return Decision { allowed: false, rule: Some(deny), reason: Reason::Rule };
        }
        let grants = |glob: &PathGlob| {
            glob.directory().is_some_and(|granted| deeper(&granted, dir) == Some(*dir))
        };
        match self.globs(*capability, Verdict::Allow).find(|(glob, _)| grants(glob)) {
            Some((_, rule)) => Decision { allowed: true, rule: Some(rule), reason: Reason::Rule },
            None => {
                let (agent, suggestion) = (&self.location, shown(&all_below(dir)));
                let reason = Reason::Unlisted { capability: *capability, agent, suggestion };
                Decision { allowed: false, rule: None, reason }
            }
        }
    }

    fn allowed_directories(
        &self,
        capability: Capability,
    ) -> Result<Vec<(String, &Rule)>, PreopenFault<'_>> {
        let mut directories = Vec::new();
        for (glob, rule) in self.globs(capability, Verdict::Allow) {
            let dir = glob.directory().ok_or(PreopenFault::Pattern(rule))?;
            let asked = NameForms::path(&segments_of(&dir));
            let cut =
                self.globs(capability, Verdict::Deny).find(|(deny, _)| deny.denies_part(&asked));
            match cut {
                Some((_, deny)) => return Err(PreopenFault::Cut(deny)),
                None => directories.push((dir, rule)),
            }
        }
        Ok(directories)
    }

    fn of(&self, capability: Capability, verdict: Verdict) -> impl Iterator<Item = &Rule> {
        self.rules
            .iter()
            .filter(move |rule| rule.capability == capability && rule.verdict == verdict)
    }

    fn globs(
        &self,
        capability: Capability,
        verdict: Verdict,
    ) -> impl Iterator<Item = (&PathGlob, &Rule)> {
        self.of(capability, verdict).filter_map(|rule| match &rule.selector {
            Selector::Paths(glob) => Some((glob, rule)),
            Selector::Http(_) | Selector::Any | Selector::Named(_) => None,
        })
    }
}

impl Decision<'_> {
    fn malformed(reason: &'static str) -> Self {
        Self { allowed: false, rule: None, reason: Reason::Malformed(reason) }
    }

    /// The decision as a guest may know it: the rule that decided, without the policy file.
    pub fn for_guest(&self) -> String {
        match (&self.reason, self.rule) {
            (Reason::Malformed(reason), _) => (*reason).to_owned(),
            (Reason::Rule | Reason::Unlisted { .. }, Some(rule)) => {
                format!("{} by \"{}\"", self.word(), rule.text)
            }
            (Reason::Unlisted { capability, .. }, None) => {
                format!("no rule allows {capability} here")
            }
            (Reason::Rule, None) => self.word().to_owned(),
        }
    }

    /// True if no rule is about the use. Nothing is said about one that is malformed.
    pub(crate) fn is_unlisted(&self) -> bool {
        match &self.reason {
            Reason::Unlisted { .. } => true,
            Reason::Rule | Reason::Malformed(_) => false,
        }
    }

    /// The rule that would allow the use; `None` if a rule decided, or none can.
    pub(crate) fn missing_rule(&self) -> Option<String> {
        match &self.reason {
            Reason::Unlisted { capability, agent: _, suggestion } => {
                Some(format!("{capability}: {suggestion}"))
            }
            Reason::Rule | Reason::Malformed(_) => None,
        }
    }

    fn word(&self) -> &'static str {
        if self.allowed { "allowed" } else { "denied" }
    }
}

/// Prints `denied by "workspace-write: **" (taskrun.toml:14:10)`, or which rule is absent and
/// what to add.
impl fmt::Display for Decision<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.reason, self.rule) {
            (Reason::Malformed(reason), _) => write!(f, "denied: {reason}"),
            (Reason::Rule | Reason::Unlisted { .. }, Some(rule)) => {
                write!(f, "{} by \"{}\" ({})", self.word(), rule.text, rule.location)
            }
            (Reason::Unlisted { capability, agent, suggestion: _ }, None) => {
                let rule = toml_string(&self.missing_rule().unwrap_or_default());
                write!(f, "no rule allows {capability} ({agent}, add: allow = [{rule}])")
            }
            (Reason::Rule, None) => f.write_str(self.word()),
        }
    }
}

/// The folders, in the order of their names, without those inside another that allows as much.
pub(super) fn widest(mut candidates: Vec<Preopen>) -> Vec<Preopen> {
    let mut widest: Vec<Preopen> = Vec::new();
    // Wider folders first, so that each is compared with all that could contain it.
    candidates.sort_by_key(|candidate| (candidate.dir.len(), !candidate.writable));
    for candidate in candidates {
        let contained = widest.iter().any(|wider| {
            is_inside(&candidate.dir, &wider.dir) && (wider.writable || !candidate.writable)
        });
        if !contained {
            widest.push(candidate);
        }
    }
    widest.sort_by(|one, other| one.dir.cmp(&other.dir));
    widest
}

/// The one of two folders that is inside the other.
pub(super) fn deeper<'d>(one: &'d str, other: &'d str) -> Option<&'d str> {
    match (is_inside(one, other), is_inside(other, one)) {
        (true, _) => Some(one),
        (false, true) => Some(other),
        (false, false) => None,
    }
}

/// The selector of a folder with all that is below it; of the workspace, if it is empty.
fn all_below(dir: &str) -> String {
    if dir.is_empty() { "**".to_owned() } else { format!("{dir}/**") }
}

fn segments_of(dir: &str) -> Vec<&str> {
    dir.split('/').filter(|name| !name.is_empty()).collect()
}

/// Tells if the folder `dir` is `parent` or below it.
pub(super) fn is_inside(dir: &str, parent: &str) -> bool {
    parent.is_empty()
        || dir.strip_prefix(parent).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
