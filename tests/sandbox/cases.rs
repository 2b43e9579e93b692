//! The tables of cases and of rows in `SCENARIOS.md` against the tests that there are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The number of cases in the sandbox's own list.
const CASES: u32 = 70;
const HEADING: &str = "## Cases of the sandbox";
const NOT_BUILT: &str = "### Not built";
const AUTONOMOUS: &str = "## Rows of autonomous runs";
/// The documented rows of the system whose runs go on by themselves.
const DOCUMENTED: [&str; 32] = [
    "C-001", "C-002", "C-004", "C-005", "C-006", "C-007", "C-010", "C-011", "C-015", "C-016",
    "C-017", "C-018", "C-019", "C-024", "C-025", "C-029", "C-030", "C-031", "C-032", "C-034",
    "C-036", "C-037", "C-038", "C-039", "C-040", "C-046", "C-051", "C-056", "C-060", "C-077",
    "C-081", "C-082",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The lines beneath a heading.
fn section(heading: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join("tests/SCENARIOS.md")).expect("there");
    let section = text.lines().skip_while(|line| *line != heading).skip(1);
    section.take_while(|line| !line.starts_with("## ")).map(str::to_owned).collect()
}

/// The numbers behind `case` in the beginning of a row: `case 35, case 36`.
fn numbers(text: &str) -> Vec<u32> {
    let words = text.split("case ").skip(1);
    words
        .map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default())
        .map(|number| number.parse().unwrap_or_else(|_| panic!("no number: {text}")))
        .collect()
}

/// Numbers of a row with what stands in code in its last column.
fn rows() -> Vec<(Vec<u32>, Vec<String>)> {
    let section = section(HEADING);
    let rows = section.iter().filter(|line| line.starts_with("| case "));
    rows.filter(|line| !line.starts_with("| case |"))
        .map(|line| {
            let columns: Vec<&str> = line.trim_matches('|').split(" | ").collect();
            let [first, .., last] = columns.as_slice() else { panic!("no row: {line}") };
            (numbers(first), code(last))
        })
        .collect()
}

/// The words that stand in code in a column.
fn code(column: &str) -> Vec<String> {
    column.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// A file or a folder that a row names: from the root, or from the folder of these tests.
fn named(path: &str) -> Option<PathBuf> {
    let found = [root().join(path), root().join("tests").join(path)];
    found.into_iter().find(|path| path.exists())
}

/// Every file of Rust in a folder, or the file itself.
fn files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = std::fs::read_dir(path).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let inside = paths.filter(|path| path.is_dir() || path.extension().is_some_and(|e| e == "rs"));
    inside.filter(|path| !path.ends_with("target")).flat_map(|path| files(&path)).collect()
}

/// The names of functions in a file.
fn functions(path: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(path).expect("a file");
    let named = text.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next());
    named.map(str::to_owned).collect()
}

/// The reason that a row does not name what is there.
fn wrong(code: &[String]) -> Option<String> {
    let mut known = BTreeSet::new();
    for item in code {
        if item.contains('/') {
            let Some(path) = named(item) else { return Some(format!("there is no {item}")) };
            known = files(&path).iter().flat_map(|file| functions(file)).collect();
            continue;
        }
        let is_there = match item.strip_suffix('*') {
            Some(beginning) => known.iter().any(|name| name.starts_with(beginning)),
            None => known.contains(item),
        };
        if !is_there {
            return Some(format!("no test is named {item} in the file before it"));
        }
    }
    code.iter().all(|item| !item.contains('/')).then(|| "it names no file".to_owned())
}

#[test]
fn every_case_has_its_row_in_order_or_the_reason_that_it_is_not_built() {
    let mut listed = Vec::new();
    for (numbers, code) in rows() {
        assert_eq!(wrong(&code), None, "case {numbers:?}");
        listed.extend(numbers);
    }
    assert!(listed.is_sorted(), "{listed:?}");
    let section = section(HEADING);
    let reasons = section.iter().skip_while(|line| *line != NOT_BUILT);
    for line in reasons.filter(|line| line.starts_with("- case ")) {
        let (first, reason) = line.split_once(": ").expect("a reason");
        assert!(reason.len() > 20, "{line}");
        listed.extend(numbers(first));
    }
    let missing: Vec<u32> = (1..=CASES).filter(|case| !listed.contains(case)).collect();
    assert_eq!(missing, Vec::<u32>::new());
    assert!(listed.iter().all(|case| (1..=CASES).contains(case)), "{listed:?}");
}

#[test]
fn every_row_of_another_system_names_tests_that_there_are() {
    let others = ["## Rows of the planner", "## Rows of task runs, tasks and delegation"];
    for heading in others.into_iter().chain([AUTONOMOUS]) {
        let mut count = 0;
        for line in section(heading).iter().filter(|line| line.starts_with("| ")) {
            let columns: Vec<&str> = line.trim_matches('|').split(" | ").collect();
            let [row, tests, ..] = columns.as_slice() else { panic!("no row: {line}") };
            if row.trim() == "row" || row.trim().starts_with('-') {
                continue;
            }
            assert_eq!(wrong(&code(tests)), None, "{row}");
            count += 1;
        }
        assert!(count > 10, "{heading}: {count}");
    }
}

#[test]
fn every_documented_row_of_autonomous_runs_stands_in_their_table_in_order() {
    let section = section(AUTONOMOUS);
    let first = section.iter().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let words = first.flat_map(|row| row.split([' ', ',']));
    let rows: Vec<&str> = words.filter(|word| word.starts_with("C-")).collect();
    assert_eq!(rows, DOCUMENTED);
}

#[test]
fn every_test_that_is_named_after_a_case_stands_in_its_row() {
    let mut rows_by_case: BTreeMap<u32, Vec<PathBuf>> = BTreeMap::new();
    for (numbers, code) in rows() {
        let paths = code.iter().filter_map(|item| named(item));
        let paths: Vec<PathBuf> = paths.flat_map(|path| files(&path)).collect();
        for number in numbers {
            rows_by_case.entry(number).or_default().extend(paths.iter().cloned());
        }
    }
    let same = |one: &Path, other: &Path| one.canonicalize().ok() == other.canonicalize().ok();
    for folder in ["tests", "host", "sdk"] {
        for file in files(&root().join(folder)) {
            for name in functions(&file) {
                let Some(rest) = name.strip_prefix("case_") else { continue };
                let Ok(case) = rest.split('_').next().unwrap_or_default().parse() else { continue };
                let row = rows_by_case.get(&case).map_or(&[][..], Vec::as_slice);
                let stands = row.iter().any(|path| same(path, &file));
                assert!(
                    stands,
                    "{} has {name}, and no row of case {case} names it",
                    file.display()
                );
            }
        }
    }
}
