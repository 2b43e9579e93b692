//! The part of a conversation that a step is shown.

use std::sync::Arc;

use taskrun_journal::artifact::Artifact;
use taskrun_journal::message::Message;
use taskrun_journal::tool::ToolOutput;
use taskrun_policy::least;

use super::Conversation;
use super::results::{OVER_BUDGET, leave_out, saved_without};
use crate::compaction::{Compaction, Layout, Window, cut_newest, left_out, shown};
use crate::ports::planner::ConversationView;

/// A conversation as a planner is given it.
#[derive(Clone, Debug)]
pub(crate) struct Excerpt {
    /// Its messages.
    pub messages: Arc<Vec<Message>>,
    /// The place of the first message that the step which decided last was not given.
    pub first_new: usize,
    /// The place of the task.
    pub task: usize,
    /// True if nothing is left out of the messages.
    pub is_whole: bool,
    /// The results of the calls that its view has.
    pub outputs: Arc<Vec<ToolOutput>>,
    /// The messages that are left out, as they were.
    pub left_out: Option<Artifact>,
}

/// The messages of an excerpt that leaves some out, as they are shown from one compaction to the next.
#[derive(Clone, Debug)]
pub(super) struct MessageExcerpt {
    compaction: Compaction,
    /// The messages that are left out, as they were.
    left_out: Option<Artifact>,
    /// The number of messages of the conversation that were shown so.
    of: usize,
    messages: Arc<Vec<Message>>,
}

/// The results of an excerpt that leaves values out, as they are shown until there is no room again.
#[derive(Clone, Debug)]
pub(super) struct OutputExcerpt {
    left_out: usize,
    outputs: Arc<Vec<ToolOutput>>,
}

impl Conversation {
    /// Messages, and the results that a view has, in at most `max` bytes, and the messages in a
    /// model's window, if that can be. Where they are more, half is left: the values of the oldest
    /// results are left out first, then the oldest turns, then what was said before the task; never the
    /// newest result. `None` if `max` is not enough for that. New results have the part of `max`
    /// that the new messages leave.
    #[must_use]
    pub(crate) fn within(
        &mut self,
        max: usize,
        window: Window<'_>,
        view: ConversationView,
    ) -> Option<Excerpt> {
        let mut messages = Arc::clone(&self.messages);
        let layout = Layout::of(&self.messages, Some(self.task));
        // Those before them came with the request of the run.
        let before = layout.results().saturating_sub(self.outputs.len());
        let (mut compaction, mut room) = (Compaction::default(), None);
        if let Some(bytes) = window.bytes {
            compaction = layout.clone().within(bytes).0;
            room = Some(bytes);
        }
        if let Some(tokens) = window.tokens {
            let (more, bytes) = layout.clone().within_tokens(tokens, window.counts);
            compaction = compaction.and(more);
            room = least(room, Some(bytes));
        }
        let beside = self.outputs.iter().map(|output| (output.bytes(), saved_without(output)));
        let (all, bytes) = match view {
            ConversationView::Whole => layout.with_beside(beside).within(max),
            ConversationView::New => layout.within(max),
        };
        if bytes > max {
            return None;
        }
        compaction = compaction.and(all);
        let gone = compaction.gone(&self.messages, Some(self.task));
        let mut left_out = None;
        if compaction != Compaction::default() {
            let shown = self.shown_without(compaction, &gone);
            (messages, left_out) = (Arc::clone(&shown.messages), shown.left_out.clone());
        }
        if let Some(room) = room {
            let bytes = messages.iter().map(Message::bytes).sum::<usize>();
            if bytes > room {
                let messages: &mut Vec<Message> = Arc::make_mut(&mut messages);
                cut_newest(messages, room, OVER_BUDGET);
            }
        }
        let first_new = place_in_excerpt(&gone, self.given.messages);
        let task = place_in_excerpt(&gone, self.task);
        let is_whole = Arc::ptr_eq(&messages, &self.messages);
        let outputs = match view {
            ConversationView::Whole => self.outputs_without(all.results.saturating_sub(before)),
            ConversationView::New => {
                let beside: usize = messages[first_new..].iter().map(Message::bytes).sum();
                new_outputs(&self.outputs[self.given.results..], max.saturating_sub(beside))
            }
        };
        Some(Excerpt { messages, first_new, task, is_whole, outputs, left_out })
    }

    /// The messages without what is left out. From one compaction to the next that is the same, so what
    /// was shown stays as it is, and those that came since follow on it.
    fn shown_without(&mut self, compaction: Compaction, gone: &[bool]) -> &MessageExcerpt {
        let known = self.message_excerpt.take();
        let shown = match known {
            Some(mut shown) if shown.compaction == compaction => {
                let more = self.messages[shown.of..].iter().cloned();
                Arc::make_mut(&mut shown.messages).extend(more);
                MessageExcerpt { of: self.messages.len(), ..shown }
            }
            known => {
                // They are written and named once.
                let messages_out = |one: Compaction| (one.turns, one.words);
                let same = known
                    .filter(|known| messages_out(known.compaction) == messages_out(compaction));
                let left_out = match same.and_then(|known| known.left_out) {
                    Some(known) => Some(known),
                    None => left_out(&self.messages, gone),
                };
                let whole = left_out.as_ref().map(Artifact::reference);
                let messages = shown(&self.messages, (compaction, gone), OVER_BUDGET, whole);
                MessageExcerpt {
                    compaction,
                    left_out,
                    of: self.messages.len(),
                    messages: Arc::new(messages),
                }
            }
        };
        self.message_excerpt.insert(shown)
    }

    /// The results without the values of the oldest. Until there is no room again that is the same, so
    /// each is named once.
    fn outputs_without(&mut self, left_out: usize) -> Arc<Vec<ToolOutput>> {
        if left_out == 0 {
            return Arc::clone(&self.outputs);
        }
        let known = self.output_excerpt.take().filter(|known| known.left_out == left_out);
        let mut shown = known.unwrap_or_else(|| {
            let mut outputs = self.outputs.to_vec();
            outputs[..left_out].iter_mut().for_each(|output| leave_out(output, OVER_BUDGET));
            OutputExcerpt { left_out, outputs: Arc::new(outputs) }
        });
        let more = self.outputs[shown.outputs.len()..].iter().cloned();
        Arc::make_mut(&mut shown.outputs).extend(more);
        Arc::clone(&self.output_excerpt.insert(shown).outputs)
    }
}

/// New results, without the values of the oldest where all have more bytes than these. Of the newest the
/// value goes last: the messages have it, too.
fn new_outputs(outputs: &[ToolOutput], max: usize) -> Arc<Vec<ToolOutput>> {
    let mut bytes: usize = outputs.iter().map(ToolOutput::bytes).sum();
    let mut outputs = outputs.to_vec();
    for output in &mut outputs {
        if bytes <= max {
            break;
        }
        bytes -= output.bytes();
        leave_out(output, OVER_BUDGET);
        bytes += output.bytes();
    }
    Arc::new(outputs)
}

/// The place in an excerpt of the message at this place of the conversation, or of the next one that is
/// not left out; `gone` are those that are.
fn place_in_excerpt(gone: &[bool], place: usize) -> usize {
    let gone = gone.iter().take(place).filter(|gone| **gone).count();
    // One message stands there instead of all of them.
    place - gone + usize::from(gone > 0)
}
