//! A store whose file was damaged at rest.

use std::path::{Path, PathBuf};
use std::process::Command;

use taskrun_tests::foreign::{Foreign, Maker};

use crate::project::{Project, deadline};

const WHOLE: &str = "every page, run and index is as it was written";

fn store(project: &Project) -> PathBuf {
    project.path().join(".taskrun/taskrun.db")
}

fn log(project: &Project) -> PathBuf {
    project.path().join(".taskrun/taskrun.db-wal")
}

fn completes(project: &Project, task: &str) {
    let ran = project.run(&["run", "worker", task, "--wait"]);
    assert_eq!(ran.code, 0, "{ran:?}");
}

fn is_whole(project: &Project, runs: usize) {
    let checked = project.run(&["doctor", "--check"]);
    assert!(checked.code == 0 && checked.stdout.contains(WHOLE), "{checked:?}");
    let listed = project.run(&["ps", "-a", "-o", "name"]);
    assert_eq!((listed.code, listed.stdout.lines().count()), (0, runs), "{listed:?}");
}

/// A host dies, and a program of another maker copies its log into the file, so that pages there have
/// no checksum.
fn dies_and_is_closed(project: &Project, maker: Maker) {
    project.kill_hosts();
    assert!(log(project).exists(), "the host had no time to copy it");
    let reads = Foreign::reads(maker, &store(project));
    let deadline = deadline();
    while log(project).exists() {
        assert!(!deadline.is_over(), "{maker:?} closes it");
        std::thread::yield_now();
    }
    reads.end();
}

#[test]
fn a_store_that_programs_of_other_makers_read_copied_and_closed_is_whole() {
    for maker in Maker::all() {
        let project = Project::new();
        completes(&project, "one");
        dies_and_is_closed(&project, maker);
        is_whole(&project, 1);
        completes(&project, "two");
        let reads = Foreign::reads(maker, &store(&project));
        completes(&project, "three");
        project.end_hosts();
        reads.end();
        is_whole(&project, 3);
        if maker == Maker::Shell {
            for copies in [".backup", "VACUUM INTO"] {
                is_a_store(&project, copies);
            }
        }
    }
}

/// A copy by the shell is a store with the same runs.
fn is_a_store(project: &Project, copies: &str) {
    let dir = project.path().join(copies.trim_start_matches('.'));
    std::fs::create_dir(&dir).expect("made");
    let copy = dir.join("taskrun.db");
    let said = format!("{copies} '{}'", copy.display());
    let copied = Command::new("sqlite3").arg(store(project)).arg(said).status();
    assert!(copied.expect("starts").success(), "{copies}");
    let text = |path: &Path| path.to_str().expect("a text").to_owned();
    let checked = project.run(&["doctor", "--check", "--data-dir", &text(&dir)]);
    assert!(checked.code == 0 && checked.stdout.contains(WHOLE), "{copies}: {checked:?}");
    let listed = project.run(&["ps", "-a", "-o", "name", "--data-dir", &text(&dir)]);
    assert_eq!(listed.stdout.lines().count(), 3, "{copies}: {listed:?}");
}

#[test]
fn what_is_damaged_without_a_checksum_is_found_by_the_check_and_told_from_then_on() {
    let project = Project::new();
    completes(&project, "one");
    completes(&project, "two");
    dies_and_is_closed(&project, Maker::Ourselves);
    let bytes = std::fs::read(store(&project)).expect("reads");
    let place = bytes.windows(12).position(|text| text == b"defaultlocal").expect("a run") + 1;
    let mut flipped = bytes.clone();
    flipped[place] ^= 0x01;
    std::fs::write(store(&project), flipped).expect("writes");
    let checked = project.run(&["doctor", "--check"]);
    assert_ne!(checked.code, 0, "{checked:?}");
    assert!(checked.stdout.contains("its columns say something else"), "{checked:?}");
    for command in [&["ps", "-a"][..], &["inbox"]] {
        let ran = project.run(command);
        assert!(ran.code != 0 || ran.stderr.contains("the store is damaged"), "{ran:?}");
    }
    std::fs::write(store(&project), bytes).expect("writes");
    is_whole(&project, 2);
    let listed = project.run(&["ps", "-a"]);
    assert!(!listed.stderr.contains("damaged"), "{listed:?}");
}

#[test]
fn doctor_finds_a_flipped_bit_at_once_and_nothing_is_listed_as_if_it_were_whole() {
    let project = Project::new();
    for task in ["one", "two", "three"] {
        completes(&project, task);
    }
    project.close_store();
    is_whole(&project, 3);
    let file = store(&project);
    let logged = std::fs::metadata(log(&project)).map_or(0, |log| log.len());
    assert_eq!(logged, 0, "all is in the file");
    let bytes = std::fs::read(&file).expect("reads");
    // The tenant and the owner of a run.
    let place = bytes.windows(12).position(|text| text == b"defaultlocal").expect("a run") + 1;
    let page = place / 4096 + 1;
    let mut flipped = bytes.clone();
    flipped[place] ^= 0x01;
    std::fs::write(&file, flipped).expect("writes");
    let listed = project.run(&["ps", "-a"]);
    assert_eq!(listed.code, 10, "{listed:?}");
    let checked = project.run(&["doctor", "--check"]);
    assert_ne!(checked.code, 0, "{checked:?}");
    assert!(checked.stdout.contains(&format!("page {page}: the checksum")), "{checked:?}");
    std::fs::write(&file, bytes).expect("writes");
    assert_eq!(project.run(&["ps", "-a"]).code, 0, "it is whole again");
}

#[test]
fn doctor_makes_a_damaged_store_anew_and_says_what_it_kept() {
    let project = Project::new();
    for task in ["one", "two", "three"] {
        completes(&project, task);
    }
    let used = project.run(&["doctor", "--repair"]);
    assert!(used.code == 0 && used.stdout.contains("nothing is damaged"), "{used:?}");
    project.close_store();
    let bytes = std::fs::read(store(&project)).expect("reads");
    // The tenant of a run in its row, which its journal tells as well.
    let place = bytes.windows(12).position(|text| text == b"defaultlocal").expect("a run") + 1;
    let mut flipped = bytes;
    flipped[place] ^= 0x01;
    std::fs::write(store(&project), &flipped).expect("writes");
    let refused = project.run(&["ps", "-a"]);
    assert_eq!(refused.code, 10);
    let hint = refused.error()["hint"].to_string();
    assert!(hint.contains("`taskrun doctor --repair` makes a damaged one anew"), "{refused:?}");
    let repaired = project.run(&["doctor", "--repair", "-o", "json"]);
    assert_ne!(repaired.code, 0, "the keys of tasks on its page are lost: {repaired:?}");
    let report = repaired.json();
    let checks = report["checks"].as_array().expect("checks");
    let repair = checks.iter().find(|check| check["name"] == "repair").expect("a repair");
    for said in ["made anew with 3 runs", "keys by which answers are used again are left out"] {
        assert!(repair["detail"].to_string().contains(said), "{said}: {repaired:?}");
    }
    assert!(!repair["detail"].to_string().contains("left out: run"), "{repaired:?}");
    is_whole(&project, 3);
    let kept = store(&project).with_file_name("taskrun.db.damaged-1");
    assert_eq!(std::fs::read(kept).expect("it is kept")[place], flipped[place]);
    completes(&project, "four");

    // In the text of an event, and in what is left of it in free space.
    project.close_store();
    let mut bytes = std::fs::read(store(&project)).expect("reads");
    let text = b"\"task\":\"two\"";
    let places = (0..bytes.len() - text.len()).filter(|place| bytes[*place..].starts_with(text));
    let places: Vec<usize> = places.collect();
    assert!(!places.is_empty(), "no event has the task");
    places.into_iter().for_each(|place| bytes[place + text.len() - 2] ^= 0x01);
    std::fs::write(store(&project), bytes).expect("writes");
    let repaired = project.run(&["doctor", "--repair"]);
    assert_ne!(repaired.code, 0, "{repaired:?}");
    assert!(repaired.stdout.contains("left out: run "), "{repaired:?}");
    is_whole(&project, 3);
}

#[test]
fn runs_are_accepted_again_after_the_text_of_their_policy_was_damaged() {
    let project = Project::new();
    completes(&project, "one");
    project.close_store();
    let mut bytes = std::fs::read(store(&project)).expect("reads");
    let text = b"[agent.worker]";
    let places = (0..bytes.len() - text.len()).filter(|place| bytes[*place..].starts_with(text));
    let places: Vec<usize> = places.collect();
    assert!(!places.is_empty(), "no policy has it");
    places.into_iter().for_each(|place| bytes[place + 1] ^= 0x01);
    std::fs::write(store(&project), bytes).expect("writes");
    let repaired = project.run(&["doctor", "--repair"]);
    assert_ne!(repaired.code, 0, "{repaired:?}");
    for said in ["made anew with 1 run", "1 policies cannot be read"] {
        assert!(repaired.stdout.contains(said), "{said}: {repaired:?}");
    }
    is_whole(&project, 1);
    let shown = project.run(&["policy", "show"]);
    let is_said = shown.stderr.contains("its text was lost; apply it again");
    assert!(shown.code == 0 && is_said, "{shown:?}");
    completes(&project, "two");
    is_whole(&project, 2);
    let shown = project.run(&["policy", "show"]);
    assert!(shown.code == 0 && !shown.stderr.contains("was lost"), "{shown:?}");
}

#[test]
fn doctor_makes_a_store_anew_that_was_cut_off() {
    let project = Project::new();
    // Long ones, so that the last pages are of these and not of what says where tables are.
    for n in 0..6 {
        completes(&project, &format!("{n} {}", "long ".repeat(6_000)));
    }
    project.close_store();
    let bytes = std::fs::read(store(&project)).expect("reads");
    std::fs::write(store(&project), &bytes[..bytes.len() - 8_192]).expect("writes");
    let refused = project.run(&["ps", "-a"]);
    assert_eq!(refused.code, 10, "{refused:?}");
    let hint = refused.error()["hint"].to_string();
    assert!(hint.contains("`taskrun doctor --repair` makes a damaged one anew"), "{refused:?}");
    let repaired = project.run(&["doctor", "--repair"]);
    assert!(repaired.stdout.contains("the store was made anew with"), "{repaired:?}");
    let checked = project.run(&["doctor", "--check"]);
    assert!(checked.code == 0 && checked.stdout.contains(WHOLE), "{checked:?}");
    let kept = store(&project).with_file_name("taskrun.db.damaged-1");
    let kept = std::fs::metadata(kept).expect("it is kept").len();
    assert_eq!(kept, bytes.len() as u64 - 8_192, "it is as long as it was");
    completes(&project, "another");
}

#[test]
fn a_repair_that_is_refused_does_not_send_to_the_repair() {
    let project = Project::new();
    completes(&project, "one");
    project.close_store();
    std::fs::write(store(&project), [7; 8_192]).expect("writes");
    let refused = project.run(&["doctor", "--repair"]);
    assert_ne!(refused.code, 0, "{refused:?}");
    assert!(refused.stdout.contains("it was not changed: move it away"), "{refused:?}");
    assert!(!refused.stdout.contains("doctor --repair"), "{refused:?}");
}
