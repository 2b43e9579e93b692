//! Webhooks: signed requests over HTTP.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{HeaderName, HeaderValue};
use taskrun::ports::transport::{News, Transport, TransportError, TransportKind};
use taskrun_engine::HostClient;
use taskrun_journal::time::Clock;
use taskrun_models::Secret;
use taskrun_policy::KeySource;

use super::signature::{SigningKey, signatures};

/// The time for a whole exchange.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A webhook. Its secrets are read each time, so that a change of them needs no restart, and are kept
/// nowhere.
pub(super) struct Webhook {
    pub(super) client: HostClient,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) url: String,
    /// Each signs.
    pub(super) secrets: Vec<KeySource>,
    pub(super) whole: bool,
}

impl Webhook {
    async fn keys(&self) -> Result<Vec<SigningKey>, TransportError> {
        let secrets = self.secrets.clone();
        let read = move || secrets.iter().map(read_key).collect();
        let read = tokio::task::spawn_blocking(read).await;
        read.unwrap_or_else(|_| Err(TransportError("the secret cannot be read".to_owned())))
    }
}

pub(super) fn read_key(source: &KeySource) -> Result<SigningKey, TransportError> {
    let secret = Secret::read(source).map_err(|error| TransportError(error.to_string()))?;
    let form = "a webhook's secret is `whsec_` and 24 to 64 bytes in base64";
    SigningKey::of(&secret).ok_or_else(|| TransportError(format!("{source}: {form}")))
}

#[async_trait]
impl Transport for Webhook {
    fn kind(&self) -> TransportKind {
        TransportKind::Program
    }

    async fn idle(&self) {}

    async fn interrupt(&self, _reason: &str) {}

    async fn deliver(&self, news: &News) -> Result<(), TransportError> {
        let keys = self.keys().await?;
        let (id, body) = (news.key.to_string(), news.to_json(self.whole));
        let seconds = self.clock.now().0 / 1_000;
        let signed = signatures(&keys, &id, seconds, &body);
        let own = [("webhook-id", id), ("webhook-timestamp", seconds.to_string())];
        let own = own.into_iter().chain([("webhook-signature", signed)]);
        let value = |text: &str| {
            HeaderValue::from_str(text)
                .map_err(|_| TransportError("its name cannot be sent in a header".to_owned()))
        };
        let mut headers = vec![
            (CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (USER_AGENT, HeaderValue::from_static("taskrun")),
        ];
        for (name, text) in own {
            headers.push((HeaderName::from_static(name), value(&text)?));
        }
        let posted = self.client.post(&self.url, headers, body.into_bytes().into(), TIMEOUT).await;
        let status = posted.map_err(|error| TransportError(error.to_string()))?;
        match status.is_success() {
            true => Ok(()),
            false => Err(TransportError(format!("it answered {}", status.as_u16()))),
        }
    }
}
