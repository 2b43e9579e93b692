//! Arguments and commands that are described to the parser only if the command that they belong to
//! is the one that was typed.

use std::ops::Deref;

use clap::builder::Resettable;
use clap::{ArgMatches, Args, Command, Error, FromArgMatches, Subcommand};

/// Arguments of a command. A start of the program describes those of the command that was typed, and
/// not those of all others. A command has them once: of two that are flattened into it, the second one
/// would take the place of the first.
#[derive(Clone, Debug)]
pub struct LazyArgs<T>(Box<T>);

impl<T> Deref for LazyArgs<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: FromArgMatches> FromArgMatches for LazyArgs<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        T::from_arg_matches(matches).map(|args| Self(Box::new(args)))
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, Error> {
        T::from_arg_matches_mut(matches).map(|args| Self(Box::new(args)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches(matches)
    }

    fn update_from_arg_matches_mut(&mut self, matches: &mut ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches_mut(matches)
    }
}

impl<T: Args> Args for LazyArgs<T> {
    fn augment_args(command: Command) -> Command {
        command.defer(|command| described(command, T::augment_args))
    }

    fn augment_args_for_update(command: Command) -> Command {
        command.defer(|command| described(command, T::augment_args_for_update))
    }
}

/// The commands beneath one, which are described as [`LazyArgs`] are.
#[derive(Clone, Debug)]
pub struct LazyCommands<T>(pub T);

impl<T: FromArgMatches> FromArgMatches for LazyCommands<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        T::from_arg_matches(matches).map(Self)
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, Error> {
        T::from_arg_matches_mut(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches(matches)
    }

    fn update_from_arg_matches_mut(&mut self, matches: &mut ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches_mut(matches)
    }
}

impl<T: Subcommand> Subcommand for LazyCommands<T> {
    fn augment_subcommands(command: Command) -> Command {
        command.defer(|command| described(command, T::augment_subcommands))
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        command.defer(|command| described(command, T::augment_subcommands_for_update))
    }

    fn has_subcommand(name: &str) -> bool {
        T::has_subcommand(name)
    }
}

/// The command with its arguments, or with the commands beneath it. The command's own texts stay, in
/// whose place the documentation of the type of these would stand.
fn described(command: Command, augment: impl FnOnce(Command) -> Command) -> Command {
    let short = Resettable::from(command.get_about().cloned());
    let long = Resettable::from(command.get_long_about().cloned());
    augment(command).about(short).long_about(long)
}
