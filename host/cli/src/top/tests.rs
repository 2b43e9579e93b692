use std::sync::Arc;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use taskrun_journal::autonomy::{Autonomy, AutonomyMode};
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::hold::{Await, Hold, Lane};
use taskrun_journal::ids::HostId;
use taskrun_journal::machine;
use taskrun_journal::message::Usage;
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::status::BlockedOn;
use taskrun_journal::time::Timestamp;
use taskrun_journal::tool::{ToolOutcome, ToolOutput};
use taskrun_policy::Policy;

use super::calls::{Calls, Tool};
use super::draw::draw;
use super::rows::Row;
use super::view::{Page, QuestionStage, View, Wish};

const NOW: Timestamp = Timestamp(1_767_225_600_000);
const POLICY: &str = "[agent.a]\ncomponent = \"c.wasm\"\nbudget = { turns = 20, tokens = 1000 }\n";

fn run(number: u32, task: &str) -> Run {
    let id = format!("0197a0000000700080000000000000{number:02}");
    let spec = RunSpec { task: task.to_owned(), ..taskrun_fixtures::spec(&id) };
    let event = Event::Queued { spec: Arc::new(spec) };
    machine::begin(&EventRecord { seq: 1, id: 1, at: NOW, event }).expect("begins")
}

fn started(mut run: Run) -> Run {
    let event = Event::Started {
        host: HostId::new("h"),
        epoch: 1,
        child_session_id: "s".to_owned(),
        request_id: "r".to_owned(),
        batch: None,
    };
    let started = EventRecord { seq: 2, id: 2, at: NOW, event };
    run.state = machine::apply(run.state, &started).expect("fits");
    run
}

/// The settings of a run that goes on by itself for so many rounds at most.
fn autonomy(rounds: u32) -> Autonomy {
    let settings = serde_json::json!({
        "mode": AutonomyMode::Standing,
        "continuation": "continue",
        "rounds": rounds,
    });
    serde_json::from_value(settings).expect("settings")
}

fn policy() -> Policy {
    Policy::parse(POLICY, std::path::Path::new("/p/taskrun.toml")).expect("a policy")
}

fn view(rows: Vec<Row>) -> View {
    let mut view = View::new();
    view.show(rows);
    view
}

/// The lines of the screen.
fn drawn(view: &mut View, size: (u16, u16)) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).expect("a screen");
    terminal.draw(|frame| draw(frame, view, NOW)).expect("drawn");
    let buffer = terminal.backend().buffer().clone();
    let cells = buffer.content().chunks(usize::from(size.0));
    let line = |cells: &[ratatui::buffer::Cell]| {
        let text: String = cells.iter().map(|cell| cell.symbol()).collect();
        text.trim_end().to_owned()
    };
    cells.map(line).collect()
}

/// Draws a question that is asked, and lets keys answer it.
fn open(view: &mut View, size: (u16, u16)) {
    drawn(view, size);
    assert_eq!(view.question, QuestionStage::Drawn, "it is on the screen");
    view.question = QuestionStage::Open;
}

fn form(text: &str) -> Page {
    Page::Ask { text: text.to_owned(), up: 0, typed: String::new() }
}

#[test]
fn a_row_says_what_a_run_is_at() {
    let mut busy = started(run(1, "count the apples"));
    busy.state.turns = 15;
    busy.state.progress.total_tokens = 100;
    busy.state.progress.cost_microusd = 1_500_000;
    let tool = Tool { name: "shop/count".to_owned(), since: Timestamp(NOW.0 - 3_400), others: 1 };
    let mut asking = run(2, "write the letter");
    let on = BlockedOn::Input;
    let (id, prompt) = ("q".to_owned(), "Which quarter?".to_owned());
    asking.state.awaits.push(Await { id, on, prompt, answered: false });
    let mut waiting = run(3, "come back later");
    let not_before = Timestamp(NOW.0 + 6 * 3_600_000);
    waiting.state.hold = Hold::Wanted { lane: Lane::Resume, not_before };
    let policy = policy();
    let rows = [(busy, Some(tool)), (asking, None), (waiting, None)];
    let rows = rows.map(|(run, tool)| Row::of(&run, Some(&policy), None, tool, NOW));
    let lines = drawn(&mut view(rows.into()), (140, 8));
    assert!(
        lines[0].starts_with("taskrun top  open runs 1 to 3  2026-01-01T00:00:00"),
        "{lines:#?}"
    );
    for heading in ["RUN", "AGENT", "STATUS", "TURNS", "LEFT", "TOOL", "COST", "WAKES", "ASKS"] {
        assert!(lines[2].contains(heading), "{heading}: {lines:#?}");
    }
    for text in ["running", "15", "25% turns", "shop/count 3.4s +1", "$1.50", "count the apples"] {
        assert!(lines[3].contains(text), "{text}: {lines:#?}");
    }
    assert!(lines[4].contains("? Which quarter?"), "{lines:#?}");
    assert!(lines[5].contains("in 6h") && lines[5].contains("come back later"), "{lines:#?}");
    assert!(lines[7].contains("q quit"), "{lines:#?}");
}

#[test]
fn a_budget_is_spent_together_with_the_runs_beneath() {
    const POLICY: &str = "[agent.a]\ncomponent = \"c.wasm\"\nmembers = [\"a\"]\n\
        budget = { turns = 20, tokens = 1000, usd = 2, wall = \"10m\", completion_tokens = 50 }\n";
    let policy = Policy::parse(POLICY, std::path::Path::new("/p/taskrun.toml")).expect("a policy");
    let mut parent = started(run(1, "lead"));
    parent.spec = Arc::new(RunSpec { autonomy: Some(autonomy(9)), ..(*parent.spec).clone() });
    parent.state.rounds.ended = 1;
    parent.state.rounds.has_begun = true;
    parent.state.progress.total_tokens = 100;
    parent.state.progress.cost_microusd = 100_000;
    let left = |run: &Run, tree| {
        let lines = drawn(&mut view(vec![Row::of(run, Some(&policy), tree, None, NOW)]), (140, 5));
        let at = |heading| lines[2].find(heading).expect("a column");
        lines[3][at("LEFT")..at("COST")].trim_end().to_owned()
    };
    // Rounds are the scarcest as long as nothing is known of what is beneath: it has 90 % of its own.
    assert_eq!(left(&parent, None), "88% rounds");
    let used = |total_tokens, cost_microusd| {
        Some(Usage { total_tokens, cost_microusd, ..Usage::default() })
    };
    assert_eq!(left(&parent, used(100, 1_900_000)), "5% usd", "beneath it is $1.80");
    assert_eq!(left(&parent, used(970, 100_000)), "3% tokens");
    let wrote = Usage { completion_tokens: 49, ..used(100, 100_000).expect("some") };
    assert_eq!(left(&parent, Some(wrote)), "2% completion tokens", "those beneath it wrote");
    let lines = drawn(&mut view(vec![Row::of(&parent, Some(&policy), None, None, NOW)]), (140, 5));
    let at = lines[2].find("ROUND").expect("a column");
    assert!(lines[3][at..].starts_with("2/9 "), "{lines:#?}");
    assert!(lines[3].contains("$0.10"), "{lines:#?}");
    // A run that it has left behind counts as its own, with its tree unread and read before that.
    let mut settled = parent.clone();
    settled.state.rounds.settled.cost_microusd = 1_700_000;
    assert_eq!(left(&settled, None), "10% own usd");
    assert_eq!(left(&settled, used(100, 100_000)), "10% usd");
    let mut wrote = parent.clone();
    wrote.state.progress.completion_tokens = 40;
    assert_eq!(left(&wrote, None), "20% own completion tokens");
    assert_eq!(left(&wrote, used(100, 100_000)), "20% completion tokens");
    let mut ran = parent.clone();
    ran.state.ran_ms = 540_000;
    ran.state.uncounted = None;
    assert_eq!(left(&ran, None), "10% time");
    ran.state.turns = 19;
    assert_eq!(left(&ran, None), "5% turns");
}

#[test]
fn the_tokens_that_a_run_alone_has_left_are_its_own_and_not_called_so() {
    let policy =
        "[agent.a]\ncomponent = \"c.wasm\"\nbudget = { prompt_tokens = 100, tokens = 1000 }\n";
    let policy = Policy::parse(policy, std::path::Path::new("/p/taskrun.toml")).expect("a policy");
    let mut alone = run(1, "count");
    alone.state.progress.total_tokens = 900;
    assert_eq!(Row::of(&alone, Some(&policy), None, None, NOW).left, "10% tokens");
    alone.state.progress.prompt_tokens = 93;
    assert_eq!(Row::of(&alone, Some(&policy), None, None, NOW).left, "7% prompt tokens");
}

#[test]
fn an_entry_wakes_with_the_heartbeat_of_its_agent() {
    let policy = "[agent.a]\ncomponent = \"c.wasm\"\nheartbeat = { interval = \"1h\" }\n";
    let policy = Policy::parse(policy, std::path::Path::new("/p/taskrun.toml")).expect("a policy");
    let mut entry = run(1, "later");
    entry.state.hold = Hold::Beat;
    let row = Row::of(&entry, Some(&policy), None, None, NOW);
    assert_eq!((&*row.status, &*row.wakes), ("queued (heartbeat)", "in 1h"));
    assert_eq!(Row::of(&entry, None, None, None, NOW).wakes, "");
}

#[test]
fn the_text_of_a_guest_stays_in_its_cell() {
    let hostile = "a\u{1b}[2J\u{1b}[H\u{9b}1;1H\r\nb\u{202e}\u{7}";
    let mut asking = run(1, hostile);
    let (id, prompt) = ("q".to_owned(), hostile.to_owned());
    asking.state.awaits.push(Await { id, on: BlockedOn::Input, prompt, answered: false });
    let tool = Tool { name: hostile.to_owned(), since: NOW, others: 0 };
    let mut view = view(vec![Row::of(&asking, None, None, Some(tool), NOW)]);
    view.message = Some(hostile.to_owned());
    let lines = drawn(&mut view, (160, 6));
    let shown = lines.concat();
    assert!(!shown.chars().any(char::is_control), "{lines:#?}");
    assert!(!shown.contains('\u{202e}'), "{lines:#?}");
    assert!(lines[4].is_empty(), "it takes one line: {lines:#?}");
}

#[test]
fn keys_mean_the_selected_run_and_a_cancellation_is_asked_about_once() {
    let rows = [run(1, "one"), run(2, "two")].map(|run| Row::of(&run, None, None, None, NOW));
    let mut view = view(rows.clone().into());
    let key = |code| KeyEvent::new(code, KeyModifiers::NONE);
    let id = |place: usize| rows[place].id.clone();
    assert_eq!(view.key(key(KeyCode::Char('p'))), Wish::Pause(id(0)));
    view.key(key(KeyCode::Down));
    view.key(key(KeyCode::Down));
    assert_eq!(view.key(key(KeyCode::Char('r'))), Wish::Resume(id(1)), "there is no third one");
    assert_eq!(view.key(key(KeyCode::Char('a'))), Wish::Answer(id(1)));
    // Asked, and refused with any key but one.
    assert_eq!(view.key(key(KeyCode::Char('c'))), Wish::Nothing);
    open(&mut view, (80, 6));
    let question = "y cancels 0197a0000000700080 and all beneath it, any other key does not";
    assert_eq!(drawn(&mut view, (80, 6))[5], question);
    assert_eq!(drawn(&mut view, (40, 6))[5], question[..40]);
    assert_eq!(view.key(key(KeyCode::Char('q'))), Wish::Nothing, "that is no yes");
    view.key(key(KeyCode::Char('c')));
    open(&mut view, (80, 6));
    assert_eq!(view.key(key(KeyCode::Char('y'))), Wish::Cancel(id(1)));
    assert_eq!(view.key(key(KeyCode::Enter)), Wish::Look);
    view.page = Page::Run { text: "a run".to_owned(), from: 0 };
    assert!(drawn(&mut view, (80, 6))[2].starts_with("a run"));
    assert_eq!(view.key(key(KeyCode::Char('q'))), Wish::Back);
    view.page = Page::Runs;
    assert_eq!(view.key(key(KeyCode::Char('q'))), Wish::Quit);
    let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(view.key(ctrl_c), Wish::Quit);
}

#[test]
fn on_a_screen_that_is_too_small_only_leaving_means_something() {
    let mut view = view(vec![Row::of(&run(1, "one"), None, None, None, NOW)]);
    let key = |code| KeyEvent::new(code, KeyModifiers::NONE);
    view.key(key(KeyCode::Char('c')));
    let asks = view.page.clone();
    for page in [Page::Runs, asks.clone()] {
        view.page = page.clone();
        assert!(drawn(&mut view, (39, 6))[0].starts_with("too small"));
        for code in ['y', 'c', 'p', 'r', 'a', 'n'].map(KeyCode::Char) {
            assert_eq!(view.key(key(code)), Wish::Nothing, "{code:?}");
            assert_eq!(view.page, page);
        }
        assert_eq!(view.key(key(KeyCode::Char('q'))), Wish::Quit);
    }
    assert_eq!(view.question, QuestionStage::New, "it was not seen");
    view.ask(form("Which?\n> "));
    open(&mut view, (40, 6));
    drawn(&mut view, (39, 6));
    view.paste("unseen");
    drawn(&mut view, (40, 6));
    assert_eq!(view.key(key(KeyCode::Enter)), Wish::Send(String::new()));
    view.page = asks;
    let id = view.rows[0].id.clone();
    assert_eq!(view.key(key(KeyCode::Char('y'))), Wish::Cancel(id));
}

#[test]
fn a_key_from_before_a_question_was_on_the_screen_is_no_answer_to_it() {
    let mut view = view(vec![Row::of(&run(1, "one"), None, None, None, NOW)]);
    let key = |code| KeyEvent::new(code, KeyModifiers::NONE);
    let id = view.rows[0].id.clone();
    // The prompt, for which programs wait, comes when all keys from before were read.
    let answers = |view: &mut View, prompt: &str| {
        assert!(!drawn(view, (80, 6)).concat().contains(prompt));
        for code in [KeyCode::Char('y'), KeyCode::Enter, KeyCode::Esc] {
            assert_eq!(view.key(key(code)), Wish::Nothing, "{code:?}");
        }
        view.paste("y");
        open(view, (80, 6));
        assert!(drawn(view, (80, 6)).concat().contains(prompt));
    };
    view.key(key(KeyCode::Char('c')));
    assert_eq!(view.key(key(KeyCode::Char('y'))), Wish::Nothing);
    answers(&mut view, "any other key does not");
    assert_eq!(view.key(key(KeyCode::Char('y'))), Wish::Cancel(id));
    // A form that has said nothing yet is not on the screen.
    view.ask(form(""));
    drawn(&mut view, (80, 6));
    assert_eq!(view.question, QuestionStage::New);
    view.page = form("Call it again?\ny/n> ");
    answers(&mut view, "y/n>");
    view.key(key(KeyCode::Char('n')));
    assert_eq!(view.key(key(KeyCode::Enter)), Wish::Send("n".to_owned()));
    // The next question is another one.
    view.ask(form("And this?\ny/n> "));
    answers(&mut view, "y/n>");
}

#[test]
fn the_selected_run_stays_selected_while_the_order_changes() {
    let rows = [run(1, "one"), run(2, "two")].map(|run| Row::of(&run, None, None, None, NOW));
    let mut view = view(rows.clone().into());
    view.show(rows.iter().rev().cloned().collect());
    assert_eq!(view.selected.as_ref(), Some(&rows[0].id));
    view.show(vec![rows[1].clone()]);
    assert_eq!(view.selected.as_ref(), Some(&rows[1].id), "the first one, where it is gone");
}

#[test]
fn what_is_typed_and_pasted_is_a_line() {
    let mut view = view(Vec::new());
    view.ask(form("Which?\n> "));
    open(&mut view, (60, 8));
    let key = |code, modifiers| KeyEvent::new(code, modifiers);
    let plain = |code| key(code, KeyModifiers::NONE);
    view.paste("two\r\nlines\n");
    view.key(plain(KeyCode::Char('q')));
    view.key(key(KeyCode::Char('Q'), KeyModifiers::SHIFT));
    view.key(plain(KeyCode::Backspace));
    assert_eq!(drawn(&mut view, (60, 8))[6], "> two linesq");
    assert_eq!(view.key(plain(KeyCode::Enter)), Wish::Send("two linesq".to_owned()));
    view.paste("gone");
    view.key(key(KeyCode::Char('u'), KeyModifiers::CONTROL));
    assert_eq!(view.key(plain(KeyCode::Enter)), Wish::Send(String::new()));
    // Shown as what it is, with its end where it is long.
    view.paste(&format!("{}\u{1b}[2Jend", "x".repeat(200)));
    let lines = drawn(&mut view, (60, 8));
    assert!(lines[6].ends_with("xx\\u{1b}[2Jend"), "{lines:#?}");
    view.paste(&"x".repeat(64 << 10));
    assert!(drawn(&mut view, (60, 8))[7].starts_with("a line has less than"));
    assert_eq!(view.key(plain(KeyCode::Esc)), Wish::Unanswered);
}

#[test]
fn a_long_form_and_a_long_run_are_scrolled_within_their_text() {
    let text: String = (0..30).map(|number| format!("line {number}\n")).collect();
    let mut view = view(Vec::new());
    let plain = |code| KeyEvent::new(code, KeyModifiers::NONE);
    view.ask(form(&format!("{text}> ")));
    open(&mut view, (60, 10));
    assert_eq!(
        drawn(&mut view, (60, 10))[2..9].concat(),
        "line 24line 25line 26line 27line 28line 29>"
    );
    for _ in 0..100 {
        view.key(plain(KeyCode::Up));
        drawn(&mut view, (60, 10));
    }
    assert_eq!(drawn(&mut view, (60, 10))[2], "line 0");
    view.key(plain(KeyCode::Down));
    assert_eq!(drawn(&mut view, (60, 10))[2], "line 1");
    view.page = Page::Run { text, from: 1_000 };
    assert_eq!(drawn(&mut view, (60, 10))[7], "line 29");
    view.key(plain(KeyCode::Up));
    assert_eq!(drawn(&mut view, (60, 10))[8], "line 29");
}

#[test]
fn calls_are_followed_from_look_to_look() {
    let scheduled = |id: &str, name: &str| Event::ToolCallScheduled {
        name: name.to_owned(),
        tool_call_id: id.to_owned(),
        payload: "{}".to_owned(),
        idempotent: true,
        is_own: false,
    };
    let result = |id: &str| {
        let output = ToolOutput::plain("shop/a", id, "{}", ToolOutcome::Value("1".to_owned()));
        Event::ToolResult { output: Box::new(output), duration_ms: 1, refused: None }
    };
    let mut calls = Calls::default();
    let at = |seq, event| EventRecord { seq, id: seq, at: Timestamp(NOW.0 + seq), event };
    calls.fold(&[at(1, scheduled("a", "shop/a")), at(2, scheduled("b", "shop/b"))]);
    let tool = |name: &str, since, others| Some(Tool { name: name.to_owned(), since, others });
    assert_eq!(calls.first(), tool("shop/a", Timestamp(NOW.0 + 1), 1));
    calls.fold(&[at(3, result("a"))]);
    assert_eq!(calls.first(), tool("shop/b", Timestamp(NOW.0 + 2), 0));
    calls.fold(&[at(4, result("b"))]);
    assert_eq!(calls.first(), None);
}
