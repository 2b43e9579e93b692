//! The form of the folds that are kept, held to a file that has its number.

use std::path::Path;

use serde_json::Value;
use taskrun_journal::spec::RunSpec;

use super::*;
use crate::fixtures;

/// The parts that are empty between two rounds, whatever happened.
const EMPTY: [&str; 5] =
    ["conversation.open", "journal_bytes", "unfolded_bytes", "windows.counted", "windows.met"];

/// A run that is a call of another one and goes on by itself, after its first round.
fn full() -> Fold<Work> {
    let autonomy = r#"{"mode":"standing","continuation":"go on"}"#;
    let spec = RunSpec {
        autonomy: serde_json::from_str(autonomy).expect("JSON"),
        parent_tool_call_id: Some("c0".to_owned()),
        ..fixtures::spec()
    };
    let (mut work, mut seq) = (Work::new(&spec, &spec.pin), 0);
    for line in include_str!("journal.jsonl").lines() {
        seq += 1;
        let event = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        work.push_recorded(&EventRecord { seq, id: 0, at: Timestamp(0), event });
    }
    assert!(work.is_at_rest());
    work.unfolded_bytes = 0;
    Fold { form: FORM, program: "any".to_owned(), seq, work }
}

/// The names of the parts that nothing fills.
fn empty(value: &Value, name: &str) -> Vec<String> {
    let parts = |all: &serde_json::Map<String, Value>| {
        let of = |(key, value): (&String, &Value)| match name {
            "" => empty(value, key),
            _ => empty(value, &format!("{name}.{key}")),
        };
        all.iter().flat_map(of).collect()
    };
    let is_empty = match value {
        Value::Object(all) if !all.is_empty() => return parts(all),
        Value::Object(_) | Value::Null => true,
        Value::Array(all) => all.is_empty(),
        Value::Bool(is) => !is,
        Value::Number(number) => number.as_u64() == Some(0),
        Value::String(text) => text.is_empty(),
    };
    if is_empty { vec![name.to_owned()] } else { Vec::new() }
}

/// True if a file for a form that has none is to be written.
#[expect(clippy::disallowed_methods, reason = "the switch of this test")]
fn is_blessed() -> bool {
    std::env::var_os("TASKRUN_BLESS").is_some()
}

#[test]
fn a_fold_of_another_form_has_another_number() {
    let found = serde_json::to_string_pretty(&full()).expect("JSON") + "\n";
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/driver/work/fold");
    let file = folder.join(format!("form-{FORM}.json"));
    if is_blessed() && !file.exists() {
        std::fs::write(&file, &found).expect("it is written");
    }
    let known = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(
        found, known,
        "hosts that have such folds would take another journal's work for theirs: raise FORM, \
         and `TASKRUN_BLESS=1 cargo test -p taskrun --lib fold` writes the file of its form"
    );
}

#[test]
fn every_part_of_a_fold_is_in_that_file_and_read_from_it() {
    let full = full();
    let all = serde_json::to_value(&full.work).expect("JSON");
    let mut unfilled = empty(&all, "");
    unfilled.sort();
    assert_eq!(unfilled, EMPTY, "an event is to fill it");
    let seq = full.seq;
    let kept = serde_json::to_vec(&Fold { program: program(), ..full }).expect("JSON");
    let (work, seq) = of_bytes(&kept, seq).expect("of use");
    let read = Fold { form: FORM, program: program(), seq, work };
    assert_eq!(serde_json::to_vec(&read).expect("JSON"), kept);
}
