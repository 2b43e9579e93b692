//! The commands in documents are commands, and `docs/command-line.md` has all of them.

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use taskrun_cli::Cli;
use taskrun_journal::status::StopReason;

use super::markdown::{Document, Section, code};

/// Words as a shell would have them, without a comment at the end.
pub(super) fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for character in line.chars() {
        match (quote, character) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, '#') if word.is_none() => break,
            (Some(_) | None, c) => word.get_or_insert_default().push(c),
        }
    }
    assert_eq!(quote, None, "a quotation has no end: {line}");
    words.extend(word);
    words
}

/// The words of a command of ours, however it is called.
fn ours(line: &str) -> Option<Vec<String>> {
    let words = words(line);
    let texts: Vec<&str> = words.iter().map(String::as_str).collect();
    match texts.as_slice() {
        ["taskrun", ..] => Some(words),
        ["cargo", "run", "--", ..] => Some(words[2..].to_vec()),
        [..] => None,
    }
}

#[test]
fn commands_in_blocks_are_taken_as_they_stand() {
    let mut taken = 0;
    for document in Document::all() {
        for line in document.blocks_in("console").flat_map(str::lines) {
            let Some(line) = line.strip_prefix("$ ") else { continue };
            let Some(words) = ours(line) else { continue };
            if let Err(error) = Cli::try_parse_from(words) {
                panic!("{}: {line}\n{error}", document.path.display());
            }
            taken += 1;
        }
    }
    assert!(taken > 10, "only {taken} commands were found");
}

#[test]
fn commands_in_texts_are_taken_or_lack_only_arguments() {
    let mut taken = 0;
    for document in Document::all() {
        for text in document.prose.iter().flat_map(|line| code(line)) {
            let Some(words) = text.starts_with("taskrun ").then(|| words(text)) else { continue };
            let error = Cli::try_parse_from(words).err().filter(|error| !lacks(error));
            if let Some(error) = error {
                panic!("{}: {text}\n{error}", document.path.display());
            }
            taken += 1;
        }
    }
    assert!(taken > 50, "only {taken} commands were found");
}

fn lacks(error: &clap::Error) -> bool {
    [
        ErrorKind::MissingRequiredArgument,
        ErrorKind::MissingSubcommand,
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
    ]
    .contains(&error.kind())
}

#[test]
fn the_page_of_the_command_line_has_every_command_and_every_option() {
    let page = Document::at("docs/command-line.md");
    let sections = page.sections();
    let titled = |title: &str| {
        let found = sections.iter().find(|section| section.title == title);
        found.unwrap_or_else(|| panic!("docs/command-line.md has no heading {title:?}"))
    };
    let mut program = Cli::command();
    program.build();
    let globals = options(&program, true);
    same(titled("Global options"), &globals, &[]);
    let of_globals = variables(&program, true);
    for option in globals.iter().filter_map(|option| option.strip_prefix("--")) {
        // The page says that of each of them at once.
        let variable = format!("TASKRUN_{}", option.replace('-', "_").to_uppercase());
        assert!(of_globals.contains(&variable), "--{option} has not {variable}");
    }
    let mut known = Vec::new();
    visit(&program, "taskrun", &mut |name, command| {
        known.push(format!("`{name}`"));
        let section = titled(&format!("`{name}`"));
        same(section, &options(command, false), &globals);
        let texts = section.lines.iter().flat_map(|line| code(line));
        let is_own = |text: &&str| {
            text.starts_with("TASKRUN_") && !of_globals.iter().any(|name| name == text)
        };
        let mut named: Vec<&str> = texts.filter(is_own).collect();
        named.sort_unstable();
        assert_eq!(named, variables(command, false), "variables of {name}");
    });
    for section in sections.iter().filter(|section| section.title.starts_with("`taskrun ")) {
        let title = section.title;
        assert!(known.iter().any(|name| name == title), "there is no command {title}");
    }
}

#[test]
fn the_page_of_the_command_line_has_every_stop_reason_once() {
    let page = Document::at("docs/command-line.md");
    let sections = page.sections();
    let section = sections.iter().find(|section| section.title == "Stop reasons");
    let lines = section.expect("a heading of stop reasons").lines;
    // The first cell of each row, and the sentence on the words that no run has.
    let rows = lines.iter().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let unused = lines.iter().filter(|line| line.contains("nothing produces yet"));
    let texts = rows.chain(unused.map(String::as_str));
    let mut named: Vec<&str> = texts.flat_map(code).collect();
    let mut known: Vec<&str> = StopReason::ALL.iter().map(|reason| reason.as_str()).collect();
    named.sort_unstable();
    known.sort_unstable();
    assert_eq!(named, known);
}

/// Calls `look` for every command below one that is shown in its help.
fn visit(command: &clap::Command, name: &str, look: &mut impl FnMut(&str, &clap::Command)) {
    let shown = |one: &&clap::Command| !one.is_hide_set() && one.get_name() != "help";
    for one in command.get_subcommands().filter(shown) {
        let name = format!("{name} {}", one.get_name());
        look(&name, one);
        visit(one, &name, look);
    }
}

/// The options that a command shows, such as `-o` and `--output`: those of every command, or its
/// own.
fn options(command: &clap::Command, global: bool) -> Vec<String> {
    let built_in = ["help", "version"];
    let shown = command.get_arguments().filter(|one| {
        let is_option = one.get_long().is_some_and(|long| !built_in.contains(&long));
        is_option && !one.is_hide_set() && one.is_global_set() == global
    });
    let names = shown.flat_map(|one| {
        let short = one.get_short().map(|short| format!("-{short}"));
        short.into_iter().chain(one.get_long().map(|long| format!("--{long}")))
    });
    names.collect()
}

/// The environment variables of the options of every command, or of a command's own, sorted.
fn variables(command: &clap::Command, global: bool) -> Vec<String> {
    let options = command.get_arguments().filter(|one| one.is_global_set() == global);
    let names = options.filter_map(|one| one.get_env()?.to_str().map(str::to_owned));
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names
}

/// A section names all these options and no others but those that every command takes.
fn same(section: &Section<'_>, own: &[String], globals: &[String]) {
    let texts = section.lines.iter().flat_map(|line| code(line));
    let options = texts.filter(|text| text.starts_with('-') && text.len() > 1);
    let named: Vec<&str> = options.filter_map(|text| text.split([' ', '=', '[']).next()).collect();
    for option in own {
        assert!(named.contains(&option.as_str()), "{} lacks {option}", section.title);
    }
    for option in named {
        let known = |all: &[String]| all.iter().any(|one| one == option);
        assert!(known(own) || known(globals), "{} has no {option}", section.title);
    }
}

#[test]
fn words_are_those_of_a_shell() {
    assert_eq!(
        words("taskrun run a \"b c\" --x='d \"e' # f"),
        ["taskrun", "run", "a", "b c", "--x=d \"e"]
    );
    assert_eq!(words("a ''"), ["a", ""]);
    assert_eq!(words("a#b"), ["a#b"]);
}
