//! A provider of language models on this machine's loopback: a server that gives prepared answers,
//! piece by piece, hangs, or cuts them off, and remembers what it was asked. A request that real
//! servers refuse is answered with 400, and the prepared answer is kept for the next one.

#[path = "prefix.rs"]
pub mod prefix;
#[path = "responses.rs"]
pub mod responses;
#[path = "rules.rs"]
pub mod rules;

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};

use self::rules::Strictness;

/// The time that a test waits for something that must happen. Only a test that fails waits so long.
const PATIENCE: Duration = Duration::from_secs(60);
/// Most bytes of a request that a test sends.
const REQUEST_BYTES_MAX: usize = 16 << 20;

/// The server. It ends with the test's runtime.
pub struct Provider {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    /// The number of connections that a client closed while an answer was under way.
    abandoned: watch::Receiver<usize>,
    /// The number of requests that came.
    heard: watch::Receiver<usize>,
    /// The number of answers that were sent as far as they go.
    sent: watch::Receiver<usize>,
}

/// The counts of a server.
#[derive(Clone)]
struct Counts {
    heard: watch::Sender<usize>,
    sent: watch::Sender<usize>,
}

struct State {
    strictness: Strictness,
    replies: Replies,
    asked: Vec<Asked>,
}

/// The source of the answers.
enum Replies {
    /// These, one after the other.
    Prepared(VecDeque<Reply>),
    /// The answer to each request is made of it.
    Made(Box<dyn FnMut(&Asked) -> Reply + Send>),
}

/// A request that came.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Path and query.
    pub path: String,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body of the request, as JSON.
    pub body: Value,
}

/// A prepared answer.
#[derive(Clone, Debug)]
pub struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    pieces: Vec<Vec<u8>>,
    /// The time between two pieces.
    pause: Duration,
    end: End,
    gate: Option<Arc<Notify>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Whole,
    Cut,
    Hang,
    Silence,
}

impl Reply {
    /// With this status and body.
    #[must_use]
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let (headers, pieces) = (Vec::new(), vec![body.into()]);
        Self { status, headers, pieces, pause: Duration::ZERO, end: End::Whole, gate: None }
    }

    /// Events, each sent in a piece of its own.
    #[must_use]
    pub fn events(events: &[Value]) -> Self {
        let pieces = events.iter().map(|event| format!("data: {event}\n\n").into_bytes());
        let kind = ("content-type".to_owned(), "text/event-stream".to_owned());
        let (headers, pieces) = (vec![kind], pieces.collect());
        Self { headers, pieces, ..Self::new(200, "") }
    }

    /// With one more piece.
    #[must_use]
    pub fn then(mut self, piece: &str) -> Self {
        self.pieces.push(piece.as_bytes().to_vec());
        self
    }

    /// With a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With so much time between two pieces: whoever dies at random dies there, too.
    #[must_use]
    pub fn paced(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Closes the connection before the end.
    #[must_use]
    pub fn cut(mut self) -> Self {
        self.end = End::Cut;
        self
    }

    /// Makes the answer one that never ends.
    #[must_use]
    pub fn hang(mut self) -> Self {
        self.end = End::Hang;
        self
    }

    /// Nothing at all, not even a status.
    #[must_use]
    pub fn silence() -> Self {
        Self { end: End::Silence, ..Self::new(200, "") }
    }

    /// Begins when the test says so.
    #[must_use]
    pub fn held(mut self, gate: &Arc<Notify>) -> Self {
        self.gate = Some(Arc::clone(gate));
        self
    }
}

impl Provider {
    /// A server that gives these answers, one after the other, and then answers 500. It refuses
    /// what the servers on loopback refuse that a policy takes for those of its address.
    pub async fn start(replies: impl IntoIterator<Item = Reply>) -> Self {
        Self::start_as(Strictness::Template, replies).await
    }

    /// [`Self::start`] for a server with other rules.
    pub async fn start_as(
        strictness: Strictness,
        replies: impl IntoIterator<Item = Reply>,
    ) -> Self {
        Self::listen(strictness, Replies::Prepared(replies.into_iter().collect())).await
    }

    /// [`Self::start`] for a server that makes the answer to each request of what it is asked, and
    /// remembers none of them.
    pub async fn answering(answer: impl FnMut(&Asked) -> Reply + Send + 'static) -> Self {
        Self::listen(Strictness::Template, Replies::Made(Box::new(answer))).await
    }

    async fn listen(strictness: Strictness, replies: Replies) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(Mutex::new(State { strictness, replies, asked: Vec::new() }));
        let (abandon, abandoned) = watch::channel(0);
        let (send, sent) = watch::channel(0);
        let (hear, heard) = watch::channel(0);
        let counts = Counts { heard: hear, sent: send };
        let served = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (state, abandon) = (Arc::clone(&served), abandon.clone());
                let counts = counts.clone();
                tokio::spawn(async move {
                    // A client that goes away is what some of the tests are about.
                    if serve(stream, &state, &counts).await.is_err() {
                        abandon.send_modify(|count| *count += 1);
                    }
                });
            }
        });
        Self { address, state, abandoned, heard, sent }
    }

    /// Has it give these answers after those that it has.
    pub fn prepare(&self, replies: impl IntoIterator<Item = Reply>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut state.replies {
            Replies::Prepared(prepared) => prepared.extend(replies),
            Replies::Made(_) => panic!("it makes its answers itself"),
        }
    }

    /// Its address, as a policy has it.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// The requests so far.
    #[must_use]
    pub fn asked(&self) -> Vec<Asked> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).asked.clone()
    }

    /// Waits until so many requests came.
    pub async fn has_heard(&self, count: usize) {
        let mut heard = self.heard.clone();
        let all = tokio::time::timeout(PATIENCE, heard.wait_for(|heard| *heard >= count)).await;
        all.expect("heard in time").expect("the server lives");
    }

    /// Waits until so many answers were sent: whole, or to where they break off or hang.
    pub async fn has_sent(&self, count: usize) {
        let mut sent = self.sent.clone();
        let all = tokio::time::timeout(PATIENCE, sent.wait_for(|sent| *sent >= count)).await;
        all.expect("sent in time").expect("the server lives");
    }

    /// Waits until a client has closed its connection in the middle of an answer.
    pub async fn abandoned(&self) {
        let mut abandoned = self.abandoned.clone();
        let closed = abandoned.wait_for(|count| *count > 0);
        let closed = tokio::time::timeout(PATIENCE, closed).await.expect("closed in time");
        closed.expect("the server lives");
    }
}

async fn serve(mut stream: TcpStream, state: &Mutex<State>, counts: &Counts) -> io::Result<()> {
    let asked = read_request(&mut stream).await?;
    let reply = {
        let mut guard = state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *guard;
        let broken = rules::broken(&asked, state.strictness);
        if broken.is_none() {
            keep_for_the_judge(&asked);
        }
        let reply = match (broken, &mut state.replies) {
            (Some(rule), _) => Reply::new(400, rules::refusal(rule)),
            (None, Replies::Made(answer)) => answer(&asked),
            (None, Replies::Prepared(replies)) => {
                let next = replies.pop_front();
                next.unwrap_or_else(|| Reply::new(500, "no answer was prepared"))
            }
        };
        if let Replies::Prepared(_) = &state.replies {
            state.asked.push(asked);
        }
        reply
    };
    counts.heard.send_modify(|count| *count += 1);
    if reply.end == End::Silence {
        return client_leaves(&mut stream).await;
    }
    if let Some(gate) = &reply.gate {
        gate.notified().await;
    }
    let mut head = format!("HTTP/1.1 {} X\r\ntransfer-encoding: chunked\r\n", reply.status);
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("connection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    for (place, piece) in reply.pieces.iter().filter(|piece| !piece.is_empty()).enumerate() {
        if place > 0 && !reply.pause.is_zero() {
            tokio::time::sleep(reply.pause).await;
        }
        stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).await?;
        stream.write_all(piece).await?;
        stream.write_all(b"\r\n").await?;
        stream.flush().await?;
    }
    counts.sent.send_modify(|count| *count += 1);
    match reply.end {
        End::Whole => stream.write_all(b"0\r\n\r\n").await,
        End::Cut => Ok(()),
        End::Hang | End::Silence => client_leaves(&mut stream).await,
    }
}

/// Adds a request to the file that `TASKRUN_TEST_REQUESTS` names, a line each, for
/// `tests/llm/models.sh judge`.
fn keep_for_the_judge(asked: &Asked) {
    #[expect(clippy::disallowed_methods, reason = "whoever starts the tests asks for it so")]
    let Some(file) = std::env::var_os("TASKRUN_TEST_REQUESTS") else { return };
    let line = format!("{}\n", serde_json::json!({ "path": asked.path, "body": asked.body }));
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(file);
    opened.and_then(|mut file| file.write_all(line.as_bytes())).expect("can be kept");
}

/// Waits until the client closes the connection, which is an error.
async fn client_leaves(stream: &mut TcpStream) -> io::Result<()> {
    let mut rest = [0; 64];
    while stream.read(&mut rest).await? > 0 {}
    Err(io::ErrorKind::ConnectionAborted.into())
}

async fn read_request(stream: &mut TcpStream) -> io::Result<Asked> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        more(stream, &mut bytes).await?;
    };
    let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
    let mut lines = head.split("\r\n");
    let path = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.get("content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
    while bytes.len() < head_end + 4 + length {
        more(stream, &mut bytes).await?;
    }
    let body = serde_json::from_slice(&bytes[head_end + 4..]).unwrap_or(Value::Null);
    Ok(Asked { path: path.to_owned(), headers, body })
}

async fn more(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> io::Result<()> {
    let read = stream.read_buf(bytes).await?;
    if read == 0 || bytes.len() > REQUEST_BYTES_MAX {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}
