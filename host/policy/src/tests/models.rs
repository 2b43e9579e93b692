//! Models that load: every key, defaults, and which addresses are good.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::{
    Effort, Fault, KeySource, MaxTokensField, ModelPolicy, ModelTimeouts, OpenAiServer, Provider,
    RESPONSE_BYTES_DEFAULT, ReasoningField, Remote, RequestSettings, ServerKind, ThinkingMode,
    Wire,
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
         key_file = \"secrets/key\"\nstream = false\nmax_tokens = 100\n\
         context_tokens = 200000\nthinking = 50\n\
         timeouts = { connect = \"1s\", first_byte = \"2s\", between = \"3s\", whole = \"4s\" }\n\
         retry = { attempts = 1, pause = \"5s\", patience = \"6h\" }\nresponse_max = \"1MiB\"\nrecord = \"r.jsonl\"",
    );
    let seconds = Duration::from_secs;
    let remote = Remote {
        wire: Wire::Anthropic,
        base_url: "https://x.test:8443/v1".to_owned(),
        key: Some(KeySource::File(PathBuf::from("conf/secrets/key"))),
        stream: false,
        max_tokens: Some(100),
        context_tokens: Some(200_000),
        thinking: Some(ThinkingMode::Budget(50)),
        cache: true,
        images: true,
        server: OpenAiServer::of(ServerKind::Other),
        request: RequestSettings::default(),
        timeouts: ModelTimeouts {
            connect: seconds(1),
            first_byte: seconds(2),
            between: seconds(3),
            whole: seconds(4),
        },
        retry: Retry { attempts: 1, pause: seconds(5), ..Retry::default() },
        patience: seconds(6 * 3_600),
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
    let (reasons, silent) = (Duration::from_secs(600), remote.timeouts);
    assert!(silent.first_byte > reasons && silent.between > reasons && silent.whole > reasons);
    assert_eq!((remote.retry, remote.response_bytes), (Retry::default(), RESPONSE_BYTES_DEFAULT));
    assert_eq!(remote.patience, Duration::from_secs(3_600));
}

#[test]
fn plain_http_is_for_this_machine_or_for_whoever_says_so() {
    let with = |url: &str, more: &str| {
        let text = format!(
            "[model.m]\nprovider = \"openai-chat\"\nmodel = \"m\"\nbase_url = \"{url}\"\n{more}\n"
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

#[test]
fn settings_of_the_requests_can_be_stated() {
    let remote = remote(
        "provider = \"openai-chat\"\nmodel = \"m\"\nbase_url = \"https://x.test/v1\"\nserver = \"deepseek\"\n\
         max_tokens_field = \"max_completion_tokens\"\nreasoning_field = \"reasoning\"\neffort = \"xhigh\"\n\
         parallel_tool_calls = false\nheaders = { X-Title = \"taskrun\" }\n\
         query = { api-version = \"2026-01-01\" }\n\
         extra = { top_k = 3, min_p = 0.5, thinking = { type = \"enabled\", of = [1, true] } }",
    );
    let server = OpenAiServer {
        kind: ServerKind::DeepSeek,
        max_tokens_field: MaxTokensField::MaxCompletionTokens,
        reasoning_field: Some(ReasoningField::Reasoning),
    };
    assert_eq!(remote.server, server);
    let request = &remote.request;
    assert_eq!((request.effort, request.parallel_tool_calls), (Some(Effort::XHigh), Some(false)));
    assert_eq!(request.headers["x-title"].reveal(), "taskrun");
    assert_eq!(request.query["api-version"].reveal(), "2026-01-01");
    let extra = serde_json::json!({
        "top_k": 3, "min_p": 0.5, "thinking": { "type": "enabled", "of": [1, true] },
    });
    assert_eq!(serde_json::Value::Object(request.extra.clone()), extra);
    let shown = format!("{remote:?}");
    assert!(!shown.contains("2026-01-01") && !shown.contains("taskrun\""), "{shown}");
}

#[test]
fn the_server_is_that_of_the_address_unless_it_is_stated() {
    let kind = |url: &str, more: &str| {
        let body =
            format!("provider = \"openai-chat\"\nmodel = \"m\"\nbase_url = \"{url}\"\n{more}");
        remote(&body).server
    };
    let cases = [
        ("https://api.openai.com/v1", ServerKind::OpenAi),
        ("https://EU.api.openai.com/v1", ServerKind::OpenAi),
        ("https://x.openai.azure.com/openai/deployments/d", ServerKind::Azure),
        ("https://api.mistral.ai/v1", ServerKind::Mistral),
        ("https://api.deepseek.com", ServerKind::DeepSeek),
        ("https://api.moonshot.cn/v1", ServerKind::Kimi),
        ("https://openrouter.ai/api/v1", ServerKind::OpenRouter),
        ("https://openai.com.x.test/v1", ServerKind::Other),
        ("https://notopenai.com/v1", ServerKind::Other),
        ("http://127.0.0.1:8080/api.openai.com", ServerKind::Other),
    ];
    for (url, expected) in cases {
        assert_eq!(kind(url, ""), OpenAiServer::of(expected), "{url}");
    }
    let stated = kind("http://127.0.0.1:8080/v1", "server = \"mistral\"");
    assert_eq!(stated, OpenAiServer::of(ServerKind::Mistral));
    let none = kind("https://api.deepseek.com", "reasoning_field = \"none\"");
    assert_eq!((none.kind, none.reasoning_field), (ServerKind::DeepSeek, None));
}

#[test]
fn responses_have_the_settings_of_openai_and_not_those_of_other_servers() {
    let stated = |more: &str| remote(&format!("provider = \"openai\"\nmodel = \"m\"\n{more}"));
    let plain = stated("");
    assert_eq!((plain.wire, plain.base_url.as_str()), (Wire::OpenAi, "https://api.openai.com/v1"));
    assert_eq!(plain.server.reasoning_field, Some(ReasoningField::EncryptedContent));
    assert_eq!(plain.server.kind.key_header(), None);
    let set = stated("effort = \"high\"\nparallel_tool_calls = false\nreasoning_field = \"none\"");
    assert_eq!(set.server.reasoning_field, None);
    assert_eq!(
        (set.request.effort, set.request.parallel_tool_calls),
        (Some(Effort::High), Some(false))
    );
    let azure = stated("base_url = \"https://x.openai.azure.com/openai/v1\"");
    assert_eq!(azure.server.kind.key_header(), Some("api-key"));
}

#[test]
fn settings_that_the_host_makes_itself_are_refused_in_their_place_without_their_value() {
    let long = format!("headers = {{ x = \"{}\" }}", "v".repeat(4_097));
    let cases = [
        ("headers = { Authorization = \"Bearer s3cret\" }", "Authorization"),
        ("headers = { X-Api-Key = \"s3cret\" }", "X-Api-Key"),
        ("headers = { api-key = \"s3cret\" }", "api-key"),
        ("headers = { Proxy-Thing = \"s3cret\" }", "Proxy-Thing"),
        ("headers = { \"a b\" = \"s3cret\" }", "\"a b\""),
        ("headers = { x = \"s3cret\\n\" }", "\"s3cret\\n\""),
        ("headers = { x = 1 }", "1"),
        ("headers = { x = \"a\", X = \"s3cret\" }", "x"),
        ("query = { key = \"s3cret\" }", "key"),
        ("base_url = \"https://a.example/v1?key=s3cret\"", "\"https://a.example/v1?key=s3cret\""),
        ("query = { \"a&b\" = \"s3cret\" }", "\"a&b\""),
        ("extra = { model = \"dearer\" }", "model"),
        ("extra = { tools = [] }", "tools"),
        ("extra = { since = 2026-01-01 }", "2026-01-01"),
        ("extra = { big = 99999999999999999999 }", "99999999999999999999"),
        ("effort = \"hgih\"", "\"hgih\""),
        ("server = \"mystral\"", "\"mystral\""),
        (long.as_str(), &long[16..long.len() - 2]),
    ];
    for (body, marked) in cases {
        let text = format!("[model.m]\nprovider = \"openai-chat\"\nmodel = \"m\"\n{body}\n");
        let errors = parse(&text).expect_err(body);
        assert_eq!(&errors.source_text[errors.errors[0].span.clone()], marked, "{body}");
        assert_eq!(
            errors.errors[0].location.to_string(),
            format!("conf/taskrun.toml:4:{}", 1 + body.rfind(marked).expect("there")),
            "{body}"
        );
        assert!(!errors.to_string().contains("s3cret"), "{errors}");
    }
    let wrong = "[model.m]\nprovider = \"gemini\"\nmodel = \"m\"\nserver = \"openai\"\n";
    let errors = parse(wrong).expect_err("not for this protocol");
    assert!(errors.to_string().contains("unknown key `server`"), "{errors}");
}
