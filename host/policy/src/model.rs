//! Models: `[model.NAME]`, and who answers for them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use taskrun_journal::money::Price;

use super::Location;
use super::request_settings::RequestSettings;
use super::server::OpenAiServer;
use crate::Retry;

/// Longest name of a model at its provider, in bytes. Some servers take a path for it.
pub(crate) const PROVIDER_MODEL_BYTES_MAX: usize = 256;
/// Most bytes of a provider's whole answer unless the policy says otherwise: thirty times the
/// longest answer that models give.
pub const RESPONSE_BYTES_DEFAULT: u64 = 8 << 20;
/// The most that a policy may ask for. An answer is kept in memory and in the journal.
pub(crate) const RESPONSE_BYTES_MAX: u64 = 64 << 20;
/// The longest time-out of a provider: longer than any run may take by default.
pub(crate) const MODEL_TIME_MAX: Duration = Duration::from_secs(3_600);
/// The most tokens that a policy may allow for one answer: ten times what any model writes.
pub(crate) const ANSWER_TOKENS_MAX: u32 = 1_000_000;
/// Most words in the schedule of faults.
pub const FAULTS_MAX: usize = 1_000;

/// A model that agents can be granted: `[model.NAME]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelPolicy {
    /// `[a-z][a-z0-9_-]{0,63}`.
    pub name: String,
    /// The provider that answers.
    pub provider: Provider,
    /// The model's name at its provider; `None` leaves the choice to the provider. Always there
    /// for a remote one.
    pub model: Option<String>,
    /// The price of its tokens; `None` if the file does not say. An agent with a budget in dollars
    /// may only ask models of which it does.
    pub price: Option<Price>,
    /// Where questions and answers are written down, resolved.
    pub record: Option<PathBuf>,
    /// Of its table's header.
    pub location: Location,
}

/// The provider that answers for a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Provider {
    /// Answers from a file, turn by turn.
    Scripted {
        /// JSON lines, resolved.
        script: PathBuf,
        /// If set, a request must be the one that the script expects. Default `false`.
        strict: bool,
    },
    /// Answers with what it was asked.
    Echo,
    /// A server that speaks one of the usual protocols.
    Remote(Box<Remote>),
    /// Answers as another provider did while it was recorded.
    Replay {
        /// The cassette, resolved.
        file: PathBuf,
        /// If set, a request must have the contents of one that was recorded; otherwise answers
        /// come in their order. Default `true`.
        strict: bool,
    },
    /// Another model of the policy, with failures in between.
    Faulty {
        /// The other model, which is not faulty itself.
        of: String,
        /// The fates of one request after the other, from the beginning again at the end. At
        /// least one, at most [`FAULTS_MAX`].
        faults: Vec<Fault>,
        /// Draws from the schedule by chance, the same each time, instead of in order.
        seed: Option<u64>,
    },
}

/// A server that answers, and how it is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// The protocol.
    pub wire: Wire,
    /// `http` or `https`, without a final slash, a user, a query or a fragment. The only address
    /// that is ever asked: redirects are not followed and no proxy is used.
    pub base_url: String,
    /// Where its key is; `None` sends none.
    pub key: Option<KeySource>,
    /// If set, answers are asked for piece by piece. Default `true`.
    pub stream: bool,
    /// Most tokens of an answer, whatever the agent asks for.
    pub max_tokens: Option<u32>,
    /// The tokens of its context window, if they are known: then conversations are kept within it.
    pub context_tokens: Option<u32>,
    /// The way in which the model reasons; `None` leaves that to the provider.
    pub thinking: Option<ThinkingMode>,
    /// If set, the provider is asked to keep in its cache what the model has read. Default `true`.
    pub cache: bool,
    /// If set, it is shown images; otherwise words stand instead. Default `true`.
    pub images: bool,
    /// The ways in which the server differs from others that speak a protocol of OpenAI.
    pub server: OpenAiServer,
    /// The fields of each request beside all that.
    pub request: RequestSettings,
    /// Longest waits.
    pub timeouts: ModelTimeouts,
    /// The number of times that a request is sent that was answered with 429 or 5xx or not at all.
    /// One that was answered with as much as a byte is not sent again.
    pub retry: Retry,
    /// The time for which a run may be put off in all, where the server does not want to be asked
    /// for longer than a run can wait with its slot. Default [`crate::RETRY_PATIENCE_DEFAULT`].
    pub patience: Duration,
    /// Most bytes of an answer. Default [`RESPONSE_BYTES_DEFAULT`].
    pub response_bytes: u64,
}

/// The way in which a model reasons, where its protocol has a choice of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThinkingMode {
    /// As much as it finds right, between its calls, too.
    Adaptive,
    /// With at most so many tokens.
    Budget(u32),
    /// Not at all.
    Off,
}

/// A protocol of providers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// Responses, as OpenAI has them.
    OpenAi,
    /// Chat completions as OpenAI has them, and many servers after it.
    OpenAiChat,
    /// Messages as Anthropic has them.
    Anthropic,
    /// Content generation as Google's Gemini has it.
    Gemini,
    /// Ollama, through the chat completions that it serves.
    Ollama,
}

impl Wire {
    /// The word in the policy.
    #[must_use]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::OpenAiChat => "openai-chat",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
            Self::Ollama => "ollama",
        }
    }

    /// Where it is asked unless the policy says otherwise.
    #[must_use]
    pub(crate) fn default_base_url(self) -> &'static str {
        match self {
            Self::OpenAi | Self::OpenAiChat => "https://api.openai.com/v1",
            Self::Anthropic => "https://api.anthropic.com/v1",
            Self::Gemini => "https://generativelanguage.googleapis.com/v1beta",
            Self::Ollama => "http://127.0.0.1:11434/v1",
        }
    }
}

/// Where a provider's key is. The key itself is never part of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// The text of a file, resolved.
    File(PathBuf),
    /// An environment variable of the host.
    Env(String),
}

impl KeySource {
    /// The file that it is in, if it is in one.
    #[must_use]
    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Env(_) => None,
        }
    }
}

/// Prints where the key is, not what it is.
impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Env(name) => write!(f, "${name}"),
        }
    }
}

/// Longest waits for a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelTimeouts {
    /// For a connection. Default 10 seconds.
    pub connect: Duration,
    /// From sending the request to the first byte of the answer. Default 15 minutes: models that
    /// reason much take ten, and some providers say nothing before.
    pub first_byte: Duration,
    /// From one piece of the answer to the next. Default 15 minutes, for the same reason.
    pub between: Duration,
    /// For everything, repetitions included. Default 30 minutes: twice as long.
    pub whole: Duration,
}

impl Default for ModelTimeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            first_byte: Duration::from_secs(900),
            between: Duration::from_secs(900),
            whole: Duration::from_secs(1_800),
        }
    }
}

/// The fate of a request to a faulty model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is answered.
    None,
    /// The provider wants a pause.
    RateLimited,
    /// The provider fails.
    ServerError,
    /// The provider takes too long.
    Timeout,
    /// The answer ends in the middle.
    Cut,
}

impl Fault {
    /// Every fault, with its word in the policy.
    pub const ALL: [(&'static str, Self); 5] = [
        ("ok", Self::None),
        ("429", Self::RateLimited),
        ("500", Self::ServerError),
        ("timeout", Self::Timeout),
        ("cut", Self::Cut),
    ];
}

impl Provider {
    /// The word in the policy.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Scripted { .. } => "scripted",
            Self::Echo => "echo",
            Self::Remote(remote) => remote.wire.as_str(),
            Self::Replay { .. } => "replay",
            Self::Faulty { .. } => "faulty",
        }
    }
}

impl ModelPolicy {
    /// The file that its answers are taken from, if they are.
    #[must_use]
    pub(crate) fn answers_file(&self) -> Option<&Path> {
        match &self.provider {
            Provider::Scripted { script, .. } => Some(script),
            Provider::Replay { file, .. } => Some(file),
            Provider::Echo | Provider::Remote(_) | Provider::Faulty { .. } => None,
        }
    }

    /// The files that are read when the model is opened: the one of its answers and the one of its
    /// key.
    pub fn files_read(&self) -> impl Iterator<Item = &Path> {
        self.answers_file().into_iter().chain(self.key_file())
    }

    fn key_file(&self) -> Option<&Path> {
        match &self.provider {
            Provider::Remote(remote) => remote.key.as_ref().and_then(KeySource::file),
            Provider::Scripted { .. }
            | Provider::Replay { .. }
            | Provider::Echo
            | Provider::Faulty { .. } => None,
        }
    }

    /// Every file that its table names: none of them is a guest's business.
    #[must_use]
    pub fn files(&self) -> Vec<&Path> {
        self.files_read().chain(self.record.as_deref()).collect()
    }
}

/// Prints who answers, and for a remote one where: `openai smollm2 at http://127.0.0.1:8080/v1`.
/// Says nothing of its key.
impl fmt::Display for ModelPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.provider.as_str())?;
        if let Some(model) = &self.model {
            write!(f, " {model}")?;
        }
        match &self.provider {
            Provider::Remote(remote) => write!(f, " at {}", remote.base_url),
            Provider::Faulty { of, .. } => write!(f, " {of}"),
            Provider::Scripted { .. } | Provider::Echo | Provider::Replay { .. } => Ok(()),
        }
    }
}
