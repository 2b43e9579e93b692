//! `taskrun answer`.

mod lasting;
mod refusal;

use std::collections::BTreeMap;
use std::io::IsTerminal;

use serde_json::{Map, Value};
use taskrun::controller::{Client, Controller};
use taskrun_journal::ids::RunId;
use taskrun_journal::message::ToolError;
use taskrun_journal::question::{
    ANSWER_BYTES_MAX, Answer, AwaitItem, ExternalResult, Item, Question,
};
use taskrun_journal::run::Run;
use taskrun_journal::tool::{ToolFailure, ToolOutcome};
use taskrun_runtime::Storage;

use self::refusal::refused;
use super::form::{Form, INPUT_BYTES_MAX};
use super::text::text;
use crate::args::{AnswerArgs, OutputFormat};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, refusal_of};
use crate::follow::{Attendance, supervisor_at_hand};
use crate::output::escape::{escaped_line, indented};
use crate::output::stream::BlockingStream;
use crate::output::{GOES_ON, run_object, status_text};
use crate::resolve::resolve_asking;
use crate::shell;
use crate::terminal::discard_typed;

pub(super) async fn answer(context: &Context, args: &AnswerArgs) -> Outcome {
    let (storage, controller) = context.looking().await?;
    let client = context.client(&controller);
    let run = resolve_asking(context, &client, &args.run).await?;
    let asked = client.asks(run.id().as_str()).await?;
    if is_form(context, args) && !asked.is_empty() {
        let answered = fill(context, &client, run, &asked).await?;
        print(context, (&storage, &controller), &answered).await?;
        supervisor_at_hand(context, &controller, &storage).find_host(&answered).await?;
        return Ok(Exit::Completed);
    }
    let words = AnswerWords::split(args, &asked);
    let item = match words.item {
        Some(name) => asked.iter().find(|item| item.id() == name),
        None => asked.first(),
    };
    let id = run.id().as_str();
    let answered = match item {
        Some(item) if words.item.is_some() || asked.len() == 1 => {
            let given = given(args, words.answer, item);
            let answer = given.map_err(|failure| explained(failure, &run, item, &asked))?;
            // The answer may have come from a pipe, and the run asked something else meanwhile.
            if let Some(request) = lasting::request(args, &run)? {
                let answered = client.consent(id, item, request).await;
                let answered = answered.map_err(|error| refusal_of(error, run.id()))?;
                print(context, (&storage, &controller), &answered.run).await?;
                let mut hosts = supervisor_at_hand(context, &controller, &storage);
                hosts.find_host(&answered.run).await?;
                return lasting::tell(context, answered);
            }
            client.answer_shown(id, item, answer).await
        }
        // The controller says why not.
        Some(_) | None => client.answer(id, words.item, Answer::Text(words.answer.join(" "))).await,
    };
    let run = match answered {
        Ok(run) => run,
        Err(error) => return Err(refused(context, &client, (&run, &asked), &words, error).await),
    };
    print(context, (&storage, &controller), &run).await?;
    supervisor_at_hand(context, &controller, &storage).find_host(&run).await?;
    Ok(Exit::Completed)
}

/// True if a person sits at a terminal and gave no answer: then every question is asked there.
fn is_form(context: &Context, args: &AnswerArgs) -> bool {
    let no_answer = args.words.is_empty() && !args.accept && !args.decline;
    let no_answer = no_answer && !lasting::is_widened(args) && args.expires.is_none();
    no_answer && can_ask(context)
}

/// True if a person sits at a terminal who can be asked there. A job in the background would be
/// stopped by its shell as it reads.
pub(super) fn can_ask(context: &Context) -> bool {
    let (input, output) = (std::io::stdin(), std::io::stderr());
    let in_front = || {
        rustix::termios::tcgetpgrp(&input).is_ok_and(|group| group == rustix::process::getpgrp())
    };
    let at_terminal = input.is_terminal() && output.is_terminal() && in_front();
    at_terminal && context.printer.format() == OutputFormat::Table
}

/// Asks for everything, in order, and gives each answer at once: what was typed is not lost when
/// the rest is left for later.
async fn fill(context: &Context, client: &Client, mut run: Run, asked: &[Item]) -> Outcome<Run> {
    for item in asked {
        let command = context.printer.command(&from_file(run.id(), item));
        let Some(answer) = typed(command, item).await? else { break };
        let id = run.id().to_string();
        run = client.answer_shown(&id, item, answer).await?;
    }
    Ok(run)
}

/// The command that gives a run an answer of any length; where nobody could paste the id of the item,
/// the one that shows it.
pub(super) fn from_file(run: &RunId, item: &Item) -> String {
    answering(run, Some(item), "@FILE").unwrap_or_else(|| "taskrun inbox -o json".to_owned())
}

/// The command that answers an item of a run so, or the only one that it asks. Ids are those of guests
/// and of models: `None` for one that nobody could paste.
fn answering(run: &RunId, item: Option<&Item>, answer: &str) -> Option<String> {
    let Some(id) = item.map(Item::id) else {
        return Some(format!("taskrun answer {run} {answer}"));
    };
    let word = shell::word(id)?;
    Some(match (id.starts_with('-'), answer.starts_with("--")) {
        (false, _) => format!("taskrun answer {run} {word} {answer}"),
        // An option does not stand behind `--`.
        (true, true) => format!("taskrun answer {run} {answer} -- {word}"),
        (true, false) => format!("taskrun answer {run} -- {word} {answer}"),
    })
}

/// The answer to an item that a person types at the terminal; `None` at the end of the input. The
/// command is one that takes an answer of any length.
pub(super) async fn typed(command: String, item: &Item) -> Outcome<Option<Answer>> {
    let item = item.clone();
    // Somebody types: the runtime has other things to do meanwhile, and says so on stderr, which is
    // not locked for that.
    let typed = tokio::task::spawn_blocking(move || {
        let input = BlockingStream(std::io::stdin().lock());
        let form = Form::new(input, BlockingStream(std::io::stderr()));
        form.discarding(discard_typed).at_terminal(command).fill(&item)
    });
    typed.await.expect("a form does not panic").map_err(|error| {
        Failure::unexpected("the terminal cannot be read".to_owned()).because(&error)
    })
}

/// The words of the command, told apart.
#[derive(Debug, PartialEq, Eq)]
struct AnswerWords<'a> {
    item: Option<&'a str>,
    answer: &'a [String],
}

impl<'a> AnswerWords<'a> {
    /// A single word is the answer, unless that is given by an option. Before several, the item
    /// may stand: a name of one, or what cannot be part of an answer of several words.
    fn split(args: &'a AnswerArgs, asked: &[Item]) -> Self {
        let by_option = args.accept || args.decline;
        match args.words.as_slice() {
            [item, answer @ ..] if by_option => Self { item: Some(item), answer },
            [first, answer @ ..] if !answer.is_empty() => {
                let is_name = asked.iter().any(|item| item.id() == first);
                if is_name || !first.contains('=') {
                    Self { item: Some(first), answer }
                } else {
                    Self { item: None, answer: &args.words }
                }
            }
            answer @ [..] => Self { item: None, answer },
        }
    }
}

/// The answer that the words are to this item.
fn given(args: &AnswerArgs, words: &[String], item: &Item) -> Outcome<Answer> {
    lasting::check(args, item)?;
    if args.accept || args.decline {
        return match words {
            [] if lasting::is_widened(args) => Ok(Answer::ConfirmedForRun(args.accept)),
            [] => Ok(Answer::Confirmed(args.accept)),
            [..] => Err(unreadable("an answer is given twice", item)),
        };
    }
    if words.is_empty() {
        return Err(unreadable("no answer is given", item));
    }
    match &item.what {
        AwaitItem::Clarification { .. } => match words {
            [only] => Ok(Answer::Text(text(only, "answer", ANSWER_BYTES_MAX)?)),
            [..] => Ok(Answer::Text(words.join(" "))),
        },
        AwaitItem::Questions { .. } => choices(words, item).map(Answer::Choices),
        AwaitItem::ExternalTools { .. } => results(words, item).map(Answer::Results),
        AwaitItem::Confirmation { .. } => match words {
            [only] => consent(only, item),
            [..] => Err(unreadable(CONSENT, item)),
        },
    }
}

/// The error for a confirmation that is answered by something else.
const CONSENT: &str = "a confirmation takes --accept or --decline";

/// Consent as JSON: `true` or `false`, so that a program says the same as a person.
fn consent(word: &str, item: &Item) -> Outcome<Answer> {
    let json = text(word, "answer", ANSWER_BYTES_MAX)?;
    match serde_json::from_str(&json) {
        Ok(accepts) => Ok(Answer::Confirmed(accepts)),
        Err(_) => Err(unreadable(CONSENT, item)),
    }
}

/// True if a word is `KEY=VALUE`, and neither JSON nor the name of a file.
fn is_pair(word: &str) -> bool {
    word.contains('=') && !word.starts_with(['@', '{'])
}

/// `KEY=VALUE` words, the same key several times for several values; or one JSON object.
fn fields(words: &[String], item: &Item) -> Outcome<Vec<(String, Value)>> {
    if words.iter().all(|word| is_pair(word)) {
        let pair = |word: &String| {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            (key.trim().to_owned(), Value::String(value.to_owned()))
        };
        return Ok(words.iter().map(pair).collect());
    }
    let [only] = words else {
        return Err(unreadable("each word of the answer is to be KEY=VALUE", item));
    };
    let json = text(only, "answer", INPUT_BYTES_MAX)?;
    let object: Map<String, Value> = serde_json::from_str(&json).map_err(|error| {
        unreadable("the answer is neither KEY=VALUE nor a JSON object", item).because(&error)
    })?;
    Ok(object.into_iter().collect())
}

fn choices(words: &[String], item: &Item) -> Outcome<BTreeMap<String, Vec<String>>> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut chosen: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (question, value) in fields(words, item)? {
        let texts = match value.as_array() {
            Some(values) => values.iter().map(text).collect(),
            None => vec![text(&value)],
        };
        chosen.entry(question).or_default().extend(texts);
    }
    Ok(chosen)
}

/// Results by the ids of their calls. `{"failure": "text"}` is a call that failed; in `KEY=VALUE`
/// a value that is no JSON is a text.
fn results(words: &[String], item: &Item) -> Outcome<BTreeMap<String, ExternalResult>> {
    let are_pairs = words.iter().all(|word| is_pair(word));
    let outcome = |value: Value| {
        let typed = value.as_str().filter(|_| are_pairs);
        let value = typed.and_then(|text| serde_json::from_str(text).ok()).unwrap_or(value);
        if is_both(&value) {
            return Err(unreadable("a call has a result or a failure, and not both", item));
        }
        if let Some((value, bounds)) = part(&value) {
            let bounds = serde_json::from_value(bounds.clone()).map_err(|error| {
                unreadable(&format!("the bounds of a result cannot be read: {error}"), item)
            })?;
            let outcome = ToolOutcome::Value(value.to_string());
            return Ok(ExternalResult { outcome, bounds: Some(bounds) });
        }
        Ok(ExternalResult::from(match failure_text(&value) {
            Some(message) => ToolOutcome::Failure(ToolFailure {
                error: ToolError { code: None, message, causes: Vec::new() },
                retry_hint: None,
            }),
            None => ToolOutcome::Value(value.to_string()),
        }))
    };
    let fields = fields(words, item)?.into_iter();
    fields.map(|(call, value)| Ok((call, outcome(value)?))).collect()
}

/// A result that is a part of a larger one, and what it says of that.
fn part(value: &Value) -> Option<(&Value, &Value)> {
    let object = value.as_object().filter(|object| object.len() == 2)?;
    Some((object.get("result")?, object.get("bounds")?))
}

/// True if this is a result and a failure at once, which no call of a tool gives.
fn is_both(value: &Value) -> bool {
    let keys = value.as_object().filter(|object| object.len() == 2);
    keys.is_some_and(|keys| keys.contains_key("failure") && keys.contains_key("result"))
}

fn failure_text(value: &Value) -> Option<String> {
    let object = value.as_object().filter(|object| object.len() == 1)?;
    object.get("failure")?.as_str().map(str::to_owned)
}

/// An answer that cannot be read as one, with what is asked.
fn unreadable(message: &str, item: &Item) -> Box<Failure> {
    let mut failure = Failure::usage("invalid", message);
    failure.report = Some(asked_text(item));
    failure
}

/// The same about the run that asks, with the command that answers it. The item is named where the run
/// asks others, too, and a call always: nobody consents to another one by a command of before.
fn explained(failure: Box<Failure>, run: &Run, item: &Item, asked: &[Item]) -> Box<Failure> {
    let failure = failure.about(run.id());
    if failure.hint.is_some() {
        return failure;
    }
    let (answer, more) = match &item.what {
        AwaitItem::Clarification { .. } => ("TEXT", ""),
        AwaitItem::Questions { .. } => {
            ("QUESTION=OPTION", ", such a word for each question, or a JSON object in `@FILE`")
        }
        AwaitItem::ExternalTools { .. } => ("@FILE", " with a JSON object: a result for each call"),
        AwaitItem::Confirmation { .. } => ("--accept", ", or --decline"),
    };
    let is_call = matches!(item.what, AwaitItem::Confirmation { .. });
    let named = Some(item).filter(|_| is_call || asked.len() > 1);
    failure.hint(match answering(run.id(), named, answer) {
        Some(command) => format!("`{command}`{more}"),
        None => "see `taskrun inbox`; with `-o json` it shows the id of what is asked".to_owned(),
    })
}

/// The whole question. Whatever a guest says of it stands to the right of what the program says.
fn asked_text(item: &Item) -> String {
    let line = |text: &str| escaped_line(text).into_owned();
    let prompt = indented(&item.what.prompt(), "    ");
    let mut text = format!("{} ({}): {prompt}", line(item.id()), item.what.word());
    match &item.what {
        AwaitItem::Clarification { missing_fields, example_input, .. } => {
            if !missing_fields.is_empty() {
                text.push_str(&format!("\n  missing: {}", line(&missing_fields.join(", "))));
            }
            if let Some(example) = example_input {
                text.push_str(&format!("\n  for example: {}", line(example)));
            }
        }
        AwaitItem::Questions { questions, .. } => questions.iter().for_each(|question| {
            text.push_str(&question_text(question));
        }),
        AwaitItem::ExternalTools { items, .. } => {
            for call in items {
                let call = format!("{}: {} {}", call.tool_call_id, call.name, call.payload);
                text.push_str(&format!("\n  {}", line(&call)));
            }
        }
        AwaitItem::Confirmation { tool_name, payload, .. } => {
            text.push_str(&format!("\n  {}", line(&format!("{tool_name} {payload}"))));
        }
    }
    text
}

fn question_text(question: &Question) -> String {
    let several = if question.allow_multiple { ", one or more" } else { "" };
    let (id, prompt) = (escaped_line(&question.id), escaped_line(&question.prompt));
    let mut text = format!("\n  {id}: {prompt}{several}");
    for (id, label) in &question.options {
        text.push_str(&format!("\n    {}", escaped_line(&format!("{id}  {label}"))));
    }
    text
}

async fn print(
    context: &Context,
    (storage, controller): (&Storage, &Controller),
    run: &Run,
) -> Outcome<()> {
    let printer = &context.printer;
    match printer.format() {
        OutputFormat::Table => {
            let open = context.client(controller).asks(run.id().as_str()).await?;
            let names: Vec<_> = open.iter().map(|item| escaped_line(item.id())).collect();
            let left = match (names.is_empty(), &run.state.pause) {
                (true, None) => match Attendance::look(context, storage).await?.gone(run) {
                    Some(agent) => {
                        format!("{GOES_ON} once a host has agent {}", escaped_line(&agent))
                    }
                    None => GOES_ON.to_owned(),
                },
                (true, Some(_)) => {
                    format!("{}, {GOES_ON} once it is resumed", status_text(run))
                }
                (false, _) => format!("{}, still asks {}", status_text(run), names.join(", ")),
            };
            printer.line(format!("{}  {left}", run.id()));
        }
        OutputFormat::Json => printer.json(&run_object(run)),
        OutputFormat::Ndjson => printer.json_line(&run_object(run)),
        OutputFormat::Name => printer.line(run.id()),
    }
    Ok(())
}

#[cfg(test)]
mod tests;
