//! The policy files that runs were accepted under.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use taskrun_journal::pin::has_digest;
use taskrun_policy::Policy;
use taskrun_runtime::RunRules;

use crate::context::Context;
use crate::paths::is_there;

/// The policy files of pins, as they are kept with these; each is read once.
#[derive(Default)]
pub(crate) struct PinFiles {
    data_dir: Option<PathBuf>,
    /// True if the data directory is the policy's own: runs of which no file is known are of it.
    is_own: bool,
    known: Mutex<BTreeMap<String, Option<PathBuf>>>,
}

impl PinFiles {
    /// Those of the data directory at hand.
    pub(crate) fn of(context: &Context) -> Self {
        let is_own = context.globals.data_dir.is_none();
        Self { data_dir: context.data_dir().ok(), is_own, known: Mutex::default() }
    }

    /// True if a run with this pin was accepted under the file of this policy, as far as that is
    /// kept. A file that is there no more is none: it may be this one, in a project that was moved.
    pub(crate) fn is_of(&self, policy: &Policy, pin: &str) -> bool {
        let file = self.file(pin).filter(|file| is_there(file));
        file.map_or(self.is_own, |file| file == policy.path)
    }

    /// The file of a pin; `None` where nothing is kept under it.
    fn file(&self, pin: &str) -> Option<PathBuf> {
        let dir = self.data_dir.as_ref().filter(|_| has_digest(pin))?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.entry(pin.to_owned()).or_insert_with(|| RunRules::file_of_pin(dir, pin)).clone()
    }
}

#[cfg(test)]
mod tests {
    use taskrun_journal::pin::pin;

    use super::*;

    #[test]
    fn a_kept_file_that_is_there_no_more_is_no_other_one() {
        let project = tempfile::tempdir().expect("a folder");
        let [here, other, moved] = ["taskrun.toml", "other.toml", "before/taskrun.toml"]
            .map(|name| project.path().join(name));
        for file in [&here, &other] {
            std::fs::write(file, "").expect("written");
        }
        let policy = "[agent.a]\ncomponent = \"a.wasm\"\n";
        let policy = Policy::parse(policy, &here).expect("a policy");
        let kept =
            [("here", Some(here)), ("other", Some(other)), ("moved", Some(moved)), ("no", None)];
        for is_own in [true, false] {
            let known = kept.clone().map(|(digest, file)| (pin("a", digest), file));
            let (data_dir, known) = (Some(project.path().to_owned()), Mutex::new(known.into()));
            let files = PinFiles { data_dir, is_own, known };
            let found = kept.clone().map(|(digest, _)| files.is_of(&policy, &pin("a", digest)));
            assert_eq!(found, [true, false, is_own, is_own]);
        }
    }
}
