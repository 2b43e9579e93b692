//! Scripts for the agent `scripted`: the vocabulary of the scenarios.

use serde_json::{Value, json};

/// Steps of a scripted agent, one list of operations for each plan step.
#[derive(Clone, Debug, Default)]
pub struct Script {
    steps: Vec<Vec<Value>>,
}

impl Script {
    /// A script with one empty step.
    #[must_use]
    pub fn new() -> Self {
        Self { steps: vec![Vec::new()] }
    }

    fn op(mut self, op: Value) -> Self {
        if let Some(step) = self.steps.last_mut() {
            step.push(op);
        }
        self
    }

    /// Begins the next plan step.
    #[must_use]
    pub fn then(mut self) -> Self {
        self.steps.push(Vec::new());
        self
    }

    /// A whole assistant message; the last one of a step is the final response.
    #[must_use]
    pub fn reply(self, text: &str) -> Self {
        self.op(json!({ "reply": text }))
    }

    /// Adds partial text.
    #[must_use]
    pub fn delta(self, text: &str) -> Self {
        self.op(json!({ "delta": text }))
    }

    /// A tool call.
    #[must_use]
    pub fn call(self, id: &str, name: &str, args: Value) -> Self {
        self.op(json!({ "call": { "id": id, "name": name, "args": args } }))
    }

    /// Adds tokens consumed.
    #[must_use]
    pub fn usage(self, prompt: u64, completion: u64, total: u64) -> Self {
        self.op(json!({ "usage": [prompt, completion, total] }))
    }

    /// An error of the agent, sticky.
    #[must_use]
    pub fn err(self, message: &str) -> Self {
        self.op(json!({ "err": message }))
    }

    /// Ends the step silently.
    #[must_use]
    pub fn close(self) -> Self {
        self.op(json!("close"))
    }

    /// Waits until canceled.
    #[must_use]
    pub fn block(self) -> Self {
        self.op(json!("block"))
    }

    /// Hears the cancellation and runs on for so many milliseconds.
    #[must_use]
    pub fn ignore_cancel(self, ms: u64) -> Self {
        self.op(json!({ "ignore_cancel": ms }))
    }

    /// Waits for so long.
    #[must_use]
    pub fn sleep(self, ms: u64) -> Self {
        self.op(json!({ "sleep": ms }))
    }

    /// Replies with what the run's context says.
    #[must_use]
    pub fn reply_context(self) -> Self {
        self.op(json!("reply_context"))
    }

    /// Any other operation.
    #[must_use]
    pub fn raw(self, op: Value) -> Self {
        self.op(op)
    }

    /// The task that the agent plays.
    #[must_use]
    pub fn task(&self) -> String {
        json!({ "steps": self.steps }).to_string()
    }
}
