//! Exchanges as guests of WASI have them.

use std::collections::BTreeMap;
use std::net;
use std::path::Path;
use std::time::Duration;

use http_body_util::{Empty, StreamBody};
use taskrun::clock::{SeededRandom, SystemClock};
use taskrun::ports::planner::ConversationView;
use taskrun::scope::{
    CallScopeParts, CurrentRules, JournalRoom, Remaining, RunContext, ScopeLimits, Services,
    StopSignal, Tape,
};
use taskrun_policy::{CallRules, Limits, Policy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::egress::NoConnection;
use crate::guest_memory::BeginBytes;
use crate::{Engine, EngineOptions};

fn rules(lines: &str) -> CallRules {
    let text = format!("[agent.a]\ncomponent = \"a.wasm\"\n{lines}\n");
    let policy = Policy::parse(&text, Path::new("taskrun.toml")).expect("a policy");
    CallRules::new(Arc::clone(&policy.agents["a"].grants), None)
}

fn scope(lines: &str) -> Arc<CallScope> {
    scope_under(CurrentRules::fixed(rules(lines)))
}

fn scope_under(rules: Arc<CurrentRules>) -> Arc<CallScope> {
    Arc::new(CallScope::new(parts(rules)))
}

fn parts(rules: Arc<CurrentRules>) -> CallScopeParts {
    CallScopeParts {
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
    }
}

fn guest() -> Arc<Guest> {
    let options = EngineOptions { instances: Some(1), ..EngineOptions::default() };
    Arc::new(Guest {
        engine: Engine::new(options).expect("an engine"),
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
    http::Request::get(url).body(body).expect("a request")
}

async fn send(hooks: &mut Hooks, url: &str) -> Result<http::Response<WasiBody>> {
    send_within(hooks, url, None).await
}

async fn send_within(
    hooks: &mut Hooks,
    url: &str,
    options: Option<RequestOptions>,
) -> Result<http::Response<WasiBody>> {
    let sent = hooks.send_request(request(url), options, Box::new(async { Ok(()) }));
    Pin::from(sent).await.map(|(response, _)| response)
}

async fn server() -> u16 {
    server_of(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi").await
}

/// Answers every request with these bytes.
async fn server_of(answer: &'static [u8]) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            // The request fits into one read; what it says does not matter.
            let mut request = Vec::with_capacity(4096);
            stream.read_buf(&mut request).await.expect("it is read");
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
    let response = send(&mut hooks, &format!("{url}/open/a")).await.expect("an answer");
    assert_eq!(response.into_body().collect().await.expect("a body").to_bytes(), "hi");
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
    assert!(matches!(limited(&ExchangeLimit::AnswerBody), Error::HttpResponseBodySize(Some(_))));
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
        held.push(send(&mut hooks, &url).await.expect("an answer"));
    }
    assert!(matches!(send(&mut hooks, &url).await, Err(Error::ConnectionLimitReached)));
    // The bytes count when the body they came in is gone.
    let bytes =
        held.pop().expect("one").into_body().frame().await.expect("a frame").expect("whole");
    let bytes = bytes.into_data().expect("data");
    assert!(matches!(send(&mut hooks, &url).await, Err(Error::ConnectionLimitReached)));
    drop(bytes);
    assert!(send(&mut hooks, &url).await.is_ok());
}

#[tokio::test]
async fn what_a_step_was_refused_stays_refused_when_it_runs_again_under_other_rules() {
    let listener = net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("it does not wait");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let (guest, first) = (guest(), scope(""));
    let refused = send(&mut hooks_of(&guest, &first, Mode::Call), &url).await;
    assert!(matches!(refused, Err(Error::HttpRequestDenied)), "{:?}", refused.err());
    let mut tape = Tape::default();
    first.finish().events.iter().for_each(|event| tape.push(event));
    let wider = rules(&format!("allow = [\"http: GET {url}**\"]"));
    let wider = Arc::new(CurrentRules::new(wider, vec!["a@2".to_owned()]));
    let journal = Some(JournalRoom::default());
    let again = CallScopeParts { journal, tape: Some(tape), ..parts(wider) };
    let again = Arc::new(CallScope::new(again));
    let refused = send(&mut hooks_of(&guest, &again, Mode::Call), &url).await;
    assert!(matches!(refused, Err(Error::HttpRequestDenied)), "{:?}", refused.err());
    assert_eq!(again.finish().divergence, None);
    assert!(listener.accept().is_err(), "the server has nothing of it");
}

#[test]
fn each_time_of_a_guest_is_that_of_its_part_and_has_its_own_error() {
    let options = RequestOptions {
        connect_timeout: Some(Duration::from_secs(1)),
        first_byte_timeout: Some(Duration::from_secs(2)),
        between_bytes_timeout: Some(Duration::from_secs(3)),
    };
    let expected = ExchangeTimes {
        connection: Some(Duration::from_secs(1)),
        head: Some(Duration::from_secs(2)),
        piece: Some(Duration::from_secs(3)),
    };
    assert_eq!(times(options), expected);
    let scope = scope("");
    let code = |part| refused(&scope, Refusal::PartTimeout(part));
    assert!(matches!(code(ExchangePart::Connection), Error::ConnectionTimeout));
    assert!(matches!(code(ExchangePart::Head), Error::HttpResponseTimeout));
    assert!(matches!(code(ExchangePart::Body), Error::ConnectionReadTimeout));
}

#[tokio::test]
async fn a_body_that_stalls_ends_by_the_time_between_bytes_and_the_call_goes_on() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let stalls = format!("http://{}/", listener.local_addr().expect("an address"));
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("it is connected");
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nh").await.ok();
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.ok();
    });
    let url = format!("http://127.0.0.1:{}/", server().await);
    let scope = scope(&format!("allow = [\"http: GET {stalls}**\", \"http: GET {url}**\"]"));
    let mut hooks = hooks_of(&guest(), &scope, Mode::Call);
    let between_bytes_timeout = Some(Duration::from_millis(50));
    let options = RequestOptions { between_bytes_timeout, ..RequestOptions::default() };
    let slow = send_within(&mut hooks, &stalls, Some(options)).await;
    assert!(matches!(slow, Err(Error::ConnectionReadTimeout)), "{:?}", slow.err());
    send(&mut hooks, &url).await.expect("the next one is answered");
}

#[tokio::test]
async fn a_request_with_trailers_is_refused_and_those_of_an_answer_are_handed_on() {
    let guest = guest();
    let with = |trailers: http::HeaderMap| {
        let frames = [Frame::data(Bytes::from_static(b"a")), Frame::trailers(trailers)];
        let body = StreamBody::new(futures::stream::iter(frames.map(Ok::<_, Error>)));
        body.boxed_unsync()
    };
    let value = http::HeaderValue::from_static("7");
    let sum = http::HeaderMap::from_iter([(http::HeaderName::from_static("x-sum"), value)]);
    let sent = post(&guest, with(sum)).await;
    assert!(
        matches!(&sent, Err(Error::InternalError(Some(words))) if words == NO_TRAILERS),
        "{:?}",
        sent.err()
    );
    post(&guest, with(http::HeaderMap::new())).await.expect("there are none in it");

    let port = server_of(
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n\
        2\r\nhi\r\n0\r\nx-sum: 7\r\n\r\n",
    )
    .await;
    let url = format!("http://127.0.0.1:{port}/");
    let scope = scope(&format!("allow = [\"http: GET {url}**\"]"));
    let answer = send(&mut hooks_of(&guest, &scope, Mode::Call), &url).await;
    let body = answer.expect("it is answered").into_body().collect().await.expect("a body");
    assert_eq!(body.trailers().expect("there are some")["x-sum"], "7");
    assert_eq!(body.to_bytes(), "hi");
}
