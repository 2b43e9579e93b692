use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::format::JournalFormat;
use taskrun_journal::message::Usage;
use taskrun_journal::reply::Reply;
use taskrun_journal::spec::{Continuation, RunSpec};
use taskrun_journal::time::Timestamp;

use super::*;

/// A file that is put together part by part, as somebody may who means harm.
struct Forged {
    folder: tempfile::TempDir,
    list: serde_json::Value,
    entries: Vec<(String, Vec<u8>)>,
}

impl Forged {
    /// A whole export of a run of one event.
    fn whole() -> Self {
        Self::continuing(None)
    }

    fn continuing(continues: Option<&str>) -> Self {
        let mut spec = taskrun_fixtures::spec("0197a0000000000000000000000000aa");
        spec.continues = continues.map(continuation);
        let (run, agent) = (spec.id.to_string(), spec.agent_name.clone());
        let journal = line(1, spec);
        let list = serde_json::json!({
            "taskrun_export": EXPORT_FORM, "program": "0", "journal_format": 1, "run": run,
            "agent": agent, "events": 1, "parts": [],
        });
        let mut forged =
            Self { folder: tempfile::tempdir().expect("a folder"), list, entries: Vec::new() };
        forged.add(JOURNAL, journal.as_bytes());
        forged
    }

    /// An export of which the journal is this text, and has so many events by the list.
    fn of_journal(journal: &str, events: u64) -> Self {
        let mut forged = Self::whole();
        forged.entries.clear();
        forged.list["parts"] = serde_json::json!([]);
        forged.list["events"] = events.into();
        forged.add(JOURNAL, journal.as_bytes());
        forged
    }

    fn add(&mut self, name: &str, bytes: &[u8]) {
        let part = serde_json::json!({
            "name": name, "bytes": bytes.len(), "blake3": blake3::hash(bytes).to_hex().as_str(),
        });
        self.list["parts"].as_array_mut().expect("a list").push(part);
        self.entries.push((name.to_owned(), bytes.to_vec()));
    }

    /// Adds the journal of a run that the run continues, or the one before it.
    fn add_before(&mut self, number: usize, id: &str, continues: Option<&str>) {
        let mut spec = taskrun_fixtures::spec(id);
        spec.continues = continues.map(continuation);
        self.add(&before(number), line(1, spec).as_bytes());
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("export")
    }

    fn write(&self) -> PathBuf {
        let file = std::fs::File::create(self.file()).expect("a file");
        let mut tar = tar::Builder::new(zstd::Encoder::new(file, 1).expect("an encoder"));
        let list = (LIST.to_owned(), serde_json::to_vec(&self.list).expect("JSON"));
        for (name, bytes) in std::iter::once(&list).chain(&self.entries) {
            let mut header = tar::Header::new_gnu();
            // Names that the writer would refuse.
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_size(bytes.len() as u64);
            header.set_cksum();
            tar.append(&header, &bytes[..]).expect("written");
        }
        tar.into_inner().and_then(zstd::Encoder::finish).expect("written").flush().expect("so");
        self.file()
    }

    fn refusal(&self) -> String {
        Export::open(&self.write()).expect_err("it is refused").to_string()
    }
}

/// The line of an event in a journal: the request of a run, at whatever place.
fn line(seq: u64, spec: RunSpec) -> String {
    let event = Event::Queued { spec: Arc::new(spec) };
    let record = EventRecord { seq, id: 7, at: Timestamp(1), event };
    format!("{}\n", serde_json::to_string(&record).expect("plain data"))
}

#[test]
fn a_whole_export_is_read() {
    let mut forged = Forged::whole();
    forged.add(&format!("{ARTIFACTS}{}", blake3::hash(b"image").to_hex()), b"image");
    let export = Export::open(&forged.write()).expect("it is whole");
    assert_eq!(export.records().len(), 1);
    assert_eq!(export.images().len(), 1);
}

#[test]
fn an_export_of_each_form_up_to_the_current_one_is_read() {
    for form in 1..=EXPORT_FORM {
        let mut forged = Forged::whole();
        forged.list["taskrun_export"] = form.into();
        let export = Export::open(&forged.write()).expect("it is whole");
        assert_eq!((export.records().len(), export.list().taskrun_export), (1, form));
    }
}

#[test]
fn an_export_of_each_format_up_to_the_current_one_is_read() {
    for format in JournalFormat::FIRST.0..=JournalFormat::CURRENT.0 {
        let mut forged = Forged::whole();
        forged.list["journal_format"] = format.into();
        let export = Export::open(&forged.write()).expect("it is whole");
        assert_eq!(export.records().len(), 1, "format {format}");
    }
}

#[test]
fn an_event_that_would_take_many_times_its_length_is_not_read() {
    let numbers = "1,".repeat(1_100_000);
    let journal = format!(r#"{{"seq":1,"event":{{"kind":"queued","more":[{numbers}1]}}}}"#);
    let refused = Forged::of_journal(&journal, 1).refusal();
    assert!(refused.contains("values in an event"), "{refused}");
    // A text may be as long.
    let mut spec = taskrun_fixtures::spec("0197a0000000000000000000000000aa");
    spec.task = numbers;
    let forged = Forged::of_journal(&line(1, spec), 1);
    assert_eq!(Export::open(&forged.write()).expect("it is whole").records().len(), 1);
}

#[test]
fn a_reading_that_is_given_up_ends_before_the_export_does() {
    let whole = Forged::whole();
    let opened = Export::open_unless(&whole.write(), &AtomicBool::new(true));
    let given_up = opened.expect_err("it ends");
    assert!(given_up.to_string().contains("given up"), "{given_up}");
}

#[test]
fn a_pipe_is_refused_and_no_writer_is_waited_for() {
    use rustix::fs::{CWD, Mode, mkfifoat};
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("run.taskrun");
    mkfifoat(CWD, &pipe, Mode::from_raw_mode(0o600)).expect("a pipe");
    // Should it wait, the test does not wait with it.
    let (refused, opened) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        refused.send(Export::open(&pipe).expect_err("it is no file").to_string()).ok();
    });
    let refused = opened.recv_timeout(Duration::from_secs(60)).expect("it ends");
    assert!(refused.contains("it is no file"), "{refused}");
}

fn continuation(id: &str) -> Box<Continuation> {
    Box::new(Continuation {
        due: None,
        run: taskrun_fixtures::run_id(id),
        turns: 0,
        rounds: 0,
        tool_calls: 0,
        ran_ms: 0,
        usage: Usage::default(),
        is_final: false,
        reply: Reply::default(),
    })
}

#[test]
fn the_runs_that_it_continues_are_read_and_no_others() {
    let (older, oldest) = ("0197a0000000000000000000000000bb", "0197a0000000000000000000000000cc");
    let mut forged = Forged::continuing(Some(older));
    forged.add_before(1, older, Some(oldest));
    forged.add_before(2, oldest, None);
    let export = Export::open(&forged.write()).expect("it is whole");
    assert_eq!(export.before().iter().map(Vec::len).sum::<usize>(), 2);

    let mut other = Forged::continuing(Some(older));
    other.add_before(1, oldest, None);
    assert!(other.refusal().contains("is not continued"));
    let mut none = Forged::whole();
    none.add_before(1, older, None);
    assert!(none.refusal().contains("is not continued"));
    let mut second = Forged::continuing(Some(older));
    second.add_before(2, older, None);
    assert!(second.refusal().contains("is no part of an export"));
}

#[test]
fn what_is_later_than_this_program_is_refused_with_a_sentence() {
    let mut forged = Forged::whole();
    forged.list["taskrun_export"] = (EXPORT_FORM + 1).into();
    forged.list["parts"] = "something else".into();
    assert!(forged.refusal().contains("of form 3, and this program reads form 2 and earlier"));
    let mut forged = Forged::whole();
    forged.list["journal_format"] = 9_999.into();
    assert!(forged.refusal().contains("events of format 9999"));
}

#[test]
fn no_part_is_taken_that_is_not_what_its_name_and_the_list_say() {
    let hex = blake3::hash(b"another one").to_hex();
    for name in [
        "../../outside",
        "/etc/passwd",
        "components/../../outside",
        "policies/../x",
        &format!("{COMPONENTS}{hex}"),
        &format!("{ARTIFACTS}{hex}"),
    ] {
        let mut forged = Forged::whole();
        forged.add(name, b"bytes");
        forged.refusal();
        assert!(!Path::new("/tmp/outside").exists() && !Path::new("outside").exists());
    }
    type Change = fn(&mut Forged);
    let cases: [(Change, &str); 7] = [
        (|it| it.entries[0].0 = "journal".to_owned(), "is not where its list says"),
        (|it| it.entries[0].1.push(b'\n'), "another length"),
        (|it| it.entries[0].1[3] ^= 1, "cannot be read"),
        (|it| it.list["parts"][0]["blake3"] = "00".into(), "other bytes than its list says"),
        (|it| it.entries.push(("more".to_owned(), Vec::new())), "does not name"),
        (|it| drop(it.entries.pop()), "its end is missing"),
        (|it| it.list["events"] = 2.into(), "events are missing"),
    ];
    for (change, words) in cases {
        let mut forged = Forged::whole();
        change(&mut forged);
        let refusal = forged.refusal();
        assert!(refusal.contains(words), "{refusal}");
    }
}

#[test]
fn lengths_are_looked_at_before_anything_is_read() {
    let mut forged = Forged::whole();
    forged.list["parts"][0]["bytes"] = (EXPORT_BYTES_MAX + 1).into();
    assert!(forged.refusal().contains("has more than"));
    let mut forged = Forged::whole();
    let part = forged.list["parts"][0].clone();
    forged.list["parts"] = std::iter::repeat_n(part, PARTS_MAX + 1).collect();
    assert!(forged.refusal().contains("parts"));
}

#[test]
fn the_bytes_of_all_journals_are_bounded_together() {
    let older = "0197a0000000000000000000000000bb";
    let of_lengths = |own: u64, older_one: u64| {
        let mut forged = Forged::continuing(Some(older));
        forged.add_before(1, older, None);
        forged.list["parts"][0]["bytes"] = own.into();
        forged.list["parts"][1]["bytes"] = older_one.into();
        forged.refusal()
    };
    let half = EXPORT_JOURNAL_BYTES_MAX / 2;
    let refusal = of_lengths(half, half + 1);
    assert!(refusal.contains("bytes of events"), "{refusal}");
    // As many as the writer lets them have are not too many; these are just not there.
    let refusal = of_lengths(half, half);
    assert!(refusal.contains("another length"), "{refusal}");
}

#[test]
fn a_journal_is_not_read_beyond_its_first_wrong_line() {
    let run = "0197a0000000000000000000000000aa";
    let at = |seq| line(seq, taskrun_fixtures::spec(run));
    let unreadable = "what is never looked at\n";
    for (lines, events, words) in [
        ([at(2), unreadable.to_owned(), String::new()], 9, "does not begin with the request"),
        ([at(1), at(1), unreadable.to_owned()], 9, "events are missing"),
        ([at(1), at(3), unreadable.to_owned()], 9, "events are missing"),
        ([at(1), at(2), unreadable.to_owned()], 2, "more events than its list says"),
        ([at(1), at(2), unreadable.to_owned()], 9, "event 3 cannot be read"),
    ] {
        let refusal = Forged::of_journal(&lines.concat(), events).refusal();
        assert!(refusal.contains(words), "{refusal}");
    }
    let whole = Forged::of_journal(&[at(1), at(2), at(3)].concat(), 3);
    assert_eq!(Export::open(&whole.write()).expect("it is whole").records().len(), 3);

    // The list does not say how many events the run before has.
    let older = "0197a0000000000000000000000000bb";
    let of_older = |seq| line(seq, taskrun_fixtures::spec(older));
    let mut forged = Forged::continuing(Some(older));
    forged.add(&before(1), [of_older(1), of_older(2)].concat().as_bytes());
    let export = Export::open(&forged.write()).expect("it is whole");
    assert_eq!(export.before()[0].len(), 2);
    let mut forged = Forged::continuing(Some(older));
    let wrong = [of_older(1), of_older(1), unreadable.to_owned()].concat();
    forged.add(&before(1), wrong.as_bytes());
    let refusal = forged.refusal();
    assert!(refusal.contains("events are missing"), "{refusal}");
}

#[test]
fn a_file_that_is_cut_anywhere_or_is_none_is_refused() {
    let forged = Forged::whole();
    let whole = std::fs::read(forged.write()).expect("it is there");
    for cut in 0..whole.len() {
        std::fs::write(forged.file(), &whole[..cut]).expect("cut");
        Export::open(&forged.file()).expect_err("it is cut");
    }
    std::fs::write(forged.file(), "no export at all").expect("written");
    Export::open(&forged.file()).expect_err("it is none");
    Export::open(forged.folder.path()).expect_err("a folder is none");
}
