//! Reading an export: a file of somebody else's, of which nothing is believed before it is looked
//! at.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Deserialize;
use taskrun_journal::artifact::ARTIFACT_BYTES_MAX;
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::format::JournalFormat;
use taskrun_journal::spec::RunSpec;
use taskrun_store::{Blobs, open_regular_file};

use super::{
    ARTIFACTS, BEFORE, COMPONENTS, EXPORT_BYTES_MAX, EXPORT_FORM, EXPORT_JOURNAL_BYTES_MAX,
    ExportError, ExportList, ExportPart, JOURNAL, LIST, LIST_BYTES_MAX, PARTS_MAX, POLICIES,
    before, line,
};
use crate::loader::COMPONENT_BYTES_MAX;

/// Most bytes of a policy with its prompts, as it is kept.
const POLICY_BYTES_MAX: u64 = 64 << 20;
/// Most of zstd's memory, as a power of two: what its strongest level needs.
const WINDOW_LOG_MAX: u32 = 27;

/// A run that was read from a file. Its policies and components are in a temporary folder, which
/// is gone with this.
pub struct Export {
    list: ExportList,
    records: Vec<EventRecord>,
    before: Vec<Vec<EventRecord>>,
    images: BTreeMap<String, Arc<[u8]>>,
    folder: tempfile::TempDir,
}

/// The first words of a list of whatever form.
#[derive(Deserialize)]
struct AnyForm {
    taskrun_export: u32,
    #[serde(default)]
    journal_format: u16,
}

impl Export {
    /// Reads an export. Blocks for as long as that takes.
    ///
    /// # Errors
    /// [`ExportError`].
    pub fn open(path: &Path) -> Result<Self, ExportError> {
        Self::open_unless(path, &AtomicBool::new(false))
    }

    /// The same for a reader that may lose interest: when `given_up` is true it ends with an error,
    /// in the middle of a part, and the temporary folder is gone.
    ///
    /// # Errors
    /// [`ExportError`]; of a reading that is given up it says nothing about the file.
    pub fn open_unless(path: &Path, given_up: &AtomicBool) -> Result<Self, ExportError> {
        let reading = Reading { path, given_up };
        match open_regular_file(path) {
            Ok(Some((file, _))) => reading.read(file),
            Ok(None) => Err(reading.fault("it is no file")),
            Err(source) => Err(ExportError::Io { path: path.to_owned(), source }),
        }
    }

    /// The run that it is of, and its contents.
    #[must_use]
    pub fn list(&self) -> &ExportList {
        &self.list
    }

    /// The events of the run, in order.
    #[must_use]
    pub fn records(&self) -> &[EventRecord] {
        &self.records
    }

    /// The events of the runs that it continues, the latest of these first.
    #[must_use]
    pub fn before(&self) -> &[Vec<EventRecord>] {
        &self.before
    }

    /// The images that answers of the run name, by their digests.
    pub(crate) fn images(&self) -> &BTreeMap<String, Arc<[u8]>> {
        &self.images
    }

    /// A folder in which policies and components are kept as in a data directory.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

struct Reading<'p> {
    path: &'p Path,
    given_up: &'p AtomicBool,
}

/// A part while it is read: counted and hashed.
struct Hashed<'p, R> {
    from: R,
    hasher: blake3::Hasher,
    given_up: &'p AtomicBool,
}

impl<R: Read> Read for Hashed<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.given_up.load(Ordering::Relaxed) {
            return Err(io::Error::other("the reading is given up"));
        }
        let read = self.from.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        Ok(read)
    }
}

impl Reading<'_> {
    fn fault(&self, detail: impl Into<String>) -> ExportError {
        ExportError::Malformed { path: self.path.to_owned(), detail: detail.into() }
    }

    fn too_large(&self, what: &'static str, limit: u64) -> ExportError {
        ExportError::TooLarge { path: self.path.to_owned(), what, limit }
    }

    /// The error for bytes of the file that cannot be read, be it their fault or that of the disk.
    fn unread(&self) -> impl Fn(io::Error) -> ExportError {
        |error| self.fault(error.to_string())
    }

    fn read(&self, file: File) -> Result<Export, ExportError> {
        let unread = self.unread();
        let mut packed = zstd::Decoder::new(file).map_err(&unread)?;
        packed.window_log_max(WINDOW_LOG_MAX).map_err(&unread)?;
        let mut tar = tar::Archive::new(packed);
        // Raw: no extension of the format changes names or lengths, or is read into memory.
        let mut entries = tar.entries().map_err(&unread)?.raw(true);
        let first = entries.next().ok_or_else(|| self.fault("it is empty"))?.map_err(&unread)?;
        let list = self.list(first)?;
        let folder = tempfile::tempdir()
            .map_err(|source| ExportError::Io { path: std::env::temp_dir(), source })?;
        let blobs = Blobs::open(folder.path()).map_err(|error| self.fault(error.to_string()))?;
        let (records, before, images) = (Vec::new(), Vec::new(), BTreeMap::new());
        let mut export = Export { list, records, before, images, folder };
        for part in export.list.parts.clone() {
            let entry = entries.next().ok_or_else(|| self.fault("its end is missing"))?;
            self.part(&mut export, &blobs, &part, entry.map_err(&unread)?)?;
        }
        if entries.next().is_some() {
            return Err(self.fault("it has a part that its list does not name"));
        }
        // The checksum of the whole stands at its end.
        io::copy(&mut tar.into_inner().take(LIST_BYTES_MAX), &mut io::sink()).map_err(&unread)?;
        self.check_journals(&export)?;
        Ok(export)
    }

    /// The list of parts, of which the form is looked at before anything else.
    fn list(&self, entry: tar::Entry<'_, impl Read>) -> Result<ExportList, ExportError> {
        self.check_entry(&entry, LIST)?;
        let bytes = entry.size();
        if bytes > LIST_BYTES_MAX {
            return Err(self.too_large("bytes in its list of parts", LIST_BYTES_MAX));
        }
        let mut text = Vec::new();
        entry.take(bytes).read_to_end(&mut text).map_err(self.unread())?;
        let form: AnyForm =
            serde_json::from_slice(&text).map_err(|_| self.fault("its list cannot be read"))?;
        let path = || self.path.to_owned();
        if form.taskrun_export > EXPORT_FORM {
            return Err(ExportError::Form { path: path(), found: form.taskrun_export });
        }
        let (found, known) = (form.journal_format, JournalFormat::CURRENT.0);
        if found > known {
            return Err(ExportError::Format { path: path(), found, known });
        }
        let list: ExportList = serde_json::from_slice(&text)
            .map_err(|error| self.fault(format!("its list cannot be read: {error}")))?;
        if list.parts.len() > PARTS_MAX {
            return Err(self.too_large("parts", PARTS_MAX as u64));
        }
        if sum_of_bytes(&list.parts) > EXPORT_BYTES_MAX {
            return Err(self.too_large("bytes", EXPORT_BYTES_MAX));
        }
        // All journals are in memory at once, so the bound is one for all of them.
        let journals = list.parts.iter().filter(|part| is_journal(&part.name));
        match sum_of_bytes(journals) > EXPORT_JOURNAL_BYTES_MAX {
            true => Err(self.too_large("bytes of events", EXPORT_JOURNAL_BYTES_MAX)),
            false => Ok(list),
        }
    }

    /// Checks that an entry is a file of this name.
    fn check_entry(
        &self,
        entry: &tar::Entry<'_, impl Read>,
        name: &str,
    ) -> Result<(), ExportError> {
        let is_file = entry.header().entry_type() == tar::EntryType::Regular;
        match is_file && *entry.path_bytes() == *name.as_bytes() {
            true => Ok(()),
            false => Err(self.fault(format!("{name} is not where its list says"))),
        }
    }

    fn part(
        &self,
        export: &mut Export,
        blobs: &Blobs,
        part: &ExportPart,
        entry: tar::Entry<'_, impl Read>,
    ) -> Result<(), ExportError> {
        self.check_entry(&entry, &part.name)?;
        if entry.size() != part.bytes {
            return Err(self.fault(format!("{} has another length than its list says", part.name)));
        }
        let within = |limit: u64| match part.bytes > limit {
            true => Err(self.too_large("bytes in one of its parts", limit)),
            false => Ok(()),
        };
        let (hasher, given_up) = (blake3::Hasher::new(), self.given_up);
        let mut from = Hashed { from: entry.take(part.bytes), hasher, given_up };
        let (name, digest) = (part.name.as_str(), part.blake3.as_str());
        // The bytes of journals were looked at with the list.
        if name == JOURNAL {
            export.records = self.records(&mut from, Some(export.list.events))?;
        } else if name == before(export.before.len() + 1) {
            export.before.push(self.records(&mut from, None)?);
        } else if let Some(hex) = name.strip_prefix(POLICIES) {
            within(POLICY_BYTES_MAX)?;
            let text = self.bytes(&mut from)?;
            let text = String::from_utf8(text).map_err(|_| self.fault("a policy is no text"))?;
            // Whether it is the one of the pin shows when it is read.
            let kept = blobs.put_snapshot(&format!("blake3:{hex}"), &text);
            kept.map_err(|error| self.fault(error.to_string()))?;
        } else if let Some(hex) = name.strip_prefix(COMPONENTS) {
            within(COMPONENT_BYTES_MAX)?;
            let io = |source| ExportError::Io { path: export.folder().to_owned(), source };
            let mut file = tempfile::NamedTempFile::new_in(export.folder()).map_err(io)?;
            io::copy(&mut from, &mut file).map_err(self.unread())?;
            file.flush().map_err(io)?;
            let kept = blobs.put_file(file.path(), COMPONENT_BYTES_MAX);
            let kept = kept.map_err(|error| self.fault(error.to_string()))?;
            if *kept.to_hex() != *hex {
                return Err(self.fault(format!("{name} has other bytes than its name says")));
            }
        } else if let Some(hash) = name.strip_prefix(ARTIFACTS) {
            within(ARTIFACT_BYTES_MAX as u64)?;
            let bytes = self.bytes(&mut from)?;
            if taskrun_journal::artifact::digest(&bytes) != hash {
                return Err(self.fault(format!("{name} has other bytes than its name says")));
            }
            export.images.insert(hash.to_owned(), bytes.into());
        } else {
            return Err(self.fault(format!("{name:?} is no part of an export")));
        }
        match *from.hasher.finalize().to_hex() == *digest {
            true => Ok(()),
            false => Err(self.fault(format!("{name} has other bytes than its list says"))),
        }
    }

    /// The bytes of a part, whose number was looked at.
    fn bytes(&self, from: &mut impl Read) -> Result<Vec<u8>, ExportError> {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).map_err(self.unread())?;
        Ok(bytes)
    }

    /// The events of a journal, which are at most so many, if that is known. Each is looked at as it
    /// is read: events take several times the memory of their text, and the text may be a small
    /// file, so a wrong journal is not read beyond its first wrong line, and no line that is too long,
    /// or has too many values, is read as JSON.
    fn records(
        &self,
        from: &mut impl Read,
        events_max: Option<u64>,
    ) -> Result<Vec<EventRecord>, ExportError> {
        let mut records = Vec::new();
        let (mut from, mut text) = (BufReader::new(from), Vec::new());
        let mut place = 0_u64;
        loop {
            text.clear();
            let mut next = from.by_ref().take(line::READ_MAX);
            if next.read_until(b'\n', &mut text).map_err(self.unread())? == 0 {
                return Ok(records);
            }
            line::check(&text).map_err(|(what, limit)| self.too_large(what, limit))?;
            place += 1;
            if events_max.is_some_and(|most| place > most) {
                return Err(self.fault("its journal has more events than its list says"));
            }
            let record: EventRecord = serde_json::from_slice(&text)
                .map_err(|error| self.fault(format!("event {place} cannot be read: {error}")))?;
            if records.is_empty() {
                self.request(Some(&record))?;
            }
            if record.seq != place {
                return Err(self.fault("events are missing in its journal"));
            }
            records.push(record);
        }
    }

    /// Checks that the journal is that of the run, and the others those of the runs that it
    /// continues. Each is whole from its beginning, as it was looked at when it was read.
    fn check_journals(&self, export: &Export) -> Result<(), ExportError> {
        let spec = self.request(export.records.first())?;
        if spec.id.as_str() != export.list.run {
            return Err(self.fault("its journal is that of another run"));
        }
        if export.records.len() as u64 != export.list.events {
            return Err(self.fault("events are missing in its journal"));
        }
        let mut later = spec;
        for records in &export.before {
            let spec = self.request(records.first())?;
            if later.continues.as_ref().is_none_or(|continued| continued.run != spec.id) {
                return Err(self.fault("it has the journal of a run that is not continued"));
            }
            later = spec;
        }
        Ok(())
    }

    /// The request of a run, with which its journal begins.
    fn request<'r>(&self, first: Option<&'r EventRecord>) -> Result<&'r RunSpec, ExportError> {
        let Some(EventRecord { seq: 1, event: Event::Queued { spec }, .. }) = first else {
            return Err(self.fault("its journal does not begin with the request of a run"));
        };
        Ok(spec)
    }
}

/// The bytes of parts together, as the list has them.
fn sum_of_bytes<'p>(parts: impl IntoIterator<Item = &'p ExportPart>) -> u64 {
    parts.into_iter().fold(0, |sum, part| sum.saturating_add(part.bytes))
}

/// True for the journal of the run, and those of the runs that it continues.
fn is_journal(name: &str) -> bool {
    name == JOURNAL || name.starts_with(BEFORE)
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let folder: &PathBuf = &self.folder.path().to_owned();
        f.debug_struct("Export").field("run", &self.list.run).field("folder", folder).finish()
    }
}
