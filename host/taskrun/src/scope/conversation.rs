//! The conversation that a plan step is shown. The host has it, so a question to a model need not
//! bring it.

use std::sync::Arc;

use taskrun_journal::completion::{CompletionRequest, ModelError};
use taskrun_journal::message::{Message, Part, Role};

use super::CallScope;
use super::question_digests::QuestionDigests;

/// The conversation that a plan step is shown.
#[derive(Clone, Debug, Default)]
pub struct StepConversation {
    messages: Arc<Vec<Message>>,
    digests: QuestionDigests,
    /// The place of the task, where that is known.
    task: Option<usize>,
}

impl StepConversation {
    /// These messages, with the digests of what the run asked about them so far.
    #[must_use]
    pub fn new(messages: Arc<Vec<Message>>, digests: QuestionDigests) -> Self {
        Self { messages, digests, task: None }
    }

    /// The same, whose message at this place is the task.
    #[must_use]
    pub fn with_task(self, place: usize) -> Self {
        Self { task: Some(place), ..self }
    }

    /// The place of the task among the messages of a question; the last one, where it stands there more
    /// than once.
    fn task_in(&self, asked: &[Message]) -> Option<usize> {
        let task = self.messages.get(self.task?)?;
        asked.iter().rposition(|message| message == task)
    }

    /// Bytes of its messages.
    fn bytes(&self) -> usize {
        self.messages.iter().map(Message::bytes).sum()
    }
}

impl CallScope {
    /// The conversation that the step is shown; empty in other calls.
    #[must_use]
    pub fn conversation(&self) -> Arc<Vec<Message>> {
        let conversation = self.parts.services.conversation.as_ref();
        conversation.map_or_else(Arc::default, |shown| Arc::clone(&shown.messages))
    }

    /// Bytes of the conversation that the step is shown; none in other calls.
    #[must_use]
    pub fn conversation_bytes(&self) -> usize {
        self.parts.services.conversation.as_ref().map_or(0, StepConversation::bytes)
    }

    /// The place of the step's task among the messages of a question, if it has it.
    pub(super) fn task_in(&self, asked: &[Message]) -> Option<usize> {
        self.parts.services.conversation.as_ref()?.task_in(asked)
    }

    /// The question about the conversation that the step is shown: that stands before the question's
    /// own messages, with these instructions at the end of the first message if that is one of
    /// instructions, and else before it.
    ///
    /// # Errors
    /// [`ModelError::InvalidRequest`] in a call that is no plan step.
    pub fn about_conversation(
        &self,
        instructions: Option<String>,
        request: CompletionRequest,
    ) -> Result<CompletionRequest, ModelError> {
        let conversation = self.parts.services.conversation.as_ref().ok_or_else(|| {
            ModelError::InvalidRequest("only a plan step has a conversation".to_owned())
        })?;
        let mut messages = Vec::with_capacity(conversation.messages.len() + 2);
        messages.extend(conversation.messages.iter().cloned());
        if let Some(text) = instructions {
            match messages.first_mut().filter(|first| first.role == Role::System) {
                Some(first) => append(first, text),
                None => messages.insert(0, Message::text(Role::System, text)),
            }
        }
        messages.extend(request.messages);
        Ok(CompletionRequest { messages, ..request })
    }

    /// The digest of a question to a model.
    pub(super) async fn digest_of(&self, request: &CompletionRequest) -> String {
        match &self.parts.services.conversation {
            Some(conversation) => {
                conversation.digests.digest(request, conversation.messages.last()).await
            }
            None => QuestionDigests::default().digest(request, None).await,
        }
    }
}

/// Adds text to instructions, as a paragraph of its own.
fn append(instructions: &mut Message, text: String) {
    match instructions.parts.last_mut() {
        Some(Part::Text(before)) => {
            before.push_str("\n\n");
            before.push_str(&text);
        }
        Some(
            Part::Thinking(_)
            | Part::ToolUse(_)
            | Part::ToolAnswer(_)
            | Part::Json(_)
            | Part::Media(_),
        )
        | None => instructions.parts.push(Part::Text(text)),
    }
}
