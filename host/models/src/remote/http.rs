//! One request to a provider: sent to one address, with time-outs, and answered within bounds.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use taskrun_journal::completion::ModelError;
use taskrun_journal::time::Clock;

use super::failure::{Failure, Retry, of_status, retry_after};
use crate::key::Secret;
use crate::wire::request::HttpRequest;

/// Most bytes of an answer that only says why there is none; more are not read.
const REFUSAL_BYTES_MAX: usize = 64 << 10;
/// The longest that such an answer is read. Its status and its headers say most of it, and a body
/// that does not end would make a time-out of it, after which nothing is sent again.
const REFUSAL_TIME_MAX: Duration = Duration::from_secs(2);
/// Connections kept for the next request, per host.
const IDLE_MAX: usize = 4;

/// A client that goes where it is told and nowhere else: it follows no redirect, as the key would
/// go with it, uses no proxy that the environment names, and repeats nothing by itself.
///
/// `is_plain` says that it is for plain `http`, where no certificate is looked at.
///
/// # Errors
/// If the system's certificates cannot be read, or there are none.
pub(super) fn client(connect: Duration, is_plain: bool) -> reqwest::Result<reqwest::Client> {
    // The process has one provider; whoever installed it first has it.
    rustls::crypto::ring::default_provider().install_default().ok();
    let builder = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .no_proxy()
        .connect_timeout(connect)
        .pool_max_idle_per_host(IDLE_MAX)
        .tcp_nodelay(true);
    // With an empty list the system's certificates are not read, of which a machine may have none.
    let builder = if is_plain { builder.tls_certs_only([]) } else { builder };
    builder.build()
}

/// An error and its causes, on one line.
pub(super) fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The beginning of an answer.
pub(super) struct ResponseStart {
    pub(super) response: reqwest::Response,
    /// The first bytes, or the error in their place; `None` if there are none at all.
    pub(super) first: Option<Result<Bytes, ModelError>>,
    /// The key that the question had; the answer's words in an error are shown without it.
    pub(super) key: Option<Secret>,
}

/// Sends a request and waits for the first byte of its answer, until a time on the monotonic clock.
/// A provider that takes longer may be at work on it, and so may one whose answer breaks off behind
/// its head: another request might be paid for twice, so none is to be sent.
///
/// # Cancel safety
/// Dropping the future closes the connection.
pub(super) async fn send(
    client: &reqwest::Client,
    out: &HttpRequest,
    clock: &dyn Clock,
    key: Option<&Secret>,
    until: Duration,
) -> Result<ResponseStart, Failure> {
    let left = || until.saturating_sub(clock.monotonic());
    let request = client.post(&out.url).headers(out.headers.clone()).body(out.body.clone()).send();
    let head = within(clock, left(), request).await.ok_or(ModelError::Timeout)?;
    let mut response = head.map_err(unreachable)?;
    let status = response.status();
    if !status.is_success() {
        let wait = retry_after(response.headers(), clock.now());
        let body = refusal(&mut response, left().min(REFUSAL_TIME_MAX)).await;
        return Err(of_status(status, wait, &body, key));
    }
    let first = within(clock, left(), response.chunk()).await.ok_or(ModelError::Timeout)?;
    let first = first.transpose().map(|first| first.map_err(|_| ModelError::CutOff));
    Ok(ResponseStart { response, first, key: key.cloned() })
}

/// The beginning of a refusal, as far as it comes in time; the rest of it says nothing.
async fn refusal(response: &mut reqwest::Response, limit: Duration) -> Vec<u8> {
    let mut body = Vec::new();
    let read = async {
        while let Ok(Some(bytes)) = response.chunk().await {
            let room = REFUSAL_BYTES_MAX - body.len();
            body.extend_from_slice(&bytes[..bytes.len().min(room)]);
            if body.len() == REFUSAL_BYTES_MAX {
                break;
            }
        }
    };
    // In real time, in which bytes come whatever the clock is.
    tokio::time::timeout(limit, read).await.ok();
    body
}

fn unreachable(error: reqwest::Error) -> Failure {
    if error.is_builder() {
        return ModelError::InvalidRequest("the address of the provider is none".to_owned()).into();
    }
    let error = error.without_url();
    let mut cause: &dyn std::error::Error = &error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let words = cause.to_string();
    Failure { error: ModelError::Unreachable(words), again: Some(Retry::Later) }
}

/// The result of `work`, or `None` if that takes longer than `limit`.
pub(super) async fn within<T>(
    clock: &dyn Clock,
    limit: Duration,
    work: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = clock.sleep(limit) => None,
    }
}
