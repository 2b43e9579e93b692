//! The whole answer of a run.

use taskrun::controller::Client;
use taskrun_journal::event::Event;
use taskrun_journal::run::Run;

use crate::failure::Outcome;

/// Events read at once.
const PAGE: usize = 1_000;

/// The answer: beside the record where that holds only its beginning, or from the journal of a run
/// that has not ended, or ended before answers were kept so.
///
/// # Errors
/// If the store fails.
pub(super) async fn whole_result(client: &Client, run: &Run) -> Outcome<Option<String>> {
    let shown = run.state.reply.result();
    if !run.state.reply.is_cut() {
        return Ok(shown);
    }
    if let Some(named) = run.artifact() {
        let bytes = client.artifact(run.id().as_str(), &named.hash).await?;
        return Ok(Some(String::from_utf8_lossy(&bytes).into_owned()));
    }
    let (mut chunks, mut message) = (String::new(), None);
    let mut after = 0;
    loop {
        let events = client.events(run.id().as_str(), after, PAGE).await?;
        let Some(last) = events.last() else { break };
        after = last.seq;
        for recorded in &events {
            if let Event::AssistantMessage { message: whole, .. } = &recorded.event {
                let text = whole.joined_text();
                if !text.is_empty() {
                    message = Some(text);
                }
            } else if let Event::AssistantChunk { text } = &recorded.event {
                chunks.push_str(text);
            }
        }
    }
    Ok(Some(message.unwrap_or(chunks)))
}
