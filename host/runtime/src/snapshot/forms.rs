//! Kept policies in each form that they ever had: a folder of `tests/kept` for each, by its number,
//! with a file for each snapshot, by the agent and the digest of its pin. Programs read all of them,
//! and write the last form.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::*;

/// The agents leave out each setting that has a default.
const LEFT_OUT: &str = r#"
[tool.notes]
component = "notes.wasm"
[agent.bare]
component = "agent.wasm"
[agent.lead]
component = "agent.wasm"
members = ["bare"]
allow = ["controller: *"]
[agent.names]
component = "agent.wasm"
tools = ["notes/*", "host/task_runs", "host/delegation", "host/subagents", "host/autonomy"]
members = ["bare"]
allow = ["controller: *"]
ask = ["tool: notes/*"]
policy = { component = "engine.wasm" }
retry = { then = "skip" }
"#;

/// A snapshot in a folder of a form.
struct Kept {
    file: PathBuf,
    pin: String,
    text: String,
}

fn folder(form: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kept").join(form.to_string())
}

/// The file of the `nth` text that programs of this form kept under a pin: a default that the agent
/// does not use may have changed meanwhile.
fn file_of(pin: &str, nth: usize) -> PathBuf {
    folder(FORM).join(format!("{}.{nth}.json", pin.replace("blake3:", "")))
}

fn all_kept(form: u32) -> Vec<Kept> {
    let entries = std::fs::read_dir(folder(form)).expect("a folder of the form");
    let kept = entries.map(|entry| {
        let file = entry.expect("it is read").path();
        let name = file.file_stem().and_then(|name| name.to_str()).expect("a name");
        let pin = name.split('.').next().expect("a part").replace('@', "@blake3:");
        let text = std::fs::read_to_string(&file).expect("it is read");
        Kept { file, pin, text }
    });
    let all: Vec<Kept> = kept.collect();
    assert_ne!(all.len(), 0);
    all
}

/// A data directory in which nothing is kept.
fn no_blobs() -> (tempfile::TempDir, Blobs) {
    let dir = tempfile::tempdir().expect("a folder");
    let blobs = Blobs::open(dir.path()).expect("opens");
    (dir, blobs)
}

fn with(defaults: &Defaults, text: &str) -> Policy {
    let path = Path::new("/project/taskrun.toml");
    Policy::parse_with(text, path, &Arc::new(defaults.clone())).expect("a policy")
}

fn digests_of(policy: &Policy) -> Digests {
    let paths = policy.agents.values().flat_map(|agent| policy.files_of(agent));
    paths.map(|path| (path.to_owned(), blake3::hash(path.as_os_str().as_encoded_bytes()))).collect()
}

fn pins(policy: &Policy, digests: &Digests) -> Vec<String> {
    let pin = |agent| pin_of(policy, agent, digests).expect("a pin");
    policy.agents.values().map(pin).collect()
}

#[test]
fn every_form_has_a_folder_and_what_was_kept_in_it_opens_to_its_pin_for_ever() {
    for form in 1..=FORM {
        for Kept { file, pin, text } in all_kept(form) {
            let (_dir, blobs) = no_blobs();
            blobs.put_snapshot(digest_of(&pin), &text).expect("kept");
            let opened = open(&blobs, &pin);
            assert!(opened.is_ok(), "{}: {:?}", file.display(), opened.err());
            assert!(components(&blobs, &pin).is_ok(), "{}", file.display());
        }
    }
    assert!(!folder(FORM + 1).exists());
}

#[test]
fn this_program_keeps_what_stands_in_the_folder_of_its_form() {
    for Kept { file, pin, text } in all_kept(1) {
        let Snapshot { text, components, .. } = Snapshot::read(&text).expect("it is read");
        let policy = with(&Defaults::default(), &text);
        let agent = &policy.agents[agent_of(&pin)];
        let digest = |hex| blake3::Hash::from_hex(hex).expect("a digest");
        let digests: Digests =
            components.into_iter().map(|(path, hex)| (path, digest(hex))).collect();
        let own = pin_of(&policy, agent, &digests).expect("a pin");
        let written = Snapshot::of(&policy, agent, &digests).text();
        let known: Vec<_> = all_kept(FORM)
            .into_iter()
            .filter(|kept| kept.pin == own)
            .map(|kept| kept.text)
            .collect();
        assert!(
            known.contains(&written),
            "{}: the form or a default has changed. Runs that wait are pinned to what was kept \
             before: leave the files that are there, and add this text as {}. A field that was not \
             there before wants a value for those who did not have it.\n{written}",
            file.display(),
            file_of(&own, known.len()).display()
        );
    }
}

#[test]
fn a_pin_depends_on_each_default_and_opens_under_the_defaults_of_any_other_program() {
    let own = with(&Defaults::default(), LEFT_OUT);
    let digests = digests_of(&own);
    let own_pins = pins(&own, &digests);
    let Value::Object(all) = json!(Defaults::default()) else { panic!("an object") };
    for name in all.keys() {
        for other in others(&all[name]) {
            let mut changed = all.clone();
            changed.insert(name.clone(), other);
            let later: Defaults =
                serde_json::from_value(Value::Object(changed)).expect("it is read");
            let policy = with(&later, LEFT_OUT);
            let pins = pins(&policy, &digests);
            assert_ne!(pins, own_pins, "{name} is in no closure");
            for (pin, agent) in pins.iter().zip(policy.agents.values()) {
                let (_dir, blobs) = no_blobs();
                let text = Snapshot::of(&policy, agent, &digests).text();
                blobs.put_snapshot(digest_of(pin), &text).expect("kept");
                let (then, _) = open(&blobs, pin).unwrap_or_else(|why| panic!("{name}: {why}"));
                assert_eq!(then.agents[&agent.name], *agent, "{name}");
            }
        }
    }
}

/// Other values of a default.
fn others(value: &Value) -> Vec<Value> {
    let word = |word: &str| match word {
        "agent" => "session",
        "resume" => "finalize",
        "fail" => "ask",
        word => panic!("another word than {word}"),
    };
    match value {
        Value::Bool(flag) => vec![json!(!flag)],
        Value::Number(number) => vec![json!(number.as_u64().expect("a count") - 1)],
        Value::String(text) => vec![json!(word(text))],
        Value::Array(words) => vec![json!(words[1..])],
        Value::Object(sets) => {
            let without_one = |(set, functions): (&String, &Value)| {
                let mut other = sets.clone();
                other.insert(set.clone(), others(functions).remove(0));
                Value::Object(other)
            };
            sets.iter().map(without_one).collect()
        }
        Value::Null => panic!("a default of nothing"),
    }
}

#[test]
fn what_is_of_no_form_is_not_taken_for_a_policy() {
    let Kept { pin, text, .. } = all_kept(FORM).remove(0);
    let form = format!("\"form\":{FORM}");
    let without = |text: &str| {
        let mut value: Value = serde_json::from_str(text).expect("JSON");
        value.as_object_mut().expect("an object").remove("defaults");
        value.to_string()
    };
    let later = FORM + 1;
    let of_later = format!("kept in form {later}, of another program");
    for (other, why) in [
        (text.replace(&form, "\"form\":1"), "damaged"),
        (without(&text), "damaged"),
        (text.replace(&form, &format!("\"form\":{later}")), &of_later),
        (text.replace("\"memory_bytes\"", "\"memory_octets\""), "damaged"),
    ] {
        assert_ne!(other, text);
        let (_dir, blobs) = no_blobs();
        blobs.put_snapshot(digest_of(&pin), &other).expect("kept");
        let refused = open(&blobs, &pin).expect_err("it is refused");
        assert_eq!(matches!(refused, PinError::Unusable(_)), why == of_later, "{refused}");
        assert!(refused.to_string().contains(why), "{refused}");
        assert!(matches!(components(&blobs, &pin), Err(ComponentsError::Unreadable)));
    }
}
