//! Models behind a provider's HTTP interface.

mod answer;
mod failure;
mod http;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use taskrun::byte_pool::BytePool;
use taskrun::scope::model::{Model, ModelStream};
use taskrun_journal::completion::{CompletionRequest, ModelError};
use taskrun_journal::message::Message;
use taskrun_journal::time::{Clock, Random, millis, random_u64};
use taskrun_policy::{ModelPolicy, ModelTimeouts, Remote as RemotePolicy, Wire};
use tokio::sync::OnceCell;

use self::answer::Bounds;
use self::failure::{Failure, Retry};
use crate::key::{KeyError, Secret};
use crate::wire::call_ids::CallIds;
use crate::wire::draft::Draft;
use crate::wire::names::{Names, with_wire_names};
use crate::wire::request::HttpRequest;
use crate::wire::{self, Decoder, ModelQuery};

/// The longest pause that a provider may ask for and that is kept. Where it asks for more, the
/// caller is told at once, instead of holding a slot.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Bytes of answers that this process reads at once, and those that each has for nothing, which is
/// more than most of them are long.
const ANSWERS_BYTES: u64 = 256 << 20;
const ANSWER_SHARE_BYTES: u64 = 256 << 10;

/// The memory for answers: the process has one, whatever models its policies have.
static ANSWERS: LazyLock<BytePool> =
    LazyLock::new(|| BytePool::new(ANSWERS_BYTES, ANSWER_SHARE_BYTES));

/// Asks a provider over HTTP.
pub(crate) struct Remote {
    name: String,
    model: String,
    policy: RemotePolicy,
    key: Option<Secret>,
    /// Made for the first request: reading the system's certificates takes a while.
    client: OnceCell<reqwest::Client>,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
}

/// The reason that a provider cannot be asked at all.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// There is no key where the policy says that one is.
    #[error("there is no key for it")]
    Key(#[from] KeyError),
}

/// A request ready to be sent.
struct PreparedRequest {
    out: HttpRequest,
    names: Names,
    prompt_bytes: u64,
    decoder: Box<dyn Decoder>,
}

impl Remote {
    /// Reads the key. Makes no connection.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub(crate) fn new(
        model: &ModelPolicy,
        policy: &RemotePolicy,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Result<Self, RemoteError> {
        let key = policy.key.as_ref().map(Secret::read).transpose()?;
        Ok(Self {
            name: model.name.clone(),
            model: model.model.clone().unwrap_or_default(),
            policy: policy.clone(),
            key,
            client: OnceCell::new(),
            clock,
            random,
        })
    }

    /// Made on a thread for such work: it reads files.
    async fn client(&self) -> Result<&reqwest::Client, ModelError> {
        let failed = |error: &(dyn std::error::Error + 'static)| {
            let (model, error) = (&self.name, http::with_causes(error));
            let hint = "https needs CA certificates, such as those of the package ca-certificates";
            tracing::error!(model, error, hint, "cannot set up the HTTP client");
            ModelError::Other("the host has no HTTP client, as its log says".to_owned())
        };
        let connect = self.policy.timeouts.connect;
        let is_plain = self.policy.base_url.starts_with("http://");
        let make = || async move {
            let made = tokio::task::spawn_blocking(move || http::client(connect, is_plain)).await;
            made.map_err(|error| failed(&error))?.map_err(|error| failed(&error))
        };
        self.client.get_or_try_init(make).await
    }

    fn prepare(&self, request: &CompletionRequest) -> Result<PreparedRequest, ModelError> {
        let names = Names::of(request)?;
        let key = self.key.as_ref();
        let request = with_wire_names(request);
        let asked = ModelQuery { request: &request, model: &self.model, policy: &self.policy, key };
        let (url, mut body, decoder) = match self.policy.wire {
            Wire::OpenAi => wire::responses::prepare(asked)?,
            Wire::OpenAiChat | Wire::Ollama => wire::chat::prepare(asked)?,
            Wire::Anthropic => wire::anthropic::prepare(asked)?,
            Wire::Gemini => wire::gemini::prepare(asked)?,
        };
        let settings = &self.policy.request;
        wire::add_extra(&mut body, &settings.extra);
        let body = serde_json::to_vec(&body)
            .map_err(|error| ModelError::InvalidRequest(error.to_string()))?;
        let mut out = HttpRequest::new(url, body);
        out.add_query(settings.query.iter().map(|(name, value)| (name.as_str(), value.reveal())));
        wire::add_headers(&self.policy, self.key.as_ref(), &mut out)?;
        let schema_bytes = request.response_schema.as_ref().map_or(0, String::len) as u64;
        let prompt_bytes = request.bytes() + schema_bytes;
        Ok(PreparedRequest { out, names, prompt_bytes, decoder })
    }

    /// Sends a request once. `deadline` is that of all attempts, on the monotonic clock.
    async fn attempt(
        &self,
        out: &HttpRequest,
        deadline: Duration,
    ) -> Result<http::ResponseStart, Failure> {
        let client = self.client().await?;
        let ModelTimeouts { first_byte, .. } = self.policy.timeouts;
        let until = self.clock.monotonic().saturating_add(first_byte).min(deadline);
        http::send(client, out, self.clock.as_ref(), self.key.as_ref(), until).await
    }

    /// The pause before the next attempt; `None` if there is none.
    fn pause(&self, attempt: u32, failure: &Failure) -> Option<Duration> {
        let again = failure.again.filter(|_| attempt < self.policy.retry.attempts)?;
        // As for plan steps: doubled each time, and up to a quarter is taken off by chance.
        let doubled = 1_u32.checked_shl(attempt - 1).unwrap_or(u32::MAX);
        let own = self.policy.retry.pause.saturating_mul(doubled).min(PAUSE_MAX);
        let quarter = millis(own) / 4;
        let off = random_u64(self.random.as_ref()) % (quarter + 1);
        let own = own.saturating_sub(Duration::from_millis(off));
        match again {
            Retry::Later => Some(own),
            Retry::After(asked) => (asked <= PAUSE_MAX).then(|| asked.max(own)),
        }
    }

    async fn begin(
        &self,
        out: &HttpRequest,
        deadline: Duration,
    ) -> Result<http::ResponseStart, ModelError> {
        let mut attempt = 1;
        loop {
            let failure = match self.attempt(out, deadline).await {
                Ok(begun) => return Ok(begun),
                Err(failure) => failure,
            };
            let left = deadline.saturating_sub(self.clock.monotonic());
            let Some(pause) = self.pause(attempt, &failure).filter(|pause| *pause < left) else {
                let (model, error) = (&self.name, failure.error.in_full());
                tracing::info!(model, error, attempt, "the request has failed");
                return Err(failure.error);
            };
            let (model, error) = (&self.name, failure.error.in_full());
            tracing::info!(model, error, attempt, pause_ms = millis(pause), "asking again");
            self.clock.sleep(pause).await;
            attempt += 1;
        }
    }
}

#[async_trait]
impl Model for Remote {
    async fn stream(&self, request: CompletionRequest) -> Result<ModelStream, ModelError> {
        let PreparedRequest { out, names, prompt_bytes, decoder } = self.prepare(&request)?;
        let calls = request.messages.iter().flat_map(Message::tool_uses);
        let call_ids = calls.map(|call| call.tool_call_id.clone()).collect();
        let deadline = self.clock.monotonic().saturating_add(self.policy.timeouts.whole);
        let begun = self.begin(&out, deadline).await?;
        let bounds = Bounds {
            in_pieces: self.policy.stream,
            deadline,
            between: self.policy.timeouts.between,
            bytes: self.policy.response_bytes,
        };
        let ids = CallIds::new(call_ids, random_u64(self.random.as_ref()));
        let draft = Draft::new(names, ids, self.model.clone(), prompt_bytes);
        let clock = Arc::clone(&self.clock);
        Ok(answer::read(begun, decoder, draft, clock, bounds, ANSWERS.begin()))
    }
}
