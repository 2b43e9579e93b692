//! Exchanges that components ask for by our own `http`.

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use taskrun_engine::EngineOptions;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::support::*;

/// Bodies of 4 MiB that a tenant may have at once.
const FIT: usize = 8;
const CALLS: usize = 12;

/// Keeps connections open, without a word, until it is told or has one more than may be.
async fn silent(listener: TcpListener, mut told: oneshot::Receiver<()>) -> usize {
    let mut open = Vec::new();
    while open.len() <= FIT {
        tokio::select! {
            _ = &mut told => break,
            accepted = listener.accept() => open.push(accepted.unwrap()),
        }
    }
    open.len()
}

#[tokio::test]
async fn bodies_that_are_sent_are_bounded_for_a_tenant() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let (tell, told) = oneshot::channel();
    let server = tokio::spawn(silent(listener, told));
    let imports = r#"(import "taskrun:plugin/http@0.1.0" "send"
        (func $send (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i64 i32)))"#;
    let code = format!(
        r#"(drop (memory.grow (i32.const 80)))
        (call $send (i32.const 3000) (i32.const 4) (i32.const 3010) (i32.const {})
            (i32.const 0) (i32.const 0) (i32.const 1200000) (i32.const 4194304)
            (i32.const 0) (i64.const 0) (i32.const 5120))
        (if (i32.eqz (i32.load8_u (i32.const 5120))) (then unreachable))
        (call $fail (i32.load (i32.const 5128)) (i32.load (i32.const 5132))))
        (data (i32.const 3000) "POST") (data (i32.const 3010) "{url}")
        (func"#,
        url.len()
    );
    let engine = engine_with(EngineOptions { instances: Some(CALLS as u32), ..Default::default() });
    let with = grants(&format!("allow = [\"http: {url}**\"]"));
    let tool = tool(&engine, tool_bytes(imports, &code), with.clone()).await.unwrap();
    let mut calls: FuturesUnordered<_> =
        (0..CALLS).map(|_| ask(&*tool, call(), patient_under(&with))).collect();
    for _ in FIT..CALLS {
        let words = failure(calls.next().await.unwrap());
        assert!(words.contains("too many bytes"), "{words}");
    }
    // Of those that fit each gives its bytes back with its end.
    tell.send(()).ok();
    while let Some(sent) = calls.next().await {
        assert!(!failure(sent).contains("too many bytes"));
    }
    assert!(server.await.unwrap() <= FIT);
    let words = failure(ask(&*tool, call(), patient_under(&with)).await);
    assert!(words.contains("cannot be reached"), "{words}");
}
