//! Tables without borders.

use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width, presets};

use super::escape::{escaped_block, escaped_line, excerpt};

/// Narrowest last column; below that the lines are longer than the terminal.
const LAST_COLUMN_MIN: usize = 12;
/// Columns of what stands side by side where there is no terminal to fit into.
const PAGE_COLUMNS: usize = 120;
/// Widest last column where there is no terminal to fit into.
const LAST_COLUMN_MAX: usize = 60;

/// Rows under their headings, escaped: each cell is one line. The last column is cut to what is left
/// of `width`.
#[must_use]
pub(crate) fn table(headings: &[&str], mut rows: Vec<Vec<String>>, width: Option<usize>) -> String {
    // What stands in the last one is cut below, and escaped by that.
    for cell in rows.iter_mut().flat_map(|row| row.iter_mut().rev().skip(1)) {
        if let std::borrow::Cow::Owned(escaped) = escaped_line(cell) {
            *cell = escaped;
        }
    }
    let columns = headings.len();
    let widest = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .chain(headings.get(column).map(|heading| heading.chars().count()))
            .max()
            .unwrap_or(0)
    };
    let taken: usize = (0..columns.saturating_sub(1)).map(|column| widest(column) + 2).sum();
    let left =
        width.map_or(LAST_COLUMN_MAX, |width| width.saturating_sub(taken).max(LAST_COLUMN_MIN));
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.force_no_tty();
    table.set_header(headings.iter().copied());
    for mut row in rows {
        if let Some(last) = row.last_mut() {
            *last = excerpt(last, left);
        }
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
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
        column.set_padding((0, 2));
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
}
