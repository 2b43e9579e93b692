//! `wasi:http`: the same rules and the same way out as our own `http`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use taskrun::byte_pool::PooledBytes;
use taskrun::scope::CallScope;
use taskrun_policy::Capability;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wasmtime_wasi_http::{
    Error, ForbiddenHeaderFilter, RequestOptions, Result, WasiBody, WasiHttpHooks,
};

use crate::course::Course;
use crate::egress::{
    Answer, BODY_BYTES_MAX, BodyError, ExchangeLimit, ExchangePart, ExchangeTimes, OutboundRequest,
    Refusal, WholeBody, holding, is_reserved, read_body,
};
use crate::guest::{Guest, Mode};

/// Exchanges of one call whose answers are not read yet; each may hold two bodies.
const EXCHANGES_MAX: usize = 8;
/// Most bytes of a piece of a body, of which two wait to be sent for each request that a guest has
/// begun.
pub(crate) const CHUNK_BYTES_MAX: usize = 16 << 10;
/// For a guest whose request has headers after its body, which HTTP/1.1 announces before it.
const NO_TRAILERS: &str = "the host sends no trailers";

/// Decides about every request of a call.
pub(crate) struct Hooks {
    guest: Arc<Guest>,
    scope: Arc<CallScope>,
    course: Course,
    mode: Mode,
    exchanges: Arc<Semaphore>,
}

impl Hooks {
    pub(super) fn new(
        guest: Arc<Guest>,
        scope: Arc<CallScope>,
        course: Course,
        mode: Mode,
    ) -> Self {
        Self { guest, scope, course, mode, exchanges: Arc::new(Semaphore::new(EXCHANGES_MAX)) }
    }
}

/// End of an exchange: whatever there is to say was said with the answer.
type End = Box<dyn Future<Output = Result<()>> + Send>;
type Exchange = Box<dyn Future<Output = Result<(http::Response<WasiBody>, End)>> + Send>;

impl WasiHttpHooks for Hooks {
    fn forbidden_header_filter(&mut self) -> ForbiddenHeaderFilter {
        // A guest may set the length of its body; the host sends what the body has.
        Arc::new(|name| is_reserved(name) && name != http::header::CONTENT_LENGTH)
    }

    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        CHUNK_BYTES_MAX
    }

    fn set_host_header(&mut self) -> bool {
        false
    }

    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _done: Box<dyn Future<Output = Result<()>> + Send>,
    ) -> Exchange {
        let (guest, scope, mode) = (Arc::clone(&self.guest), Arc::clone(&self.scope), self.mode);
        let course = self.course.clone();
        // One too many is dropped here, and not where its future would be polled.
        let Ok(turn) = Arc::clone(&self.exchanges).try_acquire_owned() else {
            return Box::new(async { Err(Error::ConnectionLimitReached) });
        };
        Box::new(async move {
            if mode == Mode::Describe {
                return Err(Error::HttpRequestDenied);
            }
            let tenant = &scope.context().tenant;
            let held = guest.engine.egress().body(tenant);
            let outgoing = outgoing(request, options, held).await?;
            // The guest gives the body in its own time, and rules may go meanwhile.
            let allowed = outgoing.decided(|used| scope.allow(used));
            let allowed = allowed.map_err(|_| Error::HttpRequestDenied)?;
            if scope.reach_out("sends a request through WASI").is_err() {
                return Err(Error::ConnectionTerminated);
            }
            let exchange = guest.engine.egress().exchange(tenant, &course, allowed);
            let answer = tokio::select! {
                biased;
                () = scope.stop().asked() => return Err(Error::ConnectionTerminated),
                answer = exchange => answer,
            };
            let answer = answer.map_err(|refusal| refused(&scope, refusal))?;
            let end: End = Box::new(async { Ok(()) });
            Ok((response(answer, turn), end))
        })
    }
}

/// Reads the body, as the guest writes it, and checks the whole.
async fn outgoing(
    request: http::Request<WasiBody>,
    options: Option<RequestOptions>,
    mut held: PooledBytes,
) -> Result<OutboundRequest> {
    let (mut parts, body) = request.into_parts();
    let body = read_body(body, BODY_BYTES_MAX, &mut held, None).await;
    let WholeBody { bytes, trailers } = body.map_err(|error| match error {
        BodyError::TooLong => limited(&ExchangeLimit::RequestBody),
        BodyError::NoRoom(full) => limited(&ExchangeLimit::Bodies(full)),
        BodyError::Late => Error::ConnectionReadTimeout,
        BodyError::Failed(error) => error,
    })?;
    if trailers.is_some_and(|trailers| !trailers.is_empty()) {
        return Err(Error::InternalError(Some(NO_TRAILERS.to_owned())));
    }
    let body = holding(bytes, held);
    parts.headers.remove(http::header::CONTENT_LENGTH);
    let url = parts.uri.to_string();
    let request = OutboundRequest::new(parts.method.as_str(), &url, parts.headers, body, None);
    let request = request.map_err(|refusal| match refusal {
        Refusal::Limit(limit) => limited(&limit),
        Refusal::Invalid(_)
        | Refusal::Denied { .. }
        | Refusal::Unreachable(_)
        | Refusal::Timeout
        | Refusal::PartTimeout(_)
        | Refusal::Other(_) => Error::HttpRequestUriInvalid,
    })?;
    Ok(request.with_times(options.map(times).unwrap_or_default()))
}

/// The whole answer is read before the guest gets any of it, so a body that comes too slowly is
/// told where the answer is asked for.
fn times(options: RequestOptions) -> ExchangeTimes {
    let RequestOptions { connect_timeout, first_byte_timeout, between_bytes_timeout } = options;
    ExchangeTimes {
        connection: connect_timeout,
        head: first_byte_timeout,
        piece: between_bytes_timeout,
    }
}

fn refused(scope: &CallScope, refusal: Refusal) -> Error {
    match refusal {
        Refusal::Denied { subject, reason: _, operator } => {
            scope.record_refusal(Capability::Http, &subject, operator);
            Error::HttpRequestDenied
        }
        Refusal::Invalid(_) => Error::HttpRequestUriInvalid,
        Refusal::Unreachable(_) => Error::ConnectionRefused,
        Refusal::Timeout | Refusal::PartTimeout(ExchangePart::Head) => Error::HttpResponseTimeout,
        Refusal::PartTimeout(ExchangePart::Connection) => Error::ConnectionTimeout,
        Refusal::PartTimeout(ExchangePart::Body) => Error::ConnectionReadTimeout,
        Refusal::Limit(limit) => limited(&limit),
        Refusal::Other(_) => Error::HttpProtocolError,
    }
}

/// The code of WASI for a bound; words where it has none, or would say that of another bound.
fn limited(limit: &ExchangeLimit) -> Error {
    let bytes = Some(BODY_BYTES_MAX as u64);
    match limit {
        ExchangeLimit::Url(_) => Error::HttpRequestUriTooLong,
        ExchangeLimit::RequestHeaders => Error::HttpRequestHeaderSectionSize(None),
        ExchangeLimit::RequestBody => Error::HttpRequestBodySize(bytes),
        ExchangeLimit::Connections(_) => Error::ConnectionLimitReached,
        ExchangeLimit::AnswerHeaders => Error::HttpResponseHeaderSectionSize(None),
        ExchangeLimit::AnswerBody => Error::HttpResponseBodySize(bytes),
        ExchangeLimit::InterimAnswers | ExchangeLimit::Bodies(_) | ExchangeLimit::Recorded(_) => {
            Error::InternalError(Some(limit.to_string()))
        }
    }
}

fn response(answer: Answer, turn: OwnedSemaphorePermit) -> http::Response<WasiBody> {
    let turn = Arc::new(turn);
    let held = (answer.held, Arc::clone(&turn));
    let bytes = holding(answer.body, held);
    let body = CountedBody { body: Full::new(bytes), trailers: answer.trailers, _turn: turn };
    let mut response = http::Response::new(body.boxed_unsync());
    *response.status_mut() = answer.status;
    *response.headers_mut() = answer.headers;
    response
}

/// An answer's body, which counts as an exchange until it is dropped.
struct CountedBody {
    body: Full<Bytes>,
    trailers: Option<http::HeaderMap>,
    _turn: Arc<OwnedSemaphorePermit>,
}

impl Body for CountedBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>>>> {
        let data = Pin::new(&mut self.body).poll_frame(context);
        data.map(|data| {
            let data = data.map(|frame| frame.map_err(|never| match never {}));
            data.or_else(|| self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
