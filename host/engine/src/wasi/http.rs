//! `wasi:http`: the same rules and the same way out as our own `http`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

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
    Answer, BODY_BYTES_MAX, BodyError, ExchangeLimit, OutboundRequest, Refusal, holding,
    is_reserved, read_body,
};
use crate::guest::{Guest, Mode};

/// Exchanges of one call whose answers are not read yet; each may hold two bodies.
const EXCHANGES_MAX: usize = 8;
/// Most bytes of a piece of a body, of which two wait to be sent for each request that a guest has
/// begun.
pub(crate) const CHUNK_BYTES_MAX: usize = 16 << 10;

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
            let rules = scope.rules();
            if rules.allows(&outgoing.line().used())
                && scope.reach_out("sends a request through WASI").is_err()
            {
                return Err(Error::ConnectionTerminated);
            }
            let exchange = guest.engine.egress().send(tenant, &rules, &course, outgoing);
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
    let body = read_body(body, BODY_BYTES_MAX, &mut held).await;
    let bytes = body.map_err(|error| match error {
        BodyError::TooLong => limited(&ExchangeLimit::RequestBody),
        BodyError::NoRoom(full) => limited(&ExchangeLimit::Bodies(full)),
        BodyError::Failed(error) => error,
    })?;
    let body = holding(bytes, held);
    parts.headers.remove(http::header::CONTENT_LENGTH);
    let timeout = options.and_then(whole_timeout);
    let url = parts.uri.to_string();
    OutboundRequest::new(parts.method.as_str(), &url, parts.headers, body, timeout).map_err(
        |refusal| match refusal {
            Refusal::Limit(limit) => limited(&limit),
            Refusal::Invalid(_)
            | Refusal::Denied { .. }
            | Refusal::Unreachable(_)
            | Refusal::Timeout
            | Refusal::Other(_) => Error::HttpRequestUriInvalid,
        },
    )
}

/// The whole answer is read before the guest gets any of it, so its limits on parts are summed.
fn whole_timeout(options: RequestOptions) -> Option<Duration> {
    let first = options.first_byte_timeout?;
    Some(first + options.connect_timeout.unwrap_or_default())
}

fn refused(scope: &CallScope, refusal: Refusal) -> Error {
    match refusal {
        Refusal::Denied { subject, reason: _, operator } => {
            scope.record_refusal(Capability::Http, &subject, operator);
            Error::HttpRequestDenied
        }
        Refusal::Invalid(_) => Error::HttpRequestUriInvalid,
        Refusal::Unreachable(_) => Error::ConnectionRefused,
        Refusal::Timeout => Error::HttpResponseTimeout,
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
    let body = CountedBody { body: Full::new(bytes), _turn: turn };
    let mut response = http::Response::new(body.boxed_unsync());
    *response.status_mut() = answer.status;
    *response.headers_mut() = answer.headers;
    response
}

/// An answer's body, which counts as an exchange until it is dropped.
struct CountedBody {
    body: Full<Bytes>,
    _turn: Arc<OwnedSemaphorePermit>,
}

impl Body for CountedBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        frame.map(|frame| frame.map(|frame| frame.map_err(|never| match never {})))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use http_body_util::{Empty, StreamBody};
    use taskrun::clock::{SeededRandom, SystemClock};
    use taskrun::ports::planner::ConversationView;
    use taskrun::scope::{
        CallScopeParts, CurrentRules, Remaining, RunContext, ScopeLimits, Services, StopSignal,
    };
    use taskrun_policy::{CallRules, Limits, Policy};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::egress::NoConnection;
    use crate::guest_memory::BeginBytes;
    use crate::{Engine, EngineOptions};

    fn rules(lines: &str) -> CallRules {
        let text = format!("[agent.a]\ncomponent = \"a.wasm\"\n{lines}\n");
        let policy = Policy::parse(&text, Path::new("taskrun.toml")).unwrap();
        CallRules::new(Arc::clone(&policy.agents["a"].grants), None)
    }

    fn scope(lines: &str) -> Arc<CallScope> {
        scope_under(CurrentRules::fixed(rules(lines)))
    }

    fn scope_under(rules: Arc<CurrentRules>) -> Arc<CallScope> {
        Arc::new(CallScope::new(CallScopeParts {
            context: RunContext::default(),
            stop: StopSignal::never(),
            deadline: Duration::from_secs(60),
            clock: Arc::new(SystemClock::new()),
            random: Arc::new(SeededRandom::new(1)),
            models: None,
            rules,
            pins: Vec::new(),
            runs: None,
            tools: Arc::default(),
            state: BTreeMap::new(),
            services: Services::default(),
            remaining: Remaining::default(),
            limits: ScopeLimits { events: 100, bytes: 1 << 20 },
            wake: Arc::default(),
            journal: None,
            tape: None,
        }))
    }

    fn guest() -> Arc<Guest> {
        let options = EngineOptions { instances: Some(1), ..EngineOptions::default() };
        Arc::new(Guest {
            engine: Engine::new(options).unwrap(),
            digest: String::new(),
            source: "a".to_owned(),
            limits: Limits::default(),
            begin_bytes: BeginBytes::at_most(0),
            workspace: None,
            bounds: None,
            preopens: Vec::new(),
            hears_cancellation: false,
            view: ConversationView::Whole,
        })
    }

    fn hooks_of(guest: &Arc<Guest>, scope: &Arc<CallScope>, mode: Mode) -> Hooks {
        Hooks::new(Arc::clone(guest), Arc::clone(scope), Course::new(Duration::MAX), mode)
    }

    fn request(url: &str) -> http::Request<WasiBody> {
        let body = Empty::new().map_err(|never| match never {}).boxed_unsync();
        http::Request::get(url).body(body).unwrap()
    }

    async fn send(hooks: &mut Hooks, url: &str) -> Result<http::Response<WasiBody>> {
        let sent = hooks.send_request(request(url), None, Box::new(async { Ok(()) }));
        Pin::from(sent).await.map(|(response, _)| response)
    }

    async fn server() -> u16 {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                // The request fits into one read; what it says does not matter.
                let mut request = Vec::with_capacity(4096);
                stream.read_buf(&mut request).await.unwrap();
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi";
                stream.write_all(answer).await.ok();
            }
        });
        port
    }

    #[tokio::test]
    async fn case_43_the_rules_decide_and_refusals_are_recorded() {
        let url = format!("http://127.0.0.1:{}", server().await);
        let scope = scope(&format!("allow = [\"http: GET {url}/open/**\"]"));
        let guest = guest();
        let mut hooks = hooks_of(&guest, &scope, Mode::Call);
        let response = send(&mut hooks, &format!("{url}/open/a")).await.unwrap();
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "hi");
        for denied in [format!("{url}/closed"), "http://169.254.169.254/".to_owned()] {
            let refused = send(&mut hooks, &denied).await;
            assert!(matches!(refused, Err(Error::HttpRequestDenied)), "{denied}");
        }
        assert_eq!(scope.finish().events.len(), 2);
        let mut describing = hooks_of(&guest, &scope, Mode::Describe);
        let refused = send(&mut describing, &format!("{url}/open/a")).await;
        assert!(matches!(refused, Err(Error::HttpRequestDenied)));
    }

    #[tokio::test]
    async fn case_43_the_rules_that_decide_are_those_after_the_body_has_come() {
        let url = format!("http://127.0.0.1:{}/", server().await);
        let allowed = rules(&format!("allow = [\"http: POST {url}**\"]"));
        let current = Arc::new(CurrentRules::new(allowed, Vec::new()));
        let scope = scope_under(Arc::clone(&current));
        let mut hooks = hooks_of(&guest(), &scope, Mode::Call);
        let (finish, finished) = tokio::sync::oneshot::channel::<()>();
        let body = StreamBody::new(futures::stream::once(async move {
            finished.await.expect("the test ends the body");
            Ok::<_, Error>(Frame::data(Bytes::from_static(b"late")))
        }));
        let request = http::Request::post(&url).body(body.boxed_unsync()).expect("a request");
        let sent = hooks.send_request(request, None, Box::new(async { Ok(()) }));
        let mut sent = Pin::from(sent);
        assert!(futures::poll!(&mut sent).is_pending(), "its body is not there");
        current.replace(rules(""), Vec::new());
        finish.send(()).expect("the request waits for its body");
        assert!(matches!(sent.await, Err(Error::HttpRequestDenied)));
        assert_eq!(scope.finish().events.len(), 1, "the decision is recorded");
    }

    /// Sends this body to a server that it may be sent to.
    async fn post(guest: &Arc<Guest>, body: WasiBody) -> Result<http::Response<WasiBody>> {
        let url = format!("http://127.0.0.1:{}/", server().await);
        let scope = scope(&format!("allow = [\"http: POST {url}**\"]"));
        let request = http::Request::post(&url).body(body).expect("a request");
        let mut hooks = hooks_of(guest, &scope, Mode::Call);
        let sent = hooks.send_request(request, None, Box::new(async { Ok(()) }));
        Pin::from(sent).await.map(|(response, _)| response)
    }

    #[tokio::test]
    async fn a_bound_is_told_by_the_code_that_is_its_own() {
        let guest = guest();
        let bytes = |count: usize| {
            let body = Full::new(Bytes::from(vec![b'x'; count]));
            body.map_err(|never| match never {}).boxed_unsync()
        };
        let sent = post(&guest, bytes(BODY_BYTES_MAX + 1)).await;
        assert!(matches!(sent, Err(Error::HttpRequestBodySize(Some(_)))), "{:?}", sent.err());
        let broken = futures::stream::iter([Err::<Frame<Bytes>, _>(Error::LoopDetected)]);
        let sent = post(&guest, StreamBody::new(broken).boxed_unsync()).await;
        assert!(matches!(sent, Err(Error::LoopDetected)), "{:?}", sent.err());
        let mut held = guest.engine.egress().body("");
        while held.grow(1 << 20).is_ok() {}
        let sent = post(&guest, bytes(1 << 20)).await;
        assert!(
            matches!(&sent, Err(Error::InternalError(Some(text))) if text.contains("too many bytes")),
            "{:?}",
            sent.err()
        );
        assert!(matches!(
            limited(&ExchangeLimit::AnswerBody),
            Error::HttpResponseBodySize(Some(_))
        ));
        let headers = limited(&ExchangeLimit::AnswerHeaders);
        assert!(matches!(headers, Error::HttpResponseHeaderSectionSize(None)));
        let connections = limited(&ExchangeLimit::Connections(NoConnection));
        assert!(matches!(connections, Error::ConnectionLimitReached));
        let url = limited(&ExchangeLimit::Url("too long".to_owned()));
        assert!(matches!(url, Error::HttpRequestUriTooLong));
        let interim = limited(&ExchangeLimit::InterimAnswers);
        assert!(matches!(interim, Error::InternalError(Some(text)) if text.contains("interim")));
    }

    #[tokio::test]
    async fn answers_that_are_not_read_are_counted() {
        let url = format!("http://127.0.0.1:{}/", server().await);
        let scope = scope(&format!("allow = [\"http: GET {url}**\"]"));
        let mut hooks = hooks_of(&guest(), &scope, Mode::Call);
        let mut held = Vec::new();
        for _ in 0..EXCHANGES_MAX {
            held.push(send(&mut hooks, &url).await.unwrap());
        }
        assert!(matches!(send(&mut hooks, &url).await, Err(Error::ConnectionLimitReached)));
        // The bytes count when the body they came in is gone.
        let bytes = held.pop().unwrap().into_body().frame().await.unwrap().unwrap();
        let bytes = bytes.into_data().unwrap();
        assert!(matches!(send(&mut hooks, &url).await, Err(Error::ConnectionLimitReached)));
        drop(bytes);
        assert!(send(&mut hooks, &url).await.is_ok());
    }
}
