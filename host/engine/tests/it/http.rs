//! Exchanges that components ask for by our own `http`.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use taskrun::scope::{CurrentRules, JournalRoom, Tape};
use taskrun_engine::EngineOptions;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::support::*;

/// Bodies of 4 MiB that a tenant may have at once.
const FIT: usize = 8;
const CALLS: usize = 12;

/// The function as a component imports it.
const IMPORTS: &str = r#"(import "taskrun:plugin/http@0.1.0" "send"
    (func $send (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i64 i32)))"#;

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
    let tool = tool(&engine, tool_bytes(IMPORTS, &code), with.clone()).await.unwrap();
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

#[tokio::test]
async fn what_a_step_was_refused_stays_refused_when_it_runs_again_under_other_rules() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("it does not wait");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let code = format!(
        r#"(call $send (i32.const 3000) (i32.const 3) (i32.const 3010) (i32.const {})
            (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
            (i32.const 0) (i64.const 0) (i32.const 5120))
        (if (i32.eqz (i32.load8_u (i32.const 5120))) (then unreachable))
        (if (i32.load8_u (i32.const 5124)) (then unreachable))
        (call $fail (i32.load (i32.const 5128)) (i32.load (i32.const 5132))))
        (data (i32.const 3000) "GET") (data (i32.const 3010) "{url}")
        (func"#,
        url.len()
    );
    // It loads under rules that name the capability.
    let narrow = grants("allow = [\"http: https://other.example/**\"]");
    let wider = grants(&format!("allow = [\"http: {url}**\"]"));
    let tool = tool(&engine(), tool_bytes(IMPORTS, &code), narrow.clone()).await;
    let tool = tool.expect("it loads");
    let first = patient_under(&narrow);
    let told = failure(ask(&*tool, call(), Arc::clone(&first)).await);
    let mut tape = Tape::default();
    first.finish().events.iter().for_each(|event| tape.push(event));
    let again = scope_with(|parts| {
        parts.rules = Arc::new(CurrentRules::new(rules(&wider), vec!["a@2".to_owned()]));
        (parts.journal, parts.tape) = (Some(JournalRoom::default()), Some(tape));
        parts.deadline = Duration::from_secs(10);
    });
    assert_eq!(failure(ask(&*tool, call(), Arc::clone(&again)).await), told);
    assert_eq!(again.finish().divergence, None);
    assert!(listener.accept().is_err(), "the server has nothing of it");
}
