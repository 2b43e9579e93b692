//! The reasons that a component does not load, in words for readers of the policy and authors of
//! components.

mod compiler;

use std::fmt;
use std::path::{Path, PathBuf};

use taskrun_journal::stop::CallAbort;
use taskrun_journal::time::Timestamp;
use taskrun_policy::Capability;

use crate::bindings::HOST_VERSION;

/// The reason that a component does not load.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("cannot read {path}", path = .path.display())]
    Read {
        /// The file that cannot be read.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// There is nothing in it.
    #[error("the file is empty")]
    Empty,
    /// It does not begin as WebAssembly does.
    #[error("not a WebAssembly component: it does not begin with \\0asm")]
    NotWasm,
    /// It is a core module.
    #[error(
        "this is a core module, not a component: build it for wasm32-wasip2, or link it with wasm-component-ld, or wrap it with `wasm-tools component new`"
    )]
    CoreModule,
    /// It is larger than allowed; it was not read as a whole.
    #[error("the component is too large: {bytes} bytes, at most {limit} are allowed")]
    TooLarge {
        /// The component's size.
        bytes: u64,
        /// The limit on its size.
        limit: u64,
    },
    /// It ends too soon.
    #[error("the component is cut off: {detail}")]
    Truncated {
        /// The place in the component.
        detail: String,
    },
    /// It is not valid.
    #[error("not a valid component: {detail}")]
    Invalid {
        /// The fault and its place.
        detail: String,
    },
    /// It uses the component model's own async functions, which this host does not run.
    #[error(
        "the component uses async features of the component model, which this host does not run; with jco, build it with --backend-qjs-disable-async: {detail}"
    )]
    Async {
        /// The feature and its place.
        detail: String,
    },
    /// It uses a proposal of WebAssembly that this host does not run.
    #[error("the component uses a proposal of WebAssembly that this host does not run: {detail}")]
    Proposal {
        /// The proposal and its place.
        detail: String,
    },
    /// Looking at it or compiling it took more time or memory than it may.
    #[error("looking at the component or compiling it took more time or memory than it may")]
    CompileLimit,
    /// Looking at it or compiling it took too much before, and is not tried again yet.
    #[error(
        "looking at the component or compiling it took more time or memory than it may; it is not tried again before {after}"
    )]
    CompileRefused {
        /// The time at which it is tried again.
        after: Timestamp,
    },
    /// The compiler panicked at it, and it is not tried again yet.
    #[error("the compiler panics at the component; it is not tried again before {after}")]
    CompilerPanicked {
        /// The time at which it is tried again.
        after: Timestamp,
    },
    /// It has more of something than is compiled: so many parts, or so large ones, cost time and
    /// memory out of all proportion.
    #[error(
        "the component is refused before it is compiled: it has {found} {what}, at most {limit} are compiled"
    )]
    Shape {
        /// The kind of parts.
        what: &'static str,
        /// Their number, as far as they were counted.
        found: u64,
        /// The limit on their number.
        limit: u64,
    },
    /// The path leads to no regular file.
    #[error("{path} is no regular file", path = .path.display())]
    NotAFile {
        /// The path, as the policy names it.
        path: PathBuf,
    },
    /// The file is another one than when its digest was taken.
    #[error("{path} changed meanwhile", path = .path.display())]
    Changed {
        /// The file that changed.
        path: PathBuf,
    },
    /// The copy of it in the data directory cannot be used, or cannot be made.
    #[error("{detail}")]
    Kept {
        /// The fault, in words, with the file that it is about.
        detail: String,
        /// The operating system's error, if it is one of those.
        kind: Option<std::io::ErrorKind>,
    },
    /// The program that compiles does not start, or is no compile worker.
    #[error("cannot run the compile worker")]
    Worker {
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The program that compiles ended without an answer, or gave none in time: it was killed, as by
    /// the system when memory is short, or had no thread or no processor. That may be otherwise the
    /// next time.
    #[error("the compile worker gave no answer: {detail}")]
    NoAnswer {
        /// The end of the worker, in words.
        detail: String,
    },
    /// An instance needs more than it may have.
    #[error("the component needs more than an instance may have: {detail}")]
    TooMuch {
        /// The need that is not met.
        detail: String,
        /// The bound that it is beyond.
        bound: NeedBound,
    },
    /// It does not export what its role must.
    #[error("{}", wrong_world(wanted, found))]
    WrongWorld {
        /// Interface that the role must export.
        wanted: &'static str,
        /// The exports that were found.
        found: Vec<String>,
    },
    /// It names an import, an export or a function otherwise than WIT does.
    #[error(
        "a name in the component is none that WIT knows (letters, digits and -:/@.+[], at most 512 bytes): \"{name}\""
    )]
    Name {
        /// The beginning of the name, escaped.
        name: String,
    },
    /// It was built for another version of the interfaces.
    #[error(
        "built for {interface} version {found}; this host speaks {HOST_VERSION} and everything compatible with it"
    )]
    Version {
        /// The interface, without its version.
        interface: String,
        /// The version it was built for.
        found: String,
    },
    /// It imports what it may not have: all of it, sorted by name.
    #[error("{}", denied(.0))]
    Denied(Vec<MissingGrant>),
    /// It imports WASI's file system, and the agent's rules cannot be expressed in folders.
    #[error("the component imports wasi:filesystem, which knows folders only, and {reason}")]
    Preopens {
        /// The rule with its place, the reason, and what to write instead.
        reason: String,
    },
    /// Files of the host itself would be within its reach.
    #[error(
        "the component would get at {file}, which is the host's own, through {}; grant it a folder beside that, such as `notes/**`, or set another workspace",
        folder_words(.folder), file = .file.display()
    )]
    Exposed {
        /// The folder that the rules grant; empty for a workspace that is the working folder.
        folder: PathBuf,
        /// The host's file or folder.
        file: PathBuf,
    },
    /// Imports or exports have another form than this host's.
    #[error("the component's interfaces do not fit: {detail}")]
    Mismatch {
        /// The import or export that does not fit.
        detail: String,
    },
    /// The folder that its rules about files start at cannot be opened.
    #[error("cannot open the workspace {path}", path = .path.display())]
    Workspace {
        /// The folder that cannot be opened.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The tool did not describe itself.
    #[error("the tool did not describe itself: {0}")]
    Describe(CallAbort),
    /// The tool was to describe itself and got no processor for it: the host is overloaded, or stood
    /// still.
    #[error(
        "the tool did not describe itself within {limit_ms} ms, in which it had a processor for {cpu_ms} ms"
    )]
    Starved {
        /// The limit on the time that it may take, whether it has a processor or not.
        limit_ms: u64,
        /// CPU time that it had.
        cpu_ms: u64,
    },
    /// The tool describes itself in a way that is not allowed.
    #[error("the tool describes itself wrongly: {reason}")]
    Description {
        /// The fault, and the function that has it.
        reason: String,
    },
    /// The host failed; see its log.
    #[error("internal error of the host: {0}")]
    Internal(String),
}

impl LoadError {
    /// True if the component itself, and what it is granted, keeps it from being loaded, and not
    /// something of the host that may be otherwise in a moment.
    #[must_use]
    pub fn is_of_component(&self) -> bool {
        match self {
            Self::Empty
            | Self::NotWasm
            | Self::CoreModule
            | Self::TooLarge { .. }
            | Self::Truncated { .. }
            | Self::Invalid { .. }
            | Self::Async { .. }
            | Self::Proposal { .. }
            | Self::CompileLimit
            | Self::CompileRefused { .. }
            | Self::CompilerPanicked { .. }
            | Self::Shape { .. }
            | Self::TooMuch { .. }
            | Self::WrongWorld { .. }
            | Self::Name { .. }
            | Self::Version { .. }
            | Self::Denied(_)
            | Self::Preopens { .. }
            | Self::Exposed { .. }
            | Self::Mismatch { .. }
            | Self::Description { .. } => true,
            Self::Describe(abort) => match abort {
                CallAbort::Memory { .. }
                | CallAbort::Deadline { .. }
                | CallAbort::Stack
                | CallAbort::Limit { .. }
                | CallAbort::Trap { .. }
                | CallAbort::Contract { .. } => true,
                CallAbort::Unavailable | CallAbort::Stopped { .. } | CallAbort::Internal => false,
            },
            Self::Read { .. }
            | Self::NotAFile { .. }
            | Self::Changed { .. }
            | Self::Kept { .. }
            | Self::Worker { .. }
            | Self::NoAnswer { .. }
            | Self::Workspace { .. }
            | Self::Starved { .. }
            | Self::Internal(_) => false,
        }
    }
}

/// The bound on the needs of an instance that a component is beyond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeedBound {
    /// The engine's, on each instance.
    Engine,
    /// The memory that a tenant has for guests on this host.
    Host,
    /// `memory` in the `limits` that the policy sets for the calls of the component.
    Limits,
}

/// An import that the agent may not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingGrant {
    /// The import as the component names it, such as `taskrun:plugin/http@0.1.0`.
    pub import: String,
    /// Agent that the component would work for.
    pub agent: String,
    /// The reason that it is missing.
    pub need: Need,
}

/// The reason that an import is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// A rule of the policy.
    Rule(Capability),
    /// Only agents have it.
    AgentsOnly,
    /// Only tools have it.
    ToolsOnly,
    /// A policy has nothing but its log.
    NotForPolicies,
    /// Sockets are never given to a component.
    Sockets,
    /// It is of WASI in a version that the host does not speak.
    OtherWasi,
    /// The host does not know it.
    Unknown,
}

impl MissingGrant {
    /// The capability that a rule must grant, if a rule can.
    #[must_use]
    pub fn capability(&self) -> Option<Capability> {
        match self.need {
            Need::Rule(capability) => Some(capability),
            Need::AgentsOnly
            | Need::ToolsOnly
            | Need::NotForPolicies
            | Need::Sockets
            | Need::OtherWasi
            | Need::Unknown => None,
        }
    }

    /// A rule that grants it, to be narrowed by who adds it.
    #[must_use]
    pub fn rule(&self) -> Option<&'static str> {
        self.capability().map(Capability::grant_rule)
    }

    /// The line that grants it, for the agent's table.
    #[must_use]
    pub fn suggestion(&self) -> Option<String> {
        self.rule().map(|rule| format!("allow = [{rule:?}]"))
    }
}

impl fmt::Display for MissingGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { import, agent, need } = self;
        match (need, self.suggestion()) {
            (Need::Rule(capability), Some(line)) => write!(
                f,
                "{import}: agent {agent:?} is not granted {capability}; add to [agent.{agent}]: {line}"
            ),
            (Need::Rule(capability), None) => {
                write!(f, "{import}: agent {agent:?} is not granted {capability}")
            }
            (Need::AgentsOnly, _) => write!(f, "{import}: only agents may import it"),
            (Need::ToolsOnly, _) => write!(f, "{import}: only tools may import it"),
            (Need::NotForPolicies, _) => {
                write!(f, "{import}: a policy decides from what it is told, and imports only log")
            }
            (Need::Sockets, _) => {
                write!(
                    f,
                    "{import}: sockets are never given to a component; use the interface http"
                )
            }
            (Need::OtherWasi, _) => {
                write!(f, "{import}: this host speaks WASI 0.2 and no preview of it")
            }
            (Need::Unknown, _) => write!(f, "{import}: the host does not know this interface"),
        }
    }
}

/// Most imports that an error's text lists; a component may have a million.
const SHOWN_MAX: usize = 64;

fn denied(missing: &[MissingGrant]) -> String {
    let mut text = "the component imports what it is not granted:".to_owned();
    for grant in missing.iter().take(SHOWN_MAX) {
        text.push_str("\n  ");
        text.push_str(&grant.to_string());
    }
    if let Some(more) = missing.len().checked_sub(SHOWN_MAX).filter(|more| *more > 0) {
        text.push_str(&format!("\n  and {more} more"));
    }
    text
}

fn folder_words(folder: &Path) -> String {
    match folder.as_os_str().is_empty() {
        true => "the workspace".to_owned(),
        false => format!("the folder {}", folder.display()),
    }
}

fn wrong_world(wanted: &str, found: &[String]) -> String {
    let found = match found {
        [] => "nothing".to_owned(),
        some if some.len() > SHOWN_MAX => format!("{} other items", some.len()),
        some => some.join(", "),
    };
    format!("the component must export {wanted}@{HOST_VERSION}; it exports {found}")
}

impl LoadError {
    pub(crate) fn internal(detail: &str) -> Self {
        Self::Internal(detail.to_owned())
    }

    /// The error of a component whose imports or exports the engine finds not to fit.
    pub(crate) fn mismatch(error: &wasmtime::Error) -> Self {
        Self::Mismatch { detail: format!("{error:#}") }
    }
}
