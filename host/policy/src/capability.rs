//! Capabilities, and the uses of them that rules decide about.

use std::borrow::Cow;
use std::fmt;

use taskrun_journal::fact::MemoryScope;
use taskrun_journal::metrics::is_metric_name;
use taskrun_journal::operation::Operation;

use super::http_request::HttpTarget;
use super::read::is_name;

/// An interface that a component must be granted before it may use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Capability {
    /// Completions of language models; the interface `model`.
    Model,
    /// Listing and reading files; the interface `workspace-read`.
    WorkspaceRead,
    /// Creating, changing and removing files; the interface `workspace-write`. Does not include
    /// reading them.
    WorkspaceWrite,
    /// HTTP requests; the interface `http`.
    Http,
    /// Prompts of the policy, rendered; the interface `prompts`.
    Prompts,
    /// Starting and watching runs beneath one's own; the interface `controller`.
    Controller,
    /// Reading facts of the session and the tenant; the interface `memory`.
    Memory,
    /// Writing them; the interface `memory-write`. Does not include reading them.
    MemoryWrite,
    /// Counting and measuring; the interface `metrics`.
    Metrics,
}

/// One use of a capability, which rules allow or deny.
#[derive(Debug, Clone, Copy)]
pub enum Use<'u> {
    /// A file or folder, by one of the two workspace capabilities. The path comes from a guest and
    /// may be anything; what is not a path in the form of `workspace-read` is denied.
    Path(Capability, &'u str),
    /// One HTTP request, by its method; a redirect is a request of its own. What is not of the
    /// form that [`HttpTarget`] promises is denied. The address behind the name is another
    /// question, which the host asks after resolving it.
    Http(&'u str, HttpTarget<'u>),
    /// A model, by its name in the policy.
    Model(&'u str),
    /// A prompt, by its id in the policy.
    Prompt(&'u str),
    /// An operation of the controller.
    Operation(Operation),
    /// The facts of one memory, by one of the two memory capabilities.
    Memory(Capability, MemoryScope),
    /// A metric, by the name that a guest gives it.
    Metric(&'u str),
}

/// The words of a capability in a policy.
struct Words {
    /// Also the name of its interface in the WIT.
    name: &'static str,
    /// The rule that is about all of it.
    everything: &'static str,
    /// A rule about a part of it; the same as `everything` where its parts have names that differ
    /// from policy to policy.
    example: &'static str,
    /// A rule that grants it, which an operator narrows.
    grant: &'static str,
}

impl Words {
    /// The words of a capability that is granted by the example.
    const fn new(name: &'static str, everything: &'static str, example: &'static str) -> Self {
        Self { name, everything, example, grant: example }
    }
}

/// The thing that is used, in the form in which kinds of selectors tell things apart.
pub(super) enum UseForm<'u> {
    /// A path.
    Path(&'u str),
    /// A request, by its method.
    Request(&'u str, HttpTarget<'u>),
    /// A thing with a name. No name that a guest chose becomes a pattern by being suggested.
    Name { name: &'u str, suggestion: &'u str },
    /// Nothing that the capability has.
    Nothing,
}

impl Capability {
    /// Every capability.
    pub const ALL: [Self; 9] = [
        Self::Model,
        Self::WorkspaceRead,
        Self::WorkspaceWrite,
        Self::Http,
        Self::Prompts,
        Self::Controller,
        Self::Memory,
        Self::MemoryWrite,
        Self::Metrics,
    ];

    const fn words(self) -> Words {
        match self {
            Self::Model => Words::new("model", "model: *", "model: *"),
            Self::WorkspaceRead => {
                Words::new("workspace-read", "workspace-read: **", "workspace-read: docs/**")
            }
            Self::WorkspaceWrite => {
                Words::new("workspace-write", "workspace-write: **", "workspace-write: notes/**")
            }
            Self::Http => Words::new("http", "http: *", "http: GET https://api.example.com/**"),
            Self::Prompts => Words::new("prompts", "prompts: *", "prompts: *"),
            Self::Controller => Words {
                grant: "controller: *",
                ..Words::new("controller", "controller: *", "controller: spawn")
            },
            Self::Memory => Words::new("memory", "memory: *", "memory: session"),
            Self::MemoryWrite => {
                Words::new("memory-write", "memory-write: *", "memory-write: session")
            }
            Self::Metrics => Words::new("metrics", "metrics: *", "metrics: *"),
        }
    }

    /// Its word in a policy, which is also the name of its interface in the WIT.
    pub fn as_str(self) -> &'static str {
        self.words().name
    }

    /// The rule that is about all of it.
    pub fn everything_rule(self) -> &'static str {
        self.words().everything
    }

    /// Tells if its parts are paths of the workspace.
    pub fn has_paths(self) -> bool {
        match self {
            Self::WorkspaceRead | Self::WorkspaceWrite => true,
            Self::Model
            | Self::Http
            | Self::Prompts
            | Self::Controller
            | Self::Memory
            | Self::MemoryWrite
            | Self::Metrics => false,
        }
    }

    /// A rule that grants it, to be narrowed by the operator who copies it.
    pub fn grant_rule(self) -> &'static str {
        self.words().grant
    }

    /// A rule about a part of it, if parts of it have the same names in every policy.
    pub(super) fn example(self) -> Option<&'static str> {
        let words = self.words();
        (words.example != words.everything).then_some(words.example)
    }
}

/// Prints its word in a policy.
impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl<'u> Use<'u> {
    /// The capability that is used.
    #[must_use]
    pub fn capability(&self) -> Capability {
        match self {
            Self::Path(capability, _) | Self::Memory(capability, _) => *capability,
            Self::Http(..) => Capability::Http,
            Self::Model(_) => Capability::Model,
            Self::Prompt(_) => Capability::Prompts,
            Self::Operation(_) => Capability::Controller,
            Self::Metric(_) => Capability::Metrics,
        }
    }

    /// The thing that is used.
    pub(super) fn thing(&self) -> UseForm<'u> {
        let named = |name: &'u str, is_fit: bool, placeholder: &'u str| {
            let suggestion = if is_fit { name } else { placeholder };
            UseForm::Name { name, suggestion }
        };
        match *self {
            Self::Path(_, path) => UseForm::Path(path),
            Self::Http(method, target) => UseForm::Request(method, target),
            Self::Model(name) => named(name, is_name(name), "NAME"),
            Self::Prompt(id) => named(id, is_name(id), "ID"),
            Self::Operation(operation) => named(operation.as_str(), true, ""),
            Self::Memory(Capability::Memory | Capability::MemoryWrite, scope) => {
                named(scope.as_str(), true, "")
            }
            Self::Memory(_, _) => UseForm::Nothing,
            Self::Metric(name) => named(name, is_metric_name(name), "NAME"),
        }
    }

    /// The thing that is used, for the journal. Not bounded where a guest names it.
    #[must_use]
    pub fn subject(&self) -> Cow<'_, str> {
        match self {
            Self::Path(_, name) | Self::Model(name) | Self::Prompt(name) | Self::Metric(name) => {
                Cow::Borrowed(name)
            }
            Self::Http(method, HttpTarget { scheme, host, port, path }) => {
                let port = match (*scheme, *port) {
                    ("http", 80) | ("https", 443) => String::new(),
                    (_, port) => format!(":{port}"),
                };
                Cow::Owned(format!("{method} {scheme}://{host}{port}{path}"))
            }
            Self::Operation(operation) => Cow::Borrowed(operation.as_str()),
            Self::Memory(_, scope) => Cow::Borrowed(scope.as_str()),
        }
    }
}
