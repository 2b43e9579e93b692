//! Policies as they were when runs were accepted under them: kept beside the bytes of their
//! components, by the pin of an agent, and read again when a run of then is to go on.

#[cfg(test)]
mod forms;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use taskrun_engine::{closure_of, pin_of};
use taskrun_journal::pin::agent_of;
use taskrun_policy::{AgentPolicy, Closure, Defaults, FileKind, Files, Policy, without_addresses};
use taskrun_store::{BlobError, Blobs, open_regular_file};

use crate::loader::COMPONENT_BYTES_MAX;

/// The form of snapshots. Those of the first one have no defaults: they were kept by programs whose
/// defaults were [`Defaults::first`].
const FORM: u32 = 2;

/// The digests of the components of a policy, by the paths in it.
pub(crate) type Digests = BTreeMap<PathBuf, blake3::Hash>;

/// A policy as it was, as it is kept.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Snapshot {
    form: u32,
    policy: PathBuf,
    text: String,
    prompts: BTreeMap<PathBuf, String>,
    /// The components of one of its agents, by their paths.
    components: BTreeMap<PathBuf, String>,
    /// The settings of the program for what the text leaves out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    defaults: Option<Arc<Defaults>>,
}

/// The reason that an agent cannot be kept as it is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeepError {
    /// A file was replaced while it was kept.
    #[error("{path} was replaced meanwhile", path = .0.display())]
    Changed(PathBuf),
    /// A component cannot be read.
    #[error("{path} cannot be read", path = .path.display())]
    Unreadable {
        /// Its file, as the policy names it.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The data directory cannot be written.
    #[error("it cannot be kept")]
    Blobs(#[from] BlobError),
    /// The host failed at it.
    #[error("internal error of the host; see its log")]
    Panicked,
}

/// Keeps an agent of a policy with its components, so that runs accepted with this pin go on
/// whatever the files become. What is there already is not written again.
///
/// # Errors
/// [`KeepError`].
pub(crate) fn keep(
    blobs: &Blobs,
    policy: &Policy,
    (agent, pin): (&AgentPolicy, &str),
    digests: &Digests,
) -> Result<(), KeepError> {
    for path in policy.files_of(agent) {
        if let Some(digest) = digests.get(path) {
            keep_component(blobs, path, digest)?;
        }
    }
    Ok(blobs.put_snapshot(digest_of(pin), &Snapshot::of(policy, agent, digests).text())?)
}

impl Snapshot {
    /// That of an agent of a policy.
    fn of(policy: &Policy, agent: &AgentPolicy, digests: &Digests) -> Self {
        let known = |path: &Path| Some((path.to_owned(), digests.get(path)?.to_hex().to_string()));
        Self {
            form: FORM,
            policy: policy.path.clone(),
            text: policy.text().to_owned(),
            prompts: policy.prompt_files(),
            components: policy.files_of(agent).into_iter().filter_map(known).collect(),
            defaults: Some(Arc::clone(policy.defaults())),
        }
    }

    /// The one that is written in a text.
    fn read(text: &str) -> Result<Self, FormError> {
        let snapshot: Self = serde_json::from_str(text).map_err(|_| FormError::Damaged)?;
        match (snapshot.form, &snapshot.defaults) {
            (1, None) | (FORM, Some(_)) => Ok(snapshot),
            (1 | FORM, _) => Err(FormError::Damaged),
            (other, _) => Err(FormError::Other(other)),
        }
    }

    fn text(&self) -> String {
        // Strings, numbers and maps of strings are always written.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The same without what the policy says of models and subscribers.
    fn without_addresses(self) -> Result<Self, String> {
        let text = without_addresses(&self.text)?;
        Ok(Self { text, ..self })
    }
}

/// The reason that what is kept of a policy is not read.
#[derive(Debug, thiserror::Error)]
enum FormError {
    /// It is none.
    #[error("the policy that it was accepted under is damaged")]
    Damaged,
    /// A later program kept it.
    #[error("its policy is kept in form {0}, of another program")]
    Other(u32),
}

/// The reason that runs which were accepted with a pin begin nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    /// The policy as it is now has no agent of this name.
    #[error("the policy has no agent {0} any more")]
    Gone(String),
    /// The file that they were accepted under, which is another one, has no agent of this name now.
    #[error("{path}, which they were accepted under, has no agent {agent} any more", path = .policy.display())]
    GoneThere {
        /// The agent.
        agent: String,
        /// The file.
        policy: PathBuf,
    },
    /// The policy of the pin is not kept, or damaged; in words.
    #[error("{0}")]
    Kept(String),
    /// The policy of the pin is kept, and means nothing to this program, or something else; in words.
    #[error("{0}")]
    Unusable(String),
}

impl From<FormError> for PinError {
    fn from(error: FormError) -> Self {
        match error {
            FormError::Damaged => Self::Kept(error.to_string()),
            FormError::Other(_) => Self::Unusable(error.to_string()),
        }
    }
}

/// The text that is kept under a pin, without what its policy says of models and subscribers, for
/// another machine; and the components. That of the policy as it is now stands for one that is not
/// kept.
///
/// # Errors
/// Why there is none, in words.
pub(crate) fn exported(
    blobs: &Blobs,
    pin: &str,
    now: Option<(&Policy, &Digests)>,
) -> Result<(String, Digests), String> {
    let kept = kept(blobs, digest_of(pin));
    let of_now = || {
        let (policy, digests) = now?;
        let agent = policy.agents.get(agent_of(pin))?;
        let is_same = pin_of(policy, agent, digests).is_ok_and(|now| now == pin);
        is_same.then(|| Snapshot::of(policy, agent, digests))
    };
    let snapshot = kept.or_else(|why| of_now().ok_or_else(|| why.to_string()))?;
    let snapshot = snapshot.without_addresses()?;
    let text = snapshot.text();
    let (policy, digests) = parsed(snapshot).map_err(|why| why.to_string())?;
    let damaged = || FormError::Damaged.to_string();
    let agent = policy.agents.get(agent_of(pin)).ok_or_else(damaged)?;
    match pin_of(&policy, agent, &digests) {
        Ok(own) if own == pin => Ok((text, digests)),
        Ok(_) | Err(_) => Err(damaged()),
    }
}

/// Keeps a component of which this is the digest. What is there already is not written again.
///
/// # Errors
/// [`KeepError`].
pub(crate) fn keep_component(
    blobs: &Blobs,
    path: &Path,
    digest: &blake3::Hash,
) -> Result<(), KeepError> {
    // One that cannot be marked as wanted, or be read, as it is another user's, is written anew.
    let is_marked = blobs.renew(digest).unwrap_or(false);
    let is_kept = is_marked && have_equal_sizes(&blobs.path(digest), path);
    if is_kept {
        return Ok(());
    }
    match blobs.put_file(path, COMPONENT_BYTES_MAX) {
        Ok(found) if found == *digest => Ok(()),
        Ok(_) => Err(KeepError::Changed(path.to_owned())),
        Err(BlobError::Io { path: of, source }) if of == path => {
            Err(KeepError::Unreadable { path: of, source })
        }
        Err(error) => Err(error.into()),
    }
}

/// Says whether a component that is kept has as many bytes as its file, or the file is not there to
/// make it whole: one that a full disk or a failing one cut would have its runs wait for ever.
fn have_equal_sizes(kept: &Path, file: &Path) -> bool {
    match (open_regular_file(kept), file.metadata()) {
        (Ok(Some((_, bytes))), Ok(file)) => bytes == file.len(),
        (Ok(None) | Err(_), _) => false,
        (Ok(Some(_)), Err(_)) => true,
    }
}

/// The reason that the components of an agent are not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ComponentsError {
    /// Nothing is kept under its pin.
    #[error("its policy is not kept here")]
    Gone,
    /// It is damaged, or of another program.
    #[error("its policy is damaged, or kept by another version of this program")]
    Unreadable,
    /// The data directory cannot be read.
    #[error("its policy cannot be read")]
    Blobs(#[source] BlobError),
}

/// Says whether a policy is kept under a pin, and has it count as wanted now.
///
/// # Errors
/// [`BlobError`].
pub(crate) fn renew(blobs: &Blobs, pin: &str) -> Result<bool, BlobError> {
    blobs.renew_snapshot(digest_of(pin))
}

/// Says whether a policy is kept under a pin.
///
/// # Errors
/// [`BlobError`].
pub(crate) fn is_there(blobs: &Blobs, pin: &str) -> Result<bool, BlobError> {
    blobs.has_snapshot(digest_of(pin))
}

/// The components of an agent, by what is kept under its pin.
///
/// # Errors
/// [`ComponentsError`].
pub(crate) fn components(blobs: &Blobs, pin: &str) -> Result<Vec<blake3::Hash>, ComponentsError> {
    let text = match blobs.snapshot(digest_of(pin)) {
        Ok(text) => text.ok_or(ComponentsError::Gone)?,
        Err(BlobError::Damaged { .. } | BlobError::TooLarge { .. }) => {
            return Err(ComponentsError::Unreadable);
        }
        Err(error) => return Err(ComponentsError::Blobs(error)),
    };
    let snapshot = Snapshot::read(&text).map_err(|_| ComponentsError::Unreadable)?;
    let digests = snapshot.components.into_values().map(blake3::Hash::from_hex);
    digests.collect::<Result<_, _>>().map_err(|_| ComponentsError::Unreadable)
}

/// The policy that an agent with this pin stood in, without its models, and the digests of the
/// agent's components.
///
/// # Errors
/// [`PinError::Kept`] and [`PinError::Unusable`].
pub(crate) fn open(blobs: &Blobs, pin: &str) -> Result<(Policy, Digests), PinError> {
    let (policy, digests) = read(blobs, digest_of(pin))?;
    let agent = policy.agents.get(agent_of(pin)).ok_or_else(damaged)?;
    match pin_of(&policy, agent, &digests) {
        Ok(own) if own == pin => Ok((policy, digests)),
        Ok(_) | Err(_) => {
            let text = "the policy that it was accepted under means something else to this program";
            Err(PinError::Unusable(text.to_owned()))
        }
    }
}

/// The closure with this pin.
///
/// # Errors
/// Why there is none, in words.
pub(crate) fn closure(blobs: &Blobs, pin: &str) -> Result<Closure, String> {
    let (policy, digests) = open(blobs, pin).map_err(|why| why.to_string())?;
    let agent = policy.agents.get(agent_of(pin));
    let agent = agent.ok_or_else(|| FormError::Damaged.to_string())?;
    closure_of(&policy, agent, &digests).map_err(|error| shown(&error))
}

/// The pin whose digest this is, with the name of its agent; `None` where what is kept under it
/// cannot be read or is another one's.
pub(crate) fn pin_with_digest(blobs: &Blobs, digest: &str) -> Option<String> {
    let (policy, digests) = read(blobs, digest).ok()?;
    let mut pins = policy.agents.values().filter_map(|agent| pin_of(&policy, agent, &digests).ok());
    pins.find(|pin| digest_of(pin) == digest)
}

fn damaged() -> PinError {
    FormError::Damaged.into()
}

/// The policy that is kept under the digest of a pin, without its models, and the digests of
/// components.
fn read(blobs: &Blobs, digest: &str) -> Result<(Policy, Digests), PinError> {
    parsed(kept(blobs, digest)?)
}

fn kept(blobs: &Blobs, digest: &str) -> Result<Snapshot, PinError> {
    let text = blobs.snapshot(digest).map_err(|error| PinError::Kept(shown(&error)))?;
    let gone = || "the policy that it was accepted under is not kept here".to_owned();
    Ok(Snapshot::read(&text.ok_or_else(|| PinError::Kept(gone()))?)?)
}

fn parsed(snapshot: Snapshot) -> Result<(Policy, Digests), PinError> {
    let prompts = Prompts(snapshot.prompts);
    let unreadable = |_| {
        let text = "this program does not read the policy that it was accepted under";
        PinError::Unusable(text.to_owned())
    };
    let defaults = snapshot.defaults.unwrap_or_else(|| Arc::new(Defaults::first()));
    let parsed = Policy::parse_without_models(&snapshot.text, &snapshot.policy, &defaults);
    let mut policy = parsed.map_err(unreadable)?;
    policy.read_prompts(&prompts);
    let digests = snapshot.components.into_iter().map(|(path, hex)| {
        let digest = blake3::Hash::from_hex(hex).map_err(|_| damaged())?;
        Ok((path, digest))
    });
    Ok((policy, digests.collect::<Result<Digests, PinError>>()?))
}

/// The policy that an agent with this pin stood in, with the models of the policy as it is now, and
/// the digests of the agent's components.
///
/// # Errors
/// [`PinError`].
pub(crate) fn open_beside(
    blobs: &Blobs,
    pin: &str,
    now: &Policy,
) -> Result<(Policy, Digests), PinError> {
    let name = agent_of(pin);
    if !now.agents.contains_key(name) {
        return Err(PinError::Gone(name.to_owned()));
    }
    let (mut policy, digests) = open(blobs, pin)?;
    // Models, keys and prices are those of now, and no program need read those of then.
    policy.models.clone_from(&now.models);
    Ok((policy, digests))
}

/// The paths at which the components of a policy are kept, by those that it names.
pub(crate) struct KeptPaths(BTreeMap<PathBuf, (PathBuf, blake3::Hash)>);

impl KeptPaths {
    /// Lets one agent of a policy and its tools be loaded from what is kept of them.
    pub(crate) fn put_into(
        policy: &mut Policy,
        agent: &str,
        digests: &Digests,
        blobs: &Blobs,
    ) -> Self {
        let mut named = BTreeMap::new();
        let mut kept = |path: &mut PathBuf| {
            if let Some(digest) = digests.get(path) {
                let kept = blobs.path(digest);
                named.insert(kept.clone(), (std::mem::replace(path, kept), *digest));
            }
        };
        for tool in policy.tools.values_mut() {
            kept(&mut tool.component);
        }
        if let Some(agent) = policy.agents.get_mut(agent) {
            kept(&mut agent.component);
            let engine = agent.engine.as_mut();
            engine.and_then(|engine| engine.component.as_mut()).map(kept);
        }
        Self(named)
    }

    /// The path that the policy names for one at which a component is kept.
    pub(crate) fn named<'p>(&'p self, path: &'p Path) -> &'p Path {
        self.0.get(path).map_or(path, |(named, _)| named)
    }

    /// The paths at which components are kept, with their digests.
    pub(crate) fn digests(&self) -> impl Iterator<Item = (&Path, &blake3::Hash)> {
        self.0.iter().map(|(path, (_, digest))| (path.as_path(), digest))
    }
}

/// The prompts of a policy that is kept.
struct Prompts(BTreeMap<PathBuf, String>);

impl Files for Prompts {
    fn read(&self, path: &Path, _: usize) -> io::Result<String> {
        self.0.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn kind(&self, _: &Path) -> io::Result<FileKind> {
        Ok(FileKind::File)
    }

    fn real_path(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(path.to_owned())
    }
}

/// The digest in a pin.
pub(crate) fn digest_of(pin: &str) -> &str {
    pin.strip_prefix(agent_of(pin)).and_then(|rest| rest.strip_prefix('@')).unwrap_or(pin)
}

fn shown(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
