//! Parsing the words of a command line.

use std::ffi::OsString;

use clap::{Args, Error, FromArgMatches, Parser, Subcommand};

use super::{Cli, Command, Globals};

impl Cli {
    /// Parses the words of a command line, of which the first one is the program.
    ///
    /// The parser copies the global options to each command that it knows, which takes it longer than
    /// all else. So it is first given only the command whose name stands among the words. A line that
    /// it accepts then means the same to a parser that knows all commands, and any other line is given
    /// to that one, for its errors and help texts.
    ///
    /// # Errors
    /// Those of [`Parser::try_parse_from`], and help and version where they are asked for.
    pub fn parse_words(words: Vec<OsString>) -> Result<Self, Error> {
        parse_named_command(&words).map_or_else(|| Self::try_parse_from(words), Ok)
    }
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
    fn a_line_that_is_refused_is_refused_by_the_parser_that_knows_all() {
        for line in [
            "taskrun",
            "taskrun rum worker",
            "taskrun --log ps get r --limit 3",
            "taskrun run",
            "taskrun run --help",
            "taskrun help run",
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
