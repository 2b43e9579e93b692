//! The one way of guests to the network: HTTP requests that a rule allows, to addresses that
//! everybody may reach.
//!
//! A name is resolved once for a connection, by our resolver; if any of its addresses is not a
//! public one, the name is refused, and only what was checked is connected to. Redirects are
//! answers like any other, no proxy is used, nothing is decompressed.

mod address;
mod request;
mod resolve;

use std::error::Error as _;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http_body::Body;
use http_body_util::BodyExt;
use taskrun::policy::{CallRules, HttpTarget};

pub(crate) use request::{Outgoing, is_reserved, parse_headers};

use resolve::{AddressRefused, Guarded, Lookup, SystemLookup};

/// Time for a whole exchange unless the guest asks for less.
const TIMEOUT_MAX: Duration = Duration::from_secs(60);
/// Time for making a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of a request's or an answer's body.
pub(crate) const BODY_BYTES_MAX: usize = 4 << 20;
/// Most bytes of an answer's headers.
const ANSWER_HEADER_BYTES_MAX: usize = 64 << 10;
/// Connections kept for the next request, per host.
const IDLE_MAX: usize = 4;

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: http::StatusCode,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Vec<u8>,
}

/// Why there is no answer. The texts are fit for guests, but for `operator`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// By a rule, for want of one, or because of the address.
    Denied {
        /// What it was about.
        subject: String,
        /// For the guest.
        reason: String,
        /// For operators: the rule with its place, or the address.
        operator: String,
    },
    /// The request is not of the right form.
    Invalid(String),
    /// The name does not resolve, or nobody answers.
    Unreachable(String),
    /// It took too long.
    Timeout,
    /// A bound was met.
    Limit(String),
    /// Anything else.
    Other(String),
}

/// Sends requests of guests. Clones share their connections.
#[derive(Clone)]
pub(crate) struct Egress {
    lookup: Arc<dyn Lookup>,
    /// Made at the first request: reading the system's certificates takes a while.
    client: Arc<OnceLock<Option<reqwest::Client>>>,
}

impl std::fmt::Debug for Egress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Egress")
    }
}

impl Egress {
    pub(crate) fn new() -> Self {
        Self::with_lookup(Arc::new(SystemLookup::new()))
    }

    fn with_lookup(lookup: Arc<dyn Lookup>) -> Self {
        Self { lookup, client: Arc::default() }
    }

    /// Made on a thread for such work: it reads files, and takes more stack than a guest has.
    async fn client(&self) -> Result<reqwest::Client, Refusal> {
        let none = || Refusal::Other("the host has no HTTP client".to_owned());
        if let Some(client) = self.client.get() {
            return client.clone().ok_or_else(none);
        }
        let this = self.clone();
        let made = tokio::task::spawn_blocking(move || {
            let client = this.client.get_or_init(|| {
                build_client(Arc::clone(&this.lookup))
                    .inspect_err(|error| tracing::error!(?error, "cannot set up the HTTP client"))
                    .ok()
            });
            client.clone()
        });
        made.await.ok().flatten().ok_or_else(none)
    }

    /// Decides about a request, sends it and reads the whole answer.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub(crate) async fn send(
        &self,
        rules: CallRules<'_>,
        out: Outgoing,
    ) -> Result<Answer, Refusal> {
        let url = out.url();
        let target = HttpTarget {
            scheme: url.scheme(),
            host: url.host_str().unwrap_or_default(),
            port: url.port_or_known_default().unwrap_or_default(),
            path: url.path(),
        };
        // An allow rule names a host, and a literal address or `localhost` only as itself. So
        // where one of those is allowed, the operator wrote it down.
        if let Err(denied) = rules.decide_http(out.method().as_str(), &target) {
            return Err(Refusal::Denied {
                subject: out.subject(),
                reason: denied.for_guest,
                operator: denied.rule,
            });
        }
        let timeout = out.timeout().unwrap_or(TIMEOUT_MAX).min(TIMEOUT_MAX);
        match tokio::time::timeout(timeout, self.exchange(out)).await {
            Ok(answer) => answer,
            Err(_) => Err(Refusal::Timeout),
        }
    }

    async fn exchange(&self, out: Outgoing) -> Result<Answer, Refusal> {
        let (subject, host) = (out.subject(), out.host());
        let (method, url, headers, body) = out.into_parts();
        let request = self.client().await?.request(method, url).headers(headers).body(body);
        let failed = |error: reqwest::Error| explain(&error, subject.clone(), &host);
        let answer = request.send().await.map_err(failed)?;
        let (parts, body) = http::Response::from(answer).into_parts();
        let headers = own_headers(&parts.headers)?;
        let body = read_body(body, BODY_BYTES_MAX).await.map_err(|error| match error {
            Unread::Failed(error) => explain(&error, subject.clone(), &host),
            Unread::TooLong => {
                Refusal::Limit(format!("the answer is longer than {BODY_BYTES_MAX} bytes"))
            }
        })?;
        Ok(Answer { status: parts.status, headers, body })
    }
}

/// Why a body was not read to its end.
#[derive(Debug)]
pub(crate) enum Unread<E> {
    /// It has more bytes than it may.
    TooLong,
    /// Whoever sends it failed.
    Failed(E),
}

/// Reads a body into one piece of memory: of one that comes byte by byte, the frames themselves
/// would take many times its length.
pub(crate) async fn read_body<B>(body: B, max: usize) -> Result<Vec<u8>, Unread<B::Error>>
where
    B: Body<Data = Bytes>,
{
    let (mut body, mut bytes) = (pin!(body), Vec::new());
    while let Some(frame) = body.frame().await {
        // What is not data is trailers, which nobody gets.
        let Ok(data) = frame.map_err(Unread::Failed)?.into_data() else { continue };
        if data.len() > max - bytes.len() {
            return Err(Unread::TooLong);
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

/// The headers in memory of their own, so that they do not keep what was read from the network.
fn own_headers(headers: &http::HeaderMap) -> Result<http::HeaderMap, Refusal> {
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if bytes > ANSWER_HEADER_BYTES_MAX {
        let limit = format!("the answer's headers are longer than {ANSWER_HEADER_BYTES_MAX} bytes");
        return Err(Refusal::Limit(limit));
    }
    let mut own = http::HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        let value = http::HeaderValue::from_bytes(value.as_bytes())
            .map_err(|_| Refusal::Other("the exchange failed".to_owned()))?;
        own.append(name.clone(), value);
    }
    Ok(own)
}

fn build_client(lookup: Arc<dyn Lookup>) -> reqwest::Result<reqwest::Client> {
    // The process has one provider; whoever installed it first has it.
    rustls::crypto::ring::default_provider().install_default().ok();
    reqwest::Client::builder()
        .dns_resolver(Arc::new(Guarded(lookup)))
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .no_proxy()
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_max_idle_per_host(IDLE_MAX)
        .build()
}

/// What the guest and the operator are told of a failed exchange.
fn explain(error: &reqwest::Error, subject: String, host: &str) -> Refusal {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(refused) = inner.downcast_ref::<AddressRefused>() {
            return Refusal::Denied {
                subject,
                reason: format!("{host} does not lead to a public address"),
                operator: refused.to_string(),
            };
        }
        cause = inner.source();
    }
    tracing::debug!(?error, "a guest's HTTP request failed");
    if error.is_timeout() {
        Refusal::Timeout
    } else if error.is_connect() {
        Refusal::Unreachable(format!("{host} cannot be reached"))
    } else {
        Refusal::Other("the exchange failed".to_owned())
    }
}

#[cfg(test)]
mod tests;
