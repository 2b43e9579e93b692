//! Selectors: the part of a capability that a rule is about.

use std::cell::OnceCell;

use super::capability::{Use, UseForm};
use super::error::is_hostile;
use super::http::HttpSelector;
use super::http_request::HttpRequest;
use super::names::NameForms;
use super::path_glob::{PathGlob, split_path};
use crate::verdict::Verdict;

/// The part of a capability that a rule is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Selector {
    /// Paths of the workspace, for the two workspace capabilities.
    Paths(PathGlob),
    /// Requests, for [`Capability::Http`](crate::Capability::Http).
    Http(HttpSelector),
    /// Everything, written `*`, for a capability whose parts have names.
    Any,
    /// The part of this name: a model or a prompt of the policy, an operation of the controller, a
    /// memory, a metric.
    Named(String),
}

/// The thing that is used, in the form that selectors are compared with.
pub(super) enum Subject<'u> {
    Path(RequestPath<'u>),
    Http(HttpRequest<'u>),
    Name { name: &'u str, suggestion: &'u str },
}

/// A path that is asked for.
pub(super) struct RequestPath<'u> {
    path: &'u str,
    segments: Vec<&'u str>,
    /// For rules that deny.
    names: OnceCell<Vec<NameForms<'u>>>,
}

impl Selector {
    /// Tells if it selects all of its capability.
    pub(crate) fn is_everything(&self) -> bool {
        match self {
            Self::Paths(glob) => glob.is_everything(),
            Self::Http(http) => http.is_everything(),
            Self::Any => true,
            Self::Named(_) => false,
        }
    }

    /// Tells if all that `other`, of the same capability, selects is selected by this one too.
    /// `false` may mean "not known".
    pub(super) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Paths(ours), Self::Paths(theirs)) => ours.covers(theirs),
            (Self::Http(ours), Self::Http(theirs)) => ours.covers(theirs),
            (Self::Any, Self::Any | Self::Named(_)) => true,
            (Self::Named(ours), Self::Named(theirs)) => ours == theirs,
            (Self::Paths(_) | Self::Http(_) | Self::Any | Self::Named(_), _) => false,
        }
    }

    /// Tells if a rule that denies this leaves nothing of one that allows the other, of the same
    /// capability. `false` may mean "not known".
    pub(super) fn denies_all_of(&self, allowed: &Self) -> bool {
        match (self, allowed) {
            (Self::Paths(ours), Self::Paths(theirs)) => ours.denies_all_of(theirs),
            (Self::Paths(_) | Self::Http(_) | Self::Any | Self::Named(_), _) => {
                self.covers(allowed)
            }
        }
    }

    /// Tells if a rule with this verdict is about the subject. A denial holds for every name that a
    /// file system may take for the one that it means.
    pub(super) fn matches(&self, subject: &Subject<'_>, verdict: Verdict) -> bool {
        match (self, subject) {
            (Self::Paths(glob), Subject::Path(path)) => match verdict {
                Verdict::Allow => glob.matches(&path.segments),
                Verdict::Deny => glob.denies(path.names()),
            },
            (Self::Http(http), Subject::Http(request)) => http.matches(request, verdict),
            (Self::Any, Subject::Name { .. }) => true,
            (Self::Named(known), Subject::Name { name, .. }) => known == name,
            (Self::Paths(_) | Self::Http(_) | Self::Any | Self::Named(_), _) => false,
        }
    }
}

impl<'u> Subject<'u> {
    /// That of a use, or the reason why rules cannot decide about it.
    pub(super) fn of(used: &Use<'u>) -> Result<Self, &'static str> {
        match used.thing() {
            UseForm::Path(path) => {
                let segments = split_path(path)?;
                Ok(Self::Path(RequestPath { path, segments, names: OnceCell::new() }))
            }
            UseForm::Request(method, target) => HttpRequest::new(method, &target).map(Self::Http),
            UseForm::Name { name, suggestion } => Ok(Self::Name { name, suggestion }),
            UseForm::Nothing => Err("the capability has no such thing"),
        }
    }

    /// The selector of a rule that would allow the use, which operators copy.
    pub(super) fn suggestion(&self) -> String {
        match self {
            Self::Http(request) => request.suggestion(),
            Self::Name { suggestion, .. } => (*suggestion).to_owned(),
            // A guest's file named `**` must not become a pattern, and some names no pattern has.
            Self::Path(RequestPath { path, .. }) => match path.rsplit_once('/') {
                _ if path.contains(['*', '?', '[', ']', '{', '}', '\\'])
                    || path.contains(is_hostile) =>
                {
                    "FOLDER/**".to_owned()
                }
                Some((folder, _)) => format!("{folder}/**"),
                None if path.is_empty() => "**".to_owned(),
                None => (*path).to_owned(),
            },
        }
    }
}

impl<'u> RequestPath<'u> {
    fn names(&self) -> &[NameForms<'u>] {
        self.names.get_or_init(|| NameForms::path(&self.segments))
    }
}
