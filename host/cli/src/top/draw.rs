//! Drawing. The texts that it draws were made fit for a terminal before.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Row as TableRow, Table};
use taskrun_journal::time::Timestamp;

use super::lines::{end_of_line, lines};
use super::rows::{ID_CHARS, Row, short_id};
use super::view::{Page, QuestionStage, View};
use crate::output::escape::escaped_line;

/// The smallest screen on which a run and the keys can be told.
const COLUMNS_MIN: u16 = 40;
const LINES_MIN: u16 = 5;

/// A column: its heading, and the text of a run in it. The text of the last one takes the rest.
type Column = (&'static str, fn(&Row) -> &str);
const COLUMNS: [Column; 9] = [
    ("AGENT", |row| &row.agent),
    ("STATUS", |row| &row.status),
    ("ROUND", |row| &row.round),
    ("TURNS", |row| &row.turns),
    ("LEFT", |row| &row.left),
    ("TOOL", |row| &row.tool),
    ("COST", |row| &row.cost),
    ("WAKES", |row| &row.wakes),
    ("ASKS, OR TASK", |row| &row.text),
];

/// Draws everything, and keeps what is scrolled within its text.
pub(super) fn draw(frame: &mut Frame<'_>, view: &mut View, now: Timestamp) {
    let area = frame.area();
    view.is_too_small = area.width < COLUMNS_MIN || area.height < LINES_MIN;
    if view.is_too_small {
        let text = format!("too small: {COLUMNS_MIN} columns and {LINES_MIN} lines; q quits");
        draw_lines(frame, area, &lines(&text, area.width), 0);
        return;
    }
    let areas = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ]);
    let [title, _, page, keys] = areas.areas(area);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    frame.render_widget(Line::styled(view.title(now), bold), title);
    match &mut view.page {
        Page::Runs | Page::Cancel(_) => draw_runs(frame, view, page),
        Page::Run { text, from } => {
            let lines = lines(text, page.width);
            *from = (*from).min(lines.len().saturating_sub(usize::from(page.height)));
            draw_lines(frame, page, &lines, *from);
        }
        Page::Ask { text, up, typed } => {
            let typed = (view.question == QuestionStage::Open).then_some(typed.as_str());
            draw_question(frame, page, text, up, typed);
        }
    }
    let dim = Style::new().add_modifier(Modifier::DIM);
    let style = if view.is_said() { bold } else { dim };
    frame.render_widget(Line::styled(view.last_line(), style), keys);
    view.was_drawn();
}

/// Draws the form, and, where keys are its answer, the line that is typed below it with the cursor.
fn draw_question(
    frame: &mut Frame<'_>,
    area: Rect,
    text: &str,
    up: &mut usize,
    typed: Option<&str>,
) {
    let [above, line] = Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(area);
    let (text, prompt) = text.rsplit_once('\n').unwrap_or(("", text));
    let lines = lines(text, above.width);
    let last = lines.len().saturating_sub(usize::from(above.height));
    *up = (*up).min(last);
    draw_lines(frame, above, &lines, last - *up);
    let Some(typed) = typed else { return };
    let typed = format!("{prompt}{}", escaped_line(typed));
    // The cursor stands behind it.
    let typed = Span::raw(end_of_line(&typed, line.width.saturating_sub(1)));
    let width = u16::try_from(typed.width()).unwrap_or(0);
    frame.render_widget(typed, line);
    frame.set_cursor_position((line.x.saturating_add(width), line.y));
}

/// Draws lines from one of them on, as many as there is room for.
fn draw_lines(frame: &mut Frame<'_>, area: Rect, lines: &[String], from: usize) {
    for (line, row) in lines.iter().skip(from).zip(area.rows()) {
        frame.render_widget(Span::raw(line.as_str()), row);
    }
}

fn draw_runs(frame: &mut Frame<'_>, view: &View, area: Rect) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let selected = view.place();
    // A column without a text is left out: a narrow screen has no room for it.
    let last = COLUMNS.len() - 1;
    let columns = COLUMNS.iter().enumerate().filter_map(|(place, (heading, of))| {
        let widest = view.rows.iter().map(|row| Span::raw(of(row)).width()).max().unwrap_or(0);
        let is_shown = widest > 0 || place == last;
        let width = u16::try_from(widest.max(heading.len())).unwrap_or(u16::MAX);
        let width = if place == last { Constraint::Fill(1) } else { Constraint::Length(width) };
        is_shown.then_some((place, *heading, *of, width))
    });
    let columns: Vec<_> = columns.collect();
    let rows = view.rows.iter().enumerate().map(|(place, row)| {
        let cells = columns.iter().map(|(place, _, of, _)| {
            if *place == last && row.asks {
                Cell::from(Line::styled(format!("? {}", of(row)), bold))
            } else {
                Cell::from(of(row))
            }
        });
        let is_selected = selected == Some(place);
        let modifier = if is_selected { Modifier::REVERSED } else { Modifier::empty() };
        let cells = [Cell::from(short_id(&row.id))].into_iter().chain(cells);
        TableRow::new(cells).style(Style::new().add_modifier(modifier))
    });
    let headings = ["RUN"].into_iter().chain(columns.iter().map(|(_, heading, _, _)| *heading));
    let widths = columns.iter().map(|(_, _, _, width)| *width);
    let id = Constraint::Length(u16::try_from(ID_CHARS).unwrap_or(u16::MAX));
    let table = Table::new(rows, [id].into_iter().chain(widths));
    frame.render_widget(table.header(TableRow::new(headings).style(bold)), area);
}
