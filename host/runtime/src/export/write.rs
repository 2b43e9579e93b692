//! Writing a run into a file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::format::JournalFormat;
use taskrun_journal::ids::RunId;
use taskrun_journal::message::Part;
use taskrun_journal::pin::{has_digest, split};
use taskrun_journal::run::Run;
use taskrun_journal::store::Store;
use taskrun_policy::{ModelPolicy, Policy, Provider};
use taskrun_store::Blobs;

use super::{
    ARTIFACTS, COMPONENTS, EXPORT_FORM, EXPORT_JOURNAL_BYTES_MAX, ExportError, ExportList,
    ExportPart, ExportedModel, JOURNAL, LIST, POLICIES, before, line,
};
use crate::loader::{COMPONENT_BYTES_MAX, digests};
use crate::snapshot::{self, Digests};

/// Events that are read at once.
const PAGE: usize = 1_000;
/// zstd's own default: a third of the size of most components in a fraction of a second.
const LEVEL: i32 = 3;

/// The things beside the store that an export is made of.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// The policy as it is now, if there is one: it says how large the context windows of models
    /// are, and stands for a policy that is not kept and is the same.
    pub policy: Option<Policy>,
    /// The data directory in which policies and components are kept, if they are.
    pub data_dir: Option<PathBuf>,
    /// The version of the program.
    pub program: String,
    /// The format in which the store writes journals.
    pub format: JournalFormat,
}

/// A run that was written into a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportSummary {
    /// Events in it.
    pub events: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// The pins of the run whose policies or components are not in it, each with the reason.
    pub missing: BTreeMap<String, String>,
}

/// The run as it is read from the store.
struct RunParts {
    journal: File,
    events: u64,
    /// The journals of the runs that it continues, the latest first.
    before: Vec<File>,
    pins: BTreeSet<String>,
    images: BTreeMap<String, Arc<[u8]>>,
}

/// Journals on their way from a store into files without names, as they may be larger than memory.
struct Spool<'s> {
    store: &'s dyn Store,
    /// Bytes so far.
    bytes: u64,
    images: BTreeMap<String, Arc<[u8]>>,
}

/// Writes all that is needed to execute the steps of a run again into a new file, which only its
/// owner may read: it has what the run was told and said, and neither keys nor addresses of models
/// and subscribers. A run that has not ended is written as far as it has come.
///
/// # Errors
/// [`ExportError`]. There is no file then.
///
/// # Cancel safety
/// Dropping the future leaves no file, unless it was about to return.
pub async fn export_run(
    store: &dyn Store,
    run: &Run,
    options: ExportOptions,
    to: &Path,
) -> Result<ExportSummary, ExportError> {
    let parts = read(store, run).await?;
    let list = ExportList {
        taskrun_export: EXPORT_FORM,
        program: options.program.clone(),
        journal_format: options.format.0,
        run: run.id().to_string(),
        agent: run.spec.agent_name.clone(),
        events: parts.events,
        models: models(options.policy.as_ref()),
        missing: BTreeMap::new(),
        parts: Vec::new(),
    };
    let to = to.to_owned();
    let write = move || Writing { list, sources: Vec::new() }.run(parts, &options, &to);
    tokio::task::spawn_blocking(write).await.unwrap_or(Err(ExportError::Panicked))
}

async fn read(store: &dyn Store, run: &Run) -> Result<RunParts, ExportError> {
    let mut pins: BTreeSet<String> =
        run.spec.ancestors.iter().map(|ancestor| ancestor.pin.clone()).collect();
    pins.insert(run.spec.pin.clone());
    let mut spool = Spool { store, bytes: 0, images: BTreeMap::new() };
    let (journal, events) = spool.journal(run.id(), &mut pins).await?;
    let (mut before, mut next) = (Vec::new(), run.spec.continues.clone());
    while let Some(continued) = next {
        // Of one that was removed since there is nothing.
        let Some(run) = store.get(&continued.run).await? else { break };
        // Steps of this run are not executed under the pins of that one.
        before.push(spool.journal(run.id(), &mut BTreeSet::new()).await?.0);
        next = run.spec.continues.clone();
    }
    Ok(RunParts { journal, events, before, pins, images: spool.images })
}

impl Spool<'_> {
    /// The journal of a run and the number of its events.
    async fn journal(
        &mut self,
        id: &RunId,
        pins: &mut BTreeSet<String>,
    ) -> Result<(File, u64), ExportError> {
        let spool = |source| ExportError::Io { path: std::env::temp_dir(), source };
        let journal = tempfile::tempfile().map_err(spool)?;
        let mut journal = io::BufWriter::new(journal);
        let (mut named, mut last) = (BTreeSet::new(), 0);
        loop {
            let page = self.store.read(id, last, PAGE).await?;
            let Some(end) = page.last() else { break };
            last = end.seq;
            for recorded in &page {
                note(recorded, pins, &mut named);
                let mut text = serde_json::to_vec(recorded).map_err(|error| spool(error.into()))?;
                text.push(b'\n');
                line::check(&text).map_err(|(what, limit)| ExportError::TooLarge {
                    path: PathBuf::from(id.as_str()),
                    what,
                    limit,
                })?;
                self.bytes += text.len() as u64;
                journal.write_all(&text).map_err(spool)?;
            }
            if self.bytes > EXPORT_JOURNAL_BYTES_MAX {
                let (path, what) = (PathBuf::from(id.as_str()), "bytes of events");
                return Err(ExportError::TooLarge { path, what, limit: EXPORT_JOURNAL_BYTES_MAX });
            }
        }
        for hash in named {
            if let Some(image) = self.store.artifact(id, &hash).await? {
                self.images.insert(hash, image);
            }
        }
        let journal = journal.into_inner().map_err(|error| spool(error.into_error()))?;
        Ok((journal, last))
    }
}

/// Takes note of the pins and the images that an event names.
fn note(recorded: &EventRecord, pins: &mut BTreeSet<String>, images: &mut BTreeSet<String>) {
    if let Event::Adopted { to, .. } = &recorded.event {
        pins.insert(to.clone());
    } else if let Event::RulesChanged { pins: now } = &recorded.event {
        pins.extend(now.iter().flat_map(|pins| split(pins)).map(str::to_owned));
    } else if let Event::AssistantMessage { message, .. } = &recorded.event {
        let shown = message.parts.iter().filter_map(|part| match part {
            Part::Media(image) => Some(image.hash.clone()),
            Part::Text(_)
            | Part::Json(_)
            | Part::Thinking(_)
            | Part::ToolUse(_)
            | Part::ToolAnswer(_) => None,
        });
        images.extend(shown);
    }
}

/// The models of a policy, as far as a run notices which they are.
fn models(policy: Option<&Policy>) -> BTreeMap<String, ExportedModel> {
    let of = |model: &ModelPolicy| match &model.provider {
        Provider::Remote(remote) => ExportedModel { context_tokens: remote.context_tokens },
        Provider::Scripted { .. }
        | Provider::Echo
        | Provider::Replay { .. }
        | Provider::Faulty { .. } => ExportedModel::default(),
    };
    let models = policy.into_iter().flat_map(|policy| policy.models.values());
    models.map(|model| (model.name.clone(), of(model))).collect()
}

/// The bytes of a part.
enum PartSource {
    Bytes(Vec<u8>),
    Shared(Arc<[u8]>),
    File(File, PathBuf),
}

/// An export that is being put together.
struct Writing {
    list: ExportList,
    sources: Vec<PartSource>,
}

impl Writing {
    fn run(
        mut self,
        run: RunParts,
        options: &ExportOptions,
        to: &Path,
    ) -> Result<ExportSummary, ExportError> {
        self.add(JOURNAL.to_owned(), PartSource::File(run.journal, std::env::temp_dir()))?;
        for (number, journal) in (1..).zip(run.before) {
            let source = PartSource::File(journal, std::env::temp_dir());
            self.add(before(number), source)?;
        }
        let blobs = Blobs::existing(options.data_dir.as_deref().unwrap_or(Path::new("")));
        let now = options
            .policy
            .as_ref()
            .map(|policy| (policy, digests(policy, taskrun_engine::digest_file)));
        for pin in run.pins {
            let now = now.as_ref().map(|(policy, digests)| (*policy, digests));
            match self.add_pin(&blobs, &pin, now)? {
                Ok(()) => {}
                Err(why) => {
                    self.list.missing.insert(pin, why);
                }
            }
        }
        for (hash, image) in run.images {
            self.add(format!("{ARTIFACTS}{hash}"), PartSource::Shared(image))?;
        }
        self.write(to)
    }

    /// Adds what a pin stands for: the policy, and the components, each once. The inner error says
    /// why that cannot be, in words.
    fn add_pin(
        &mut self,
        blobs: &Blobs,
        pin: &str,
        now: Option<(&Policy, &Digests)>,
    ) -> Result<Result<(), String>, ExportError> {
        if !has_digest(pin) {
            return Ok(Err("it is the name of an agent that its policy did not have".to_owned()));
        }
        let (text, components) = match snapshot::exported(blobs, pin, now) {
            Ok(exported) => exported,
            Err(why) => return Ok(Err(why)),
        };
        let mut files = Vec::new();
        for (path, digest) in components {
            // The file that the policy names may be another one meanwhile.
            let places = [blobs.path(&digest), path];
            let found = places.into_iter().find(|place| {
                let is_it = taskrun_engine::digest_file(place, COMPONENT_BYTES_MAX);
                is_it.is_ok_and(|found| found == digest)
            });
            let Some(place) = found else {
                return Ok(Err(format!("the component {digest} is gone, or damaged")));
            };
            files.push((format!("{COMPONENTS}{}", digest.to_hex()), place));
        }
        let hex = snapshot::digest_of(pin).trim_start_matches("blake3:");
        self.add(format!("{POLICIES}{hex}"), PartSource::Bytes(text.into_bytes()))?;
        for (name, path) in files {
            let file = File::open(&path);
            let file = file.map_err(|source| ExportError::Io { path: path.clone(), source })?;
            self.add(name, PartSource::File(file, path))?;
        }
        Ok(Ok(()))
    }

    /// Adds a part, unless it is there.
    fn add(&mut self, name: String, mut source: PartSource) -> Result<(), ExportError> {
        if self.list.parts.iter().any(|part| part.name == name) {
            return Ok(());
        }
        let (bytes, digest) = match &mut source {
            PartSource::Bytes(bytes) => (bytes.len() as u64, blake3::hash(bytes)),
            PartSource::Shared(bytes) => (bytes.len() as u64, blake3::hash(bytes)),
            PartSource::File(file, path) => {
                measure(file).map_err(|source| ExportError::Io { path: path.clone(), source })?
            }
        };
        self.list.parts.push(ExportPart { name, bytes, blake3: digest.to_hex().to_string() });
        self.sources.push(source);
        Ok(())
    }

    fn write(self, to: &Path) -> Result<ExportSummary, ExportError> {
        let failed = |source: io::Error| match source.kind() == io::ErrorKind::AlreadyExists {
            true => ExportError::Exists { path: to.to_owned() },
            false => ExportError::Io { path: to.to_owned(), source },
        };
        if to.symlink_metadata().is_ok() {
            return Err(ExportError::Exists { path: to.to_owned() });
        }
        let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty());
        let file = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")));
        // The error names a file that nobody has asked for.
        let file = file.map_err(|error| failed(error.kind().into()))?;
        let file = self.pack(file).map_err(failed)?;
        file.as_file().sync_all().map_err(failed)?;
        let bytes = file.as_file().metadata().map_err(failed)?.len();
        file.persist_noclobber(to).map_err(|error| failed(error.error))?;
        Ok(ExportSummary { events: self.list.events, bytes, missing: self.list.missing })
    }

    fn pack(&self, file: tempfile::NamedTempFile) -> io::Result<tempfile::NamedTempFile> {
        let mut packed = zstd::Encoder::new(io::BufWriter::new(file), LEVEL)?;
        packed.include_checksum(true)?;
        let mut tar = tar::Builder::new(packed);
        let list = serde_json::to_vec(&self.list)?;
        append(&mut tar, LIST, list.len() as u64, &list[..])?;
        for (part, source) in self.list.parts.iter().zip(&self.sources) {
            match source {
                PartSource::Bytes(bytes) => append(&mut tar, &part.name, part.bytes, &bytes[..])?,
                PartSource::Shared(bytes) => append(&mut tar, &part.name, part.bytes, &bytes[..])?,
                PartSource::File(file, _) => append(&mut tar, &part.name, part.bytes, file)?,
            }
        }
        let packed = tar.into_inner()?.finish()?;
        packed.into_inner().map_err(io::IntoInnerError::into_error)
    }
}

/// The bytes of a file and their digest; it is at its beginning again then.
fn measure(file: &mut File) -> io::Result<(u64, blake3::Hash)> {
    file.rewind()?;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(&mut *file)?;
    file.rewind()?;
    Ok((hasher.count(), hasher.finalize()))
}

fn append(
    tar: &mut tar::Builder<impl Write>,
    name: &str,
    bytes: u64,
    from: impl Read,
) -> io::Result<()> {
    let mut header = tar::Header::new_ustar();
    header.set_path(name)?;
    header.set_size(bytes);
    header.set_mode(0o600);
    header.set_cksum();
    // The length was told before; a file that has grown is cut, and then has another digest.
    tar.append(&header, from.take(bytes))
}
