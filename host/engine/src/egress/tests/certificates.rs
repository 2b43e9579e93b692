//! Exchanges on a machine without CA certificates.

use taskrun_fixtures::certificates;

use super::*;

#[tokio::test]
async fn a_plain_address_needs_no_certificates_and_another_leads_to_the_log() {
    if !certificates::are_hidden() {
        let test = "egress::tests::certificates::\
                    a_plain_address_needs_no_certificates_and_another_leads_to_the_log";
        tokio::task::spawn_blocking(move || certificates::run_without(test))
            .await
            .expect("it passes");
        return;
    }
    let port = server(HELLO).await.port;
    let rules =
        format!("allow = [\"http: http://127.0.0.1:{port}/**\", \"http: https://x.test/**\"]");
    let (egress, rules) = (egress(), alone(&grants(&rules)));
    let plain = format!("http://127.0.0.1:{port}/");
    for url in [&*plain, "https://x.test/", &*plain] {
        let answer = egress.send("t", &rules, &first(), get(url)).await;
        if url == plain {
            assert_eq!(answer.expect("it is answered").body, b"hello");
        } else {
            let words = "the host has no HTTP client, as its log says";
            assert_eq!(answer.expect_err("no certificates"), Refusal::Other(words.to_owned()));
        }
    }
    let posted = HostClient::default();
    let (url, soon) = (format!("http://127.0.0.1:{port}/"), Duration::from_secs(20));
    let status = posted.post(&url, Vec::new(), Bytes::new(), soon).await;
    assert_eq!(status, Ok(http::StatusCode::OK));
}
