//! `events`: what the planner shows to observers of the run. The scope bounds it.

use taskrun_journal::event::Event;
use taskrun_journal::message::{Message, Role};

use crate::bindings::interfaces::events::Host;
use crate::bindings::interfaces::types::{Thinking, Usage};
use crate::measure;
use crate::state::CallState;

impl CallState {
    async fn show(&mut self, event: Event) -> wasmtime::Result<()> {
        let bytes = event.text_bytes();
        self.show_behind(bytes, || event).await
    }

    /// Shows an event of so many bytes, which is made where there is time for it.
    async fn show_behind(
        &mut self,
        bytes: usize,
        event: impl FnOnce() -> Event + Send,
    ) -> wasmtime::Result<()> {
        self.enter_capability("events")?;
        self.before_work(bytes).await;
        self.scope.record(event());
        Ok(())
    }
}

impl Host for CallState {
    async fn assistant_chunk(&mut self, text: String) -> wasmtime::Result<()> {
        self.show(Event::AssistantChunk { text }).await
    }

    async fn assistant_message(&mut self, text: String) -> wasmtime::Result<()> {
        let message = Message::text(Role::Assistant, text);
        self.show(Event::AssistantMessage { message, usage: None, model: None, streamed: false })
            .await
    }

    async fn tool_call_args_delta(
        &mut self,
        tool_call_id: String,
        name: String,
        delta: String,
    ) -> wasmtime::Result<()> {
        self.show(Event::ToolCallArgsDelta { tool_call_id, name, delta }).await
    }

    async fn planner_thinking_block(&mut self, block: Thinking) -> wasmtime::Result<()> {
        self.show(Event::ThinkingBlock { block: block.into() }).await
    }

    async fn planner_thought(
        &mut self,
        note: String,
        labels: Vec<(String, String)>,
    ) -> wasmtime::Result<()> {
        let bytes = note.len() + measure::labels(&labels);
        let event = || Event::PlannerNote { text: note, labels: labels.into_iter().collect() };
        self.show_behind(bytes, event).await
    }

    fn usage_delta(&mut self, usage: Usage) -> wasmtime::Result<()> {
        self.enter_capability("events")?;
        self.scope.add_usage(usage.into());
        Ok(())
    }
}
