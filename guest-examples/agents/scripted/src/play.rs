//! Playing one step.

use crate::{script::Op, show};
use std::hint::black_box;
use taskrun_guest::{
    agent::{PlanInput, PlanResult, PlanResumeInput, PlannerError, ToolRequest},
    cancellation, clock, events, log, reminders, run, state,
};

/// The input of the step.
pub(crate) enum Input<'a> {
    Start(&'a PlanInput),
    Resume(&'a PlanResumeInput),
}

/// The result of a step.
pub(crate) struct Played {
    pub(crate) result: PlanResult,
    /// The reply that waits for the calls of the last step.
    pub(crate) held: Option<String>,
}

/// The longest single wait of one that ignores the cancellation.
const SLICE_MS: u64 = 20;

/// A reply that may be the final one, and what was said around it.
#[derive(Default)]
struct Speech {
    /// The last reply.
    reply: Option<String>,
    /// True if it went out as an event already.
    is_out: bool,
    /// Pieces since the last whole message.
    pieces: String,
}

impl Speech {
    fn reply(&mut self, text: String) {
        self.send();
        self.is_out = false;
        self.reply = Some(text);
    }

    fn delta(&mut self, text: &str) {
        self.send();
        events::assistant_chunk(text);
        self.pieces.push_str(text);
    }

    /// Says the last reply, if that is still to be done.
    fn send(&mut self) {
        if let Some(reply) = &self.reply
            && !self.is_out
        {
            events::assistant_message(reply);
            self.is_out = true;
            self.pieces.clear();
        }
    }
}

/// Plays the operations of a step; `is_last` if no other comes after it.
pub(crate) fn play(ops: &[Op], is_last: bool, input: &Input) -> Result<Played, PlannerError> {
    let mut speech = Speech::default();
    let mut calls: Vec<ToolRequest> = Vec::new();
    let mut error: Option<&str> = None;
    let mut plan: Option<PlanResult> = None;
    let mut closed = false;
    for op in ops {
        match op {
            Op::Reply(text) => speech.reply(text.clone()),
            Op::Delta(text) => speech.delta(text),
            Op::Call(request) => {
                speech.send();
                calls.push(request.clone());
            }
            Op::Usage(usage) => events::usage_delta(*usage),
            Op::Thought(text) => events::planner_thought(text, &[]),
            Op::Log(text) => log::info(text),
            // Sticky, and the last one counts.
            Op::Err(message) => error = Some(message),
            Op::Close => {
                closed = true;
                break;
            }
            Op::Block => clock::sleep(u64::MAX).map_err(canceled)?,
            Op::IgnoreCancel(ms) => ignore_cancel(*ms),
            Op::Sleep(ms) => clock::sleep(*ms).map_err(canceled)?,
            Op::Spin => spin(),
            Op::Set(key, value) => state::set(key, value.as_deref())
                .map_err(|error| PlannerError::new(format!("{error}")).code("limit"))?,
            Op::Get(key) => speech.reply(state::get(key).unwrap_or_default()),
            Op::Remind(reminder) => reminders::add(reminder)
                .map_err(|error| PlannerError::new(format!("{error}")).code("limit"))?,
            Op::Forget(id) => reminders::remove(id),
            Op::ReplyContext => speech.reply(show::context(&run::context()).to_string()),
            Op::ReplyInput => speech.reply(show::input(input).to_string()),
            Op::ReadResult(hash) => speech.reply(read_result(hash)),
            Op::Plan(result) => plan = Some((**result).clone()),
        }
    }
    if let Some(message) = error {
        speech.send();
        return Err(PlannerError::new(message));
    }
    Ok(decide(speech, calls, plan, closed, is_last))
}

/// Reads a result part by part, and says how long it is and how it begins.
fn read_result(hash: &str) -> String {
    let mut whole = Vec::new();
    loop {
        match run::read_result(hash, whole.len() as u64, 10_000) {
            Ok(part) if part.is_empty() => break,
            Ok(part) => whole.extend(part),
            Err(error) => return error,
        }
    }
    let begins = String::from_utf8_lossy(&whole[..whole.len().min(8)]).into_owned();
    format!("{} bytes: {begins}", whole.len())
}

fn decide(
    mut speech: Speech,
    calls: Vec<ToolRequest>,
    plan: Option<PlanResult>,
    closed: bool,
    is_last: bool,
) -> Played {
    if let Some(result) = plan {
        speech.send();
        return Played { result, held: None };
    }
    if !calls.is_empty() {
        let held = if is_last && !speech.is_out { speech.reply.take() } else { None };
        speech.send();
        return Played { result: PlanResult::tool_calls(calls), held };
    }
    if closed {
        speech.send();
        return Played { result: PlanResult::final_text(""), held: None };
    }
    let text = speech.reply.unwrap_or_default();
    let streamed = speech.is_out || (!speech.pieces.is_empty() && speech.pieces == text);
    let mut result = PlanResult::final_text(text);
    result.streamed = streamed;
    Played { result, held: None }
}

fn canceled(_: clock::WaitError) -> PlannerError {
    PlannerError::new("the run is being canceled").code("canceled")
}

/// Goes on for `ms`, also when the run is being canceled.
fn ignore_cancel(ms: u64) {
    let end = clock::now().saturating_add(ms);
    let mut is_known = false;
    while clock::now() < end {
        if !is_known && cancellation::requested() {
            log::info("a cancel was seen and is ignored");
            is_known = true;
        }
        if clock::sleep(SLICE_MS).is_err() {
            // A canceled wait returns at once; without work in between this would be a flood of
            // host calls.
            for turn in 0..200_000_u32 {
                black_box(turn);
            }
            if cfg!(not(target_arch = "wasm32")) {
                // Nothing else moves the clock of the stand-in.
                return;
            }
        }
    }
}

fn spin() {
    let mut turns = 0_u64;
    while black_box(true) {
        turns = black_box(turns.wrapping_add(1));
    }
}
