//! Bodies of answers, and the time for each piece of them.

use std::convert::Infallible;

use futures::{StreamExt, stream};
use http_body::Frame;
use http_body_util::StreamBody;

use super::*;

#[tokio::test]
async fn a_body_that_comes_byte_by_byte_is_one_piece() {
    let frames = |count: usize| {
        let whole = Bytes::from(vec![b'x'; 1 << 10]);
        let frame = move |n: usize| Ok::<_, ()>(Frame::data(whole.slice(n..=n)));
        StreamBody::new(stream::iter((0..count).map(frame)))
    };
    let mut held = egress().body("t");
    let whole = read_body(frames(100), 100, &mut held, None).await.expect("it fits");
    assert_eq!(whole, WholeBody { bytes: vec![b'x'; 100], trailers: None });
    assert!(matches!(read_body(frames(101), 100, &mut held, None).await, Err(BodyError::TooLong)));
    let failing = stream::iter([Err::<Frame<Bytes>, _>("broken")]);
    let failed = read_body(StreamBody::new(failing), 100, &mut held, None).await;
    assert!(matches!(failed, Err(BodyError::Failed("broken"))));
}

#[tokio::test(start_paused = true)]
async fn a_piece_of_a_body_has_its_time_and_not_the_whole() {
    let pieces = |seconds: u64| {
        let piece = move |text: &'static str| async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            Ok::<_, Infallible>(Frame::data(Bytes::from_static(text.as_bytes())))
        };
        StreamBody::new(stream::iter(["slow", "ly"]).then(piece))
    };
    let (mut held, time) = (egress().body("t"), Some(Duration::from_secs(10)));
    let whole = read_body(pieces(9), 100, &mut held, time).await.expect("each is in time");
    assert_eq!(whole.bytes, b"slowly");
    let late = read_body(pieces(11), 100, &mut held, time).await;
    assert!(matches!(late, Err(BodyError::Late)), "{late:?}");
}

#[tokio::test]
async fn headers_behind_a_body_are_handed_on() {
    let text = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n\
        2\r\nhi\r\n0\r\nx-sum: 7\r\n\r\n";
    let url = format!("http://127.0.0.1:{}/", server(text).await.port);
    let rules = alone(&grants(&format!("allow = [\"http: {url}**\"]")));
    let answer = egress().send("t", &rules, &first(), get(&url)).await.expect("it is answered");
    assert_eq!(answer.body, b"hi");
    assert_eq!(answer.trailers.expect("there are some")["x-sum"], "7");
}
