//! Questions that are put again, as nothing came of them.

use std::collections::VecDeque;
use std::sync::Mutex;

use async_trait::async_trait;
use futures::{StreamExt, stream};
use taskrun_journal::completion::{
    Chunk, Completion, CompletionRequest, CompletionStop, ModelError,
};
use taskrun_journal::message::{Message, Part, Role, ToolAnswer, ToolUse};
use taskrun_policy::{CallRules, Policy};

use super::super::model::{Model, ModelStream};
use super::super::open_question::{Cause, OpenQuestion};
use super::super::*;
use super::fixtures::{POLICY, question};
use super::parts;

/// A model that gives prepared answers.
#[derive(Default)]
struct Prepared {
    answers: Mutex<VecDeque<Result<Vec<Chunk>, ModelError>>>,
    asked: Mutex<Vec<CompletionRequest>>,
}

#[async_trait]
impl Model for Prepared {
    async fn stream(&self, request: CompletionRequest) -> Result<ModelStream, ModelError> {
        self.asked.lock().expect("no panic").push(request);
        let next = self.answers.lock().expect("no panic").pop_front();
        let chunks = next.expect("an answer was prepared")?;
        Ok(stream::iter(chunks.into_iter().map(Ok)).boxed())
    }
}

fn usage(total_tokens: u64) -> Chunk {
    Chunk::Usage(Usage { total_tokens, ..Usage::default() })
}

fn stop(reason: CompletionStop) -> Chunk {
    Chunk::Stop { reason, model: "m-1".to_owned() }
}

fn text(text: &str) -> Chunk {
    Chunk::Text(text.to_owned())
}

fn fails(reason: CompletionStop) -> Result<Vec<Chunk>, ModelError> {
    Ok(vec![usage(5), stop(reason)])
}

fn answers() -> Result<Vec<Chunk>, ModelError> {
    Ok(vec![text("done"), usage(7), stop(CompletionStop::EndTurn)])
}

fn scope(answers: Vec<Result<Vec<Chunk>, ModelError>>) -> (CallScope, Arc<Prepared>) {
    let model = Arc::new(Prepared { answers: Mutex::new(answers.into()), ..Prepared::default() });
    (scope_of(model.clone()), model)
}

fn scope_of(model: Arc<dyn Model>) -> CallScope {
    let policy = Policy::parse(POLICY, "taskrun.toml".as_ref()).expect("a valid policy");
    let grants = Arc::clone(&policy.agents["a"].grants);
    let models = Models {
        by_name: BTreeMap::from([("m".to_owned(), model)]),
        prices: BTreeMap::new(),
        settings: BTreeMap::new(),
        default: Some("m".to_owned()),
    };
    CallScope::new(CallScopeParts {
        models: Some(Arc::new(models)),
        rules: CurrentRules::fixed(CallRules::new(grants, None)),
        ..parts(100, 1 << 20)
    })
}

/// The text of a streamed answer, its end, and what was asked.
async fn streamed(
    request: CompletionRequest,
    replies: Vec<Result<Vec<Chunk>, ModelError>>,
) -> (Result<(String, CompletionStop), ModelError>, Vec<CompletionRequest>, u64) {
    let (scope, model) = scope(replies);
    let read = async {
        let mut answer = scope.stream(request).await?;
        let (mut said, mut end) = (String::new(), None);
        loop {
            let chunks = scope.next_chunks(&mut answer, 10).await?;
            if chunks.is_empty() {
                return Ok((said, end.expect("it ends")));
            }
            for chunk in chunks {
                match chunk {
                    Chunk::Text(text) => said.push_str(&text),
                    Chunk::Stop { reason, .. } => end = Some(reason),
                    Chunk::Thinking(_)
                    | Chunk::ToolCallDelta { .. }
                    | Chunk::ToolCall(_)
                    | Chunk::Usage(_) => {}
                }
            }
        }
    };
    let read = read.await;
    let tokens = scope.finish().usage.unwrap_or_default().total_tokens;
    let asked = model.asked.lock().expect("no panic").clone();
    (read, asked, tokens)
}

async fn whole(
    request: CompletionRequest,
    replies: Vec<Result<Vec<Chunk>, ModelError>>,
) -> (Result<Completion, ModelError>, Vec<CompletionRequest>, u64) {
    let (scope, model) = scope(replies);
    let answer = scope.ask(request).await;
    let tokens = scope.finish().usage.unwrap_or_default().total_tokens;
    let asked = model.asked.lock().expect("no panic").clone();
    (answer, asked, tokens)
}

/// A conversation with results of tools, the newest of them last.
fn long() -> CompletionRequest {
    results(4, 5_000)
}

/// One with so many results of so many bytes each.
fn results(count: usize, bytes: usize) -> CompletionRequest {
    let mut messages = vec![Message::text(Role::User, "task")];
    for number in 0..count {
        let call = ToolUse {
            tool_call_id: "c".to_owned(),
            name: "t/f".to_owned(),
            payload: "{}".to_owned(),
        };
        messages.push(Message { role: Role::Assistant, parts: vec![Part::ToolUse(call)].into() });
        let content = format!("{number}{}", "x".repeat(bytes));
        let answer = ToolAnswer {
            tool_call_id: "c".to_owned(),
            content,
            is_error: false,
            media: Vec::new(),
        };
        messages.push(Message { role: Role::Tool, parts: vec![Part::ToolAnswer(answer)].into() });
    }
    CompletionRequest { messages, ..question("") }
}

fn bytes(request: &CompletionRequest) -> usize {
    request.messages.iter().map(Message::bytes).sum()
}

#[tokio::test]
async fn a_call_that_cannot_be_read_is_asked_for_once_more_with_a_hint() {
    let replies = || vec![fails(CompletionStop::MalformedCall), answers()];
    let (said, asked, tokens) = streamed(question("q"), replies()).await;
    assert_eq!(said, Ok(("done".to_owned(), CompletionStop::EndTurn)));
    assert_eq!(tokens, 12, "both are paid for");
    let hint = asked[1].messages.last().expect("a hint");
    assert!(hint.role == Role::System && hint.joined_text().contains("cannot be read"));
    assert_eq!(asked[1].messages[..1], asked[0].messages);
    let (answer, asked, tokens) = whole(question("q"), replies()).await;
    let answer = answer.expect("an answer");
    assert_eq!((answer.message.joined_text().as_str(), answer.usage.total_tokens), ("done", 12));
    assert_eq!((asked.len(), tokens), (2, 12));
}

#[tokio::test]
async fn the_second_answer_stands_whatever_it_is() {
    let twice = || vec![fails(CompletionStop::MalformedCall), fails(CompletionStop::MalformedCall)];
    let (said, asked, _) = streamed(question("q"), twice()).await;
    assert_eq!(said, Ok((String::new(), CompletionStop::MalformedCall)));
    assert_eq!(asked.len(), 2);
    let (answer, asked, tokens) = whole(question("q"), twice()).await;
    assert_eq!(answer.expect("an answer").stop, CompletionStop::MalformedCall);
    assert_eq!((asked.len(), tokens), (2, 10));
    let fails = vec![fails(CompletionStop::MalformedCall), Err(ModelError::Timeout)];
    let (said, ..) = streamed(question("q"), fails).await;
    assert_eq!(said, Err(ModelError::Timeout));
}

#[tokio::test]
async fn an_answer_in_which_something_was_said_is_not_asked_for_again() {
    let said = Ok(vec![text("I am "), stop(CompletionStop::ContextWindow)]);
    let (answer, asked, _) = streamed(long(), vec![said]).await;
    assert_eq!(answer, Ok(("I am ".to_owned(), CompletionStop::ContextWindow)));
    assert_eq!(asked.len(), 1);
}

#[tokio::test]
async fn a_window_without_room_is_asked_once_more_with_half() {
    let told = ModelError::ContextWindow("too long".to_owned());
    for first in [Err(told.clone()), fails(CompletionStop::ContextWindow)] {
        let (said, asked, _) = streamed(long(), vec![first.clone(), answers()]).await;
        assert_eq!(said.expect("an answer").0, "done");
        assert_eq!((asked.len(), &asked[0]), (2, &long()));
        assert!(bytes(&asked[1]) <= bytes(&asked[0]) / 2, "{}", bytes(&asked[1]));
        assert_eq!(asked[1].messages.last(), asked[0].messages.last(), "the newest is whole");
        let (answer, asked, _) = whole(long(), vec![first, answers()]).await;
        assert_eq!(answer.expect("an answer").message.joined_text(), "done");
        assert!(bytes(&asked[1]) <= bytes(&asked[0]) / 2);
    }
    // Nothing can be left out of this one.
    let (said, asked, _) = streamed(question("q"), vec![Err(told.clone())]).await;
    assert_eq!((said, asked.len()), (Err(told), 1));
}

fn no_room(words: &str) -> Result<Vec<Chunk>, ModelError> {
    Err(ModelError::ContextWindow(words.to_owned()))
}

#[tokio::test]
async fn a_window_without_room_for_half_is_asked_with_less_until_it_has_room() {
    let request = results(60, 8_000);
    for refusals in 1..=5 {
        let replies = || {
            let refused = (0..refusals).map(|_| no_room("too long"));
            refused.chain([answers()]).collect::<Vec<_>>()
        };
        let (said, asked, tokens) = streamed(request.clone(), replies()).await;
        assert_eq!(said.expect("an answer").0, "done");
        assert_eq!((asked.len(), tokens), (refusals + 1, 7), "refusals cost nothing");
        let sizes: Vec<usize> = asked.iter().map(bytes).collect();
        assert!(sizes.is_sorted_by(|before, after| after < before), "{sizes:?}");
        let (answer, asked, _) = whole(request.clone(), replies()).await;
        assert_eq!(answer.expect("an answer").message.joined_text(), "done");
        assert_eq!(asked.iter().map(bytes).collect::<Vec<_>>(), sizes);
    }
}

#[tokio::test]
async fn a_model_that_never_has_room_is_asked_six_times() {
    let replies = || (0..10).map(|_| no_room("too long")).collect::<Vec<_>>();
    let (said, asked, _) = streamed(results(60, 8_000), replies()).await;
    assert_eq!((said, asked.len()), (Err(ModelError::ContextWindow("too long".to_owned())), 6));
    assert!(bytes(&asked[4]) < bytes(&asked[0]) / 60, "{}", bytes(&asked[4]));
    let (answer, asked, _) = whole(results(60, 8_000), replies()).await;
    assert_eq!((answer.is_err(), asked.len()), (true, 6));
    // A question that is paid for is put again once.
    let paid = || vec![fails(CompletionStop::ContextWindow), fails(CompletionStop::ContextWindow)];
    let (said, asked, tokens) = streamed(results(60, 8_000), paid()).await;
    assert_eq!(said, Ok((String::new(), CompletionStop::ContextWindow)));
    assert_eq!((asked.len(), tokens), (2, 10));
    let (answer, asked, _) = whole(results(60, 8_000), paid()).await;
    let answer = answer.expect("an answer");
    assert_eq!((answer.usage.total_tokens, asked.len()), (10, 2));
}

#[tokio::test]
async fn a_provider_that_states_its_room_is_asked_with_as_much_as_it_has() {
    let request = results(20, 2_000);
    let words = "status 400: This model's maximum context length is 8000 tokens. However, your \
                 messages resulted in 10000 tokens.";
    let (said, asked, _) = streamed(request.clone(), vec![no_room(words), answers()]).await;
    assert_eq!(said.expect("an answer").0, "done");
    let (first, second) = (bytes(&asked[0]), bytes(&asked[1]));
    assert!(second > first / 2 && second <= first / 5 * 3 + 3, "{first}, {second}");
    // One that only seems to state it is asked with less all the same.
    let replies = (0..10).map(|_| no_room("9999 tokens are more than 9998")).collect();
    let (_, asked, _) = streamed(results(60, 8_000), replies).await;
    assert_eq!(asked.len(), 6);
    assert!(bytes(&asked[5]) < bytes(&asked[0]) / 50, "{}", bytes(&asked[5]));
}

/// The bytes that a run keeps of a refusal in these words, and those of the question put next.
fn refused(request: &CompletionRequest, words: &str) -> (u64, usize) {
    let (mut scope, _) = scope(Vec::new());
    scope.parts.journal = Some(JournalRoom::default());
    let model = request.clone().admit(&scope).expect("the policy allows it");
    let mut question = OpenQuestion::new(request.clone(), model, 0);
    let refusal = ModelError::ContextWindow(words.to_owned());
    let cause = Cause::of_error(&refusal).expect("a cause to ask again");
    let next = scope.put_again(&mut question, cause).expect("it is put again");
    let met = scope.take_events().events.into_iter().find_map(|event| {
        if let Event::ContextWindowMet { bytes, .. } = event { Some(bytes) } else { None }
    });
    (met.expect("it is kept"), bytes(&next))
}

#[test]
fn words_that_leave_less_than_half_count_for_the_question_that_is_put_next_alone() {
    let request = results(20, 8_000);
    let whole = bytes(&request);
    let (kept, next) = refused(&request, "prompt is too long: 2500 tokens > 2000 maximum");
    assert_eq!(kept, whole as u64 * 4 / 5);
    assert!(next > whole / 2 && next < whole, "{next}");
    let (kept, next) = refused(&request, "prompt is too long: 8000 tokens > 2000 maximum");
    assert_eq!(kept, whole as u64);
    assert!(next < whole / 4, "{next}");
    // The number of a request is that of no tokens: most of half of the conversation stays.
    let (kept, next) = refused(&request, "request 87654321: 2500 tokens > 2000 maximum");
    assert_eq!(kept, whole as u64);
    assert!(next > whole / 4 && next <= whole / 2, "{next}");
}

#[tokio::test]
async fn a_window_without_room_for_what_was_said_before_is_asked_once_more_with_less_of_it() {
    let say = |role, text: &str| Message::text(role, format!("{text} {}", "x".repeat(2_000)));
    let before = (0..8).flat_map(|_| [say(Role::User, "before"), say(Role::Assistant, "so")]);
    let task = say(Role::User, "task");
    let conversation: Vec<_> = before.chain([task.clone()]).collect();
    let instructions = Message::text(Role::System, "Be brief.");
    let messages = [instructions.clone()].into_iter().chain(conversation.clone()).collect();
    let request = CompletionRequest { messages, ..question("") };
    let told = || Err(ModelError::ContextWindow("too long".to_owned()));
    for knows_task in [true, false] {
        let (mut scope, model) = scope(vec![told(), answers()]);
        let place = conversation.len() - 1;
        let shown =
            StepConversation::new(Arc::new(conversation.clone()), QuestionDigests::default());
        let shown = if knows_task { shown.with_task(place) } else { shown };
        scope.parts.services.conversation = Some(shown);
        scope.ask(request.clone()).await.expect("an answer");
        let asked = model.asked.lock().expect("no panic").clone();
        let second = &asked[1];
        let is_half = bytes(second) <= bytes(&request) / 2;
        assert_eq!((&second.messages[0], second.messages.last()), (&instructions, Some(&task)));
        let left = second.messages.iter().filter(|one| one.joined_text().starts_with("before"));
        // Words of the user go only where it is known which of them are the task.
        assert_eq!((is_half, left.count() < 8), (knows_task, knows_task));
    }
}

/// Counts the tokens of an answer that does not fit, and never comes to another one.
#[derive(Default)]
struct Hesitant {
    asked: tokio::sync::watch::Sender<u32>,
}

#[async_trait]
impl Model for Hesitant {
    async fn stream(&self, _: CompletionRequest) -> Result<ModelStream, ModelError> {
        self.asked.send_modify(|asked| *asked += 1);
        let begins = match *self.asked.borrow() {
            1 => vec![text("no JSON"), usage(5_000_000), stop(CompletionStop::EndTurn)],
            _ => vec![usage(2_000_000)],
        };
        Ok(stream::iter(begins.into_iter().map(Ok)).chain(stream::pending()).boxed())
    }
}

#[tokio::test]
async fn tokens_that_were_counted_count_also_where_the_second_answer_is_given_up() {
    let model = Arc::new(Hesitant::default());
    let scope = scope_of(model.clone());
    let schema = Some(r#"{"type":"object"}"#.to_owned());
    let asks = scope.ask(CompletionRequest { response_schema: schema, ..question("x") });
    let mut asked = model.asked.subscribe();
    tokio::select! {
        biased;
        answer = asks => panic!("it hesitates: {answer:?}"),
        twice = asked.wait_for(|asked| *asked == 2) => drop(twice.expect("it is there")),
    }
    let usage = scope.finish().usage.unwrap_or_default();
    assert!(usage.total_tokens >= 7_000_000, "{usage:?}");
}

#[tokio::test]
async fn tokens_of_an_answer_to_a_schema_count_also_where_it_is_not_read_to_its_end() {
    let fits = Ok(vec![text("{}"), usage(7_000_000), stop(CompletionStop::EndTurn)]);
    let (scope, _) = scope(vec![fits]);
    let schema = Some(r#"{"type":"object"}"#.to_owned());
    let request = CompletionRequest { response_schema: schema, ..question("x") };
    let mut answer = scope.stream(request).await.expect("begins");
    let first = scope.next_chunks(&mut answer, 1).await.expect("reads");
    assert_eq!(first, [text("{}")]);
    drop(answer);
    assert_eq!(scope.finish().usage.unwrap_or_default().total_tokens, 7_000_000);
}
