//! A receiver of webhooks on loopback, and the verification of what it gets, written after the
//! specification of Standard Webhooks and not after the sender.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Received {
    /// By names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body.
    pub body: String,
}

impl Received {
    /// The header, or nothing.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

type Answer = dyn Fn(&Received) -> u16 + Send + Sync;

/// A receiver; its thread ends with the process.
pub struct Receiver {
    /// Its port on 127.0.0.1.
    pub port: u16,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Receiver {
    /// Answers each request with the status that the closure gives.
    ///
    /// # Panics
    /// Without a free port.
    pub fn start(answer: impl Fn(&Received) -> u16 + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let received = Arc::<Mutex<Vec<Received>>>::default();
        let (kept, answer): (_, Arc<Answer>) = (Arc::clone(&received), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (kept, answer) = (Arc::clone(&kept), Arc::clone(&answer));
                thread::spawn(move || serve(stream, &kept, &*answer));
            }
        });
        Self { port, received }
    }

    /// Everything that came so far.
    #[must_use]
    pub fn all(&self) -> Vec<Received> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// One request and its answer. A sender that is gone before that has not sent it.
fn serve(stream: TcpStream, kept: &Mutex<Vec<Received>>, answer: &Answer) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut headers = BTreeMap::new();
    loop {
        line.clear();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let received = Received { headers, body: String::from_utf8(body).ok()? };
    kept.lock().unwrap_or_else(PoisonError::into_inner).push(received.clone());
    let status = answer(&received);
    let mut stream = stream;
    let head = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()
}

/// Verifies a request as a receiver does that has this secret, at a time in seconds.
///
/// # Errors
/// The reason that it is refused.
pub fn verify(secret: &str, received: &Received, now: u64) -> Result<(), &'static str> {
    let key = secret.strip_prefix("whsec_").ok_or("no secret")?;
    let key = STANDARD.decode(key).map_err(|_| "no secret")?;
    let [id, at, signed] =
        ["webhook-id", "webhook-timestamp", "webhook-signature"].map(|name| received.header(name));
    let seconds: u64 = at.parse().map_err(|_| "no time stamp")?;
    if seconds.abs_diff(now) > 300 {
        return Err("the time stamp is too old or too new");
    }
    let content = format!("{id}.{at}.{}", received.body);
    let expected = hmac_sha256(&key, content.as_bytes());
    let is_one = |word: &str| {
        let (version, signature) = word.split_once(',')?;
        (version == "v1" && STANDARD.decode(signature).ok()? == expected).then_some(())
    };
    match signed.split(' ').any(|word| is_one(word).is_some()) {
        true => Ok(()),
        false => Err("no signature fits"),
    }
}

/// As RFC 2104 writes it.
fn hmac_sha256(key: &[u8], content: &[u8]) -> Vec<u8> {
    use ring::digest::{SHA256, digest};
    let mut block = [0_u8; 64];
    match key.len() > block.len() {
        true => block[..32].copy_from_slice(digest(&SHA256, key).as_ref()),
        false => block[..key.len()].copy_from_slice(key),
    }
    let padded = |byte: u8| block.map(|one| one ^ byte);
    let inner = digest(&SHA256, &[&padded(0x36), content].concat());
    digest(&SHA256, &[&padded(0x5c), inner.as_ref()].concat()).as_ref().to_vec()
}
