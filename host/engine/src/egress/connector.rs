//! The connectors of clients. A connection is made within a time, and has sent what it has to send
//! within one: a client goes on with both in the background, where the time of no exchange bounds
//! them, and each such connection keeps its place and its descriptor.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use hyper::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::time::{Sleep, sleep, timeout};
use tower_service::Service;

use super::TIMEOUT_MAX;
use super::connection::{ConnectError, PacedConnector, TcpConnection};
use super::connections::ConnectionsPart;
use super::resolve::Names;

/// Time for making a connection: for looking its name up, for a place, TCP and TLS together. A
/// client goes on making one when another becomes free first.
pub(super) const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Time in which a connection has sent what it has to send, once it had to wait for that. A client
/// closes a connection only when all is sent. That of an exchange is over by then.
pub(super) const SENDING_TIMEOUT: Duration = TIMEOUT_MAX;

/// Makes the connections of one tenant, each within [`CONNECTION_TIMEOUT`].
#[derive(Clone)]
pub(super) struct Connector(HttpsConnector<PacedConnector>);

/// Makes connections to what these names lead to.
pub(super) fn connector(
    names: Arc<Names>,
    tls: rustls::ClientConfig,
    places: ConnectionsPart,
) -> Connector {
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    // HTTP/2 would put exchanges of several runs on one connection, with bounds that they share.
    Connector(builder.enable_http1().wrap_connector(PacedConnector::new(names, places)))
}

impl Service<Uri> for Connector {
    type Response = TimedConnection<MaybeHttpsStream<TcpConnection>>;
    type Error = ConnectError;
    type Future = BoxFuture<'static, Result<Self::Response, ConnectError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let making = self.0.call(uri);
        Box::pin(async move {
            let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no connection is made in time");
            let io = timeout(CONNECTION_TIMEOUT, making).await.map_err(late)??;
            Ok(TimedConnection::new(io))
        })
    }
}

/// A connection that fails where it has not sent all in [`SENDING_TIMEOUT`].
pub(super) struct TimedConnection<T> {
    io: T,
    /// The end of the time for what is being sent; `None` if all is.
    sending: Option<Pin<Box<Sleep>>>,
}

impl<T> TimedConnection<T> {
    fn new(io: T) -> Self {
        Self { io, sending: None }
    }

    /// The outcome of an attempt to send something, which is an error if it has to wait once more
    /// when the time is over. That some of it goes out gives the rest no more time: a server takes
    /// as little at once as it likes.
    fn in_time<S>(
        &mut self,
        sent: Poll<io::Result<S>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<S>> {
        if sent.is_ready() {
            return sent;
        }
        let sending = self.sending.get_or_insert_with(|| Box::pin(sleep(SENDING_TIMEOUT)));
        sending.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: Read + Unpin> Read for TimedConnection<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<T: Write + Unpin> Write for TimedConnection<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.io).poll_write(context, bytes);
        self.in_time(sent, context)
    }

    /// Asked for when all is written, so nothing is left to be sent after it.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sent = Pin::new(&mut self.io).poll_flush(context);
        if matches!(sent, Poll::Ready(Ok(()))) {
            self.sending = None;
        }
        self.in_time(sent, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.io).poll_shutdown(context);
        self.in_time(closed, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.io).poll_write_vectored(context, pieces);
        self.in_time(sent, context)
    }
}

impl<T: Connection> Connection for TimedConnection<T> {
    fn connected(&self) -> Connected {
        self.io.connected()
    }
}
