//! Telling a run of earlier runs of its session, once, before its first plan step.

use taskrun_journal::artifact::Artifact;
use taskrun_journal::event::Event;
use taskrun_journal::history::{
    HISTORY_BYTES_MAX, HISTORY_MESSAGE_BYTES_MAX, HISTORY_MESSAGES_MAX, History,
};
use taskrun_journal::list::{EndedRun, ListFilter, Scope};
use taskrun_journal::media::{MEDIA_TOTAL_BYTES_MAX, Media};
use taskrun_journal::message::{Labels, LogLevel, Message, Part, Role};
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::status::Status;
use taskrun_journal::store::{Store, StoreError};
use taskrun_journal::text::cut;

use super::recorder::Recorder;
use super::stop::Halt;

/// Messages that one run brings: its task and its answer.
const MESSAGES_PER_RUN: usize = 2;
/// Runs that are looked at in one page, and pages: those that take no part in the conversation are
/// passed over, and not for ever.
const PAGE: usize = HISTORY_MESSAGES_MAX;
const PAGES_MAX: usize = 5;
/// Most bytes of an answer that is read to be cut. Of a longer one there is what is shown with its
/// run.
const WHOLE_BYTES_MAX: u64 = 1 << 20;
/// Stands at the end of a text that was cut.
const CUT: &str = "…";

/// Records what the run is told of earlier ones. From then on it is part of its journal, so that a
/// step that runs again is told the same, whatever ended or was removed meanwhile. As long as no
/// step has done anything, what was found by a host that died is looked for anew.
pub(super) async fn carry(store: &dyn Store, recorder: &mut Recorder) -> Result<(), Halt> {
    let (run, work) = (recorder.run(), recorder.work());
    let began = run.state.turns > 0 || run.state.failed_attempts > 0;
    let is_carried = work.conversation.has_history() || !work.tape.is_empty();
    if run.spec.history.is_none() || began || is_carried {
        return Ok(());
    }
    let event = match earlier(store, &run.spec).await {
        Ok(None) => None,
        Ok(Some((event, images))) => {
            recorder.keep(images);
            Some(event)
        }
        // It would be as damaged the next time, and the run has work of its own.
        Err(error @ StoreError::Corrupt { .. }) => Some(Event::Log {
            level: LogLevel::Warn,
            source: "host".to_owned(),
            message: format!("goes on without what was said before in the session: {error}"),
            fields: Labels::new(),
        }),
        Err(error) => return Err(Halt::Read(error)),
    };
    recorder.record(event.into_iter().collect()).await
}

/// The history of a run that begins at this moment, with the images in it; `None` if there is none.
async fn earlier(
    store: &dyn Store,
    spec: &RunSpec,
) -> Result<Option<(Event, Vec<Artifact>)>, StoreError> {
    let scope = scope_of(spec);
    let filter = ListFilter {
        status: vec![Status::Completed],
        agent_name: match spec.history {
            History::Agent => Some(spec.agent_name.clone()),
            History::None | History::Session => None,
        },
        ..ListFilter::default()
    };
    // The last that ended comes first, whatever was done to the time of day between the ends.
    let (mut runs, mut messages, mut bytes) = (Vec::new(), Vec::new(), 0);
    let mut images = Images::default();
    let mut before = None;
    'pages: for _ in 0..PAGES_MAX {
        let page = store.ended(&scope, &filter, before, PAGE).await?;
        for run in page.iter().map(|ended| &ended.run).filter(|run| takes_part(spec, run)) {
            let Some([mut task, mut answer]) = exchange(store, run).await? else { continue };
            images.add(store, run, run.state.reply.images(), &mut answer).await?;
            images.add(store, run, &run.spec.images, &mut task).await?;
            bytes += task.bytes() + answer.bytes();
            if messages.len() + MESSAGES_PER_RUN > HISTORY_MESSAGES_MAX || bytes > HISTORY_BYTES_MAX
            {
                break 'pages;
            }
            runs.push(run.id().clone());
            messages.push(answer);
            // What does not fit of this is left out and keeps no earlier word out.
            for told in reports(store, run).await?.into_iter().rev() {
                if messages.len() + 1 < HISTORY_MESSAGES_MAX
                    && bytes + told.bytes() <= HISTORY_BYTES_MAX
                {
                    bytes += told.bytes();
                    messages.push(told);
                }
            }
            messages.push(task);
        }
        before = page.last().map(|last| last.place);
        if page.len() < PAGE {
            break;
        }
    }
    runs.reverse();
    messages.reverse();
    let Images { artifacts, .. } = images;
    Ok((!runs.is_empty()).then_some((Event::HistoryCarried { runs, messages }, artifacts)))
}

/// The images that a run is told of with the words of earlier ones: they become its own.
#[derive(Default)]
struct Images {
    artifacts: Vec<Artifact>,
    bytes: usize,
    /// True once one had no room; no earlier one is told then.
    is_full: bool,
}

impl Images {
    /// Adds images of a run to what it said, as far as there is room.
    async fn add(
        &mut self,
        store: &dyn Store,
        run: &Run,
        images: &[Media],
        message: &mut Message,
    ) -> Result<(), StoreError> {
        for image in images {
            self.is_full |= self.bytes + image.bytes() > MEDIA_TOTAL_BYTES_MAX;
            if self.is_full {
                return Ok(());
            }
            let bytes = match store.artifact(run.id(), &image.hash).await {
                Ok(bytes) => bytes,
                // The words are there all the same.
                Err(StoreError::Corrupt { .. }) => None,
                Err(error) => return Err(error),
            };
            let Some(bytes) = bytes else { continue };
            self.bytes += image.bytes();
            self.artifacts.push(Artifact::new(bytes));
            message.parts.push(Part::Media(image.clone()));
        }
        Ok(())
    }
}

/// The runs of the session of a run, as its owner has it.
fn scope_of(spec: &RunSpec) -> Scope {
    Scope {
        tenant: spec.tenant.clone(),
        owner_user_id: Some(spec.owner_user_id.clone()),
        parent_session_id: Some(spec.parent_session_id.clone()),
        parent_app_name: spec.parent_app_name.clone(),
    }
}

/// The agents that have handed their conversation over to that of a run, in the runs of its session
/// that ended last.
pub(super) async fn handed_over(
    store: &dyn Store,
    spec: &RunSpec,
) -> Result<Vec<String>, StoreError> {
    let filter = ListFilter { status: vec![Status::Completed], ..ListFilter::default() };
    let ended = store.ended(&scope_of(spec), &filter, None, PAGE).await?;
    let handed = ended.iter().filter(|EndedRun { run, .. }| {
        let to = run.ending().and_then(|ending| ending.handed_to.as_ref());
        takes_part(spec, run) && to == Some(&spec.agent_name)
    });
    Ok(handed.map(|ended| ended.run.spec.agent_name.clone()).collect())
}

/// True if a run that the scope admits is part of the same conversation.
fn takes_part(spec: &RunSpec, run: &Run) -> bool {
    // A scope without an application admits those of every one.
    !run.spec.history.is_none() && run.spec.parent_app_name == spec.parent_app_name
}

/// The result that a run returned, or else its answer, whole unless that is too long to be read;
/// `None` for an empty one.
pub(super) async fn answer_of(store: &dyn Store, run: &Run) -> Result<Option<String>, StoreError> {
    if let Some(returned) = run.returned_text() {
        return Ok(Some(returned));
    }
    let short = run.artifact().filter(|whole| whole.size <= WHOLE_BYTES_MAX);
    let whole = match short {
        Some(artifact) => match store.artifact(run.id(), &artifact.hash).await {
            Ok(bytes) => bytes.and_then(|bytes| String::from_utf8(bytes.to_vec()).ok()),
            // What the record shows of it is there all the same.
            Err(StoreError::Corrupt { .. }) => None,
            Err(error) => return Err(error),
        },
        None => None,
    };
    let shown = || {
        let mut text = run.state.reply.result()?;
        if run.state.reply.is_cut() {
            text.push_str(CUT);
        }
        Some(text)
    };
    Ok(whole.or_else(shown))
}

/// The task and the answer of a run; `None` for an empty answer, or if it was removed just now.
async fn exchange(store: &dyn Store, run: &Run) -> Result<Option<[Message; 2]>, StoreError> {
    let Some(answer) = answer_of(store, run).await? else { return Ok(None) };
    let message = |role, text: &str| Message::text(role, shortened(text));
    Ok(Some([message(Role::User, &run.spec.task), message(Role::Assistant, &answer)]))
}

/// The reports of other runs that a run was told, in that order.
async fn reports(store: &dyn Store, run: &Run) -> Result<Vec<Message>, StoreError> {
    let mut messages = Vec::new();
    for seq in &run.state.reported_at {
        let page = store.read(run.id(), seq - 1, 1).await?;
        let Some(Event::Reported { text, .. }) = page.first().map(|recorded| &recorded.event)
        else {
            continue;
        };
        messages.push(Message::text(Role::User, shortened(text)));
    }
    Ok(messages)
}

/// A message as later runs are told it: cut where it is too long. A fence that is open there is closed,
/// so that nothing of what is said after the message stands in it.
pub(super) fn shortened(text: &str) -> String {
    if text.len() <= HISTORY_MESSAGE_BYTES_MAX {
        return text.to_owned();
    }
    let mut room = HISTORY_MESSAGE_BYTES_MAX - CUT.len();
    loop {
        let kept = format!("{}{CUT}", cut(text, room));
        let end = match open_fence(&kept) {
            0 => String::new(),
            marks => format!("\n{}", "`".repeat(marks)),
        };
        if kept.len() + end.len() <= HISTORY_MESSAGE_BYTES_MAX {
            return kept + &end;
        }
        // With less of the text another fence may be open, or none.
        room = room.saturating_sub(end.len());
    }
}

/// The backquotes of the fence that is open at the end of a text, as Markdown has it; 0 where none is.
fn open_fence(text: &str) -> usize {
    text.lines().fold(0, |open, line| {
        let marks = line.len() - line.trim_start_matches('`').len();
        let rest = &line[marks..];
        match open {
            0 if marks >= 3 && !rest.contains('`') => marks,
            0 => 0,
            _ if marks >= open && rest.trim().is_empty() => 0,
            _ => open,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_that_is_open_where_a_message_is_cut_is_closed() {
        let long = "word ".repeat(HISTORY_MESSAGE_BYTES_MAX);
        for marks in [3, 5, 100, HISTORY_MESSAGE_BYTES_MAX / 2, HISTORY_MESSAGE_BYTES_MAX] {
            let fence = "`".repeat(marks);
            for text in [
                format!("result:\n{fence}\n{long}\n{fence}\n"),
                format!("{}result:\n{fence}\n{long}", "a report\n".repeat(900)),
                format!("{fence}rust\n{fence}\n{long}"),
                format!("`````\n````\n{fence}\n```\n{long}"),
            ] {
                let told = shortened(&text);
                assert!(told.len() <= HISTORY_MESSAGE_BYTES_MAX, "{marks}: {}", told.len());
                assert_eq!(open_fence(&told), 0, "{marks}: {told}");
                assert!(told.contains(CUT), "{marks}");
            }
        }
        assert_eq!(shortened("```\nshort"), "```\nshort", "nothing is cut");
    }
}
