//! Closures of agents: what a pin is made of, its text, and that equal pins decide equally.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use super::with_agent;
use crate::{AgentRules, Closure, FileKind, Files, MissingDigest, Policy};

/// A policy that says something about each part of a closure of the agent `lead`.
const RICH: &str = r#"
# Who leads.
[defaults]
ask_timeout = "2h"

[workspace]
root   = "work"
limits = { bytes = "1GiB", files = 1000, reserve = "1MiB" }

[model.fast]
provider = "openai-chat"
model    = "smollm2"
base_url = "http://127.0.0.1:8080/v1"
key_file = "secrets/one"
prices   = { prompt = 1.5, completion = 3.0 }

[model.large]
provider = "echo"

[prompt.brief]
template  = "Short: {{ q }}"
overrides = [{ labels = ["tier=gold", "kind=x"], template = "Gold: {{ q }}" }, { session = "s1", file = "prompts/s1.md" }]

[prompt.other]
template = "Not for those who lead."

[tool.files]
component   = "files.wasm"
limits      = { call = "30s", memory = "32MiB" }
interrupted = "ask"
tags        = ["disk", "slow"]

[tool.mail]
component = "mail.wasm"

[tool.unused]
component = "unused.wasm"

[agent.lead]
description  = "Leads."
component    = "lead.wasm"
workspace    = "team"
tools        = ["files/*", "mail/send", "agent/writer"]
members      = ["writer", "reader"]
model        = "fast"
allow        = ["workspace-read: docs/**", "http: GET,POST https://api.example.com/v1/**", "prompts: brief", "controller: spawn"]
deny         = ["workspace-read: docs/private/**", "http: https://api.example.com/v1/admin"]
ask          = ["tool: mail/send", "tag: danger"]
limits       = { memory = "16MiB", call = "9s", step = "60s", grace = "1s", tool_calls = 11, turn_calls = 7, tool_failures = 3, result = "2MiB", log = "3MiB", table_elements = 400, host_calls = 500, host_call_bytes = "4MiB", events = 600, journal = "5MiB", write = "6MiB", new_files = 70 }
timeouts     = { "files/read" = "2s", "files/*" = "5s" }
budget       = { turns = 12, tokens = 1300, usd = 1.25, wall = "30m", reserve = { turns = 1, tokens = 100, usd = 0.05 } }
retry        = { attempts = 2, pause = "3s", then = "skip", skips = 4 }
heartbeat    = { interval = "60s", prompt = "Look." }
conversation = "session"
policy       = { allow = ["files/*"], allow_tags = ["disk"], block = ["mail/send"], block_tags = ["slow", "danger"], hints = false, component = "engine.wasm", timeout = "2s" }
durable      = false
on_missing_fields = "finalize"

[agent.writer]
description = "Writes."
component   = "writer.wasm"

[agent.reader]
description = "Reads."
component   = "reader.wasm"
"#;

/// Files in which their own name stands, wherever they lie.
struct Named;

impl Files for Named {
    fn read(&self, path: &Path, _bytes_max: usize) -> io::Result<String> {
        Ok(name(path))
    }

    fn kind(&self, _path: &Path) -> io::Result<FileKind> {
        Ok(FileKind::File)
    }

    fn real_path(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(path.to_owned())
    }
}

fn name(path: &Path) -> String {
    path.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned())
}

fn digest(path: &Path) -> Option<String> {
    Some(format!("blake3:{}", blake3::hash(name(path).as_bytes()).to_hex()))
}

fn policy(text: &str) -> Policy {
    let read = Policy::parse(text, Path::new("/conf/taskrun.toml"));
    let mut policy = read.unwrap_or_else(|errors| panic!("{errors}"));
    policy.read_prompts(&Named);
    policy
}

fn closure_of(policy: &Policy, agent: &str) -> Closure {
    policy.closure(&policy.agents[agent], &digest).expect("all digests are known")
}

fn lead(text: &str) -> Closure {
    closure_of(&policy(text), "lead")
}

/// The rich policy with something else in the place of a text that is there once.
fn edited((from, to): (&str, &str)) -> String {
    assert_eq!(RICH.matches(from).count(), 1, "{from}");
    RICH.replace(from, to)
}

/// One edit for each part of a closure, each with another pin.
const TELLING: &[(&str, &str)] = &[
    ("component    = \"lead.wasm\"", "component    = \"lead2.wasm\""),
    ("tools        = [\"files/*\"", "tools        = [\"files/read\", \"files/list\""),
    ("\"agent/writer\"]", "\"agent/reader\"]"),
    (", \"agent/writer\"]", "]"),
    ("\"files.wasm\"", "\"files2.wasm\""),
    ("call = \"30s\"", "call = \"31s\""),
    (", memory = \"32MiB\"", ""),
    ("interrupted = \"ask\"", "interrupted = \"fail\""),
    ("tags        = [\"disk\", \"slow\"]", "tags        = [\"disk\"]"),
    ("tags        = [\"disk\", \"slow\"]", "tags        = []"),
    ("tags        = [\"disk\", \"slow\"]", ""),
    ("\"mail.wasm\"", "\"mail.wasm\"\nlimits = { call = \"10s\" }"),
    ("\"Writes.\"", "\"Writes well.\""),
    ("description = \"Writes.\"\n", ""),
    ("members      = [\"writer\", \"reader\"]", "members      = [\"writer\"]"),
    ("members      = [\"writer\", \"reader\"]", "members      = [\"*\"]"),
    ("model        = \"fast\"", "model        = \"large\""),
    ("model        = \"fast\"\n", ""),
    ("root   = \"work\"", "root   = \"works\""),
    ("workspace    = \"team\"", "workspace    = \"teams\""),
    ("workspace    = \"team\"\n", ""),
    ("bytes = \"1GiB\"", "bytes = \"2GiB\""),
    ("files = 1000", "files = 1001"),
    ("reserve = \"1MiB\"", "reserve = \"2MiB\""),
    ("\"workspace-read: docs/**\"", "\"workspace-read: docs/*\""),
    ("\"workspace-read: docs/**\"", "\"workspace-read: docs/**\", \"metrics: *\""),
    ("GET,POST https", "GET https"),
    ("GET,POST https", "https"),
    ("GET,POST https", "GET,POST http"),
    ("GET,POST https://api.example.com/v1/**", "GET,POST https://api.example.com:8443/v1/**"),
    ("GET,POST https://api.example.com/v1/**", "GET,POST https://*.example.com/v1/**"),
    ("GET,POST https://api.example.com/v1/**", "GET,POST https://api.example.com/**"),
    (
        "\"http: https://api.example.com/v1/admin\"",
        "\"http: https://api.example.com:443/v1/admin\"",
    ),
    ("\"http: https://api.example.com/v1/admin\"", "\"http: PUT *\""),
    (", \"prompts: brief\"", ""),
    ("\"controller: spawn\"", "\"controller: wait\""),
    ("\"controller: spawn\"", "\"controller: *\""),
    ("\"workspace-read: docs/private/**\", ", ""),
    ("\"tool: mail/send\"", "\"tool: mail/*\""),
    ("\"tool: mail/send\"", "\"tool: *\""),
    ("\"tag: danger\"]", "\"tag: dangers\"]"),
    ("\"tag: danger\"]", "\"tag: danger\", \"tool: files/*\"]"),
    ("ask_timeout = \"2h\"", "ask_timeout = \"3h\""),
    ("memory = \"16MiB\"", "memory = \"17MiB\""),
    ("call = \"9s\"", "call = \"9001ms\""),
    ("step = \"60s\"", "step = \"61s\""),
    ("grace = \"1s\"", "grace = \"2s\""),
    ("tool_calls = 11", "tool_calls = 12"),
    ("turn_calls = 7", "turn_calls = 8"),
    ("tool_failures = 3", "tool_failures = 4"),
    ("result = \"2MiB\"", "result = \"1MiB\""),
    // A limit that is stated, if only as its default, is combined with those of tools.
    ("result = \"2MiB\", ", ""),
    ("log = \"3MiB\"", "log = \"2MiB\""),
    ("table_elements = 400", "table_elements = 401"),
    ("host_calls = 500", "host_calls = 501"),
    ("host_call_bytes = \"4MiB\"", "host_call_bytes = \"3MiB\""),
    ("events = 600", "events = 601"),
    ("journal = \"5MiB\"", "journal = \"6MiB\""),
    ("write = \"6MiB\"", "write = \"7MiB\""),
    ("new_files = 70", "new_files = 71"),
    ("\"files/read\" = \"2s\"", "\"files/read\" = \"1s\""),
    ("\"files/read\" = \"2s\"", "\"files/rea*\" = \"2s\""),
    (", \"files/*\" = \"5s\"", ""),
    ("turns = 12", "turns = 13"),
    ("tokens = 1300, ", "tokens = 1301, "),
    ("usd = 1.25", "usd = 1.250001"),
    ("wall = \"30m\"", "wall = \"31m\""),
    ("reserve = { turns = 1, ", "reserve = { "),
    ("tokens = 100,", "tokens = 101,"),
    ("usd = 0.05", "usd = 0.06"),
    ("attempts = 2", "attempts = 3"),
    ("pause = \"3s\"", "pause = \"4s\""),
    ("skips = 4", "skips = 5"),
    (", then = \"skip\", skips = 4", ""),
    ("conversation = \"session\"", "conversation = \"agent\""),
    ("conversation = \"session\"", "conversation = \"none\""),
    ("{ allow = [\"files/*\"]", "{ allow = [\"files/read\"]"),
    ("{ allow = [\"files/*\"]", "{ allow = []"),
    ("{ allow = [\"files/*\"], ", "{ "),
    ("allow_tags = [\"disk\"]", "allow_tags = []"),
    ("allow_tags = [\"disk\"], ", ""),
    ("block = [\"mail/send\"]", "block = []"),
    ("block_tags = [\"slow\", \"danger\"]", "block_tags = [\"slow\"]"),
    ("hints = false", "hints = true"),
    ("\"engine.wasm\"", "\"engine2.wasm\""),
    (", component = \"engine.wasm\", timeout = \"2s\"", ""),
    ("timeout = \"2s\" }", "timeout = \"3s\" }"),
    ("durable      = false", "durable      = true"),
    ("\"finalize\"", "\"resume\""),
    ("\"finalize\"", "\"await_clarification\""),
    ("\"Short: {{ q }}\"", "\"Shorter: {{ q }}\""),
    ("\"Gold: {{ q }}\"", "\"Golden: {{ q }}\""),
    ("\"tier=gold\"", "\"tier=silver\""),
    ("session = \"s1\"", "session = \"s2\""),
    ("prompts/s1.md", "prompts/s2.md"),
];

/// Edits that leave everything as it is for the agent's runs.
const SILENT: &[(&str, &str)] = &[
    ("# Who leads.\n", ""),
    ("[agent.lead]\n", "\n\n# The first.\n[agent.lead] # leads\n"),
    ("description  = \"Leads.\"", "description  = \"Leads others.\""),
    ("heartbeat    = { interval = \"60s\", prompt = \"Look.\" }\n", ""),
    ("interval = \"60s\"", "interval = \"90s\""),
    ("\"secrets/one\"", "\"secrets/two\""),
    ("key_file = \"secrets/one\"", "key_env = \"KEY\""),
    ("prompt = 1.5", "prompt = 2.5"),
    ("model    = \"smollm2\"", "model    = \"smollm3\""),
    ("provider = \"openai-chat\"", "provider = \"ollama\""),
    ("[model.large]\nprovider = \"echo\"\n", ""),
    ("\"Not for those who lead.\"", "\"For nobody.\""),
    ("\"unused.wasm\"", "\"unused2.wasm\""),
    ("[tool.unused]\ncomponent = \"unused.wasm\"\n", ""),
    ("\"Reads.\"", "\"Reads well.\""),
    ("\"reader.wasm\"", "\"reader2.wasm\"\nbudget = { turns = 3 }"),
    ("\"writer.wasm\"", "\"writer2.wasm\"\nallow = [\"metrics: *\"]"),
    ("[agent.writer]", "[agent.fourth]\ncomponent = \"x.wasm\"\n\n[agent.writer]"),
    ("component    = \"lead.wasm\"", "component    = \"moved/lead.wasm\""),
    ("\"files.wasm\"", "\"moved/files.wasm\""),
    ("\"engine.wasm\"", "\"moved/engine.wasm\""),
    ("prompts/s1.md", "moved/s1.md"),
    ("root   = \"work\"", "root   = \"./work/.\""),
    ("bytes = \"1GiB\"", "bytes = \"1024MiB\""),
    ("wall = \"30m\"", "wall = \"1800s\""),
    ("tokens = 1300, ", "tokens = 1_300, "),
    ("ask_timeout = \"2h\"", "ask_timeout = \"120m\""),
    ("\"files/*\", \"mail/send\", \"agent", "\"mail/send\", \"files/*\", \"agent"),
    ("[\"writer\", \"reader\"]", "[\"reader\", \"writer\"]"),
    ("[\"disk\", \"slow\"]", "[\"slow\", \"disk\"]"),
    ("\"tool: mail/send\", \"tag: danger\"", "\"tag: danger\", \"tool:  mail/send\""),
    ("[\"slow\", \"danger\"]", "[\"danger\", \"slow\"]"),
    ("[\"tier=gold\", \"kind=x\"]", "[\"kind=x\", \"tier=gold\"]"),
    ("\"workspace-read: docs/**\", ", "\"workspace-read:docs/**/**\", "),
    ("\"prompts: brief\", \"controller: spawn\"", "\"controller: spawn\", \"prompts:  brief\""),
    ("GET,POST https://api.example.com/v1/**", "POST,GET https://API.example.com:443/v1/**"),
    (
        "\"files/read\" = \"2s\", \"files/*\" = \"5s\"",
        "\"files/*\" = \"5s\", \"files/read\" = \"2s\"",
    ),
];

#[test]
fn a_pin_changes_with_what_it_is_made_of_and_nothing_else() {
    let before = lead(RICH);
    let mut pins = BTreeMap::from([(before.pin(), "nothing")]);
    for edit in TELLING {
        let other = pins.insert(lead(&edited(*edit)).pin(), edit.1);
        assert_eq!(other, None, "{edit:?}");
    }
    for edit in SILENT {
        assert_eq!(lead(&edited(*edit)).text(), before.text(), "{edit:?}");
    }
    // Tables in another order, and the keys of the agent's table.
    let tables: Vec<&str> = RICH.trim().split("\n\n").collect();
    let mut turned = tables.clone();
    turned.reverse();
    assert_eq!(lead(&turned.join("\n\n")).text(), before.text());
    let own = tables.iter().find(|table| table.starts_with("[agent.lead]")).expect("it is there");
    let (header, keys) = own.split_once('\n').expect("it has keys");
    let keys: Vec<&str> = keys.lines().rev().collect();
    let reordered = RICH.replace(own, &format!("{header}\n{}", keys.join("\n")));
    assert_ne!(reordered, RICH);
    assert_eq!(lead(&reordered).text(), before.text());
    // Another name, and another folder for the whole policy.
    let renamed = RICH.replace("agent.lead", "agent.head");
    assert_ne!(closure_of(&policy(&renamed), "head").pin(), before.pin());
    let mut elsewhere = Policy::parse(RICH, Path::new("/other/taskrun.toml")).expect("it is valid");
    elsewhere.read_prompts(&Named);
    assert_ne!(closure_of(&elsewhere, "lead").pin(), before.pin());
}

#[test]
fn a_default_is_the_same_written_or_not() {
    let stated = "durable = true\ntools = []\nmembers = []\nask = []\nask_timeout = \"24h\"\n\
                  budget = { turns = 20, wall = \"20m\" }\nconversation = \"agent\"\n\
                  retry = { attempts = 3, pause = \"1s\", then = \"abort\" }\n\
                  limits = {}\ntimeouts = {}\nworkspace = \".\"\non_missing_fields = \"resume\"\n\
                  upgrade = \"adopt\"";
    let pin = |body: &str| closure_of(&policy(&with_agent(body)), "a").pin();
    assert_eq!(pin(stated), pin(""));
    assert_ne!(pin("retry = { on = [\"deadline\"] }"), pin(""));
    assert_ne!(pin("limits = { call = \"10s\" }"), pin(""), "it bounds tools that say more");
    assert_ne!(pin("policy = {}"), pin(""), "an engine that heeds hints");
}

#[test]
fn what_all_stands_for_is_part_of_a_pin() {
    let all = edited(("\"prompts: brief\"", "\"prompts: *\""));
    let pin = lead(&all).pin();
    let more = all.replace("[prompt.other]", "[prompt.third]\ntemplate = \"x\"\n\n[prompt.other]");
    assert_ne!(lead(&more).pin(), pin, "a prompt that it may use");
    let all = edited(("members      = [\"writer\", \"reader\"]", "members      = [\"*\"]"));
    let more = format!("{all}\n[agent.fourth]\ncomponent = \"x.wasm\"\n");
    assert_ne!(lead(&more).pin(), lead(&all).pin(), "members are those of then");
}

/// The closure of `lead` in [`RICH`].
const GOLDEN: [&str; 37] = [
    r#"{"agent":"lead","#,
    r#""allow":["controller: spawn","http: GET,POST https://api.example.com:443/v1/**","#,
    r#""model: fast","prompts: brief","workspace-read: docs/**"],"#,
    r#""ask":{"rules":["tag: danger","tool: mail/send"],"timeout_ms":7200000},"#,
    r#""budget":{"cost_microusd":1250000,"reserve":{"cost_microusd":50000,"tokens":100,"#,
    r#""turns":1},"tokens":1300,"turns":12,"wall_ms":1800000},"#,
    r#""callees":{"writer":{"description":"Writes."}},"#,
    r#""component":"blake3:8c584e2f417be1549c00c7da3fe98816d5b191b2a6ab2393133aae9b02ad45cc","#,
    r#""conversation":"session","#,
    r#""deny":["http: https://api.example.com/v1/admin","workspace-read: docs/private/**"],"#,
    r#""durable":false,"#,
    r#""engine":{"component":"blake3:362479ddb8467066f8e3df5b8101868db1174638a4fe19781a671bc8adda620b","#,
    r#""lists":{"allow":["files/*"],"allow_tags":["disk"],"block":["mail/send"],"#,
    r#""block_tags":["danger","slow"],"hints":false},"timeout_ms":2000},"#,
    r#""functions":["files/*","mail/send"],"#,
    r#""limits":{"call_ms":9000,"events":600,"grace_ms":1000,"host_call_bytes":4194304,"#,
    r#""host_calls":500,"journal_bytes":5242880,"log_bytes":3145728,"memory_bytes":16777216,"#,
    r#""new_files":70,"result_bytes":2097152,"step_ms":60000,"table_elements":400,"#,
    r#""tool_calls":11,"tool_failures":3,"turn_calls":7,"write_bytes":6291456},"#,
    r#""members":["reader","writer"],"#,
    r#""model":"fast","#,
    r#""on_missing_fields":"finalize","#,
    r#""prompts":{"brief":{"overrides":[{"labels":{"kind":"x","tier":"gold"},"template":"Gold: {{ q }}"},"#,
    r#"{"labels":{},"session":"s1","template":"s1.md"}],"template":"Short: {{ q }}"}},"#,
    r#""retry":{"attempts":2,"pause_ms":3000,"skips":4,"then":"skip"},"#,
    r#""stated_limits":{"call_ms":9000,"events":600,"grace_ms":1000,"host_call_bytes":4194304,"#,
    r#""host_calls":500,"journal_bytes":5242880,"log_bytes":3145728,"memory_bytes":16777216,"#,
    r#""new_files":70,"result_bytes":2097152,"step_ms":60000,"table_elements":400,"#,
    r#""tool_calls":11,"tool_failures":3,"turn_calls":7,"write_bytes":6291456},"#,
    r#""timeouts_ms":{"files/*":5000,"files/read":2000},"#,
    r#""tools":{"files":{"component":"blake3:da55740158dd0e132db4f22ab349edad27abf08b8f546913ac9191810cfa4894","#,
    r#""interrupted":"ask","stated_limits":{"call_ms":30000,"memory_bytes":33554432},"#,
    r#""tags":["disk","slow"]},"mail":{"component":"blake3:6ba3918179bae0569a959abd01d0a1cbbbf20e4c90b7d2adc13cb498f7f79388","#,
    r#""interrupted":"fail","stated_limits":{}}},"#,
    r#""v":1,"#,
    r#""workspace":{"bytes":1073741824,"files":1000,"folder":"/conf/work/team","#,
    r#""reserve_bytes":1048576}}"#,
];

#[test]
fn the_text_of_a_closure_is_fixed_byte_for_byte() {
    let closure = lead(RICH);
    assert_eq!(closure.text(), GOLDEN.concat());
    assert_eq!(
        closure.pin(),
        "blake3:adad8751b9f0e075a68bc41ac8a8aaf23f4aca64e8544e05326eff2d9fb1bfcd"
    );
    let read: serde_json::Value = serde_json::from_str(closure.text()).expect("it is JSON");
    assert_eq!(read["v"], 1);
}

#[test]
fn a_file_of_which_nothing_is_known_is_named() {
    let policy = policy(RICH);
    let lead = &policy.agents["lead"];
    let files = ["lead.wasm", "files.wasm", "mail.wasm", "engine.wasm"];
    let files = files.map(|file| Path::new("/conf").join(file));
    assert_eq!(policy.files_of(lead), files);
    for file in &files {
        let missing = policy.closure(lead, &|path| digest(path).filter(|_| path != *file));
        assert_eq!(missing, Err(MissingDigest { path: file.clone() }));
    }
    let known = |path: &Path| digest(path).filter(|_| files.iter().any(|file| file == path));
    policy.closure(lead, &known).expect("no other is asked for");
    let unread = Policy::parse(RICH, Path::new("/conf/taskrun.toml")).expect("it is valid");
    let missing =
        unread.closure(&unread.agents["lead"], &digest).expect_err("a prompt is not read");
    assert_eq!(missing.to_string(), "it is not known what is in /conf/prompts/s1.md");
    unread.closure(&unread.agents["writer"], &digest).expect("it has no prompts");
}

#[test]
fn rules_by_themselves_are_told_apart_without_any_file() {
    let digest_of = |text: &str| {
        let policy = Policy::parse(text, Path::new("/conf/taskrun.toml")).expect("it is valid");
        AgentRules::of(&policy.agents["a"]).digest()
    };
    let agent = |rules: &str| format!("[agent.a]\ncomponent = \"a.wasm\"\nallow = [{rules}]\n");
    let both = "\"workspace-read: a/**\", \"workspace-write: a/**\"";
    let turned = "\"workspace-write: a/**\", \"workspace-read: a/**\"";
    let own = digest_of(&agent(both));
    assert_eq!(own, digest_of(&format!("\n# A comment.\n{}", agent(turned))));
    for other in ["\"workspace-read: a/**\"", "\"workspace-read: a/**\", \"workspace-write: b/**\""]
    {
        assert_ne!(own, digest_of(&agent(other)), "{other}");
    }
    let folder = format!("{}workspace = \"x\"\n", agent(both));
    assert_ne!(own, digest_of(&folder));
}

#[test]
fn a_component_of_several_parts_is_named_once() {
    let text = RICH.replace("\"mail.wasm\"", "\"lead.wasm\"").replace("engine.wasm", "files.wasm");
    let policy = policy(&text);
    let files = ["/conf/lead.wasm", "/conf/files.wasm"].map(Path::new);
    assert_eq!(policy.files_of(&policy.agents["lead"]), files);
}

#[cfg(unix)]
#[test]
fn folders_that_are_no_text_are_told_apart() {
    use std::os::unix::ffi::OsStrExt;
    let pin = |folder: &[u8]| {
        let path = Path::new(std::ffi::OsStr::from_bytes(folder)).join("taskrun.toml");
        let policy = Policy::parse(&with_agent(""), &path).expect("it is valid");
        closure_of(&policy, "a").pin()
    };
    let folders: [&[u8]; 4] = [b"/\xff", b"/\xfe", "/\u{fffd}".as_bytes(), b"/ff"];
    let pins: std::collections::BTreeSet<String> = folders.map(pin).into();
    assert_eq!(pins.len(), folders.len());
}
