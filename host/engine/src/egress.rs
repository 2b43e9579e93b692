//! The one way of guests to the network: HTTP requests that a rule allows, to addresses that
//! everybody may reach.
//!
//! A name is resolved once for a connection, by our resolver; if any of its addresses is not a
//! public one, the name is refused, and only what was checked is connected to. Redirects are
//! answers like any other, no proxy is used, nothing is decompressed. Tenants share nothing: each
//! has connections and looked-up names of its own.

mod address;
mod connection;
mod connections;
mod connector;
mod exchange_threads;
mod held_bytes;
mod host_client;
mod limit;
mod name_servers;
mod request;
mod request_line;
mod resolve;
mod tenants;
mod times;

use std::error::Error;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body::Body;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Error as ClientError;
use hyper_util::client::legacy::connect::capture_connection;
use taskrun::byte_pool::{PoolFull, PooledBytes};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use crate::course::Course;
use crate::threads::Lane;

pub(crate) use connections::{Connections, NoConnection};
pub(crate) use exchange_threads::{ByLane, ExchangeThreads};
pub(crate) use held_bytes::holding;
pub use host_client::{HostClient, PostError};
pub(crate) use limit::ExchangeLimit;
pub(crate) use request::{AllowedRequest, OutboundRequest, is_reserved, parse_headers};
pub(crate) use request_line::{METHOD_BYTES_MAX, URL_BYTES_MAX};
pub use request_line::{RequestLine, RequestLineError};
pub(crate) use times::{ExchangePart, ExchangeTimes};

use resolve::ResolveError;
use tenants::Tenants;

/// Time for a whole exchange unless the guest asks for less.
const TIMEOUT_MAX: Duration = Duration::from_secs(60);
/// Most bytes of a request's or an answer's body.
pub(crate) const BODY_BYTES_MAX: usize = 4 << 20;
/// Most headers of an answer, and most bytes of them. As many trailers may follow its body; hyper's
/// client takes 16 KiB of them.
const ANSWER_HEADERS_MAX: usize = 100;
const ANSWER_HEADER_BYTES_MAX: usize = 64 << 10;
/// The processor's time that an exchange costs its call: about what connecting, sending and reading take
/// on other threads, for one that is not long. A call that goes on asking soon has its exchanges done
/// behind others.
const EXCHANGE_WORK: Duration = Duration::from_micros(100);
/// Most interim answers (100 to 199) before the answer.
const INTERIM_ANSWERS_MAX: usize = 8;

/// The answer of a server.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: http::StatusCode,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Option<http::HeaderMap>,
    /// The memory for bodies that it takes.
    pub(crate) held: PooledBytes,
}

/// The reason that there is no answer. The texts are fit for guests, but for `operator`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The name leads to an address that is not public.
    Denied {
        /// The part of the request that is refused.
        subject: String,
        /// For the guest.
        reason: String,
        /// For operators: the address.
        operator: String,
    },
    /// The request is not of the right form.
    Invalid(String),
    /// The name does not resolve, or nothing answers at the address.
    Unreachable(String),
    /// It took too long.
    Timeout,
    /// This part of it took longer than the guest gives it.
    PartTimeout(ExchangePart),
    /// A bound was met.
    Limit(ExchangeLimit),
    /// Any other error.
    Other(String),
}

/// Sends requests of guests. Clones share their connections.
#[derive(Clone)]
pub(crate) struct Egress {
    tenants: Arc<Tenants>,
}

impl std::fmt::Debug for Egress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Egress")
    }
}

impl Egress {
    /// The work that servers make for calls is done on these threads, by these connections.
    pub(crate) fn new(threads: ByLane<ExchangeThreads>, connections: Connections) -> Self {
        Self::with_tenants(Tenants::new(threads).with_connections(connections))
    }

    #[cfg(test)]
    fn with_lookup(lookup: Arc<dyn resolve::Lookup>) -> Self {
        Self::with_tenants(Tenants::with_lookup(move || Arc::clone(&lookup), ByLane::default()))
    }

    fn with_tenants(tenants: Tenants) -> Self {
        Self { tenants: Arc::new(tenants) }
    }

    /// The bytes of a body that a tenant sends.
    pub(crate) fn body(&self, tenant: &str) -> PooledBytes {
        self.tenants.body(tenant)
    }

    /// Sends a request of a tenant and reads the whole answer, on the threads for the lane of its
    /// call.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub(crate) async fn exchange(
        &self,
        tenant: &str,
        course: &Course,
        request: AllowedRequest,
    ) -> Result<Answer, Refusal> {
        let out = request.into_request();
        let timeout = out.timeout().unwrap_or(TIMEOUT_MAX).min(TIMEOUT_MAX);
        // The work that a server makes is not done on the caller's thread, where other calls may
        // want to begin.
        let lane = course.lane();
        let threads = self.tenants.threads(lane);
        course.charge(EXCHANGE_WORK);
        let exchange = exchange(Arc::clone(&self.tenants), tenant.to_owned(), lane, out);
        let exchange = tokio::time::timeout(timeout, exchange);
        match AbortOnDropHandle::new(threads.spawn(exchange)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Refusal::Timeout),
            Err(error) => {
                tracing::error!(?error, "an exchange did not come to its end");
                Err(Refusal::Other("the exchange failed".to_owned()))
            }
        }
    }
}

async fn exchange(
    tenants: Arc<Tenants>,
    tenant: String,
    lane: Lane,
    out: OutboundRequest,
) -> Result<Answer, Refusal> {
    let client = tenants.client(&tenant, lane, out.is_plain()).await?;
    let (subject, host, times) = (out.subject(), out.host(), out.times());
    let failed = |error: &(dyn Error + 'static)| explain(error, subject.clone(), &host);
    let mut request = sent(out)?;
    let mut connection = capture_connection(&mut request);
    let connected = async {
        connection.wait_for_connection_metadata().await;
    };
    let flood = Arc::new(Flood::default());
    let counted = Arc::clone(&flood);
    hyper::ext::on_informational(&mut request, move |_| counted.count());
    let answer = tokio::select! {
        biased;
        () = flood.is_too_much.notified() => {
            return Err(Refusal::Limit(ExchangeLimit::InterimAnswers));
        }
        answer = times.head(connected, client.request(request)) => {
            answer.map_err(Refusal::PartTimeout)?.map_err(|error| failed(&error))?
        }
    };
    let (parts, body) = answer.into_parts();
    let headers = own_headers(&parts.headers)?;
    let mut held = tenants.body(&tenant);
    let body = read_body(body, BODY_BYTES_MAX, &mut held, Some(times.piece()));
    let WholeBody { bytes: body, trailers } = body.await.map_err(|error| match error {
        BodyError::Failed(error) => failed(&error),
        BodyError::TooLong => Refusal::Limit(ExchangeLimit::AnswerBody),
        BodyError::NoRoom(full) => Refusal::Limit(ExchangeLimit::Bodies(full)),
        BodyError::Late => Refusal::PartTimeout(ExchangePart::Body),
    })?;
    let trailers = trailers.map(|trailers| own_headers(&trailers)).transpose()?;
    Ok(Answer { status: parts.status, headers, body, trailers, held })
}

/// The request as it goes out.
fn sent(out: OutboundRequest) -> Result<http::Request<Full<Bytes>>, Refusal> {
    let (method, url, headers, body) = out.into_parts();
    let mut request = http::Request::new(Full::new(body));
    let uri = http::Uri::try_from(url.as_str());
    *request.uri_mut() = uri.map_err(|_| Refusal::Invalid("the URL is not a valid one".into()))?;
    *request.method_mut() = method;
    *request.headers_mut() = headers;
    let any = http::HeaderValue::from_static("*/*");
    request.headers_mut().entry(http::header::ACCEPT).or_insert(any);
    Ok(request)
}

/// Counts the interim answers of an exchange.
#[derive(Default)]
struct Flood {
    interim: AtomicUsize,
    is_too_much: Notify,
}

impl Flood {
    fn count(&self) {
        if self.interim.fetch_add(1, Ordering::Relaxed) == INTERIM_ANSWERS_MAX {
            self.is_too_much.notify_one();
        }
    }
}

/// A body in one piece of memory.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct WholeBody {
    pub(crate) bytes: Vec<u8>,
    /// The headers that came after it.
    pub(crate) trailers: Option<http::HeaderMap>,
}

/// The reason that a body was not read to its end.
#[derive(Debug)]
pub(crate) enum BodyError<E> {
    /// It has more bytes than it may.
    TooLong,
    /// Other bodies take the memory that there is for them.
    NoRoom(PoolFull),
    /// The next piece of it did not come in time.
    Late,
    /// The sender failed.
    Failed(E),
}

/// Reads a body into one piece of memory: of one that comes byte by byte, the frames themselves
/// would take many times its length. It takes as much of the memory for bodies as has come in. Each
/// piece may take this time, if there is one.
pub(crate) async fn read_body<B>(
    body: B,
    max: usize,
    held: &mut PooledBytes,
    piece_time: Option<Duration>,
) -> Result<WholeBody, BodyError<B::Error>>
where
    B: Body<Data = Bytes>,
{
    let (mut body, mut whole) = (pin!(body), WholeBody::default());
    loop {
        let next = body.frame();
        let next = match piece_time {
            Some(time) => tokio::time::timeout(time, next).await.map_err(|_| BodyError::Late)?,
            None => next.await,
        };
        let Some(frame) = next else { return Ok(whole) };
        match frame.map_err(BodyError::Failed)?.into_data() {
            Ok(data) if data.len() > max - whole.bytes.len() => return Err(BodyError::TooLong),
            Ok(data) => {
                held.grow(data.len() as u64).map_err(BodyError::NoRoom)?;
                whole.bytes.extend_from_slice(&data);
            }
            Err(frame) => whole.trailers = frame.into_trailers().ok(),
        }
    }
}

/// The headers in memory of their own, so that they do not keep what was read from the network.
fn own_headers(headers: &http::HeaderMap) -> Result<http::HeaderMap, Refusal> {
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if bytes > ANSWER_HEADER_BYTES_MAX {
        return Err(Refusal::Limit(ExchangeLimit::AnswerHeaders));
    }
    let mut own = http::HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        let value = http::HeaderValue::from_bytes(value.as_bytes())
            .map_err(|_| Refusal::Other("the exchange failed".to_owned()))?;
        own.append(name.clone(), value);
    }
    Ok(own)
}

/// The guest's and the operator's text for a failed exchange.
fn explain(error: &(dyn Error + 'static), subject: String, host: &str) -> Refusal {
    if let Some(refused) = find::<ResolveError>(error)
        && let ResolveError::NotPublic { .. } = refused
    {
        return Refusal::Denied {
            subject,
            reason: format!("{host} does not lead to a public address"),
            operator: refused.to_string(),
        };
    }
    if let Some(full) = find::<NoConnection>(error) {
        return Refusal::Limit(ExchangeLimit::Connections(*full));
    }
    tracing::debug!(?error, "a guest's HTTP request failed");
    let is_timeout = |error: &io::Error| error.kind() == io::ErrorKind::TimedOut;
    let is_unconnected = find::<ClientError>(error).is_some_and(ClientError::is_connect);
    if find::<io::Error>(error).is_some_and(is_timeout) {
        match is_unconnected {
            true => Refusal::PartTimeout(ExchangePart::Connection),
            false => Refusal::Timeout,
        }
    } else if find::<hyper::Error>(error).is_some_and(hyper::Error::is_parse_too_large) {
        Refusal::Limit(ExchangeLimit::AnswerHeaders)
    } else if is_unconnected {
        Refusal::Unreachable(format!("{host} cannot be reached"))
    } else {
        Refusal::Other("the exchange failed".to_owned())
    }
}

/// The first error of a type among an error and its causes.
fn find<'e, E: Error + 'static>(error: &'e (dyn Error + 'static)) -> Option<&'e E> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

/// An error and its causes, from the outermost to the innermost.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| {
        // The source of an error in an `io::Error` is that error's source.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        match inner {
            Some(inner) => Some(inner),
            None => error.source(),
        }
    })
}

#[cfg(test)]
mod tests;
