//! Tables without borders.

use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width, presets};
use unicode_width::UnicodeWidthStr;

use super::escape::{escaped_block, escaped_line, excerpt, fitted};

/// Narrowest last column; below that the lines are longer than the terminal.
const LAST_COLUMN_MIN: usize = 12;
/// Narrowest column of free text before the last one that is cut.
const FREE_COLUMN_MIN: usize = 16;
/// Columns between two cells.
const GAP: u16 = 2;
/// Columns of what stands side by side where there is no terminal to fit into.
const PAGE_COLUMNS: usize = 120;
/// Widest last column where there is no terminal to fit into.
const LAST_COLUMN_MAX: usize = 60;

/// Rows under their headings, escaped: each cell is one line. The last column is cut to what is left
/// of `width`.
#[must_use]
pub(crate) fn table(headings: &[&str], rows: Vec<Vec<String>>, width: Option<usize>) -> String {
    table_with_free(headings, rows, width, &[headings.len().saturating_sub(1)])
}

/// The same where the columns with the numbers `free`, from 0, have text that is of use without its
/// end, too. Where they leave the last one no room in `width` they are cut, the widest first. The
/// last one is whole if it is none of them.
#[must_use]
pub(crate) fn table_with_free(
    headings: &[&str],
    mut rows: Vec<Vec<String>>,
    width: Option<usize>,
    free: &[usize],
) -> String {
    let is_last_cut = free.contains(&headings.len().saturating_sub(1));
    // What is cut of the last one below is escaped by that.
    let unescaped = usize::from(is_last_cut);
    for cell in rows.iter_mut().flat_map(|row| row.iter_mut().rev().skip(unescaped)) {
        if let std::borrow::Cow::Owned(escaped) = escaped_line(cell) {
            *cell = escaped;
        }
    }
    let widest = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.width())
            .chain(headings.get(column).map(|heading| heading.width()))
            .max()
            .unwrap_or(0)
    };
    let mut widths: Vec<usize> = (0..headings.len().saturating_sub(1)).map(widest).collect();
    let last = match is_last_cut {
        true => LAST_COLUMN_MIN,
        false => widest(headings.len().saturating_sub(1)),
    };
    if let Some(width) = width {
        narrow(&mut widths, width.saturating_sub(last), free);
    }
    let left = width.map(|width| width.saturating_sub(needed(&widths)).max(last));
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.force_no_tty();
    table.set_header(headings.iter().copied());
    for mut row in rows {
        for column in free {
            if let (Some(cell), Some(width)) = (row.get_mut(*column), widths.get(*column))
                && cell.width() > *width
            {
                *cell = fitted(cell, *width);
            }
        }
        if let Some(last) = row.last_mut().filter(|_| is_last_cut) {
            *last = match left {
                Some(left) => fitted(last, left),
                None => excerpt(last, LAST_COLUMN_MAX),
            };
        }
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, GAP));
    }
    table.trim_fmt()
}

/// Columns that cells of these widths take, each with the gap behind it.
fn needed(widths: &[usize]) -> usize {
    widths.iter().map(|width| width + usize::from(GAP)).sum()
}

/// Takes from the columns of free text what is over, from the widest first.
fn narrow(widths: &mut [usize], room: usize, free: &[usize]) {
    loop {
        let over = needed(widths).saturating_sub(room);
        let free = widths.iter_mut().enumerate().filter(|(column, _)| free.contains(column));
        match free.map(|(_, width)| width).max() {
            Some(widest) if over > 0 && *widest > FREE_COLUMN_MIN => {
                *widest = widest.saturating_sub(over).max(FREE_COLUMN_MIN);
            }
            Some(_) | None => return,
        }
    }
}

/// Names and values, escaped, one pair for each line; further lines of a value stand under its first.
#[must_use]
pub(crate) fn pairs(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0) + 2;
    let mut lines = Vec::new();
    for (name, value) in pairs {
        let mut name = *name;
        for line in escaped_block(value).lines() {
            lines.push(format!("{name:width$}{line}").trim_end().to_owned());
            name = "";
        }
    }
    lines.join("\n")
}

/// Two texts beside each other, escaped, each under its heading and within its half of `width`.
#[must_use]
pub(crate) fn side_by_side(
    left: (&str, &str),
    right: (&str, &str),
    width: Option<usize>,
) -> String {
    let width = width.unwrap_or(PAGE_COLUMNS).max(2 * LAST_COLUMN_MIN);
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.force_no_tty().set_width(u16::try_from(width).unwrap_or(u16::MAX));
    table.set_header([left.0, right.0]);
    table.add_row([escaped_block(left.1).trim_end(), escaped_block(right.1).trim_end()]);
    for column in table.column_iter_mut() {
        column.set_padding((0, GAP));
        column.set_constraint(ColumnConstraint::UpperBoundary(Width::Percentage(50)));
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_forgets_to_escape_is_not_found_out() {
        let cell = "a\u{1b}[8m\nb".to_owned();
        let shown = table(&["A", "B"], vec![vec![cell.clone(), cell.clone()]], None);
        assert_eq!(shown.lines().count(), 2, "{shown:?}");
        assert!(!shown.contains('\u{1b}'), "{shown:?}");
        let shown = pairs(&[("a", cell), ("b", "c".to_owned())]);
        assert_eq!(shown, "a  a\\u{1b}[8m\n   b\nb  c");
    }
    fn widest_line(shown: &str) -> usize {
        shown.lines().map(UnicodeWidthStr::width).max().unwrap_or(0)
    }

    #[test]
    fn free_text_before_the_last_column_is_cut_where_a_terminal_has_no_room_for_it() {
        let row =
            |name: &str, tools: &str, text: &str| [name, tools, text].map(str::to_owned).to_vec();
        let rows = vec![
            row("coder", &"workspace/read ".repeat(20), "Writes."),
            row("researcher", "workspace/list", &"Says where it stands. ".repeat(9)),
        ];
        let headings = ["AGENT", "TOOLS", "DESCRIPTION"];
        let shown = |width| table_with_free(&headings, rows.clone(), width, &[1, 2]);
        for width in [44, 60, 80, 120] {
            assert!(widest_line(&shown(Some(width))) <= width, "{}", shown(Some(width)));
            assert!(shown(Some(width)).contains("workspace/list"), "nothing short is cut");
        }
        let piped = shown(None);
        assert!(piped.contains(&"workspace/read ".repeat(20)), "{piped}");
        // A name is written into the next command, and so it is whole.
        let named = table(&headings, rows.clone(), Some(60));
        assert!(named.contains(&"workspace/read ".repeat(20)), "{named}");
    }

    #[test]
    fn free_text_is_cut_for_the_last_column_that_has_to_be_whole() {
        let id = "0197a3c0-0000-7000-8000-000000000001";
        let rows = vec![vec!["long ".repeat(40), id.to_owned()]];
        let shown = |width| table_with_free(&["TASK", "PARENT"], rows.clone(), Some(width), &[0]);
        for width in [60, 80, 120] {
            let shown = shown(width);
            assert_eq!(widest_line(&shown), width, "{shown}");
            assert!(shown.ends_with(&format!("…  {id}")), "{shown}");
        }
        assert!(shown(20).ends_with(id), "it is whole in any terminal");
    }

    #[test]
    fn wide_characters_take_two_columns_of_a_terminal() {
        let rows = vec![
            vec!["字".repeat(6), "漢字".repeat(40)],
            vec!["plain".to_owned(), "a text that is longer than its terminal is wide".to_owned()],
        ];
        let shown = table(&["NAME", "TASK"], rows, Some(40));
        assert_eq!(widest_line(&shown), 40, "{shown}");
        let shown: Vec<&str> = shown.lines().collect();
        assert_eq!(shown[1], format!("{}  {}…", "字".repeat(6), "漢字".repeat(6)));
    }
}
