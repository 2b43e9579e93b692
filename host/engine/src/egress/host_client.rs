//! Requests of the host itself to addresses that its policy names, by the ways of guests' requests:
//! addresses checked after they are looked up, no redirects, no proxy.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use http_body_util::BodyExt;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::request::OutboundRequest;
use super::tenants::Tenants;
use super::{Refusal, causes, explain, sent};
use crate::threads::Lane;

/// Most bytes of an answer's body that are read: enough for a connection to be used again after the
/// usual ones.
const ANSWER_BYTES_MAX: usize = 4 << 10;
/// The longest that an answer's body is read: whoever waits for the status does not wait for more.
const BODY_TIME_MAX: Duration = Duration::from_secs(1);
/// Where the host itself is polled.
const LANE: Lane = Lane::Owner;

/// A client of the host. Clones share their connections.
#[derive(Clone)]
pub struct HostClient(Arc<Tenants>);

impl std::fmt::Debug for HostClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HostClient")
    }
}

/// The reason that there is no answer, in words for operators that say nothing of what was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PostError(String);

impl Default for HostClient {
    fn default() -> Self {
        Self(Arc::new(Tenants::default()))
    }
}

impl HostClient {
    #[cfg(test)]
    pub(super) fn with_lookup(lookup: Arc<dyn super::resolve::Lookup>) -> Self {
        let lookup = move || Arc::clone(&lookup);
        Self(Arc::new(Tenants::with_lookup(lookup, super::ByLane::default())))
    }

    /// Posts a body to an address and gives the status of the answer, of whose body at most 4 KiB are
    /// read, for at most a second, and nothing is kept. An answer is in time when its head is, even if
    /// its body does not end. An address that is not public is connected to only where the URL has
    /// it as such, or says `localhost`.
    ///
    /// # Errors
    /// [`PostError`].
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection; the receiver may have the request.
    pub async fn post(
        &self,
        url: &str,
        headers: Vec<(HeaderName, HeaderValue)>,
        body: Bytes,
        timeout: Duration,
    ) -> Result<StatusCode, PostError> {
        let headers = headers.into_iter().collect();
        let out = OutboundRequest::new("POST", url, headers, body, None).map_err(words)?;
        let exchange = exchange(Arc::clone(&self.0), out, timeout);
        // The server's work is done on a task of its own, as for guests.
        match AbortOnDropHandle::new(self.0.threads(LANE).spawn(exchange)).await {
            Ok(status) => status.map_err(words),
            Err(error) => {
                tracing::error!(?error, "an exchange did not come to its end");
                Err(PostError("the exchange failed".to_owned()))
            }
        }
    }
}

async fn exchange(
    tenants: Arc<Tenants>,
    out: OutboundRequest,
    timeout: Duration,
) -> Result<StatusCode, Refusal> {
    let begun = Instant::now();
    let head = tokio::time::timeout(timeout, head(&tenants, out)).await;
    let (parts, body) = head.map_err(|_| Refusal::Timeout)??.into_parts();
    // The status is what counts: what cannot be read of the body, or not in time, says nothing.
    let left = timeout.saturating_sub(begun.elapsed()).min(BODY_TIME_MAX);
    tokio::time::timeout(left, drain(body)).await.ok();
    Ok(parts.status)
}

async fn head(
    tenants: &Tenants,
    out: OutboundRequest,
) -> Result<http::Response<hyper::body::Incoming>, Refusal> {
    let client = tenants.client("", LANE, out.is_plain()).await?;
    let (subject, host) = (out.subject(), out.host());
    let answer = client.request(sent(out)?).await;
    answer.map_err(|error| with_reason(explain(&error, subject, &host), &error))
}

/// A refusal whose words name what it came of, such as a certificate that has expired. Guests are
/// told nothing of that.
fn with_reason(refusal: Refusal, error: &(dyn Error + 'static)) -> Refusal {
    let reason = || causes(error).last().map(ToString::to_string).unwrap_or_default();
    match refusal {
        Refusal::Unreachable(words) => Refusal::Unreachable(format!("{words}: {}", reason())),
        Refusal::Other(words) => Refusal::Other(format!("{words}: {}", reason())),
        other @ (Refusal::Denied { .. }
        | Refusal::Invalid(_)
        | Refusal::Timeout
        | Refusal::PartTimeout(_)
        | Refusal::Limit(_)) => other,
    }
}

/// Reads the beginning of a body.
async fn drain(mut body: hyper::body::Incoming) {
    let mut bytes = 0;
    while let Some(Ok(frame)) = body.frame().await {
        bytes += frame.data_ref().map_or(0, Bytes::len);
        if bytes >= ANSWER_BYTES_MAX {
            break;
        }
    }
}

fn words(refusal: Refusal) -> PostError {
    PostError(match refusal {
        Refusal::Denied { reason, subject: _, operator: _ } => reason,
        Refusal::Invalid(words) | Refusal::Unreachable(words) | Refusal::Other(words) => words,
        Refusal::Limit(limit) => limit.to_string(),
        Refusal::Timeout | Refusal::PartTimeout(_) => "nothing answers in time".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::IpAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::super::resolve::Lookup;
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    /// Every name is this machine.
    struct Loopback;

    #[async_trait]
    impl Lookup for Loopback {
        async fn lookup(&self, _: &str) -> Result<Vec<IpAddr>, String> {
            Ok(vec![IpAddr::from([127, 0, 0, 1])])
        }
    }

    /// Answers every request with these bytes; gives its port and the connections so far.
    async fn serve(answer: Vec<u8>) -> (u16, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                let answer = answer.clone();
                tokio::spawn(async move {
                    let mut read = [0; 4096];
                    if stream.read(&mut read).await.is_ok() {
                        stream.write_all(&answer).await.ok();
                        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.ok();
                    }
                });
            }
        });
        (port, connections)
    }

    async fn post(client: &HostClient, url: &str) -> Result<StatusCode, PostError> {
        client.post(url, Vec::new(), Bytes::from_static(b"{}"), SOON).await
    }

    #[tokio::test]
    async fn a_loopback_address_is_called_where_it_is_written_and_by_no_other_name() {
        let answer = b"HTTP/1.1 204 No Content\r\n\r\n".to_vec();
        let (port, connections) = serve(answer).await;
        let client = HostClient::with_lookup(Arc::new(Loopback));
        let named = post(&client, &format!("http://hooks.example:{port}/x")).await;
        let error = named.expect_err("a name that leads to this machine").to_string();
        assert_eq!(error, "hooks.example does not lead to a public address");
        assert_eq!(connections.load(Ordering::SeqCst), 0);
        let written = post(&client, &format!("http://127.0.0.1:{port}/x")).await;
        assert_eq!(written, Ok(StatusCode::NO_CONTENT));
        let localhost = post(&client, &format!("http://localhost:{port}/x")).await;
        assert_eq!(localhost, Ok(StatusCode::NO_CONTENT));
    }

    #[tokio::test]
    async fn the_reason_for_which_there_is_no_answer_is_told() {
        let gone = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = gone.local_addr().expect("an address").port();
        drop(gone);
        let client = HostClient::default();
        let error = post(&client, &format!("http://127.0.0.1:{port}/")).await;
        let words = error.expect_err("nobody is there").to_string();
        assert!(words.starts_with("127.0.0.1 cannot be reached: Connection refused"), "{words}");
        let (port, _) = serve(b"no answer\r\n\r\n".to_vec()).await;
        let error = post(&client, &format!("http://127.0.0.1:{port}/")).await;
        let words = error.expect_err("it is no answer").to_string();
        assert!(words.starts_with("the exchange failed: "), "{words}");
    }

    #[test]
    fn a_certificate_that_has_expired_is_the_reason_that_is_told() {
        let expired = rustls::Error::InvalidCertificate(rustls::CertificateError::Expired);
        // As the connector has it.
        let error = io::Error::other(io::Error::new(io::ErrorKind::InvalidData, expired));
        let refusal = Refusal::Unreachable("x.test cannot be reached".to_owned());
        let told = words(with_reason(refusal, &error)).to_string();
        assert_eq!(told, "x.test cannot be reached: invalid peer certificate: Expired");
    }

    #[tokio::test]
    async fn case_38_a_redirect_is_an_answer_and_is_not_followed() {
        let (other, reached) =
            serve(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec()).await;
        let answer = format!(
            "HTTP/1.1 307 T\r\nlocation: http://127.0.0.1:{other}/\r\ncontent-length: 0\r\n\r\n"
        );
        let (port, _) = serve(answer.into_bytes()).await;
        let status = post(&HostClient::default(), &format!("http://127.0.0.1:{port}/")).await;
        assert_eq!(status, Ok(StatusCode::TEMPORARY_REDIRECT));
        assert_eq!(reached.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn of_an_endless_answer_some_is_read() {
        let mut answer = b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n".to_vec();
        answer.extend(vec![b'x'; ANSWER_BYTES_MAX]);
        let (port, _) = serve(answer).await;
        let status = post(&HostClient::default(), &format!("http://127.0.0.1:{port}/")).await;
        assert_eq!(status, Ok(StatusCode::OK));
    }

    #[tokio::test]
    async fn an_answer_whose_body_does_not_end_has_its_status() {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nok".to_vec();
        let (port, _) = serve(answer).await;
        let (url, client) = (format!("http://127.0.0.1:{port}/"), HostClient::default());
        let short = Duration::from_secs(3);
        let status = client.post(&url, Vec::new(), Bytes::from_static(b"{}"), short).await;
        assert_eq!(status, Ok(StatusCode::OK));
    }

    #[tokio::test]
    async fn who_does_not_answer_is_given_up() {
        let (port, _) = serve(Vec::new()).await;
        let url = format!("http://127.0.0.1:{port}/");
        let client = HostClient::default();
        let posted = client.post(&url, Vec::new(), Bytes::new(), Duration::from_millis(50)).await;
        assert_eq!(posted.expect_err("no answer").to_string(), "nothing answers in time");
    }
}
