//! Servers that speak the protocols of OpenAI: what each wants in another way than OpenAI.

/// The kind of server behind an address that speaks a protocol of OpenAI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerKind {
    /// OpenAI itself.
    OpenAi,
    /// OpenAI's models at Azure.
    Azure,
    /// Mistral, and servers that check conversations as strictly.
    Mistral,
    /// DeepSeek.
    DeepSeek,
    /// Kimi, of Moonshot.
    Kimi,
    /// OpenRouter.
    OpenRouter,
    /// Any other, such as vLLM, llama.cpp and Ollama.
    Other,
}

impl ServerKind {
    /// Every kind, with its word in the policy.
    pub(crate) const ALL: [(&'static str, Self); 7] = [
        ("openai", Self::OpenAi),
        ("azure", Self::Azure),
        ("mistral", Self::Mistral),
        ("deepseek", Self::DeepSeek),
        ("kimi", Self::Kimi),
        ("openrouter", Self::OpenRouter),
        ("other", Self::Other),
    ];

    /// The kind of the server at an address.
    pub(crate) fn of_address(base_url: &str) -> Self {
        let rest = base_url.split_once("://").map_or(base_url, |(_, rest)| rest);
        let host = rest.split(['/', ':']).next().unwrap_or_default().to_ascii_lowercase();
        const DOMAINS: [(&str, ServerKind); 8] = [
            ("openai.com", ServerKind::OpenAi),
            ("azure.com", ServerKind::Azure),
            ("mistral.ai", ServerKind::Mistral),
            ("deepseek.com", ServerKind::DeepSeek),
            ("moonshot.ai", ServerKind::Kimi),
            ("moonshot.cn", ServerKind::Kimi),
            ("kimi.com", ServerKind::Kimi),
            ("openrouter.ai", ServerKind::OpenRouter),
        ];
        let of = |domain: &str| {
            host.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        let known = DOMAINS.iter().find(|(domain, _)| of(domain));
        known.map_or(Self::Other, |(_, kind)| *kind)
    }

    /// The field of a request that bounds the tokens of its answer. OpenAI's reasoning models
    /// refuse the old name, and other servers know only that.
    pub(crate) fn max_tokens_field(self) -> MaxTokensField {
        match self {
            Self::OpenAi | Self::Azure => MaxTokensField::MaxCompletionTokens,
            Self::Mistral | Self::DeepSeek | Self::Kimi | Self::OpenRouter | Self::Other => {
                MaxTokensField::MaxTokens
            }
        }
    }

    /// The field in which it wants an assistant's reasoning back; `None` if it wants none. Mistral
    /// refuses any.
    pub(crate) fn reasoning_field(self) -> Option<ReasoningField> {
        match self {
            Self::DeepSeek | Self::Kimi => Some(ReasoningField::ReasoningContent),
            Self::OpenRouter => Some(ReasoningField::Reasoning),
            Self::OpenAi | Self::Azure | Self::Mistral | Self::Other => None,
        }
    }

    /// True if it takes messages of any role in any order. For the others, whose models' templates
    /// often refuse anything else, user and assistant take turns after the instructions.
    #[must_use]
    pub fn takes_any_order(self) -> bool {
        match self {
            Self::OpenAi | Self::Azure => true,
            Self::Mistral | Self::DeepSeek | Self::Kimi | Self::OpenRouter | Self::Other => false,
        }
    }

    /// True if it must be asked for the count of tokens of an answer that comes in pieces. Mistral
    /// gives it always, and refuses to be asked.
    #[must_use]
    pub fn is_asked_for_usage(self) -> bool {
        self != Self::Mistral
    }

    /// True if the id of a call must have nine letters and digits.
    #[must_use]
    pub fn has_short_call_ids(self) -> bool {
        self == Self::Mistral
    }

    /// The header that has the key by itself; `None` if the key is a bearer's.
    #[must_use]
    pub fn key_header(self) -> Option<&'static str> {
        (self == Self::Azure).then_some("api-key")
    }
}

/// The field of a request that bounds the tokens of its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxTokensField {
    /// `max_tokens`.
    MaxTokens,
    /// `max_completion_tokens`.
    MaxCompletionTokens,
}

impl MaxTokensField {
    /// Every field, with its word in the policy and in requests.
    pub(crate) const ALL: [(&'static str, Self); 2] =
        [("max_tokens", Self::MaxTokens), ("max_completion_tokens", Self::MaxCompletionTokens)];

    /// The name in requests.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MaxTokens => "max_tokens",
            Self::MaxCompletionTokens => "max_completion_tokens",
        }
    }
}

/// The field of an assistant's message, or of an item of Responses, that has its reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningField {
    /// `encrypted_content`, of Responses.
    EncryptedContent,
    /// `reasoning_content`.
    ReasoningContent,
    /// `reasoning`.
    Reasoning,
}

impl ReasoningField {
    /// The name in requests.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EncryptedContent => "encrypted_content",
            Self::ReasoningContent => "reasoning_content",
            Self::Reasoning => "reasoning",
        }
    }
}

/// A server that speaks a protocol of OpenAI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenAiServer {
    /// By default that of the address.
    pub kind: ServerKind,
    /// Of chat completions. By default that of the kind.
    pub max_tokens_field: MaxTokensField,
    /// Where reasoning is sent back; `None` leaves it out. By default that of the kind; for
    /// Responses, which know no other, [`ReasoningField::EncryptedContent`].
    pub reasoning_field: Option<ReasoningField>,
}

impl OpenAiServer {
    /// A server of this kind that speaks chat completions, with all else by default.
    #[must_use]
    pub(crate) fn of(kind: ServerKind) -> Self {
        Self {
            kind,
            max_tokens_field: kind.max_tokens_field(),
            reasoning_field: kind.reasoning_field(),
        }
    }
}
