//! The form in which a terminal asks for the answer to an item: over any reader and writer, so that
//! it can be filled in without a terminal.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read, Write};

use serde_json::Value;
use taskrun_journal::message::ToolError;
use taskrun_journal::question::{
    ANSWER_BYTES_MAX, Answer, AwaitItem, ExternalResult, ExternalTool, Item, Question,
};
use taskrun_journal::tool::{ToolFailure, ToolOutcome};

use super::text::text;
use crate::output::escape::{escaped_line, indented};
use crate::terminal::{cut_off, is_cut_off};

/// Most bytes of a line or a file with an answer: as JSON it may be written with more white space
/// and more escapes than it counts with.
pub(super) const INPUT_BYTES_MAX: usize = 8 * ANSWER_BYTES_MAX;
/// The indent of the further lines of a text that a guest wrote.
const FURTHER: &str = "  ";

/// A person who fills in a form.
pub(crate) struct Form<R, W> {
    input: R,
    output: W,
    /// Discards what was typed by now.
    discard: fn() -> io::Result<()>,
    /// The command that takes an answer for which a line of the terminal has no room, where the
    /// input is a terminal.
    long: Option<String>,
    /// True until the first line for an item is asked for.
    is_new: bool,
}

impl<R: BufRead, W: Write> Form<R, W> {
    /// Reads what is typed, and writes what is asked.
    pub(crate) fn new(input: R, output: W) -> Self {
        Self { input, output, discard: || Ok(()), long: None, is_new: true }
    }

    /// The same, which discards what was typed before a question was there to be seen. Further
    /// lines of an item may be typed ahead: answers may be pasted.
    pub(crate) fn discarding(self, discard: fn() -> io::Result<()>) -> Self {
        Self { discard, ..self }
    }

    /// The same at a terminal, which cuts lines off: an answer is not taken then, and this command
    /// is told that takes a longer one.
    pub(crate) fn at_terminal(self, command: String) -> Self {
        Self { long: Some(command), ..self }
    }

    /// The answer to an item, asked for until it fits; `None` at the end of the input.
    ///
    /// # Errors
    /// If the terminal cannot be read or written.
    pub(crate) fn fill(&mut self, item: &Item) -> io::Result<Option<Answer>> {
        self.is_new = true;
        loop {
            let answer = match &item.what {
                AwaitItem::Clarification { question, missing_fields, example_input, .. } => {
                    self.say(&indented(question, FURTHER))?;
                    if !missing_fields.is_empty() {
                        let fields = missing_fields.join(", ");
                        self.say(&format!("  missing: {}", escaped_line(&fields)))?;
                    }
                    if let Some(example) = example_input {
                        self.say(&format!("  for example: {}", escaped_line(example)))?;
                    }
                    self.line("> ")?.map(Answer::Text)
                }
                AwaitItem::Questions { title, questions, .. } => {
                    if let Some(title) = title {
                        self.say(&indented(title, FURTHER))?;
                    }
                    self.questions(questions)?.map(Answer::Choices)
                }
                AwaitItem::ExternalTools { items, .. } => self.results(items)?.map(Answer::Results),
                AwaitItem::Confirmation { question, tool_name, payload, .. } => {
                    self.say(&indented(question, FURTHER))?;
                    self.say(&format!("  {} {}", escaped_line(tool_name), escaped_line(payload)))?;
                    self.yes_or_no()?.map(Answer::Confirmed)
                }
            };
            let Some(answer) = answer else { return Ok(None) };
            match item.check(&answer) {
                Ok(()) => return Ok(Some(answer)),
                Err(error) => self.complain(&error.to_string())?,
            }
        }
    }

    fn questions(
        &mut self,
        questions: &[Question],
    ) -> io::Result<Option<BTreeMap<String, Vec<String>>>> {
        let mut chosen = BTreeMap::new();
        for question in questions {
            let Some(answer) = self.question(question)? else { return Ok(None) };
            chosen.insert(question.id.clone(), answer);
        }
        Ok(Some(chosen))
    }

    fn question(&mut self, question: &Question) -> io::Result<Option<Vec<String>>> {
        self.say(&indented(&question.prompt, FURTHER))?;
        for (number, (id, label)) in (1..).zip(&question.options) {
            let name = if id == label { String::new() } else { format!(" ({id})") };
            let line = format!("  {number}  {label}{name}");
            self.say(&escaped_line(&line))?;
        }
        let prompt = match (question.options.len(), question.allow_multiple) {
            (0, _) => "> ".to_owned(),
            (last, true) => format!("1-{last}, several with blanks between> "),
            (last, false) => format!("1-{last}> "),
        };
        loop {
            let Some(line) = self.line(&prompt)? else { return Ok(None) };
            match picked(question, &line) {
                Ok(chosen) => return Ok(Some(chosen)),
                Err(error) => self.complain(&error)?,
            }
        }
    }

    fn results(
        &mut self,
        calls: &[ExternalTool],
    ) -> io::Result<Option<BTreeMap<String, ExternalResult>>> {
        let mut results = BTreeMap::new();
        for call in calls {
            let asked = format!("{}: {} {}", call.tool_call_id, call.name, call.payload);
            self.say(&escaped_line(&asked))?;
            let outcome = loop {
                let Some(line) = self.line("result as JSON, @FILE, or ! and what failed> ")? else {
                    return Ok(None);
                };
                match outcome(&line) {
                    Ok(outcome) => break outcome,
                    Err(error) => self.complain(&error)?,
                }
            };
            results.insert(call.tool_call_id.clone(), outcome.into());
        }
        Ok(Some(results))
    }

    fn yes_or_no(&mut self) -> io::Result<Option<bool>> {
        loop {
            let Some(line) = self.line("y/n> ")? else { return Ok(None) };
            match line.to_lowercase().as_str() {
                "y" | "yes" => return Ok(Some(true)),
                "n" | "no" => return Ok(Some(false)),
                _ => self.complain("answer y or n")?,
            }
        }
    }

    /// A line without the white space around it; `None` at the end of the input. One that cannot be
    /// an answer is asked for again. One that is too long is passed over as a whole: its rest would
    /// be read as the next one.
    fn line(&mut self, prompt: &str) -> io::Result<Option<String>> {
        if std::mem::take(&mut self.is_new) {
            self.output.flush()?;
            // The question is written, and its prompt is not: who waits for that loses no key.
            (self.discard)()?;
        }
        loop {
            write!(self.output, "{prompt}")?;
            self.output.flush()?;
            let mut line = Vec::new();
            let limit = INPUT_BYTES_MAX as u64 + 1;
            if self.input.by_ref().take(limit).read_until(b'\n', &mut line)? == 0 {
                return Ok(None);
            }
            let complaint = if line.len() > INPUT_BYTES_MAX && !line.ends_with(b"\n") {
                self.input.skip_until(b'\n')?;
                format!("a line has more than {INPUT_BYTES_MAX} bytes")
            } else if let Some(command) = self.long.as_deref().filter(|_| is_cut_off(&line)) {
                cut_off(command)
            } else if let Ok(line) = std::str::from_utf8(&line) {
                return Ok(Some(line.trim().to_owned()));
            } else {
                "the line is no UTF-8".to_owned()
            };
            self.complain(&complaint)?;
        }
    }

    fn say(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.output, "{text}")
    }

    fn complain(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.output, "! {}", escaped_line(text))
    }
}

/// The ids of the options that a line names, by number or id; the line itself where there are none.
fn picked(question: &Question, line: &str) -> Result<Vec<String>, String> {
    if line.is_empty() {
        return Err("the answer is empty".to_owned());
    }
    if question.options.is_empty() {
        return Ok(vec![line.to_owned()]);
    }
    let words: Vec<&str> = line.split([',', ' ']).filter(|word| !word.is_empty()).collect();
    if words.len() > 1 && !question.allow_multiple {
        return Err("one answer is wanted".to_owned());
    }
    let mut chosen = Vec::new();
    for word in words {
        let by_number = word.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
        let by_number = by_number.and_then(|index| question.options.get(index));
        // An id that looks like a number is meant before the number.
        let by_id = question.options.iter().find(|(id, _)| id == word);
        let (id, _) = by_id.or(by_number).ok_or_else(|| format!("there is no option {word}"))?;
        if !chosen.contains(id) {
            chosen.push(id.clone());
        }
    }
    Ok(chosen)
}

/// A result as JSON, from a file for `@FILE`; what stands after a `!` is the text of a failure.
fn outcome(line: &str) -> Result<ToolOutcome, String> {
    if let Some(message) = line.strip_prefix('!') {
        let (code, causes) = (None, Vec::new());
        let error = ToolError { code, message: message.trim().to_owned(), causes };
        return Ok(ToolOutcome::Failure(ToolFailure { error, retry_hint: None }));
    }
    let json = match line.starts_with('@') {
        true => text(line, "result", INPUT_BYTES_MAX).map_err(|failure| failure.message)?,
        false => line.to_owned(),
    };
    let value: Value =
        serde_json::from_str(&json).map_err(|error| format!("that is not JSON: {error}"))?;
    Ok(ToolOutcome::Value(value.to_string()))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn item(what: AwaitItem) -> Item {
        Item { what, tool_call_id: None, until: None, default: None }
    }

    fn filled(what: AwaitItem, typed: &(impl AsRef<[u8]> + ?Sized)) -> (Option<Answer>, String) {
        let mut output = Vec::new();
        let answer = Form::new(typed.as_ref(), &mut output).fill(&item(what));
        (answer.expect("memory"), String::from_utf8(output).expect("text"))
    }

    fn clarification(question: &str) -> AwaitItem {
        AwaitItem::Clarification {
            id: "c".to_owned(),
            question: question.to_owned(),
            missing_fields: vec!["path".to_owned()],
            restrict_to_tool: None,
            example_input: None,
            clarifying_prompt: None,
        }
    }

    fn form() -> AwaitItem {
        let question = |id: &str, options: &[(&str, &str)], allow_multiple| Question {
            id: id.to_owned(),
            prompt: format!("{id}?"),
            options: options
                .iter()
                .map(|(id, label)| ((*id).to_owned(), (*label).to_owned()))
                .collect(),
            allow_multiple,
        };
        AwaitItem::Questions {
            id: "f".to_owned(),
            tool_name: "t/ask".to_owned(),
            tool_call_id: "1".to_owned(),
            payload: "{}".to_owned(),
            title: Some("A form".to_owned()),
            questions: vec![
                question("one", &[("r", "red"), ("g", "green")], false),
                question("many", &[("x", "x"), ("y", "y"), ("1", "z")], true),
                question("free", &[], false),
            ],
        }
    }

    fn external() -> AwaitItem {
        let call = |id: &str| ExternalTool {
            name: "out/side".to_owned(),
            tool_call_id: id.to_owned(),
            payload: "{\"q\":1}".to_owned(),
        };
        AwaitItem::ExternalTools { id: "e".to_owned(), items: vec![call("a"), call("b")] }
    }

    fn confirmation() -> AwaitItem {
        AwaitItem::Confirmation {
            id: "ok".to_owned(),
            question: "Call it again?".to_owned(),
            tool_name: "t/f".to_owned(),
            tool_call_id: "1".to_owned(),
            payload: "{}".to_owned(),
            digest: None,
            policy: None,
        }
    }

    #[test]
    fn a_clarification_is_a_line_of_text_and_a_blank_one_is_asked_again() {
        let (answer, shown) = filled(clarification("Which?"), "\n this one \n");
        assert_eq!(answer, Some(Answer::Text("this one".to_owned())));
        let again = "Which?\n  missing: path\n> ";
        assert_eq!(shown, format!("{again}! the answer is empty\n{again}"));
    }

    #[test]
    fn questions_are_answered_by_number_or_id_and_freely_where_there_are_no_options() {
        let (answer, shown) = filled(form(), "3\n1 2\n2\nx,2 1\nwhatever\n");
        let chosen = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let expected = BTreeMap::from([
            ("one".to_owned(), chosen(&["g"])),
            ("many".to_owned(), chosen(&["x", "y", "1"])),
            ("free".to_owned(), chosen(&["whatever"])),
        ]);
        assert_eq!(answer, Some(Answer::Choices(expected)));
        let complaints: Vec<_> = shown.lines().filter(|line| line.contains("! ")).collect();
        assert_eq!(complaints.len(), 2, "{shown}");
        assert!(shown.contains("  1  red (r)\n  2  green (g)\n1-2> "), "{shown}");
        assert!(shown.contains("1-3, several with blanks between> "), "{shown}");
    }

    #[test]
    fn results_of_tools_outside_are_json_and_failures_stand_after_a_mark() {
        let (answer, shown) = filled(external(), "plain\n{\"r\": 2}\n! it is gone\n");
        let error = ToolError { code: None, message: "it is gone".to_owned(), causes: Vec::new() };
        let expected = BTreeMap::from([
            ("a".to_owned(), ToolOutcome::Value("{\"r\":2}".to_owned()).into()),
            ("b".to_owned(), ToolOutcome::Failure(ToolFailure { error, retry_hint: None }).into()),
        ]);
        assert_eq!(answer, Some(Answer::Results(expected)));
        assert!(shown.contains("! that is not JSON"), "{shown}");
    }

    #[test]
    fn a_confirmation_is_yes_or_no_and_nothing_else() {
        for (typed, expected) in
            [("perhaps\ny\n", Some(true)), ("NO\n", Some(false)), ("perhaps\n", None), ("", None)]
        {
            let (answer, _) = filled(confirmation(), typed);
            assert_eq!(answer, expected.map(Answer::Confirmed), "{typed:?}");
        }
    }

    thread_local! {
        static DISCARDED: Cell<u32> = const { Cell::new(0) };
    }

    fn discard() -> io::Result<()> {
        DISCARDED.set(DISCARDED.get() + 1);
        Ok(())
    }

    #[test]
    fn what_was_typed_before_an_item_was_shown_is_discarded_and_not_between_its_lines() {
        let typed = "3\n1\nx\nfree\nperhaps\ny\n";
        let mut form = Form::new(typed.as_bytes(), Vec::<u8>::new()).discarding(discard);
        let mut fill = |what| form.fill(&item(what)).expect("memory");
        assert!(matches!(fill(self::form()), Some(Answer::Choices(_))));
        assert_eq!(DISCARDED.get(), 1);
        assert_eq!(fill(confirmation()), Some(Answer::Confirmed(true)));
        assert_eq!(DISCARDED.get(), 2);
    }

    #[test]
    fn the_rest_of_an_answer_that_is_too_long_is_not_the_next_one() {
        for bytes in [ANSWER_BYTES_MAX + 100, INPUT_BYTES_MAX + 100] {
            let typed = format!("{}\nshort\n", "x".repeat(bytes));
            let (answer, shown) = filled(clarification("Which?"), &typed);
            assert_eq!(answer, Some(Answer::Text("short".to_owned())));
            assert_eq!(shown.matches(" has more than ").count(), 1, "{shown}");
        }
        let most = "\"".repeat(ANSWER_BYTES_MAX);
        let (answer, _) = filled(clarification("Which?"), &format!("  {most}\r\n"));
        assert_eq!(answer, Some(Answer::Text(most)));
    }

    #[test]
    fn a_line_that_is_no_utf_8_is_asked_for_again() {
        let (answer, shown) = filled(clarification("Which?"), b"caf\xc3e\nok\n");
        assert_eq!(answer, Some(Answer::Text("ok".to_owned())));
        assert_eq!(shown.matches("! the line is no UTF-8\n> ").count(), 1, "{shown}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_line_as_long_as_a_terminal_gives_any_is_no_answer_there_and_one_elsewhere() {
        let (most, fits) = ("x".repeat(4_095), "y".repeat(4_094));
        let typed = format!("{most}\n{fits}\n");
        let mut shown = Vec::new();
        let mut form = Form::new(typed.as_bytes(), &mut shown).at_terminal("long".to_owned());
        let answer = form.fill(&item(clarification("Which?"))).expect("memory");
        assert_eq!(answer, Some(Answer::Text(fits)));
        let shown = String::from_utf8(shown).expect("text");
        assert_eq!(shown.matches("at most 4,095 bytes of a line; `long`").count(), 1, "{shown}");
        let (answer, _) = filled(clarification("Which?"), &typed);
        assert_eq!(answer, Some(Answer::Text(most)));
    }

    #[test]
    fn the_end_of_the_input_is_no_answer_and_guests_cannot_write_to_the_terminal() {
        assert_eq!(filled(form(), "1\n").0, None);
        let (_, shown) = filled(clarification("x\x1b]0;owned\x07"), "");
        assert!(!shown.contains("\x1b]") && !shown.contains('\x07'), "{shown:?}");
    }
}
