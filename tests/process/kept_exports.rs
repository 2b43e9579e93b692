//! Runs in files that earlier versions of the program wrote: each later one executes them again.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::project::Project;
use crate::replay::EmptyMachine;

/// A folder for each form of exports.
const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../runtime/tests/exports");

/// The run of the example `autonomous`: two rounds of two steps each.
const KEEPER: &str = "1/keeper.taskrun";

fn kept(name: &str) -> PathBuf {
    Path::new(KEPT).join(name)
}

/// The file with another word of the same length in what a model answered, as if the model had said
/// that: the list of parts has the digest of the changed journal.
fn changed(file: &Path, answer: &str, by: &str) -> Vec<u8> {
    assert_eq!(answer.len(), by.len());
    let mut all = zstd::decode_all(fs::File::open(file).expect("it is there")).expect("an export");
    let place = |all: &[u8], text: &str| {
        let text = text.as_bytes();
        all.windows(text.len()).position(|at| at == text).unwrap_or_else(|| panic!("{text:?}"))
    };
    let list = place(&all, "{\"taskrun_export\"");
    let list = serde_json::Deserializer::from_slice(&all[list..]).into_iter::<Value>().next();
    let list = list.expect("a list").expect("JSON");
    let journal = &list["parts"][0];
    assert_eq!(journal["name"], "journal.ndjson");
    let bytes = usize::try_from(journal["bytes"].as_u64().expect("a number")).expect("a size");
    let begin = place(&all, "{\"seq\":1,");
    let part = begin..begin + bytes;
    let recorded = format!("{{\"model\":{{\"parts\":[[{{\"text\":\"{answer}\"");
    let answered = place(&all[part.clone()], &recorded) + begin;
    let text = answered + place(&all[answered..], answer);
    all[text..text + by.len()].copy_from_slice(by.as_bytes());
    let before = place(&all, journal["blake3"].as_str().expect("a digest"));
    let digest = blake3::hash(&all[part]).to_hex();
    all[before..before + digest.len()].copy_from_slice(digest.as_bytes());
    zstd::encode_all(&all[..], 1).expect("packed")
}

#[test]
fn c_078_what_an_earlier_version_exported_does_the_same_on_an_empty_machine() {
    let (project, machine) = (Project::new(), EmptyMachine::new());
    let mut steps = Vec::new();
    for form in fs::read_dir(KEPT).expect("there are some") {
        for file in fs::read_dir(form.expect("read").path()).expect("a folder") {
            let file = file.expect("read").path();
            let (code, report) = machine.report(&project, &file, &[]);
            let found = (code, &report["differences"], &report["skipped"], &report["same"]);
            assert_eq!(found, (0, &json!([]), &json!([]), &report["steps"]), "{file:?}: {report}");
            steps.push((file, report["steps"].clone()));
        }
    }
    assert!(steps.contains(&(kept(KEEPER), json!(4))), "{steps:?}");
}

#[test]
fn c_078_another_byte_in_an_answer_of_a_kept_export_is_found_in_its_step() {
    let (project, machine) = (Project::new(), EmptyMachine::new());
    let said = "The apples are in the cellar.";
    let other = changed(&kept(KEEPER), said, "The apples are in the collar.");
    project.write("changed.taskrun", &other);
    let file = project.path().join("changed.taskrun");
    let (code, report) = machine.report(&project, &file, &[]);
    let differences = report["differences"].as_array().expect("a list");
    assert_eq!((code, differences.len(), &report["same"]), (11, 1, &json!(3)), "{report}");
    assert_eq!((&differences[0]["turn"], &report["steps"]), (&json!(2), &json!(4)), "{report}");
    let words = |side: &str| differences[0][side].as_str().unwrap_or_default().to_owned();
    assert!(words("recorded").contains("in the cellar"), "{report}");
    assert!(words("found").contains("in the collar"), "{report}");
}
