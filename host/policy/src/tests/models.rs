//! Models that load: every key, defaults, and which addresses are good.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::{
    Fault, KeySource, ModelPolicy, ModelTimeouts, Provider, RESPONSE_BYTES_DEFAULT, Remote, Wire,
};
use super::parse;
use crate::Retry;

fn model(body: &str) -> ModelPolicy {
    let text = format!("[model.other]\nprovider = \"echo\"\n[model.m]\n{body}\n");
    let policy = parse(&text).unwrap_or_else(|errors| panic!("{errors}"));
    policy.models["m"].clone()
}

fn remote(body: &str) -> Remote {
    let Provider::Remote(remote) = model(body).provider else { panic!("it is not remote") };
    *remote
}

#[test]
fn every_key_of_a_remote_model_can_be_stated() {
    let model = model(
        "provider = \"anthropic\"\nmodel = \"m-1\"\nbase_url = \"https://x.test:8443/v1/\"\n\
         key_file = \"secrets/key\"\nstream = false\nmax_tokens = 100\nthinking_tokens = 50\n\
         timeouts = { connect = \"1s\", first_byte = \"2s\", between = \"3s\", whole = \"4s\" }\n\
         retry = { attempts = 1, pause = \"5s\" }\nresponse_max = \"1MiB\"\nrecord = \"r.jsonl\"",
    );
    let seconds = Duration::from_secs;
    let remote = Remote {
        wire: Wire::Anthropic,
        base_url: "https://x.test:8443/v1".to_owned(),
        key: Some(KeySource::File(PathBuf::from("conf/secrets/key"))),
        stream: false,
        max_tokens: Some(100),
        thinking_tokens: Some(50),
        timeouts: ModelTimeouts {
            connect: seconds(1),
            first_byte: seconds(2),
            between: seconds(3),
            whole: seconds(4),
        },
        retry: Retry { attempts: 1, pause: seconds(5), ..Retry::default() },
        response_bytes: 1 << 20,
    };
    assert_eq!(model.provider, Provider::Remote(Box::new(remote)));
    assert_eq!(model.to_string(), "anthropic m-1 at https://x.test:8443/v1");
    let files = [Path::new("conf/secrets/key"), Path::new("conf/r.jsonl")];
    assert_eq!(model.files(), files, "none of them is a guest's business");
    assert_eq!(model.answers_file(), None);
}

#[test]
fn what_is_not_stated_of_a_remote_model_has_its_default() {
    let remote = remote("provider = \"ollama\"\nmodel = \"smollm2\"");
    assert_eq!(remote.base_url, "http://127.0.0.1:11434/v1");
    assert!(remote.stream && remote.key.is_none() && remote.max_tokens.is_none());
    assert_eq!(remote.timeouts, ModelTimeouts::default());
    assert_eq!((remote.retry, remote.response_bytes), (Retry::default(), RESPONSE_BYTES_DEFAULT));
}

#[test]
fn plain_http_is_for_this_machine_or_for_whoever_says_so() {
    let with = |url: &str, more: &str| {
        let text = format!(
            "[model.m]\nprovider = \"openai\"\nmodel = \"m\"\nbase_url = \"{url}\"\n{more}\n"
        );
        parse(&text).is_ok()
    };
    for url in ["http://localhost:1/v1", "http://127.9.9.9", "http://[::1]:80/v1"] {
        assert!(with(url, ""), "{url}");
    }
    for url in ["http://10.0.0.1/v1", "http://localhost.x.test", "http://0.0.0.0:1"] {
        assert!(!with(url, "") && with(url, "insecure = true"), "{url}");
    }
    for url in ["ftp://x", "http://", "https://x/../y", "https://x:0", "https://a b", "https://x#y"]
    {
        assert!(!with(url, "insecure = true"), "{url}");
    }
}

#[test]
fn cassettes_and_faults_can_be_stated() {
    let replay = model("provider = \"replay\"\nfile = \"calls.jsonl\"");
    let file = PathBuf::from("conf/calls.jsonl");
    assert_eq!(replay.answers_file(), Some(file.as_path()));
    assert_eq!(replay.provider, Provider::Replay { file, strict: true });
    let faulty =
        model("provider = \"faulty\"\nof = \"other\"\nfaults = [\"ok\", \"cut\"]\nseed = 7");
    assert_eq!(faulty.to_string(), "faulty other");
    let faults = vec![Fault::None, Fault::Cut];
    assert_eq!(faulty.provider, Provider::Faulty { of: "other".into(), faults, seed: Some(7) });
}
