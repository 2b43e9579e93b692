//! A model's answer on its way, passed on to observers of the run.

use super::reminders::texts;
use crate::{
    agent::{PlannerError, Reminder},
    conversation, events, log,
    model::{self, Chunk, CompletionRequest, CompletionStop, CompletionStream, ModelError},
    types::{Attachment, Message, Part, Role, ToolUse, Usage},
};

/// Chunks asked for at once. Enough that a fast model does not cost a host call per token.
const CHUNKS_MAX: u32 = 64;
/// Most times that a text which was cut off is continued. Three make four times the length that an
/// operator found enough.
const CONTINUATIONS_MAX: u32 = 3;
/// The demand for the rest of an answer.
const CONTINUATION: &str = "Your answer was cut off, as it met its limit of tokens. Go on exactly \
                            where it stops, and repeat nothing of it.";

/// A model's answer, put together from its chunks.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// All that it said, thought and asked for, in its order; some models want it back so. Text
    /// that follows on text is one part with it, and a call without a name is left out.
    pub parts: Vec<Part>,
    /// Tokens consumed, which the host has counted already.
    pub usage: Usage,
    /// The reason that the model stopped.
    pub stop: CompletionStop,
}

impl Answer {
    /// Its text.
    #[must_use]
    pub fn text(&self) -> String {
        let texts = self.parts.iter().filter_map(|part| match part {
            Part::Text(text) => Some(text.as_str()),
            Part::Thinking(_)
            | Part::ToolUse(_)
            | Part::ToolAnswer(_)
            | Part::Json(_)
            | Part::Media(_) => None,
        });
        texts.collect()
    }

    /// The tools that it wants called, in its order.
    pub fn tool_calls(&self) -> impl Iterator<Item = &ToolUse> {
        self.parts.iter().filter_map(|part| match part {
            Part::ToolUse(call) => Some(call),
            Part::Text(_)
            | Part::Thinking(_)
            | Part::ToolAnswer(_)
            | Part::Json(_)
            | Part::Media(_) => None,
        })
    }

    /// The answer as a message: its text and its reasoning in their order, without its calls.
    #[must_use]
    pub fn into_message(mut self) -> Message {
        self.parts.retain(|part| !matches!(part, Part::ToolUse(_)));
        Message { role: Role::Assistant, parts: self.parts }
    }

    /// Adds text to its end.
    fn push_text(&mut self, more: &str) {
        if let Some(Part::Text(text)) = self.parts.last_mut() {
            text.push_str(more);
        } else {
            self.parts.push(Part::Text(more.into()));
        }
    }

    /// Adds what another answer says to its end.
    fn go_on_with(&mut self, rest: Self) {
        for part in rest.parts {
            match part {
                Part::Text(text) => self.push_text(&text),
                Part::Thinking(_)
                | Part::ToolUse(_)
                | Part::ToolAnswer(_)
                | Part::Json(_)
                | Part::Media(_) => {
                    self.parts.push(part);
                }
            }
        }
        self.usage = self.usage.plus(rest.usage);
        self.stop = rest.stop;
    }

    /// Says that it is cut off, to observers too.
    fn cut_off(&mut self) {
        let why = match self.stop {
            CompletionStop::ContextWindow => "no room is left in the model's context window",
            CompletionStop::MaxTokens
            | CompletionStop::EndTurn
            | CompletionStop::ToolUse
            | CompletionStop::StopSequence
            | CompletionStop::MalformedCall
            | CompletionStop::Other => "it met its limit of tokens",
        };
        let note = format!("\n\n[The answer is cut off here: {why}.]");
        events::assistant_chunk(&note);
        self.push_text(&note);
    }
}

/// Asks a model and passes its answer on to observers while it arrives. What comes back says
/// something or asks for tools.
///
/// A text that met the policy's limit of tokens is continued, three times at most; one that is cut
/// off all the same, or at the agent's own limit, says so at its end. One that has to fit a schema
/// is left as it is.
///
/// # Errors
///
/// With the code of the model's error, and `model-refused` for a refusal. With `malformed-call`
/// where it asks for a tool in a form that cannot be read, with `context-window` where it had no
/// room to say anything, and with `empty-answer` where it said nothing for another reason.
pub fn ask_model(request: CompletionRequest) -> Result<Answer, PlannerError> {
    answer_of(model::stream, request)
}

/// As [`ask_model`], about the conversation of the run, which the host has: it stands before the
/// messages of the request, with the notes of this turn in it as
/// [`with_reminders`](super::with_reminders) puts them. An agent that uses this is shown in its later
/// steps only what is new, so what it is given does not grow with the run.
///
/// # Errors
///
/// As [`ask_model`].
pub fn ask_conversation(
    reminders: &[Reminder],
    mut request: CompletionRequest,
) -> Result<Answer, PlannerError> {
    let instructions = texts(reminders, Attachment::RunStart);
    if let Some(text) = texts(reminders, Attachment::UserTurn) {
        request.messages.insert(0, Message::text(Role::System, text));
    }
    answer_of(|request| conversation::stream(instructions.as_deref(), request), request)
}

fn answer_of(
    stream: impl Fn(&CompletionRequest) -> Result<CompletionStream, ModelError>,
    mut request: CompletionRequest,
) -> Result<Answer, PlannerError> {
    let ask =
        |request: &CompletionRequest| stream(request).and_then(|stream| consume_stream(&stream));
    let mut answer = ask(&request).map_err(|error| failed(&error))?;
    if answer.tool_calls().next().is_some() {
        return Ok(answer);
    }
    if answer.stop == CompletionStop::MalformedCall {
        let text = "the model asked for a tool in a form that cannot be read";
        return Err(PlannerError::new(text).code("malformed-call"));
    }
    if answer.text().trim().is_empty() {
        return Err(empty(answer.stop));
    }
    let is_free = request.response_schema.is_none();
    let mut left = if request.max_tokens.is_none() { CONTINUATIONS_MAX } else { 0 };
    let mut said = answer.clone();
    while is_free && answer.stop == CompletionStop::MaxTokens && left > 0 {
        left -= 1;
        request.messages.push(said.into_message());
        request.messages.push(Message::text(Role::User, CONTINUATION));
        said = match ask(&request) {
            Ok(rest) if rest.parts.is_empty() => break,
            Ok(rest) => rest,
            Err(error @ (ModelError::Canceled | ModelError::Refused(_))) => {
                return Err(failed(&error));
            }
            // What there is, is better than nothing.
            Err(error) => {
                log::warn(format!("the rest of the answer is not to be had: {}", error.text()));
                break;
            }
        };
        answer.go_on_with(said.clone());
        if said.tool_calls().next().is_some() {
            return Ok(answer);
        }
    }
    let is_cut = matches!(answer.stop, CompletionStop::MaxTokens | CompletionStop::ContextWindow);
    if is_free && is_cut {
        answer.cut_off();
    }
    Ok(answer)
}

/// The failure of a step whose model failed.
fn failed(error: &ModelError) -> PlannerError {
    let failure = PlannerError::new(error.text()).code(error.code());
    match error {
        ModelError::RateLimited(Some(pause_ms)) => failure.retry_after(*pause_ms),
        ModelError::RateLimited(None)
        | ModelError::Denied(_)
        | ModelError::UnknownModel(_)
        | ModelError::Unavailable(_)
        | ModelError::InvalidRequest(_)
        | ModelError::NotFound(_)
        | ModelError::Refused(_)
        | ModelError::Misfit(_)
        | ModelError::Budget(_)
        | ModelError::Timeout
        | ModelError::Canceled
        | ModelError::Other(_) => failure,
    }
}

/// The failure of a step whose model said nothing.
fn empty(stop: CompletionStop) -> PlannerError {
    match stop {
        CompletionStop::MaxTokens => PlannerError::new(
            "the model used all tokens that an answer may have before it said anything: let it \
             have more, or reason less",
        )
        .code("empty-answer"),
        CompletionStop::ContextWindow => {
            PlannerError::new("the conversation leaves no room in the model's context window")
                .code("context-window")
        }
        CompletionStop::EndTurn
        | CompletionStop::ToolUse
        | CompletionStop::StopSequence
        | CompletionStop::MalformedCall
        | CompletionStop::Other => {
            PlannerError::new("the model gave no answer").code("empty-answer")
        }
    }
}

/// Reads an answer to its end. Text and reasoning go out as events while they arrive, and so do
/// the arguments of tool calls; usage does not, because the host counts what goes through
/// `model`.
///
/// # Errors
///
/// When the model fails on the way. The chunks that had arrived are lost to the caller, and were
/// seen by observers.
pub fn consume_stream(stream: &CompletionStream) -> Result<Answer, ModelError> {
    let mut answer =
        Answer { parts: Vec::new(), usage: Usage::default(), stop: CompletionStop::Other };
    loop {
        let chunks = stream.next(CHUNKS_MAX)?;
        if chunks.is_empty() {
            return Ok(answer);
        }
        let mut piece = String::new();
        for chunk in chunks {
            if let Chunk::Text(more) = chunk {
                // What arrived together goes out together.
                piece.push_str(&more);
                continue;
            }
            send(&mut piece, &mut answer);
            match chunk {
                Chunk::Text(_) => {}
                Chunk::Thinking(block) => {
                    events::planner_thinking_block(&block);
                    answer.parts.push(Part::Thinking(block));
                }
                Chunk::ToolCallDelta(delta) => {
                    events::tool_call_args_delta(&delta.tool_call_id, &delta.name, &delta.delta);
                }
                Chunk::ToolCall(call) if call.name.is_empty() => {}
                Chunk::ToolCall(call) => answer.parts.push(Part::ToolUse(call)),
                Chunk::Usage(usage) => answer.usage = answer.usage.plus(usage),
                Chunk::Stop(reason) => answer.stop = reason,
            }
        }
        send(&mut piece, &mut answer);
    }
}

/// Moves `piece`, unless it is empty, to the observers and to the end of the answer.
fn send(piece: &mut String, answer: &mut Answer) {
    if !piece.is_empty() {
        events::assistant_chunk(piece);
        answer.push_text(piece);
        piece.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        native::{self, Event},
        types::Thinking,
    };

    /// Asks a model that gives these answers.
    fn ask(answers: Vec<Result<Vec<Chunk>, ModelError>>) -> Result<Answer, PlannerError> {
        native::reset();
        native::host(|host| host.completions.extend(answers));
        ask_model(CompletionRequest::new(vec![Message::text(Role::User, "Count.")]))
    }

    fn says(text: &str, stop: CompletionStop) -> Result<Vec<Chunk>, ModelError> {
        Ok(vec![Chunk::Text(text.into()), Chunk::Stop(stop)])
    }

    fn shown() -> String {
        native::host(|host| {
            let mut texts = String::new();
            for event in &host.events {
                if let Event::Chunk(text) = event {
                    texts.push_str(text);
                }
            }
            texts
        })
    }

    #[test]
    fn the_parts_of_an_answer_keep_their_order() {
        let thinking =
            |text: &str| Thinking { text: text.into(), signature: Some(format!("of {text}")) };
        let call = |id: &str, name: &str| ToolUse {
            tool_call_id: id.into(),
            name: name.into(),
            payload: "{}".into(),
        };
        let answer = ask(vec![Ok(vec![
            Chunk::Thinking(thinking("1")),
            Chunk::ToolCall(call("a", "t/f")),
            Chunk::Thinking(thinking("2")),
            Chunk::Text("I ".into()),
            Chunk::Text("look.".into()),
            Chunk::ToolCall(call("without a name", "")),
            Chunk::ToolCall(call("b", "t/f")),
            Chunk::Stop(CompletionStop::ToolUse),
        ])])
        .expect("an answer");
        let expected = [
            Part::Thinking(thinking("1")),
            Part::ToolUse(call("a", "t/f")),
            Part::Thinking(thinking("2")),
            Part::Text("I look.".into()),
            Part::ToolUse(call("b", "t/f")),
        ];
        assert_eq!(answer.parts, expected);
        assert_eq!(answer.tool_calls().count(), 2);
    }

    #[test]
    fn a_text_that_met_its_limit_is_continued() {
        let answer = ask(vec![
            says("one, two", CompletionStop::MaxTokens),
            says(", three", CompletionStop::EndTurn),
        ])
        .expect("an answer");
        assert_eq!(answer.text(), "one, two, three");
        assert_eq!(shown(), answer.text());
        native::host(|host| {
            let again = &host.completion_requests[1].messages;
            let roles: Vec<Role> = again.iter().map(|message| message.role).collect();
            assert_eq!(roles, [Role::User, Role::Assistant, Role::User]);
            assert_eq!(again[1].plain_text(), "one, two");
        });
    }

    #[test]
    fn a_text_that_stays_cut_off_says_so_to_all() {
        let without_end = || says("more ", CompletionStop::MaxTokens);
        let cut = ask((0..9).map(|_| without_end()).collect()).expect("an answer");
        assert!(cut.text().starts_with("more more more more \n\n[The answer is cut off"));
        assert_eq!(shown(), cut.text());
        let broken = ask(vec![without_end(), Err(ModelError::Budget("tokens".into()))]);
        assert!(broken.expect("an answer").text().starts_with("more \n\n[The answer is cut off"));
        let full = ask(vec![says("more ", CompletionStop::ContextWindow)]).expect("an answer");
        assert!(full.text().ends_with("context window.]"), "{}", full.text());
    }

    #[test]
    fn a_limit_of_the_agent_is_kept() {
        native::reset();
        native::host(|host| host.completions.push_back(says("a", CompletionStop::MaxTokens)));
        let mut request = CompletionRequest::new(vec![Message::text(Role::User, "Count.")]);
        request.max_tokens = Some(1);
        let answer = ask_model(request).expect("an answer");
        assert!(answer.text().starts_with("a\n\n[The answer is cut off"));
        assert_eq!(native::host(|host| host.completion_requests.len()), 1);
    }

    #[test]
    fn a_model_that_says_nothing_is_a_failure_that_says_why() {
        let thought = Chunk::Thinking(Thinking { text: "hm".into(), signature: None });
        let nothing =
            |stop| Ok(vec![thought.clone(), Chunk::Text(" \n".into()), Chunk::Stop(stop)]);
        let table = [
            (CompletionStop::EndTurn, "empty-answer", "gave no answer"),
            (CompletionStop::MaxTokens, "empty-answer", "used all tokens"),
            (CompletionStop::ContextWindow, "context-window", "no room"),
            (CompletionStop::MalformedCall, "malformed-call", "cannot be read"),
            (CompletionStop::Other, "empty-answer", "gave no answer"),
        ];
        for (stop, code, words) in table {
            let error = ask(vec![nothing(stop)]).expect_err("a failure");
            assert_eq!(error.code.as_deref(), Some(code));
            assert!(error.message.contains(words), "{}", error.message);
        }
        let limited = ask(vec![Err(ModelError::RateLimited(Some(7_000)))]);
        assert_eq!(limited.expect_err("a failure").retry_after, Some(7_000));
        let half = says("I could", CompletionStop::MaxTokens);
        let refused = ask(vec![half, Err(ModelError::Refused("No.".into()))]);
        assert_eq!(refused.expect_err("a failure").code.as_deref(), Some("model-refused"));
    }
}
