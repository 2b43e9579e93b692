//! Every key of a policy has a heading, and its bounds stand under it.

use std::path::Path;

use taskrun_policy::{Policy, PolicyError, PolicyErrorKind};

use super::markdown::{Document, Section};

/// A table of a policy, and where its keys are explained.
struct Table {
    page: &'static str,
    /// The headings that lead to its keys, one below the other.
    titles: &'static [&'static str],
    /// The words before a key in its heading.
    prefix: &'static str,
    /// A policy that ends in the table.
    policy: &'static str,
}

const POLICY: &str = "docs/policy.md";
const MODELS: &str = "docs/models.md";

const TABLES: &[Table] = &[
    table(POLICY, &["`[defaults]`"], "", "[defaults]\n"),
    table(POLICY, &["`[workspace]`"], "", "[workspace]\n"),
    table(POLICY, &["`[workspace]`", "`limits`"], "", "[workspace.limits]\n"),
    table(POLICY, &["`[prompt.ID]`"], "", "[prompt.x]\ntemplate = 't'\n"),
    table(
        POLICY,
        &["`[prompt.ID]`", "`overrides`"],
        "",
        "[prompt.x]\ntemplate = 't'\n[[prompt.x.overrides]]\nsession = 's'\nfile = 'f'\n",
    ),
    table(POLICY, &["`[tool.NAME]`"], "", "[tool.x]\ncomponent = 'c'\n"),
    table(POLICY, &["`[agent.NAME]`"], "", "[agent.x]\ncomponent = 'c'\n"),
    table(POLICY, &["`limits` of an agent or a tool"], "", "[agent.x.limits]\n"),
    table(POLICY, &["`budget` of an agent"], "", "[agent.x.budget]\n"),
    table(POLICY, &["`budget` of an agent", "`reserve`"], "reserve.", "[agent.x.budget.reserve]\n"),
    table(POLICY, &["`retry` of an agent"], "", "[agent.x.retry]\n"),
    table(POLICY, &["`autonomous` of an agent"], "", "[agent.x.autonomous]\n"),
    table(POLICY, &["`autonomous` of an agent", "`done`"], "done.", "[agent.x.autonomous.done]\n"),
    table(POLICY, &["`heartbeat` of an agent"], "", "[agent.x.heartbeat]\n"),
    table(POLICY, &["`policy` of an agent"], "", "[agent.x.policy]\n"),
    table(POLICY, &["`[webhook.NAME]`"], "", "[webhook.x]\n"),
    table(POLICY, &["`[command.NAME]`"], "", "[command.x]\nrun = ['./x']\n"),
    table(POLICY, &["`[file.NAME]`"], "", "[file.x]\npath = 'x'\n"),
    table(MODELS, &["`[model.NAME]`"], "", "[model.x]\n"),
    table(MODELS, &["`[model.NAME]`", "`timeouts`"], "timeouts.", REMOTE_TIMEOUTS),
    table(MODELS, &["`[model.NAME]`", "`retry`"], "retry.", REMOTE_RETRY),
    table(MODELS, &["`[model.NAME]`", "`prices`"], "prices.", "[model.x.prices]\n"),
];

/// Bounds of the keys of a model are known where its provider is.
const REMOTE: &str = "[model.x]\nprovider = 'anthropic'\nmodel = 'm'\n";
const REMOTE_TIMEOUTS: &str = "[model.x]\nprovider = 'openai-chat'\n[model.x.timeouts]\n";
const REMOTE_RETRY: &str = "[model.x]\nprovider = 'openai-chat'\n[model.x.retry]\n";

/// Values that are too large, whatever a key takes.
const TOO_LARGE: [&str; 3] = ["'99999d'", "'9999999999GiB'", "1000000000000000000"];

const fn table(
    page: &'static str,
    titles: &'static [&'static str],
    prefix: &'static str,
    policy: &'static str,
) -> Table {
    Table { page, titles, prefix, policy }
}

fn errors(policy: &str) -> Vec<PolicyError> {
    Policy::parse(policy, Path::new("taskrun.toml")).err().map_or(Vec::new(), |all| all.errors)
}

/// The keys that the reader of policies knows in the table with which a policy ends, as it says
/// them where one is unknown.
pub(crate) fn known_keys(policy: &str) -> Vec<String> {
    let unknown = "no_such_key";
    let all = errors(&format!("{policy}{unknown} = 1\n"));
    let is_unknown = |error: &&PolicyError| matches!(&error.kind, PolicyErrorKind::UnknownKey { key, .. } if key == unknown);
    let told = all.iter().find(is_unknown).map(|error| &error.help);
    let told = told.unwrap_or_else(|| panic!("{policy}: {all:#?}"));
    let (_, keys) = told.split_once("known keys: ").expect("it says them");
    keys.split(", ").map(|key| key.trim_matches('`').to_owned()).collect()
}

impl Table {
    /// The least and the greatest value of a key, as the reader says them, if it has such.
    fn bounds(policy: &str, key: &str) -> Option<(String, String)> {
        let all = TOO_LARGE.iter().flat_map(|value| errors(&format!("{policy}{key} = {value}\n")));
        let mut told = all.filter_map(|error| {
            let of_key =
                matches!(&error.kind, PolicyErrorKind::OutOfRange { key: of, .. } if of == key);
            let (least, most) =
                error.help.strip_prefix("write a value from ")?.split_once(" to ")?;
            of_key.then(|| (least.to_owned(), most.to_owned()))
        });
        told.next()
    }

    fn section<'d>(&self, page: &'d Document) -> Section<'d> {
        let mut all = page.sections();
        let mut found = None;
        for title in self.titles {
            let at = all.iter().position(|section| section.title == *title);
            let at = at.unwrap_or_else(|| panic!("{} has no heading {title:?}", self.page));
            let section = all.swap_remove(at);
            all = section.parts().collect();
            found = Some(section);
        }
        found.expect("a table has a heading")
    }
}

#[test]
fn every_key_of_a_policy_has_a_heading_and_no_other_has_one() {
    for table in TABLES {
        let (page, keys) = (Document::at(table.page), known_keys(table.policy));
        let section = table.section(&page);
        let mut headed: Vec<String> = Vec::new();
        for part in section.parts() {
            headed.extend(super::markdown::code(part.title).map(str::to_owned));
        }
        let mut keys: Vec<String> =
            keys.into_iter().map(|key| format!("{}{key}", table.prefix)).collect();
        keys.sort();
        headed.sort();
        assert_eq!(headed, keys, "{} under {:?}", table.page, table.titles);
    }
}

#[test]
fn a_misspelt_key_leads_to_the_page_that_has_its_heading() {
    let mut led = 0;
    for table in TABLES {
        let known = known_keys(table.policy);
        let misspelt = format!("{}x", known.first().expect("it has keys"));
        for error in errors(&format!("{}{misspelt} = 1\n", table.policy)) {
            let Some((_, page)) = error.help.split_once("all keys: ") else { continue };
            assert_eq!(page, table.page, "{misspelt} under {:?}", table.titles);
            led += 1;
        }
    }
    assert!(led > 1, "only {led} keys led to a page");
}

#[test]
fn the_bounds_of_a_key_stand_under_its_heading() {
    let mut checked = 0;
    for table in TABLES {
        let page = Document::at(table.page);
        let section = table.section(&page);
        let policy = if table.policy == "[model.x]\n" { REMOTE } else { table.policy };
        for key in known_keys(table.policy) {
            let Some((least, most)) = Table::bounds(policy, &key) else { continue };
            let title = format!("`{}{key}`", table.prefix);
            let part = section.parts().find(|part| part.title == title).expect("it has a heading");
            let text = part.text();
            let told = match least.starts_with('0') {
                true => text.contains(&format!("at most `{most}`")),
                false => text.contains(&format!("from `{least}` to `{most}`")),
            };
            assert!(told, "{title}: it is from {least} to {most}, and not as in\n{text}");
            checked += 1;
        }
    }
    assert!(checked > 30, "only {checked} keys with bounds were found");
}
