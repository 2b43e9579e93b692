//! The whole answer of a run that ends, where it is too long to be shown with its record.

use taskrun_journal::artifact::{ARTIFACT_BYTES_MAX, Artifact};
use taskrun_journal::event::Event;
use taskrun_journal::progress::WholeReply;
use taskrun_journal::store::StoreError;

use super::Halt;
use super::journal::Journal;

impl Journal {
    /// Gives the end among these events, if it is there, the name of the whole answer, if that is
    /// longer than what the record holds of it; what is returned has to be kept with the events.
    ///
    /// # Errors
    /// [`Halt::Store`] if what was said before cannot be read now. A damaged journal is no error:
    /// the run ends without the artifact.
    pub(super) async fn with_whole_answer(
        &self,
        events: &mut [Event],
    ) -> Result<Vec<Artifact>, Halt> {
        let is_end = |event: &Event| matches!(event, Event::Finalizing { .. });
        if !events.iter().any(is_end) {
            return Ok(Vec::new());
        }
        let mut reply = self.run().state.reply.clone();
        events.iter().for_each(|event| reply.count(event));
        if !reply.is_cut() {
            return Ok(Vec::new());
        }
        let id = self.run().id();
        let whole = match self.whole_answer(events).await {
            Ok(whole) => whole,
            Err(error @ StoreError::Corrupt { .. }) => {
                tracing::error!(run = %id, %error, "the whole answer cannot be kept");
                return Ok(Vec::new());
            }
            Err(error) => return Err(error.into()),
        };
        let Some(text) = whole else {
            tracing::warn!(run = %id, "the answer is longer than {ARTIFACT_BYTES_MAX} bytes");
            return Ok(Vec::new());
        };
        let artifact = Artifact::new(text.into_bytes());
        for event in events {
            if let Event::Finalizing { ending } = event {
                ending.artifact = Some(artifact.reference().clone());
            }
        }
        Ok(vec![artifact])
    }

    async fn whole_answer(&self, events: &[Event]) -> Result<Option<String>, StoreError> {
        let mut whole = WholeReply::default();
        events.iter().for_each(|event| whole.count(event));
        if whole.is_whole() {
            // Nothing that was said before counts.
            return Ok(whole.into_text());
        }
        let mut whole = WholeReply::default();
        self.replay(|recorded| whole.count(&recorded.event)).await?;
        events.iter().for_each(|event| whole.count(event));
        Ok(whole.into_text())
    }
}
