//! Connections of guests' exchanges: TCP to addresses that were checked, TLS by the system's
//! certificates, and pacing.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use hyper::Uri;
use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower_service::Service;

use super::resolve::{Names, ResolveError};

/// Time for making a TCP connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that a connection reads before it lets others go first. A server decides how much work its
/// bytes are: a thousand interim answers fit into one read of this size.
const TURN_BYTES: usize = 16 << 10;

/// Makes the connections of one tenant.
pub(super) type Connector = HttpsConnector<PacedConnector<HttpConnector<CheckedNames>>>;

/// Reads the system's certificates, so it belongs on a thread that may block.
pub(super) fn connector(names: Arc<Names>) -> Result<Connector, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .try_with_platform_verifier()?
        .with_no_client_auth();
    let mut tcp = HttpConnector::new_with_resolver(CheckedNames(names));
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    // HTTP/2 would put exchanges of several runs on one connection, with bounds that they share.
    Ok(builder.enable_http1().wrap_connector(PacedConnector(tcp)))
}

/// Gives the connector the addresses of a name, all of them checked. It connects to these and no
/// others. Literal addresses do not come here: they are the policy's to decide.
#[derive(Clone)]
pub(super) struct CheckedNames(Arc<Names>);

impl Service<Name> for CheckedNames {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = ResolveError;
    type Future = BoxFuture<'static, Result<Self::Response, ResolveError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ResolveError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let names = Arc::clone(&self.0);
        Box::pin(async move {
            let addresses = names.resolve(name.as_str()).await?;
            let addresses: Vec<_> =
                addresses.iter().map(|address| SocketAddr::new(*address, 0)).collect();
            Ok(addresses.into_iter())
        })
    }
}

/// A connector, or a connection, that reads in turns of [`TURN_BYTES`].
#[derive(Clone)]
pub(super) struct PacedConnector<T>(T);

impl<T> Service<Uri> for PacedConnector<T>
where
    T: Service<Uri, Response = TokioIo<TcpStream>>,
    T::Future: Send + 'static,
    T::Error: Send + 'static,
{
    type Response = PacedConnection<TokioIo<TcpStream>>;
    type Error = T::Error;
    type Future = BoxFuture<'static, Result<Self::Response, T::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.0.call(uri);
        Box::pin(async move { Ok(PacedConnection { io: connecting.await?, read: 0 }) })
    }
}

/// A connection that lets other tasks of its thread go first after each [`TURN_BYTES`] that it read.
pub(super) struct PacedConnection<T> {
    io: T,
    /// Bytes read in this turn.
    read: usize,
}

impl<T: Read + Unpin> Read for PacedConnection<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if self.read >= TURN_BYTES {
            self.read = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let mut bytes = [0; TURN_BYTES];
        let room = buffer.remaining().min(TURN_BYTES - self.read);
        let mut own = ReadBuf::new(&mut bytes[..room]);
        match Pin::new(&mut self.io).poll_read(context, own.unfilled()) {
            Poll::Ready(done) => {
                done?;
                self.read += own.filled().len();
                buffer.put_slice(own.filled());
                Poll::Ready(Ok(()))
            }
            Poll::Pending => {
                self.read = 0;
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
