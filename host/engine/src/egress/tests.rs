//! Exchanges with a server on this machine.

use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use taskrun_policy::{CallRules, Grants, Policy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::resolve::Lookup;
use super::*;

mod bodies;
mod certificates;
mod floods;
mod headers;
mod lanes;
#[cfg(target_os = "linux")]
mod offers;
mod places;
mod under_rules;
mod unfinished;

/// A call that is polled on a lane, and stays there.
fn on(lane: Lane) -> Course {
    let course = Course::new(Duration::MAX);
    course.goes_on(lane);
    course
}

/// A call that has a slice left.
fn first() -> Course {
    on(Lane::First)
}

fn egress() -> Egress {
    Egress::new(ByLane::default(), Connections::unbounded())
}

/// Answers every request with the same bytes, and keeps what it was sent.
struct Server {
    port: u16,
    seen: Arc<Mutex<Vec<String>>>,
}

async fn server(answer: &'static [u8]) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 64 << 10];
            let len = stream.read(&mut request).await.unwrap_or(0);
            log.lock().unwrap().push(String::from_utf8_lossy(&request[..len]).into_owned());
            stream.write_all(answer).await.ok();
        }
    });
    Server { port, seen }
}

const HELLO: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nx-key: v\r\nconnection: close\r\n\r\nhello";

fn grants(rules: &str) -> Arc<Grants> {
    let text = format!("[agent.a]\ncomponent = \"a.wasm\"\n{rules}\n");
    let policy = Policy::parse(&text, Path::new("taskrun.toml")).unwrap();
    Arc::clone(&policy.agents["a"].grants)
}

fn alone(grants: &Arc<Grants>) -> CallRules {
    CallRules::new(Arc::clone(grants), None)
}

fn get(url: &str) -> OutboundRequest {
    OutboundRequest::new("GET", url, http::HeaderMap::new(), bytes::Bytes::new(), None).unwrap()
}

fn is_denied(result: &Result<Answer, Refusal>) -> bool {
    matches!(result, Err(Refusal::Denied { .. }))
}

#[tokio::test]
async fn an_address_that_a_rule_names_is_reached() {
    let server = server(HELLO).await;
    for host in ["127.0.0.1", "localhost"] {
        let url = format!("http://{host}:{}/a", server.port);
        let rules = grants(&format!("allow = [\"http: GET {url}\"]"));
        let answer = egress().send("t", &alone(&rules), &first(), get(&url)).await.unwrap();
        assert_eq!(answer.status, 200);
        assert_eq!(answer.headers["x-key"], "v");
        assert_eq!(answer.body, b"hello");
    }
    let seen = server.seen.lock().unwrap();
    assert!(seen[0].starts_with("GET /a HTTP/1.1\r\n"), "{}", seen[0]);
}

#[tokio::test]
async fn without_a_rule_nothing_is_sent() {
    let server = server(HELLO).await;
    let port = server.port;
    let rules = grants(&format!(
        "allow = [\"http: GET http://localhost:{port}/open/**\"]\ndeny = [\"http: GET http://localhost:{port}/open/not\"]"
    ));
    let urls = [
        format!("http://localhost:{port}/closed"),
        format!("http://localhost:{port}/open/not"),
        format!("http://localhost:{port}/open/%2e%2e/closed"),
        format!("http://127.0.0.1:{port}/open/a"),
        format!("http://[::1]:{port}/open/a"),
        format!("https://localhost:{port}/open/a"),
        "http://localhost/open/a".to_owned(),
        "http://169.254.169.254/latest/meta-data/".to_owned(),
    ];
    for url in urls {
        let result = egress().send("t", &alone(&rules), &first(), get(&url)).await;
        assert!(is_denied(&result), "{url}: {result:?}");
    }
    assert!(server.seen.lock().unwrap().is_empty());
}

/// Asks for each address under a rule for `api.example` and everything below `example.org`, and for
/// each name of these leading to one of the others. Nothing may be sent.
async fn none_is_reached(literals: &[&str], answers: &[&'static str]) {
    let server = server(HELLO).await;
    let port = server.port;
    let rules = grants(&format!(
        "allow = [\"http: http://api.example:{port}/**\", \"http: http://*.example.org:{port}/**\"]"
    ));
    for literal in literals {
        let url = format!("http://{literal}:{port}/");
        let asked = OutboundRequest::new("GET", &url, http::HeaderMap::new(), Bytes::new(), None);
        let refused = match asked {
            Ok(request) => is_denied(&egress().send("t", &alone(&rules), &first(), request).await),
            Err(refusal) => matches!(refusal, Refusal::Invalid(_)),
        };
        assert!(refused, "{url}");
    }
    for answer in answers {
        for host in ["api.example", "a.example.org"] {
            let lookup = RebindingLookup { answers: vec![answer], asked: AtomicU32::new(0) };
            let url = format!("http://{host}:{port}/");
            let egress = Egress::with_lookup(Arc::new(lookup));
            let result = egress.send("t", &alone(&rules), &first(), get(&url)).await;
            let Err(Refusal::Denied { reason, .. }) = &result else {
                panic!("{answer}: {result:?}")
            };
            assert_eq!(*reason, format!("{host} does not lead to a public address"));
        }
    }
    assert!(server.seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn case_35_no_spelling_of_this_machine_is_reached_by_a_rule_for_others() {
    let literals = [
        "127.0.0.1",
        "127.0.0.2",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "127.0.0.1.",
        "\u{ff11}27.0.0.1",
        "0",
        "0.0.0.0",
        "[::]",
        "[::1]",
        "[0:0:0:0:0:0:0:1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "localhost",
        "LOCALHOST",
        "localhost.",
        "api.example.localhost",
    ];
    let answers = [
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "::1",
        "::",
        "::ffff:127.0.0.1",
        "::127.0.0.1",
        "64:ff9b::127.0.0.1",
        "2002:7f00:1::",
    ];
    none_is_reached(&literals, &answers).await;
}

#[tokio::test]
async fn case_36_no_spelling_of_the_metadata_of_a_cloud_is_reached_by_a_rule_for_others() {
    let literals = [
        "169.254.169.254",
        "169.254.43518",
        "2852039166",
        "0xa9fea9fe",
        "0xA9.0xFE.0xA9.0xFE",
        "0251.0376.0251.0376",
        "[::ffff:169.254.169.254]",
        "[::ffff:a9fe:a9fe]",
        "[fd00:ec2::254]",
        "[fe80::a9fe:a9fe]",
        "100.100.100.200",
        "168.63.129.16",
        "metadata.google.internal",
        "instance-data",
    ];
    let answers = [
        "169.254.169.254",
        "169.254.170.2",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "fd00:ec2::254",
        "fe80::a9fe:a9fe",
        "::ffff:169.254.169.254",
        "64:ff9b::169.254.169.254",
        "2002:a9fe:a9fe::",
    ];
    none_is_reached(&literals, &answers).await;
}

#[tokio::test]
async fn case_38_a_redirect_is_an_answer() {
    let there = server(HELLO).await;
    let text = format!(
        "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:{}/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        there.port
    );
    let here = server(Vec::leak(text.into_bytes())).await;
    let url = format!("http://127.0.0.1:{}/", here.port);
    let rules = grants(&format!(
        "allow = [\"http: {url}**\", \"http: http://127.0.0.1:{}/**\"]",
        there.port
    ));
    let answer = egress().send("t", &alone(&rules), &first(), get(&url)).await.unwrap();
    assert_eq!(answer.status, 302);
    assert!(there.seen.lock().unwrap().is_empty());
}

/// Leads to another address each time it is asked.
struct RebindingLookup {
    answers: Vec<&'static str>,
    asked: AtomicU32,
}

#[async_trait]
impl Lookup for RebindingLookup {
    async fn lookup(&self, _: &str) -> Result<Vec<IpAddr>, String> {
        let index = self.asked.fetch_add(1, Ordering::Relaxed) as usize;
        Ok(vec![self.answers[index.min(self.answers.len() - 1)].parse().unwrap()])
    }
}

#[tokio::test]
async fn case_37_a_name_is_resolved_once_and_what_was_checked_is_connected_to() {
    let server = server(HELLO).await;
    let url = format!("http://rebind.example:{}/", server.port);
    let rules = grants(&format!("allow = [\"http: {url}**\"]"));
    let refused =
        Arc::new(RebindingLookup { answers: vec!["127.0.0.1"], asked: AtomicU32::new(0) });
    let result =
        Egress::with_lookup(refused.clone()).send("t", &alone(&rules), &first(), get(&url)).await;
    match result {
        Err(Refusal::Denied { reason, operator, .. }) => {
            assert!(!reason.contains("127.0.0.1"), "the guest is not told: {reason}");
            assert!(operator.contains("127.0.0.1"), "{operator}");
        }
        other => panic!("{other:?}"),
    }
    // First a public address where nobody answers, then this machine: the second answer is
    // never asked for. A busy machine may need longer than the first time to ask at all.
    let mut asked = 0;
    for timeout_ms in [300, 3_000, 30_000] {
        let answers = vec!["192.31.196.1", "127.0.0.1"];
        let rebinding = Arc::new(RebindingLookup { answers, asked: AtomicU32::new(0) });
        let egress = Egress::with_lookup(rebinding.clone());
        let timeout = Some(Duration::from_millis(timeout_ms));
        let request =
            OutboundRequest::new("GET", &url, http::HeaderMap::new(), Bytes::new(), timeout);
        assert!(egress.send("t", &alone(&rules), &first(), request.unwrap()).await.is_err());
        asked = rebinding.asked.load(Ordering::Relaxed);
        if asked > 0 {
            break;
        }
    }
    assert_eq!(asked, 1);
    assert!(server.seen.lock().unwrap().is_empty());
}

/// Answers with headers until the other side is gone.
async fn endless_headers(line: Vec<u8>) -> (u16, tokio::sync::oneshot::Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (gone, is_gone) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nx-a: ").await.ok();
        while stream.write_all(&line).await.is_ok() {}
        gone.send(()).ok();
    });
    (port, is_gone)
}

#[tokio::test]
async fn case_28_headers_of_an_answer_that_do_not_end_are_cut() {
    // Fields without end, and a value without end.
    for line in [b"b\r\nx-a: ".repeat(1_000), b"b".repeat(10_000)] {
        let (port, is_gone) = endless_headers(line).await;
        let url = format!("http://127.0.0.1:{port}/");
        let rules = grants(&format!("allow = [\"http: {url}**\"]"));
        let result = egress().send("t", &alone(&rules), &first(), get(&url)).await;
        assert!(matches!(result, Err(Refusal::Limit(ExchangeLimit::AnswerHeaders))), "{result:?}");
        is_gone.await.unwrap();
    }
}

#[tokio::test]
async fn case_41_a_compressed_body_is_handed_on_as_it_came() {
    // The beginning of a file that says of itself to be compressed.
    let text = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 10\r\nconnection: close\r\n\r\n\x1f\x8b\x08\0\0\0\0\0\0\x03";
    let server = server(text).await;
    let url = format!("http://127.0.0.1:{}/", server.port);
    let rules = grants(&format!("allow = [\"http: {url}**\"]"));
    let answer = egress().send("t", &alone(&rules), &first(), get(&url)).await.unwrap();
    assert_eq!(answer.body, text[text.len() - 10..]);
    // Nobody asked for it.
    assert!(!server.seen.lock().unwrap()[0].to_lowercase().contains("accept-encoding"));
}

#[tokio::test]
async fn case_41_bodies_and_time_are_bounded() {
    let mut text = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        BODY_BYTES_MAX + 1
    )
    .into_bytes();
    text.resize(text.len() + BODY_BYTES_MAX + 1, b'x');
    let long = server(Vec::leak(text)).await;
    let url = format!("http://127.0.0.1:{}/", long.port);
    let rules = grants(&format!("allow = [\"http: {url}**\"]"));
    let result = egress().send("t", &alone(&rules), &first(), get(&url)).await;
    let is_too_long = matches!(result, Err(Refusal::Limit(ExchangeLimit::AnswerBody)));
    assert!(is_too_long, "{:?}", result.map(|answer| answer.status));

    // One that begins, and does not go on.
    let begins = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nx";
    let slow = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", slow.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = slow.accept().await.unwrap();
        stream.write_all(begins).await.ok();
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.ok();
    });
    let rules = grants(&format!("allow = [\"http: {url}**\"]"));
    let short = Some(Duration::from_millis(50));
    let request = OutboundRequest::new("GET", &url, http::HeaderMap::new(), Bytes::new(), short);
    let result = egress().send("t", &alone(&rules), &first(), request.unwrap()).await;
    assert!(matches!(result, Err(Refusal::Timeout)), "{result:?}");

    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    let rules = grants(&format!("allow = [\"http: {url}**\"]"));
    let request = OutboundRequest::new("GET", &url, http::HeaderMap::new(), Bytes::new(), short);
    let result = egress().send("t", &alone(&rules), &first(), request.unwrap()).await;
    assert!(matches!(result, Err(Refusal::Timeout)), "{result:?}");
    drop(silent);
    let result = egress().send("t", &alone(&rules), &first(), get(&url)).await;
    assert!(matches!(result, Err(Refusal::Unreachable(_))), "{result:?}");
}

#[test]
fn case_28_headers_of_answers_are_bounded_and_in_memory_of_their_own() {
    let buffer = Bytes::from(vec![b'x'; ANSWER_HEADER_BYTES_MAX + 1]);
    let with = |len: usize| {
        let value = http::HeaderValue::from_maybe_shared(buffer.slice(..len)).unwrap();
        http::HeaderMap::from_iter([(http::HeaderName::from_static("a"), value)])
    };
    let own = own_headers(&with(8)).unwrap();
    assert_eq!(own["a"], "xxxxxxxx");
    assert_ne!(own["a"].as_bytes().as_ptr(), buffer.as_ptr());
    assert!(matches!(own_headers(&with(buffer.len())), Err(Refusal::Limit(_))));
}

#[tokio::test]
async fn case_63_tenants_share_no_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let connections = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                let mut request = [0; 4096];
                while stream.read(&mut request).await.is_ok_and(|len| len > 0) {
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";
                    stream.write_all(answer).await.ok();
                }
            });
        }
    });
    let rules = grants(&format!("allow = [\"http: {url}**\"]"));
    let egress = egress();
    let exchanges = [
        ("a", Lane::First, 1),
        ("a", Lane::Owner, 1),
        ("b", Lane::First, 2),
        ("a", Lane::First, 2),
        ("b", Lane::First, 2),
        // Nor a short call with a long one, for which it would have to wait.
        ("a", Lane::Share, 3),
        ("a", Lane::First, 3),
        ("a", Lane::Behind, 3),
    ];
    for (tenant, lane, expected) in exchanges {
        egress.send(tenant, &alone(&rules), &on(lane), get(&url)).await.unwrap();
        assert_eq!(connections.load(Ordering::Relaxed), expected, "{tenant} {lane:?}");
    }
}

#[tokio::test]
async fn answers_that_are_held_leave_room_for_those_of_other_tenants() {
    let whole = vec![b'x'; BODY_BYTES_MAX];
    let head =
        format!("HTTP/1.1 200 OK\r\ncontent-length: {BODY_BYTES_MAX}\r\nconnection: close\r\n\r\n");
    let answer: &'static [u8] = [head.into_bytes(), whole].concat().leak();
    let url = format!("http://127.0.0.1:{}/", server(answer).await.port);
    let rules = grants(&format!("allow = [\"http: {url}**\"]"));
    let (egress, rules) = (egress(), alone(&rules));
    let mut held = Vec::new();
    let refused = loop {
        match egress.send("greedy", &rules, &first(), get(&url)).await {
            Ok(answer) => held.push(answer),
            Err(refusal) => break refusal,
        }
        assert!(held.len() < 100, "nobody counts them");
    };
    assert!(matches!(&refused, Refusal::Limit(ExchangeLimit::Bodies(_))));
    assert!(held.len() >= 8, "a call may hold eight: {}", held.len());
    egress
        .send("modest", &rules, &first(), get(&url))
        .await
        .expect("another tenant has its own part");
    held.pop();
    egress.send("greedy", &rules, &first(), get(&url)).await.expect("what was dropped is free");
}
