//! The bounds of an answer's headers.

use super::*;

/// Asks a server that answers with these headers and two more.
async fn asked(headers: &str) -> Result<Answer, Refusal> {
    let text =
        format!("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n{headers}\r\n");
    let url = format!("http://127.0.0.1:{}/", server(text.into_bytes().leak()).await.port);
    let rules = alone(&grants(&format!("allow = [\"http: {url}**\"]")));
    egress().send("t", &rules, &first(), get(&url)).await
}

#[tokio::test]
async fn case_28_headers_of_an_answer_are_bounded_in_their_number_and_in_bytes() {
    let many = |count: usize| (2..count).map(|n| format!("x-{n}: v\r\n")).collect::<String>();
    let answer = asked(&many(ANSWER_HEADERS_MAX)).await.expect("as many as there may be");
    assert_eq!(answer.headers.len(), ANSWER_HEADERS_MAX);
    let long = format!("x-long: {}\r\n", "v".repeat(65 << 10));
    for headers in [many(ANSWER_HEADERS_MAX + 1), long] {
        let refused = asked(&headers).await.expect_err("one more, or one byte too many");
        let Refusal::Limit(limit) = refused else { panic!("{refused:?}") };
        assert_eq!(limit, ExchangeLimit::AnswerHeaders);
        let words = "the answer has more than 100 headers, or more than 65536 bytes of them";
        assert_eq!(limit.to_string(), words);
    }
}
