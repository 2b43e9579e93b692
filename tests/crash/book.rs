//! All journals of a store as they were seen so far, and what is wrong with them.

use std::collections::{BTreeMap, BTreeSet};

use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::ids::RunId;
use taskrun_journal::list::ListFilter;
use taskrun_journal::machine;
use taskrun_journal::run::Run;
use taskrun_journal::store::{Store, StoreError};

use crate::client::Client;
use crate::journal;

/// Events that are read at once.
const PAGE: usize = 500;
/// More runs than a round has.
const RUNS_MAX: usize = 10_000;
/// Events of a journal that a report shows.
const SHOWN: usize = 25;

/// Words in the log of a host that stand there only if something is wrong: a mistake, a journal that
/// cannot be, a run that it lost from sight.
const MISTAKES: [&str; 3] = ["panicked", "inconsistent", "nobody here executes it"];

/// Something that must not be.
#[derive(Debug)]
pub(crate) struct Violation {
    /// The run, where it is about one.
    pub(crate) run: String,
    /// The findings.
    pub(crate) what: String,
    /// The end of its journal.
    pub(crate) journal: String,
}

/// The journals, and the runs that they tell.
#[derive(Default)]
pub(crate) struct Book {
    pub(crate) journals: BTreeMap<String, Vec<EventRecord>>,
    runs: BTreeMap<String, Run>,
    pub(crate) violations: Vec<Violation>,
}

impl Book {
    pub(crate) fn say(&mut self, run: &str, what: impl Into<String>) {
        let what = what.into();
        // What is looked at again is not said again.
        if self.violations.iter().any(|one| one.run == run && one.what == what) {
            return;
        }
        let tail = self.journals.get(run).map(|one| journal::tail(one, SHOWN));
        let (run, journal) = (run.to_owned(), tail.unwrap_or_default());
        self.violations.push(Violation { run, what, journal });
    }

    pub(crate) fn run(&self, id: &str) -> Option<&Run> {
        self.runs.get(id)
    }

    pub(crate) fn runs(&self) -> impl Iterator<Item = &Run> {
        self.runs.values()
    }

    /// Reads on in every journal, and holds each to the rules. What was seen before must still be
    /// there; a record must be what its journal tells.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn look(&mut self, client: &Client) -> Result<(), StoreError> {
        let mut ids: BTreeSet<String> = client.started().keys().cloned().collect();
        // Those that runs have started are known to nobody else.
        let page = client.store.list(&client.scope, &ListFilter::default(), None, RUNS_MAX).await?;
        ids.extend(page.runs.iter().map(|run| run.id().to_string()));
        for id in ids {
            let ended = self.runs.get(&id).is_some_and(|run| run.status().is_terminal());
            if !ended {
                self.read(client, &id).await?;
            }
        }
        Ok(())
    }

    /// Reads every journal anew: nothing of what was seen may have changed.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn look_again(&mut self, client: &Client) -> Result<(), StoreError> {
        let before = std::mem::take(&mut self.journals);
        self.runs.clear();
        self.look(client).await?;
        for (id, seen) in before {
            let same = self.journals.get(&id).is_some_and(|now| now.starts_with(&seen));
            if !same {
                self.say(&id, "events that were seen have changed or gone");
            }
        }
        Ok(())
    }

    async fn read(&mut self, client: &Client, id: &str) -> Result<(), StoreError> {
        let run_id = RunId::new(id).expect("an id that was accepted");
        // The record first: the journal can only be further on.
        let Some(record) = client.store.get(&run_id).await? else {
            self.say(id, "the run was acknowledged and is not there");
            return Ok(());
        };
        let journal = self.journals.entry(id.to_owned()).or_default();
        let known = journal.len();
        while (journal.len() as u64) < record.state.head {
            let after = journal.last().map_or(0, |last| last.seq);
            let page = client.store.read(&run_id, after, PAGE).await?;
            if page.is_empty() {
                break;
            }
            journal.extend(page);
        }
        if journal.len() == known {
            return Ok(());
        }
        let wrong = journal::wrong(journal);
        let head = usize::try_from(record.state.head).unwrap_or(usize::MAX);
        let told = machine::fold(journal.iter().take(head));
        match told {
            Ok(told) if told == record => {}
            Ok(told) => {
                let (told, record) = (&told.state, &record.state);
                self.say(
                    id,
                    format!("the record is not what the journal tells: {record:?}, and {told:?}"),
                );
            }
            Err(detail) => self.say(id, detail),
        }
        wrong.into_iter().for_each(|what| self.say(id, what));
        self.runs.insert(id.to_owned(), record);
        Ok(())
    }

    /// Everything that a process was told is kept must be there, in its place, written under the
    /// epoch that was in force there. So also: nothing by a host after it lost the run.
    pub(crate) fn check_acknowledged(&mut self, log: &str) {
        for line in log.lines() {
            if let Err(what) = self.check_line(line) {
                let run = line.split(' ').next().unwrap_or_default().to_owned();
                self.say(&run, format!("{what}: acknowledged was {line:?}"));
            }
        }
    }

    /// A host must not have said what only a mistake in it makes it say.
    pub(crate) fn check_log(&mut self, log: &str) {
        for line in log.lines().filter(|line| MISTAKES.iter().any(|one| line.contains(one))) {
            self.say("a host", line);
        }
    }

    fn check_line(&self, line: &str) -> Result<(), String> {
        let words: Vec<&str> = line.split(' ').collect();
        let [run, epoch, seq, ids @ ..] = words.as_slice() else {
            return Err("a line that nobody wrote".to_owned());
        };
        let number = |text: &str| text.parse::<u64>().map_err(|error| error.to_string());
        let (epoch, seq) = (number(epoch)?, number(seq)?);
        let journal = self.journals.get(*run).ok_or("the run is not there")?;
        let place = usize::try_from(seq).map_err(|error| error.to_string())?;
        let (before, events) = place
            .checked_sub(1)
            .and_then(|index| journal.split_at_checked(index))
            .filter(|(_, events)| events.len() >= ids.len())
            .ok_or("the events are not there")?;
        if *ids == ["claimed"] {
            let begun = events.first().and_then(|found| epoch_of(&found.event));
            return if begun == Some(epoch) { Ok(()) } else { Err("no claim is there".to_owned()) };
        }
        if !ids.iter().zip(events).all(|(id, found)| *id == found.id.to_string()) {
            return Err("other events are there".to_owned());
        }
        match before.iter().rev().find_map(|one| epoch_of(&one.event)).unwrap_or(0) {
            in_force if in_force == epoch => Ok(()),
            in_force => Err(format!("it was written under epoch {in_force}")),
        }
    }
}

/// The epoch that an event begins.
pub(crate) fn epoch_of(event: &Event) -> Option<u64> {
    if let Event::Started { epoch, .. } | Event::Resumed { epoch, .. } | Event::Lost { epoch, .. } =
        event
    {
        return Some(*epoch);
    }
    None
}
