//! Servers that leave a client's connections unfinished, on which no exchange waits any more.

use std::io::{self, Read, Write};
use std::net;

use futures::future::join_all;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    ClientConfig, DigitallySignedStruct, ServerConfig, ServerConnection, SignatureScheme,
    StreamOwned,
};
use tokio::sync::mpsc;

use super::*;
use crate::egress::connections::ConnectionsPart;
use crate::egress::connector::connector;
use crate::egress::resolve::Names;
use crate::egress::tenants::{Client, client_of};

/// Connections of a lane: so many that some are kept for the next request.
const PART: usize = 64;
/// Requests at once.
const ASKED: usize = 8;
/// Longer than any connection is left to itself. It passes at once where the clock stands.
const LONG: Duration = Duration::from_secs(600);

/// Takes any certificate for that of any server.
#[derive(Debug)]
struct TrustingVerifier;

impl ServerCertVerifier for TrustingVerifier {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

fn client_tls() -> ClientConfig {
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has them")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TrustingVerifier))
        .with_no_client_auth()
}

fn server_tls() -> ServerConfig {
    // The form of PKCS #8 for an Ed25519 key, and a seed that is no secret.
    let mut key = b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20".to_vec();
    key.extend([7; 32]);
    let key = ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(key)).expect("it is a key");
    let certificate = CertificateDer::from(b"whatever".to_vec());
    let own = SingleCertAndKey::from(CertifiedKey::new(vec![certificate], key));
    ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has them")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(own))
}

/// Answers every request on a connection with TLS.
fn answer(stream: net::TcpStream) -> io::Result<()> {
    let session = ServerConnection::new(Arc::new(server_tls())).map_err(io::Error::other)?;
    let mut tls = StreamOwned::new(session, stream);
    let mut request = [0; 4096];
    while tls.read(&mut request)? > 0 {
        tls.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")?;
        tls.flush()?;
    }
    Ok(())
}

/// A server that answers on the connection that it accepts first, and says nothing on the others.
/// It tells of each.
fn stalling() -> (u16, mpsc::UnboundedReceiver<()>) {
    let listener = net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (tell, told) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        for stream in listener.incoming().map_while(Result::ok) {
            if silent.is_empty() {
                let first = stream.try_clone().expect("a second handle");
                std::thread::spawn(move || answer(first).ok());
            }
            silent.push(stream);
            tell.send(()).ok();
        }
    });
    (port, told)
}

/// A client, and its part of the connections.
fn client() -> (Client, ConnectionsPart) {
    let connections = Connections::with_times(8 * PART, Duration::from_secs(4), LONG);
    let part = connections.part();
    let lookup = RebindingLookup { answers: Vec::new(), asked: AtomicU32::new(0) };
    let names = Arc::new(Names::new(Arc::new(lookup)));
    let connector = connector(names, client_tls(), part.clone());
    (client_of(connector, &ExchangeThreads::default(), &connections), part)
}

/// Succeeds once no connection has a place of the part. All time that this takes passes at once.
async fn all_are_free(part: &ConnectionsPart) {
    tokio::time::pause();
    let mut places = Vec::new();
    while places.len() < PART {
        places.push(part.take().await.expect("no connection has it for good"));
    }
}

#[tokio::test]
async fn a_server_that_stalls_handshakes_takes_no_connection_for_good() {
    let (port, mut told) = stalling();
    let (client, part) = client();
    // All of them begin to connect. As the one that can be used is free again and again, the others
    // are left to themselves.
    let asked = (0..ASKED).map(|_| async {
        let request = http::Request::get(format!("https://127.0.0.1:{port}/"));
        let request = request.body(Full::default()).expect("a request");
        let answer = client.request(request).await.expect("it is answered");
        answer.into_body().collect().await.expect("it has a body");
    });
    join_all(asked).await;
    for _ in 0..ASKED {
        told.recv().await.expect("it is connected");
    }
    all_are_free(&part).await;
}

#[tokio::test]
async fn a_server_that_reads_nothing_takes_no_connection_for_good() {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/", silent.local_addr().expect("an address"));
    let (client, part) = client();
    // More than the system takes for one that does not read.
    let body = Full::new(Bytes::from(vec![0; 64 << 20]));
    let request = http::Request::post(url).body(body).expect("a request");
    let asked = tokio::spawn(client.request(request));
    let (connected, _) = silent.accept().await.expect("it is connected");
    connected.readable().await.expect("the request begins");
    asked.abort();
    assert!(asked.await.expect_err("it has no answer").is_cancelled());
    all_are_free(&part).await;
    drop(connected);
}
