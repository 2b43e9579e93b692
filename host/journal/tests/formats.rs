//! Events as journals have them on disk, in each format that they ever had: a folder of `formats` for
//! each, by its number. Programs read all of them, and write the last.

mod variants;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use taskrun_journal::answers::Answers;
use taskrun_journal::autonomy::{AutonomyMode, Mark};
use taskrun_journal::channel::ChannelAccess;
use taskrun_journal::completion::{Chunk, ModelError};
use taskrun_journal::delivery::Strategy;
use taskrun_journal::dispatch::TaskEvent;
use taskrun_journal::ending::{EndStatus, EndedBy};
use taskrun_journal::event::{
    CallWait, DecisionKind, Event, HostAnswer, MemoryAnswer, ModelAnswer, OverrideReason, Refusal,
    Reply, RunsReport,
};
use taskrun_journal::fact::{MemoryError, MemoryScope};
use taskrun_journal::format::JournalFormat;
use taskrun_journal::history::History;
use taskrun_journal::hold::{Wait, WaitMode};
use taskrun_journal::message::{LogLevel, Part, RetryReason, Role};
use taskrun_journal::operation::Operation;
use taskrun_journal::outside::{FileFault, FileKind, HttpFault, KeptBytes, OutsideAnswer};
use taskrun_journal::pause::PauseEnd;
use taskrun_journal::plan::TerminationReason;
use taskrun_journal::question::{Answer, AnswerRefusal, AwaitItem};
use taskrun_journal::reminders::{Attachment, ReminderChange, Tier};
use taskrun_journal::ruling::Phase;
use taskrun_journal::runs::{RunsAnswer, RunsError};
use taskrun_journal::spec::RunClass;
use taskrun_journal::status::{BlockedOn, Status, StopReason};
use taskrun_journal::stop::{CallAbort, StopCause};
use taskrun_journal::tool::ToolOutcome;
use variants::{Enum, Variants};

/// The lines of each format, an event in each.
fn formats() -> BTreeMap<u16, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats");
    let entries = std::fs::read_dir(folder).expect("it is there");
    let format = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.expect("it is read").path();
        let number = path.file_name().and_then(|name| name.to_str()?.parse().ok());
        let lines = std::fs::read_to_string(path.join("events.jsonl")).expect("it has events");
        (number.expect("the folder of a format"), lines)
    };
    entries.map(format).collect()
}

fn current() -> String {
    formats().remove(&JournalFormat::CURRENT.0).expect("a folder of the current format")
}

fn read(line: &str) -> Event {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

#[test]
fn every_format_up_to_the_current_one_has_a_folder_and_is_read() {
    let formats = formats();
    let numbers: Vec<u16> = formats.keys().copied().collect();
    let wanted: Vec<u16> = (JournalFormat::FIRST.0..=JournalFormat::CURRENT.0).collect();
    assert_eq!(numbers, wanted);
    for lines in formats.values() {
        assert_ne!(lines.lines().map(read).count(), 0);
    }
}

#[test]
fn events_of_the_current_format_are_written_to_the_same_bytes() {
    for line in current().lines() {
        let written = serde_json::to_string(&read(line)).expect("JSON");
        assert_eq!(written, line, "another form is another format, with a folder of its own");
    }
}

#[test]
fn every_kind_of_event_is_among_them() {
    let current = current();
    let kinds: BTreeSet<&str> = current.lines().map(|line| read(line).kind()).collect();
    let missing: Vec<_> = Event::KINDS.iter().filter(|kind| !kinds.contains(*kind)).collect();
    assert_eq!(missing, [] as [&&str; 0]);
}

/// The enums in events.
fn enums() -> Vec<Enum> {
    vec![
        Enum::keyed::<Answer>(),
        Enum::keyed::<AnswerRefusal>(),
        Enum::tagged::<Answers>("by").but_for("inbox"),
        Enum::keyed::<Attachment>(),
        Enum::keyed::<AutonomyMode>(),
        Enum::tagged::<AwaitItem>("kind"),
        Enum::keyed::<BlockedOn>(),
        Enum::tagged::<CallAbort>("kind"),
        Enum::tagged::<CallWait>("for"),
        Enum::keyed::<ChannelAccess>().but_for("read-write"),
        Enum::keyed::<Chunk>(),
        Enum::keyed::<DecisionKind>(),
        Enum::keyed::<EndStatus>(),
        Enum::keyed::<EndedBy>(),
        Enum::tagged::<Event>("kind"),
        Enum::keyed::<FileFault>(),
        Enum::keyed::<FileKind>(),
        Enum::keyed::<History>().but_for("none"),
        Enum::keyed::<HostAnswer>(),
        Enum::keyed::<HttpFault>(),
        Enum::keyed::<KeptBytes>(),
        Enum::keyed::<LogLevel>(),
        Enum::tagged::<Mark>("mark").or_named(&["Done", "StateReport", "Schedule"]),
        Enum::keyed::<MemoryAnswer>(),
        Enum::tagged::<MemoryError>("error"),
        Enum::keyed::<MemoryScope>(),
        Enum::keyed::<ModelAnswer>(),
        Enum::keyed::<ModelError>(),
        Enum::keyed::<Operation>(),
        Enum::keyed::<OutsideAnswer>(),
        Enum::keyed::<OverrideReason>(),
        Enum::keyed::<Part>(),
        Enum::keyed::<PauseEnd>(),
        Enum::keyed::<Phase>(),
        Enum::keyed::<Refusal>(),
        Enum::keyed::<ReminderChange>(),
        Enum::keyed::<Reply<String, String>>(),
        Enum::keyed::<RetryReason>(),
        Enum::keyed::<Role>(),
        Enum::keyed::<RunClass>().but_for("task"),
        Enum::keyed::<RunsAnswer>(),
        Enum::tagged::<RunsError>("error"),
        Enum::keyed::<RunsReport>().but_for("list"),
        Enum::keyed::<Status>(),
        Enum::keyed::<StopCause>(),
        Enum::keyed::<StopReason>(),
        Enum::tagged::<Strategy>("kind").but_for("context_only"),
        Enum::keyed::<TaskEvent>(),
        Enum::keyed::<TerminationReason>(),
        Enum::keyed::<Tier>(),
        Enum::keyed::<ToolOutcome>(),
        Enum::tagged::<Wait>("until"),
        Enum::keyed::<WaitMode>(),
    ]
}

#[test]
fn every_variant_in_an_event_is_among_them() {
    let mut found = Variants::default();
    current().lines().for_each(|line| found.look(&read(line)));
    let enums = enums();
    let missing: Vec<String> = enums.iter().flat_map(|known| known.missing(&found)).collect();
    assert_eq!(missing, [] as [&str; 0], "what is new is written in a format of its own");
    let is_known = |name: &&&str| enums.iter().any(|known| known.is_named(name));
    let unknown: Vec<&&str> = found.keyed.iter().filter(|name| !is_known(name)).collect();
    assert_eq!(unknown, [] as [&&str; 0], "this test does not know them");
}
