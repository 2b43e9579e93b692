//! The commands that the program tells people in hints and notices, read from its source: each is
//! whole, so that whoever pastes it gets more than its usage.

use std::path::{Path, PathBuf};

use clap::Parser;
use clap::error::ErrorKind;
use taskrun_cli::Cli;

use super::commands::words;
use super::markdown::{code, root};

/// A command that some words name, and do not tell anybody to type.
const NAMED: &str = "taskrun run";

#[test]
fn commands_that_people_are_told_lack_nothing() {
    let mut told = 0;
    for (path, source) in sources() {
        for literal in literals(&source) {
            for command in code(&literal).filter(|code| code.starts_with("taskrun ")) {
                // The command itself is put in where it is told.
                if command.starts_with("taskrun {") || command == NAMED {
                    continue;
                }
                told += 1;
                let place = path.display();
                assert!(!command.contains("..."), "{place}: `{command}` has no end");
                let Err(error) = Cli::try_parse_from(words(&filled(command))) else { continue };
                // A word in capitals, or the one that is put in here, need not be a number.
                let is_whole = [ErrorKind::ValueValidation, ErrorKind::DisplayHelp];
                assert!(is_whole.contains(&error.kind()), "{place}: `{command}`\n{error}");
            }
        }
    }
    assert!(told > 100, "only {told} commands were found");
}

/// The sources of the program, without the tests in them.
fn sources() -> Vec<(PathBuf, String)> {
    let mut paths = Vec::new();
    for room in std::fs::read_dir(root().join("host")).expect("a folder") {
        find(&room.expect("an entry").path().join("src"), &mut paths);
    }
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("a source");
        let source = text.split("\nmod tests {").next().unwrap_or_default().to_owned();
        (path, source)
    };
    paths.into_iter().map(read).collect()
}

fn find(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.expect("an entry").path();
        let is_test = path.file_stem().is_some_and(|stem| stem == "tests");
        let is_source = path.extension().is_some_and(|extension| extension == "rs");
        match (is_test, path.is_dir()) {
            (true, _) => {}
            (false, true) => find(&path, found),
            (false, false) if is_source => found.push(path),
            (false, false) => {}
        }
    }
}

/// A command with a word in the place of each value that is put in where it is told.
fn filled(command: &str) -> String {
    let (mut filled, mut rest) = (String::new(), command);
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        filled.push('x');
        rest = after.split_once('}').map_or("", |(_, behind)| behind);
    }
    filled + rest
}

/// The texts in quotes of a source, as the compiler takes them.
fn literals(source: &str) -> Vec<String> {
    let (mut found, mut rest) = (Vec::new(), source);
    while let Some(first) = rest.chars().next() {
        if rest.starts_with("//") {
            rest = rest.split_once('\n').map_or("", |(_, behind)| behind);
        } else if let Some(raw) = rest.strip_prefix("r#\"") {
            let (text, behind) = raw.split_once("\"#").unwrap_or((raw, ""));
            found.push(text.to_owned());
            rest = behind;
        } else if let Some(text) = rest.strip_prefix('"') {
            let (text, behind) = literal(text);
            found.push(text);
            rest = behind;
        } else {
            rest = behind_character(rest).unwrap_or(&rest[first.len_utf8()..]);
        }
    }
    found
}

/// The text of a literal whose first quote was passed, and the source behind it.
fn literal(source: &str) -> (String, &str) {
    let (mut text, mut characters) = (String::new(), source.char_indices().peekable());
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (text, &source[at + 1..]),
            '\\' => match characters.next() {
                // The blanks at the beginning of the next line are none of the text.
                Some((_, '\n')) => {
                    while characters.next_if(|(_, blank)| blank.is_whitespace()).is_some() {}
                }
                Some((_, 'n')) => text.push('\n'),
                Some((_, escaped)) => text.push(escaped),
                None => {}
            },
            character => text.push(character),
        }
    }
    (text, "")
}

/// The source behind a character in quotes, if it begins with one; a lifetime is none.
fn behind_character(source: &str) -> Option<&str> {
    let quoted = source.strip_prefix('\'')?;
    let first = quoted.chars().next()?;
    let end = match first {
        '\\' => 2 + quoted.get(2..)?.find('\'')?,
        first => first.len_utf8(),
    };
    quoted.get(end..)?.strip_prefix('\'')
}

#[test]
fn literals_are_those_of_the_compiler() {
    let source = [
        "let a = \"x \\",
        "    y\"; // \"no\"",
        "let b = ('\"', '\\'', \"\\\"`z`\\n\", r#\"\\\"#);",
        "fn f<'a>(c: &'a str) {}",
    ];
    let source = source.join("\n");
    assert_eq!(literals(&source), ["x y", "\"`z`\n", "\\"]);
    assert_eq!(filled("taskrun get {id} --artifact {}"), "taskrun get x --artifact x");
}
