//! The options of this command line that the commands need, too, which people are told.

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::Path;

use crate::args::Globals;
use crate::shell;

/// The program, as it stands at the beginning of a command in a text.
const PROGRAM: &str = "taskrun ";
/// The beginnings of commands that list everything, to find what was not found: the owner may be
/// what hid it.
const LISTS: [&str; 3] = ["ps -a", "ps --all", "consents --all"];

/// The options by which this command line says where its runs are: the policy, the data directory,
/// the tenant and the owner. A session is none of them: a run beneath another one is of none that a
/// person names, and is found without it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Invocation {
    /// Those that were typed, with a blank behind each.
    typed: Vec<(&'static str, String)>,
    /// The data directory, if it was typed, for another working directory.
    data_dir: Option<String>,
    names_session: bool,
}

impl Invocation {
    /// Those of a command line, which was parsed. What the environment says, it says to the commands
    /// that follow as well.
    #[must_use]
    pub(crate) fn new(words: &[OsString], globals: &Globals) -> Self {
        let given = |option: &str| {
            let own = words.iter().skip(1).take_while(|word| *word != "--");
            own.filter_map(|word| word.to_str()).any(|word| {
                let rest = word.strip_prefix(option);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
            })
        };
        let Globals { config, data_dir, tenant, owner, .. } = globals;
        let values = [
            ("--config", config.as_deref().and_then(Path::to_str)),
            ("--data-dir", data_dir.as_deref().and_then(Path::to_str)),
            ("--tenant", tenant.as_deref()),
            ("--owner", owner.as_deref()),
        ];
        // One that nobody could paste is left to the person.
        let pasted = |option: &str, value: Option<&str>| {
            let value = value.filter(|value| shell::word(value).is_some())?;
            Some(format!("{} ", shell::option(option, value, "")))
        };
        let typed = values
            .into_iter()
            .filter(|&(option, _)| given(option))
            .filter_map(|(option, value)| Some((option, pasted(option, value)?)))
            .collect();
        let absolute = data_dir.as_deref().filter(|_| given("--data-dir"));
        let absolute = absolute.and_then(|path| std::path::absolute(path).ok());
        let absolute = absolute.as_deref().and_then(Path::to_str);
        let data_dir = pasted("--data-dir", absolute);
        Self { typed, data_dir, names_session: given("--session") }
    }

    /// True if a session is named on the command line.
    #[must_use]
    pub(crate) fn names_session(&self) -> bool {
        self.names_session
    }

    /// A command with these options, if it is one of this program. One that lists everything has no
    /// owner.
    #[must_use]
    pub(crate) fn command<'t>(&self, command: &'t str) -> Cow<'t, str> {
        match command.strip_prefix(PROGRAM) {
            // The demo has a policy and a folder of its own.
            Some(words) if !self.typed.is_empty() && words != "demo" => {
                let lists = LISTS.iter().any(|list| words.starts_with(list));
                let options = self.typed.iter().filter(|(name, _)| !lists || *name != "--owner");
                let options: String = options.map(|(_, option)| option.as_str()).collect();
                Cow::Owned(format!("{PROGRAM}{options}{words}"))
            }
            Some(_) | None => Cow::Borrowed(command),
        }
    }

    /// The command of these words, to be typed where another policy is: with the data directory and
    /// without the policy of here.
    #[must_use]
    pub(crate) fn elsewhere(&self, words: &str) -> String {
        let option = |(name, option): &(&'static str, String)| match *name {
            "--config" => None,
            "--data-dir" => Some(self.data_dir.as_ref().unwrap_or(option).clone()),
            _ => Some(option.clone()),
        };
        let options: String = self.typed.iter().filter_map(option).collect();
        format!("{PROGRAM}{options}{words}")
    }

    /// A text of this program whose commands, which stand in backquotes, have these options.
    #[must_use]
    pub(crate) fn complete<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if self.typed.is_empty() {
            return Cow::Borrowed(text);
        }
        let mut completed = String::with_capacity(2 * text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('`') {
            let (code, behind) = after.split_at(end_of_code(after));
            completed.push_str(before);
            completed.push('`');
            completed.push_str(&self.command(code));
            rest = behind.strip_prefix('`').unwrap_or(behind);
            if rest.len() < behind.len() {
                completed.push('`');
            }
        }
        completed.push_str(rest);
        Cow::Owned(completed)
    }
}

/// The place of the backquote that ends a command: none in quotes, as an id of a guest may have one
/// there.
fn end_of_code(code: &str) -> usize {
    let (mut quote, mut is_escaped) = (None, false);
    for (at, character) in code.char_indices() {
        match (quote, character) {
            _ if is_escaped => is_escaped = false,
            (None | Some('"'), '\\') => is_escaped = true,
            (Some(open), _) if open == character => quote = None,
            (Some(_), _) => {}
            (None, '`') => return at,
            (None, '\'' | '"') => quote = Some(character),
            (None, _) => {}
        }
    }
    // A quote that nothing closes is an apostrophe.
    code.find('`').unwrap_or(code.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str], globals: &Globals) -> Invocation {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        Invocation::new(&words, globals)
    }

    fn globals() -> Globals {
        Globals {
            config: Some("my proj/a.toml".into()),
            tenant: Some("acme".to_owned()),
            owner: Some("bob".to_owned()),
            session: Some("s".to_owned()),
            ..Globals::default()
        }
    }

    #[test]
    fn commands_have_the_options_that_were_typed_and_none_of_the_environment() {
        let typed = ["taskrun", "run", "--tenant=acme", "a", "--config", "my proj/a.toml"];
        let told = of(&typed, &globals());
        assert_eq!(
            told.complete(
                "see `taskrun get 1`, or `ulimit -n 9`; `taskrun ps -a` it's in `taskrun`"
            ),
            "see `taskrun --config 'my proj/a.toml' --tenant acme get 1`, or `ulimit -n 9`; \
             `taskrun --config 'my proj/a.toml' --tenant acme ps -a` it's in `taskrun`"
        );
        assert!(!told.names_session());
        let none = of(&["taskrun", "run", "a", "--", "--tenant", "acme"], &globals());
        assert_eq!(none.complete("`taskrun get 1`"), "`taskrun get 1`");
        assert!(of(&["taskrun", "ps", "--session", "s"], &globals()).names_session());
    }

    #[test]
    fn a_command_for_where_another_policy_is_has_no_policy_and_the_whole_path_of_the_data() {
        let globals = Globals { data_dir: Some("data".into()), ..globals() };
        let typed = ["taskrun", "--config", "a.toml", "--data-dir", "data", "--owner=bob", "ps"];
        let data = std::path::absolute("data").expect("a working directory");
        let data = shell::option("--data-dir", data.to_str().expect("a text"), "");
        assert_eq!(
            of(&typed, &globals).elsewhere("wait r"),
            format!("taskrun {data} --owner bob wait r")
        );
        assert_eq!(of(&["taskrun", "ps"], &globals).elsewhere("wait r"), "taskrun wait r");
    }

    #[test]
    fn a_command_that_lists_everything_has_no_owner() {
        let told = of(&["taskrun", "--owner", "bob", "--tenant", "acme"], &globals());
        for list in LISTS {
            let command = format!("taskrun {list}");
            assert_eq!(told.command(&command), format!("taskrun --tenant acme {list}"));
        }
        assert_eq!(told.command("taskrun ps"), "taskrun --tenant acme --owner bob ps");
    }

    #[test]
    fn words_of_guests_in_a_command_stay_as_they_are() {
        let told = of(&["taskrun", "--owner", "bob"], &globals());
        for id in ["`taskrun x`", "a `taskrun x` b", "q'`taskrun x", "\"`taskrun x", "\\`taskrun x"]
        {
            let word = shell::word(id).expect("no control characters");
            let text = format!("`taskrun answer R {word} TEXT`, or `taskrun inbox`");
            assert_eq!(
                told.complete(&text),
                format!(
                    "`taskrun --owner bob answer R {word} TEXT`, or `taskrun --owner bob inbox`"
                )
            );
        }
        assert_eq!(told.complete("nobody's `taskrun get 1"), "nobody's `taskrun --owner bob get 1");
    }
}
