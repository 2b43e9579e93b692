//! Connections of guests' exchanges: TCP to addresses that were checked, the settings of TLS by the
//! system's certificates, and pacing.

use std::convert::Infallible;
use std::error::Error;
use std::future::{Ready, ready};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use hyper::Uri;
use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use hyper_rustls::ConfigBuilderExt;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower_service::Service;

use super::connections::{ConnectionPlace, ConnectionsPart};
use super::resolve::{Names, ResolveError};

/// Time for making a TCP connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that a connection reads before it lets others go first, at the beginning and after each wait;
/// then twice as many each time, up to [`TURN_BYTES_MAX`]. A server decides how much work its bytes
/// are: some forty interim answers fit into the first turn, after which a flood of them is cut off.
const TURN_BYTES_MIN: usize = 1 << 10;
/// The longest of these turns.
const TURN_BYTES_MAX: usize = 16 << 10;

/// The reason that there is no connection, in whose chain is what it came of.
pub(super) type ConnectError = Box<dyn Error + Send + Sync>;

/// A connection without TLS.
pub(super) type TcpConnection = PacedConnection<TokioIo<TcpStream>>;

/// Reads the system's certificates, so it belongs on a thread that may block. `is_plain` says that
/// it is for plain `http`, where none is looked at, and a machine may have none.
///
/// # Errors
/// If the certificates cannot be read, or there are none.
pub(super) fn tls(is_plain: bool) -> Result<rustls::ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?;
    let builder = match is_plain {
        true => builder.with_root_certificates(rustls::RootCertStore::empty()),
        false => builder.try_with_platform_verifier()?,
    };
    Ok(builder.with_no_client_auth())
}

/// The addresses of one name, all of them checked. Connections are made to these and no others.
#[derive(Clone)]
struct CheckedAddresses(Arc<[IpAddr]>);

impl CheckedAddresses {
    /// Those that a request goes to. A literal address is the policy's to decide.
    async fn of(uri: &Uri, names: &Names) -> Result<Self, ResolveError> {
        let host = uri.host().unwrap_or_default();
        let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        Ok(Self(match literal {
            Ok(address) => Arc::new([address]),
            Err(_) => names.resolve(host).await?,
        }))
    }
}

impl Service<Name> for CheckedAddresses {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Name) -> Self::Future {
        let addresses = self.0.iter().map(|address| SocketAddr::new(*address, 0));
        ready(Ok(addresses.collect::<Vec<_>>().into_iter()))
    }
}

/// A connector whose connections are counted, and read in turns.
#[derive(Clone)]
pub(super) struct PacedConnector {
    names: Arc<Names>,
    places: ConnectionsPart,
}

impl PacedConnector {
    /// A connector to what these names lead to.
    pub(super) fn new(names: Arc<Names>, places: ConnectionsPart) -> Self {
        Self { names, places }
    }
}

impl Service<Uri> for PacedConnector {
    type Response = TcpConnection;
    type Error = ConnectError;
    type Future = BoxFuture<'static, Result<Self::Response, ConnectError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (names, places) = (Arc::clone(&self.names), self.places.clone());
        Box::pin(async move {
            let addresses = CheckedAddresses::of(&uri, &names).await?;
            // Not before: names that no server answers for would take the places of others.
            let place = places.take().await?;
            let mut tcp = HttpConnector::new_with_resolver(addresses);
            tcp.enforce_http(false);
            tcp.set_nodelay(true);
            tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
            let io = tcp.call(uri).await?;
            Ok(PacedConnection::new(io, Some(place)))
        })
    }
}

/// A connection that lets other tasks of its thread go first after [`TURN_BYTES_MIN`] that it read
/// without a wait, and then after at most [`TURN_BYTES_MAX`].
pub(super) struct PacedConnection<T> {
    io: T,
    /// Bytes left of this turn.
    left: usize,
    /// Bytes of the next one.
    next: usize,
    /// Free when the connection is closed.
    _place: Option<ConnectionPlace>,
}

impl<T> PacedConnection<T> {
    fn new(io: T, place: Option<ConnectionPlace>) -> Self {
        Self { io, left: TURN_BYTES_MIN, next: 2 * TURN_BYTES_MIN, _place: place }
    }

    fn begin_anew(&mut self) {
        (self.left, self.next) = (TURN_BYTES_MIN, 2 * TURN_BYTES_MIN);
    }
}

impl<T: Read + Unpin> Read for PacedConnection<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left == 0 {
            self.left = self.next;
            self.next = (2 * self.next).min(TURN_BYTES_MAX);
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let mut bytes = [0; TURN_BYTES_MAX];
        let room = buffer.remaining().min(self.left);
        let mut own = ReadBuf::new(&mut bytes[..room]);
        match Pin::new(&mut self.io).poll_read(context, own.unfilled()) {
            Poll::Ready(done) => {
                done?;
                self.left -= own.filled().len();
                buffer.put_slice(own.filled());
                Poll::Ready(Ok(()))
            }
            Poll::Pending => {
                self.begin_anew();
                Poll::Pending
            }
        }
    }
}

impl<T: Write + Unpin> Write for PacedConnection<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, pieces)
    }
}

impl<T: Connection> Connection for PacedConnection<T> {
    fn connected(&self) -> Connected {
        self.io.connected()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use hyper_util::rt::TokioIo;

    use super::*;

    /// Bytes that are read before each pause until so many are.
    async fn turns<T: Read + Unpin>(connection: &mut PacedConnection<T>, sum: usize) -> Vec<usize> {
        let (mut turns, mut turn, mut read) = (Vec::new(), 0, 0);
        let mut bytes = vec![0; 2 * TURN_BYTES_MAX];
        while read < sum {
            let len = poll_fn(|context| {
                let mut buffer = ReadBuf::new(&mut bytes);
                match Pin::new(&mut *connection).poll_read(context, buffer.unfilled()) {
                    Poll::Ready(done) => Poll::Ready(done.map(|()| buffer.filled().len()).unwrap()),
                    Poll::Pending => {
                        turns.push(std::mem::take(&mut turn));
                        Poll::Pending
                    }
                }
            });
            let len = len.await;
            turn += len;
            read += len;
        }
        turns.push(turn);
        turns
    }

    #[tokio::test]
    async fn turns_are_short_at_first_and_after_each_wait() {
        let (mine, theirs) = tokio::io::duplex(1 << 20);
        let mut connection = PacedConnection::new(TokioIo::new(mine), None);
        let (_, mut write) = tokio::io::split(theirs);
        let flood = vec![0; 70 << 10];
        let kib = |turns: Vec<usize>| turns.iter().map(|bytes| bytes >> 10).collect::<Vec<_>>();
        for _ in 0..2 {
            tokio::io::AsyncWriteExt::write_all(&mut write, &flood).await.unwrap();
            assert_eq!(kib(turns(&mut connection, flood.len()).await), [1, 2, 4, 8, 16, 16, 16, 7]);
            // Nothing is there.
            let mut byte = [0];
            let mut buffer = ReadBuf::new(&mut byte);
            let waits = poll_fn(|context| {
                let read = Pin::new(&mut connection).poll_read(context, buffer.unfilled());
                Poll::Ready(read.is_pending())
            });
            assert!(waits.await);
        }
    }
}
