//! Servers that never come to an end.

use super::*;

/// Answers `100 Continue` until the other side is gone.
async fn flood() -> (u16, tokio::sync::oneshot::Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (gone, is_gone) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let many = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(4_000);
        while stream.write_all(&many).await.is_ok() {}
        gone.send(()).ok();
    });
    (port, is_gone)
}

/// One thread for server, exchange and a neighbour, as on a busy host.
#[tokio::test]
async fn case_41_an_endless_interim_answer_is_cut_and_holds_nobody() {
    let (port, is_gone) = flood().await;
    let url = format!("http://127.0.0.1:{port}/");
    let rules = grants(&format!("allow = [\"http: {url}**\"]"));
    let result = egress().send("t", &alone(&rules), &first(), get(&url)).await;
    assert!(matches!(result, Err(Refusal::Limit(ExchangeLimit::InterimAnswers))), "{result:?}");
    is_gone.await.unwrap();
}

/// A connection that reads without end takes turns with others.
#[tokio::test]
async fn case_41_a_flood_of_bytes_lets_others_go_first() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await.ok();
        let chunks = b"20\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n".repeat(4_000);
        while stream.write_all(&chunks).await.is_ok() {}
    });
    let rules = grants(&format!("allow = [\"http: {url}**\"]"));
    let turns = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&turns);
    let neighbour = tokio::spawn(async move {
        loop {
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    });
    let result = egress().send("t", &alone(&rules), &first(), get(&url)).await;
    neighbour.abort();
    assert!(matches!(result, Err(Refusal::Limit(_))), "{result:?}");
    // The neighbour had at least half as many turns as there were reads.
    let reads = u32::try_from(BODY_BYTES_MAX / (16 << 10)).unwrap();
    assert!(turns.load(Ordering::Relaxed) >= reads / 2, "{turns:?} of {reads}");
}
