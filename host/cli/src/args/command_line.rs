//! Parsing the words of a command line.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Arg, Args, CommandFactory, Error, FromArgMatches, Parser, Subcommand, ValueHint};

use super::{Cli, Command, Globals};

impl Cli {
    /// Parses the words of a command line, of which the first one is the program.
    ///
    /// The parser copies the global options to each command that it knows, which takes it longer than
    /// all else. So it is first given only the command whose name stands among the words. A line that
    /// it accepts then means the same to a parser that knows all commands, and any other line is given
    /// to that one, for its errors and help texts. `taskrun -v help ps` is `taskrun -v ps
    /// --help`.
    ///
    /// # Errors
    /// Those of [`Parser::try_parse_from`], and help and version where they are asked for.
    pub fn parse_words(mut words: Vec<OsString>) -> Result<Self, Error> {
        // The parser's own command for this would have all others beneath it once more.
        let mut asks_help = false;
        while let Some(at) = place_of_help(&words) {
            words.remove(at);
            asks_help = true;
        }
        if asks_help {
            words.push("--help".into());
        }
        parse_named_command(&words).map_or_else(
            || Self::try_parse_from(&words).map_err(|error| with_variable(error, &words)),
            Ok,
        )
    }

    /// The command that these words name, as it is typed: `taskrun agent show`.
    #[must_use]
    pub(crate) fn named_in(words: &[OsString]) -> String {
        let mut all = Self::command();
        // Those of a command come to be when it is built.
        all.build();
        named(&all, words).1
    }
}

/// The command that these words name, with its name as it is typed.
fn named<'c>(all: &'c clap::Command, words: &[OsString]) -> (&'c clap::Command, String) {
    let (mut command, mut named) = (all, "taskrun".to_owned());
    for word in words.iter().skip(1) {
        if let Some(found) = command.find_subcommand(word) {
            command = found;
            named = format!("{named} {}", found.get_name());
        }
    }
    (command, named)
}

/// The error about these words, with the variable whose value is no UTF-8, if it is one: the parser
/// does not name it. Names of files may have any bytes.
#[expect(
    clippy::disallowed_methods,
    reason = "the parser, through which settings come, has refused one and does not say which"
)]
fn with_variable(error: Error, words: &[OsString]) -> Error {
    if error.kind() != ErrorKind::InvalidUtf8 || words.iter().any(|word| word.to_str().is_none()) {
        return error;
    }
    let mut all = Cli::command();
    all.build();
    let arguments = named(&all, words).0.get_arguments();
    let texts = arguments.filter(|argument| argument.get_value_hint() != ValueHint::AnyPath);
    let refused = texts
        .filter_map(Arg::get_env)
        .find(|name| std::env::var_os(name).is_some_and(|value| value.to_str().is_none()));
    let Some(name) = refused else { return error };
    let message = format!("the value of {} is no UTF-8", name.display());
    all.error(ErrorKind::InvalidUtf8, message)
}

/// The place of the word `help` where a command is named, behind global options if there are some.
fn place_of_help(words: &[OsString]) -> Option<usize> {
    // Most lines have none, and pay for no parser.
    words.iter().find(|word| *word == "help")?;
    let parser = Globals::augment_args(clap::Command::new("taskrun"))
        .disable_help_subcommand(true)
        .allow_external_subcommands(true);
    let matches = parser.try_get_matches_from(words).ok()?;
    let (_, rest) = matches.subcommand().filter(|(name, _)| *name == "help")?;
    let rest = rest.get_many::<OsString>("").map_or(0, Iterator::count);
    words.len().checked_sub(rest + 1)
}

/// The command line, if a parser accepts it that knows only the command which is named first.
fn parse_named_command(words: &[OsString]) -> Option<Cli> {
    let mut all = Command::augment_subcommands(clap::Command::new("taskrun"));
    let name = words.iter().skip(1).find(|word| all.find_subcommand(word).is_some())?;
    let command = std::mem::take(all.find_subcommand_mut(name)?);
    let parser = Globals::augment_args(clap::Command::new("taskrun")).subcommand(command);
    let mut matches = parser.try_get_matches_from(words).ok()?;
    Cli::from_arg_matches_mut(&mut matches).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn a_line_means_the_same_to_a_parser_that_knows_one_command() {
        for line in [
            "taskrun run -d worker task",
            "taskrun --config=ps --log info ps --limit 3",
            "taskrun -qv agent show worker",
            "taskrun session answer s --owner o",
            "taskrun top",
            "taskrun policy explain worker",
            "taskrun run -- ps -d",
            "taskrun compile-worker",
        ] {
            let all = Cli::try_parse_from(words(line)).map(|cli| format!("{cli:?}"));
            let one = parse_named_command(&words(line)).map(|cli| format!("{cli:?}"));
            assert_eq!(all.ok(), one, "{line}");
        }
    }

    #[test]
    fn every_command_means_the_same_to_both_parsers() {
        let all = Command::augment_subcommands(clap::Command::new("taskrun"));
        let mut accepted = 0;
        for name in all.get_subcommands().map(clap::Command::get_name) {
            for rest in ["", "x", "x y", "ls", "-q --owner o", "x --no-such"] {
                let line = words(&format!("taskrun -v {name} {rest}"));
                let said = |parsed: Result<Cli, Error>| match parsed {
                    Ok(cli) => format!("{cli:?}"),
                    Err(error) => error.to_string(),
                };
                accepted += usize::from(parse_named_command(&line).is_some());
                let whole = said(Cli::try_parse_from(&line));
                assert_eq!(said(Cli::parse_words(line)), whole);
            }
        }
        assert!(accepted > 60, "{accepted}");
    }

    #[test]
    fn a_value_that_is_called_as_a_command_is_left_to_the_parser_that_knows_all() {
        let line = words("taskrun --config ps run worker -o json");
        assert!(parse_named_command(&line).is_none());
        let cli = Cli::parse_words(line).expect("it is a command");
        assert!(matches!(cli.command, Command::Run(_)));
    }

    #[test]
    fn the_words_name_a_command_whatever_stands_between_them() {
        for (line, named) in [
            ("taskrun", "taskrun"),
            ("taskrun rum worker", "taskrun"),
            ("taskrun -v run worker ps", "taskrun run"),
            ("taskrun --config=x agent show worker --nope", "taskrun agent show"),
            ("taskrun agent shaw", "taskrun agent"),
        ] {
            assert_eq!(Cli::named_in(&words(line)), named);
        }
    }

    #[test]
    fn help_is_asked_for_before_the_name_of_a_command_as_well_as_behind_it() {
        for (line, same) in [
            ("taskrun help", "taskrun --help"),
            ("taskrun help run", "taskrun run --help"),
            ("taskrun help agent show", "taskrun agent show --help"),
            ("taskrun help rum", "taskrun rum --help"),
            ("taskrun help help", "taskrun --help"),
            ("taskrun -v help ps", "taskrun ps --help"),
            ("taskrun --config help -qo json help agent ls", "taskrun agent ls --help"),
            ("taskrun --log=help help", "taskrun --help"),
        ] {
            let [told, expected] = [line, same].map(|line| {
                let parsed = Cli::parse_words(words(line));
                parsed.map_err(|error| error.to_string()).expect_err(line)
            });
            assert_eq!(told, expected);
        }
    }

    #[test]
    fn help_that_is_a_value_or_an_argument_asks_for_none() {
        for (line, place) in [
            ("taskrun run worker help", None),
            ("taskrun --owner help ps", None),
            ("taskrun --owner help help ps", Some(3)),
            ("taskrun run help", None),
        ] {
            assert_eq!(place_of_help(&words(line)), place, "{line}");
        }
        assert!(Cli::parse_words(words("taskrun run worker help")).is_ok());
    }

    #[test]
    fn a_line_that_is_refused_is_refused_by_the_parser_that_knows_all() {
        for line in [
            "taskrun",
            "taskrun rum worker",
            "taskrun --log ps get r --limit 3",
            "taskrun run",
            "taskrun run --help",
            "taskrun --version ps",
            "taskrun ps get",
            "taskrun agent shaw",
            "taskrun run worker --tree depth=x",
        ] {
            assert!(parse_named_command(&words(line)).is_none(), "{line}");
            let [all, found] = [Cli::try_parse_from(words(line)), Cli::parse_words(words(line))]
                .map(|refused| refused.map_err(|error| error.to_string()).expect_err(line));
            assert_eq!(all, found);
        }
    }
}
