//! Whole policies that load: defaults, tools, limits.

use std::path::{Path, PathBuf};
use std::time::Duration;

use taskrun_journal::delivery::{DeliverySettings, Strategy};
use taskrun_journal::history::History;

use super::super::{
    Budget, HEARTBEAT_PROMPT_BYTES_MAX, LimitSettings, Limits, Provider, WorkspaceLimits,
};
use super::{agent, parse, with_agent};
use crate::policy::Policy;
use crate::settings::SKIPS_DEFAULT;
use crate::{
    BeatTimes, CronTimes, Heartbeat, InterruptionPolicy, MissingFields, NUDGES_DEFAULT, Retry,
    RetryExhaustion, RetryOn, Upgrade,
};

/// The example of the design, without what this version refuses.
const EXAMPLE: &str = r#"
[defaults]
unlisted = "deny"            # the only default there is

[model.default]
provider = "scripted"
script   = "models/default.jsonl"
strict   = true
model    = "smollm2"

[tool.workspace]
component = "components/workspace.wasm"
limits    = { call = "30s", memory = "32MiB" }
interrupted = "ask"

[agent.readonly_researcher]
component = "components/researcher.wasm"
tools     = ["workspace/list", "workspace/search", "workspace/read"]
model     = "default"
allow = ["workspace-read: docs/**"]
deny  = ["workspace-write: **"]          # linked, always refused
limits = { memory = "64MiB", call = "10s", tool_calls = 40 }
budget = { turns = 20, tokens = 200_000, wall = "20m" }
members   = []                                  # may delegate to nobody
retry     = { attempts = 3, pause = "1s" }
durable   = true

[agent.note_writer]
component = "/opt/writer.wasm"
description = "Writes notes."
tools     = ["workspace/*"]
workspace = "./team/notes"
"#;

#[test]
fn the_example_of_the_design_loads() {
    let policy = parse(EXAMPLE).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(policy.path, Path::new("conf/taskrun.toml"));
    assert_eq!(policy.digest, blake3::hash(EXAMPLE.as_bytes()).to_hex().as_str());
    let model = &policy.models["default"];
    let script = PathBuf::from("conf/models/default.jsonl");
    assert_eq!(model.provider, Provider::Scripted { script, strict: true });
    assert_eq!(model.model.as_deref(), Some("smollm2"));
    assert_eq!(policy.tools["workspace"].component, Path::new("conf/components/workspace.wasm"));

    let researcher = &policy.agents["readonly_researcher"];
    assert_eq!(researcher.location.to_string(), "conf/taskrun.toml:16:1");
    assert_eq!(researcher.workspace, Path::new("conf"));
    assert_eq!(researcher.model.as_deref(), Some("default"));
    let rules: Vec<String> = researcher.grants.rules().iter().map(ToString::to_string).collect();
    assert_eq!(
        rules,
        [
            "allow \"model: default\" (conf/taskrun.toml:19:13)",
            "allow \"workspace-read: docs/**\" (conf/taskrun.toml:20:10)",
            "deny \"workspace-write: **\" (conf/taskrun.toml:21:10)",
        ]
    );
    assert_eq!(researcher.budget.tokens, Some(200_000));
    assert!(researcher.durable && researcher.members.is_empty());
    assert_eq!(policy.tools["workspace"].interrupted, InterruptionPolicy::Ask);
    assert!(researcher.may_call("workspace/list"));
    assert!(!researcher.may_call("workspace/write"));
    assert!(!researcher.may_call("other/list"));
    assert!(researcher.uses_tool("workspace") && !researcher.uses_tool("work"));

    let writer = &policy.agents["note_writer"];
    assert_eq!(writer.component, Path::new("/opt/writer.wasm"));
    assert_eq!(writer.workspace, Path::new("conf/team/notes"));
    assert_eq!(writer.description.as_deref(), Some("Writes notes."));
    assert_eq!(writer.tools[0].to_string(), "workspace/*");
    assert!(writer.may_call("workspace/write"));
}

#[test]
fn what_is_not_stated_has_its_default() {
    let agent = agent("");
    assert_eq!(agent.limits, Limits::default());
    assert_eq!(agent.stated_limits, LimitSettings::default());
    assert_eq!(agent.budget, Budget::default());
    assert_eq!(agent.limits.memory_bytes, 64 * 1024 * 1024);
    assert_eq!(agent.limits.call, Duration::from_secs(10));
    assert_eq!(agent.limits.tool_calls, Some(40));
    assert_eq!(agent.budget.turns, Some(20));
    assert_eq!(agent.budget.tokens, None);
    assert!(agent.durable);
    assert_eq!(agent.retry, Retry::default());
    assert_eq!((agent.description, agent.model, agent.tools), (None, None, vec![]));
    assert!(agent.members.is_empty());
    assert_eq!(agent.heartbeat, None);
    assert!(agent.grants.rules().is_empty());
    let policy = parse("").unwrap();
    assert!(policy.agents.is_empty() && policy.tools.is_empty() && policy.models.is_empty());
}

#[test]
fn an_agent_delegates_to_nobody_unless_its_policy_names_who() {
    let members = |list: &str| {
        let body = format!(
            "{list}\n[agent.workspace]\ncomponent = \"w.wasm\"\n\
                            [agent.coder]\ncomponent = \"c.wasm\"\nmembers = [\"a\"]"
        );
        let policy = parse(&with_agent(&body)).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(policy.agents["coder"].members, ["a"]);
        policy.agents["a"].members.clone()
    };
    assert!(members("").is_empty());
    assert!(members("members = []").is_empty());
    // Being granted all of a tool says nothing of the agent that has its name.
    assert!(members("tools = [\"workspace/*\"]").is_empty());
    assert_eq!(members("members = [\"workspace\", \"coder\"]"), ["workspace", "coder"]);
    assert_eq!(members("members = [\"a\"]"), ["a"]);
    assert_eq!(members("members = [\"*\"]"), ["a", "coder", "workspace"]);
}

#[test]
fn a_heartbeat_has_an_interval_and_perhaps_a_prompt() {
    let seconds = |secs| Duration::from_secs(secs);
    let of = |body: &str| agent(body).heartbeat;
    let plain = of("heartbeat = { interval = \"60s\" }");
    assert_eq!(plain, Some(Heartbeat { times: BeatTimes::Every(seconds(60)), prompt: None }));
    let prompted = of("heartbeat = { interval = \"7d\", prompt = \" Do these: \" }");
    let prompt = Some("Do these:".to_owned());
    assert_eq!(
        prompted,
        Some(Heartbeat { times: BeatTimes::Every(seconds(7 * 24 * 3_600)), prompt })
    );
    assert_eq!(of("heartbeat = { interval = \"0s\", prompt = \"never\" }"), None);
    assert_eq!(of("heartbeat = { interval = \"1s\", prompt = \" \" }").unwrap().prompt, None);
    let cron = CronTimes::new("0 9 * * 1-5", "Europe/Berlin").expect("a pattern");
    let times = BeatTimes::Cron(Box::new(cron));
    let stated = of("heartbeat = { cron = \"0 9 * * 1-5\", zone = \"Europe/Berlin\" }");
    assert_eq!(stated, Some(Heartbeat { times, prompt: None }));
    for (body, fault) in [
        ("cron = \"0 9 * *\"", "it has 4 fields, not 5"),
        ("cron = \"0 0 30 2 *\"", "its time never comes"),
        ("cron = \"0 9 * * *\", interval = \"60s\"", "there is `cron`, too"),
        ("cron = \"0 9 * * *\", zone = \"Berlin\"", "no time zone of this name"),
        ("interval = \"60s\", zone = \"UTC\"", "the same in every time zone"),
        ("prompt = \"x\"", "interval"),
    ] {
        let errors = parse(&with_agent(&format!("heartbeat = {{ {body} }}"))).expect_err(body);
        assert!(errors.to_string().contains(fault), "{body}: {errors}");
    }
}

#[test]
fn an_agent_tells_a_conversation_as_its_policy_says() {
    let read = |body: &str| {
        let agent = agent(body);
        (agent.delivery, agent.max_nudges)
    };
    assert_eq!(read(""), (DeliverySettings::default(), NUDGES_DEFAULT));
    let (told, most) =
        read("max_nudges = 0\ndelivery = { strategy = \"immediate\", notify = \"a\" }");
    assert_eq!((told.strategy, told.notify.as_deref()), (Some(Strategy::Immediate), Some("a")));
    assert_eq!(most, 0);
    assert_eq!(read("delivery = { strategy = \"none\" }").0.strategy, None);
    let idle = "delivery = { strategy = \"wait-for-idle\", timeout = \"1m\", interrupt = true }";
    let expected = Strategy::WaitForIdle { buffer_ms: 1_000, timeout_ms: 60_000, interrupt: true };
    assert_eq!(read(idle).0.strategy, Some(expected));
    let queued = "delivery = { strategy = \"queued\", separator = \" | \" }";
    assert_eq!(read(queued).0.strategy.as_ref().and_then(Strategy::separator), Some(" | "));
    for (body, fault) in [
        ("strategy = \"sometimes\"", "sometimes"),
        ("strategy = \"immediate\", buffer = \"1s\"", "has none of this name"),
        ("notify = \"nobody\"", "nobody"),
        ("strategy = \"queued\", buffer = \"2h\"", "1h"),
    ] {
        let errors = parse(&with_agent(&format!("delivery = {{ {body} }}"))).expect_err(body);
        assert!(errors.to_string().contains(fault), "{body}: {errors}");
    }
}

#[test]
fn an_agent_converses_with_itself_unless_its_policy_says_otherwise() {
    let told = |body: &str| agent(body).conversation;
    assert_eq!(told(""), History::Agent);
    for history in History::ALL {
        assert_eq!(told(&format!("conversation = \"{}\"", history.as_str())), history);
    }
    let errors = parse(&with_agent("conversation = \"sesion\"")).expect_err("a misspelt word");
    assert!(errors.to_string().contains("session"), "{errors}");
}

#[test]
fn a_prompt_that_leaves_no_room_for_entries_is_refused() {
    let prompt = "p".repeat(HEARTBEAT_PROMPT_BYTES_MAX + 1);
    let body = format!("heartbeat = {{ interval = \"60s\", prompt = \"{prompt}\" }}");
    let errors = parse(&with_agent(&body)).expect_err("too long").to_string();
    assert!(errors.contains("`prompt` is 16385 bytes long"), "{errors}");
}

#[test]
fn what_a_failure_or_a_crash_does_can_be_stated() {
    let stated = agent("durable = false\nretry = { attempts = 10, pause = \"5m\" }");
    assert!(!stated.durable);
    assert_eq!(
        stated.retry,
        Retry { attempts: 10, pause: Duration::from_secs(300), then: RetryExhaustion::Abort }
    );
    let least = agent("retry = { attempts = 1, pause = \"0s\" }").retry;
    assert_eq!(least, Retry { attempts: 1, pause: Duration::ZERO, then: RetryExhaustion::Abort });
    // A key that the table leaves out keeps its default.
    assert_eq!(agent("retry = {}").retry, Retry::default());
    assert_eq!(agent("retry.attempts = 5").retry, Retry { attempts: 5, ..Retry::default() });
    let on = |body: &str| agent(body).retry_on;
    assert_eq!(on("retry = { attempts = 2 }"), RetryOn::default());
    assert_eq!(on("retry.on = [\"uncoded\", \"deadline\"]"), RetryOn::new(["deadline", "uncoded"]));
    assert!(on("retry.on = []").words().is_empty());
    let then = |body: &str| agent(body).retry.then;
    assert_eq!(then("retry.then = \"abort\""), RetryExhaustion::Abort);
    assert_eq!(then("retry.then = \"skip\""), RetryExhaustion::Skip { in_a_row: SKIPS_DEFAULT });
    assert_eq!(
        then("retry = { then = \"skip\", skips = 10 }"),
        RetryExhaustion::Skip { in_a_row: 10 }
    );

    let interrupted = |line: &str| {
        let text = format!("[tool.t]\ncomponent = \"t.wasm\"\n{line}\n");
        parse(&text).unwrap_or_else(|errors| panic!("{errors}")).tools["t"].interrupted
    };
    assert_eq!(interrupted(""), InterruptionPolicy::Fail);
    assert_eq!(interrupted("interrupted = \"fail\""), InterruptionPolicy::Fail);
    assert_eq!(interrupted("interrupted = \"ask\""), InterruptionPolicy::Ask);
}

#[test]
fn what_follows_from_missing_fields_is_one_of_three() {
    let read = |line: &str| agent(line).on_missing_fields;
    assert_eq!(read(""), MissingFields::Resume);
    for (word, expected) in [
        ("resume", MissingFields::Resume),
        ("await_clarification", MissingFields::AwaitClarification),
        ("finalize", MissingFields::Finalize),
    ] {
        assert_eq!(read(&format!("on_missing_fields = \"{word}\"")), expected);
    }
    for (stated, expected) in [
        ("", Upgrade::Pinned),
        ("upgrade = \"pinned\"", Upgrade::Pinned),
        ("upgrade = \"adopt\"", Upgrade::Adopt),
    ] {
        assert_eq!(agent(stated).upgrade, expected);
    }
    let refused = parse(&with_agent("upgrade = \"adapt\"")).expect_err("no such word");
    assert!(refused.to_string().contains("did you mean `adopt`?"), "{refused}");
    let refused = parse(&with_agent("on_missing_fields = \"await\"")).expect_err("no such word");
    assert!(refused.to_string().contains("await_clarification"), "{refused}");
}

#[test]
fn every_limit_can_be_stated() {
    let agent = agent(
        "[agent.a.limits]\nmemory = \"1MiB\"\ncall = \"1ms\"\nstep = \"1h\"\ngrace = \"0s\"\ntool_calls = 0\n\
         tool_failures = 1\nturn_calls = 3\nlast_step = \"2s\"\n\
         result = \"2KiB\"\nlog = \"3B\"\ntable_elements = 0x10\nhost_calls = 1_000\nhost_call_bytes = \"4MiB\"\nevents = 7\n\
         journal = \"1GiB\"\nwrite = \"5MiB\"\nnew_files = 6",
    );
    let expected = Limits {
        memory_bytes: 1 << 20,
        call: Duration::from_millis(1),
        step: Duration::from_secs(3_600),
        last_step: Some(Duration::from_secs(2)),
        grace: Duration::ZERO,
        tool_calls: Some(0),
        tool_failures: 1,
        turn_calls: Some(3),
        result_bytes: 2_048,
        log_bytes: 3,
        table_elements: 16,
        host_calls: 1_000,
        host_call_bytes: 4 << 20,
        events: 7,
        journal_bytes: 1 << 30,
        write_bytes: 5 << 20,
        new_files: 6,
    };
    assert_eq!(agent.limits, expected);
}

#[test]
fn a_call_gets_the_narrower_of_what_agent_and_tool_state() {
    let text = with_agent("limits = { call = \"20s\", memory = \"16MiB\" }").replace(
        "\"w.wasm\"\n",
        "\"w.wasm\"\nlimits = { call = \"30s\", memory = \"8MiB\", result = \"4MiB\" }\n",
    );
    let policy = parse(&text).unwrap();
    let (agent, tool) = (&policy.agents["a"], &policy.tools["workspace"]);
    assert_eq!((tool.limits.call, tool.limits.tool_calls), (Duration::from_secs(30), None));
    let limits = agent.call_limits(tool);
    assert_eq!(limits.call, Duration::from_secs(20));
    assert_eq!(limits.memory_bytes, 8 << 20);
    // Stated by the tool alone, more than the default; stated by nobody.
    assert_eq!(limits.result_bytes, 4 << 20);
    assert_eq!(limits.log_bytes, 1 << 20);
}

#[test]
fn a_workspace_has_limits_and_every_agent_is_told_them() {
    let limits = |text: &str| {
        let policy = parse(&format!("{text}\n{}", with_agent(""))).unwrap();
        policy.agents["a"].workspace_limits
    };
    assert_eq!(limits(""), WorkspaceLimits::default());
    assert_eq!(limits("[workspace]\nroot = \"w\""), WorkspaceLimits::default());
    let stated = limits("[workspace]\nlimits = { bytes = \"1MiB\", files = 2, reserve = \"0B\" }");
    assert_eq!(stated, WorkspaceLimits { bytes: 1 << 20, files: 2, reserve_bytes: 0 });
    let refused =
        parse("[workspace]\nlimits = { byte = \"1MiB\", files = 2_000_000 }").unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("did you mean `bytes`") && text.contains("1000000"), "{text}");
}

#[test]
fn folders_to_write_in_are_the_plain_beginnings_of_patterns() {
    let folders = |rules: &[&str]| {
        let rules = rules.iter().map(|rule| format!("\"workspace-write: {rule}\""));
        let rules = rules.collect::<Vec<_>>().join(", ");
        agent(&format!("allow = [{rules}]")).grants.writable_folders()
    };
    assert_eq!(folders(&[]), [""; 0]);
    assert_eq!(folders(&["notes/**"]), ["notes"]);
    assert_eq!(folders(&["notes/a.md"]), ["notes"]);
    assert_eq!(folders(&["a.md"]), [""]);
    assert_eq!(folders(&["notes/deep/**", "notes/*.md", "other/x/*/y"]), ["notes", "other/x"]);
    assert_eq!(folders(&["notes/**", "**/z"]), [""]);
}

#[test]
fn components_are_kept_for_thirty_days_unless_the_policy_says_otherwise() {
    let kept = |text: &str| {
        Policy::parse(text, Path::new("taskrun.toml")).map(|policy| policy.components_kept)
    };
    let hour = Duration::from_secs(60 * 60);
    for (text, hours) in [
        ("", 30 * 24),
        ("[retention]\n", 30 * 24),
        ("[retention]\ncomponents = \"1h\"\n", 1),
        ("[retention]\ncomponents = \"3650d\"\n", 3_650 * 24),
    ] {
        assert_eq!(kept(text), Ok(hour * hours), "{text}");
    }
    for (stated, why) in [
        ("components = \"59m\"", "out of range"),
        ("components = \"3651d\"", "out of range"),
        ("component = \"1h\"", "did you mean `components`?"),
    ] {
        let refused = kept(&format!("[retention]\n{stated}\n")).expect_err(stated).to_string();
        assert!(refused.contains(why) && refused.contains("taskrun.toml:2:"), "{refused}");
    }
}
