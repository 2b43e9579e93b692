//! `taskrun consents`.

use std::path::Path;

use serde::Serialize;
use taskrun::controller::{CONSENTS_PAGE_MAX, Client};
use taskrun_journal::consent::{ConsentRecord, LastingConsent};
use taskrun_journal::time::Timestamp;

use crate::args::{ConsentsArgs, ConsentsCommand, OutputFormat};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::escape::{escaped_line, excerpt};
use crate::output::{human, table, versioned};
use crate::paths::shown;

/// Longest name that is shown whole in a table.
const NAME_CHARS_MAX: usize = 32;

/// The columns of the table.
const HEADINGS: [&str; 9] =
    ["NUMBER", "AGENT", "OWNER", "SESSION", "WORD", "BY", "SINCE", "ENDS", "FUNCTION"];

/// A consent, as the JSON output shows it.
#[derive(Serialize)]
struct Row<'a> {
    number: u64,
    tool_name: &'a str,
    agent_name: &'a str,
    tenant: &'a str,
    owner_user_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_app_name: Option<&'a str>,
    /// The policy file of the runs.
    policy: &'a str,
    /// The session to whose runs it is bound; absent for one for all runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'a str>,
    approved: bool,
    /// Digest of the code that was to be called.
    digest: &'a str,
    by: &'a str,
    #[serde(serialize_with = "taskrun_journal::time::rfc3339::serialize")]
    at: Timestamp,
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "taskrun_journal::time::rfc3339::option::serialize"
    )]
    until: Option<Timestamp>,
    /// The number of the one in whose place it came.
    #[serde(skip_serializing_if = "Option::is_none")]
    replaces: Option<u64>,
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "taskrun_journal::time::rfc3339::option::serialize"
    )]
    revoked_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_by: Option<&'a str>,
    /// True if it holds now.
    holds: bool,
}

#[derive(Serialize)]
struct List<'a> {
    consents: Vec<Row<'a>>,
}

impl<'a> Row<'a> {
    fn of(record: &'a ConsentRecord, now: Timestamp) -> Self {
        let ConsentRecord { number, consent, replaces, revocation } = record;
        let LastingConsent { subject, session, approved, digest, by, at, until } = consent;
        Self {
            number: *number,
            tool_name: &subject.function,
            agent_name: &subject.agent_name,
            tenant: &subject.tenant,
            owner_user_id: &subject.owner_user_id,
            parent_app_name: subject.parent_app_name.as_deref(),
            policy: &subject.policy,
            session: session.as_deref(),
            approved: *approved,
            digest,
            by,
            at: *at,
            until: *until,
            replaces: *replaces,
            revoked_at: revocation.as_ref().map(|revocation| revocation.at),
            revoked_by: revocation.as_ref().map(|revocation| revocation.by.as_str()),
            holds: record.holds(now),
        }
    }

    /// Its end, for people.
    fn end(&self, now: Timestamp) -> String {
        match (self.revoked_at, self.until) {
            (Some(at), _) => format!("revoked {} ago", human::age(now.since(at))),
            (None, Some(until)) if until <= now => {
                format!("over {} ago", human::age(now.since(until)))
            }
            (None, Some(until)) => format!("in {}", human::ahead(until.since(now))),
            (None, None) => "never".to_owned(),
        }
    }
}

pub(super) async fn consents(context: &Context, args: &ConsentsArgs) -> Outcome {
    let (_, controller) = context.looking().await?;
    let client = context.client(&controller);
    match &args.command {
        None => ls(context, &client, args.all).await,
        Some(ConsentsCommand::Revoke(_)) if args.all => {
            Err(Failure::usage("invalid", "--all is for the list")
                .hint("list all with `taskrun consents -a`, and revoke one without --all"))
        }
        Some(ConsentsCommand::Revoke(args)) => revoke(context, &client, args.number).await,
    }
}

async fn ls(context: &Context, client: &Client, all: bool) -> Outcome {
    let (mut records, mut after) = (Vec::new(), 0);
    loop {
        let page = client.consents(after, CONSENTS_PAGE_MAX).await?;
        let is_last = page.len() < CONSENTS_PAGE_MAX;
        after = page.last().map_or(after, |record| record.number);
        records.extend(page);
        if is_last {
            break;
        }
    }
    let now = context.now();
    records.retain(|record| all || record.holds(now));
    let printer = &context.printer;
    match printer.format() {
        OutputFormat::Table if records.is_empty() => printer.talk("there are no consents"),
        OutputFormat::Table => {
            // The file tells something only where there are several.
            let policy = |record: &ConsentRecord| record.consent.subject.policy.clone();
            let has_several = records.windows(2).any(|pair| policy(&pair[0]) != policy(&pair[1]));
            let rows = records.iter().map(|record| Row::of(record, now)).map(|row| {
                let word = if row.approved { "accepted" } else { "declined" };
                let mut cells = vec![
                    row.number.to_string(),
                    excerpt(row.agent_name, NAME_CHARS_MAX),
                    excerpt(row.owner_user_id, NAME_CHARS_MAX),
                    row.session.map_or("all".to_owned(), |id| excerpt(id, NAME_CHARS_MAX)),
                    word.to_owned(),
                    excerpt(row.by, NAME_CHARS_MAX),
                    human::age(now.since(row.at)),
                    row.end(now),
                    row.tool_name.to_owned(),
                ];
                if has_several {
                    cells.push(shown(Path::new(row.policy)));
                }
                cells
            });
            let mut headings = HEADINGS.to_vec();
            headings.extend(has_several.then_some("POLICY"));
            printer.line(table(&headings, rows.collect(), printer.width()));
        }
        OutputFormat::Json => {
            let consents = records.iter().map(|record| Row::of(record, now)).collect();
            printer.json(&versioned(List { consents }));
        }
        OutputFormat::Ndjson => {
            records.iter().for_each(|one| printer.json_line(&versioned(Row::of(one, now))));
        }
        OutputFormat::Name => records.iter().for_each(|record| printer.line(record.number)),
    }
    Ok(Exit::Completed)
}

async fn revoke(context: &Context, client: &Client, number: u64) -> Outcome {
    let Some(record) = client.revoke_consent(number).await? else {
        return Err(Failure::usage("not-found", format!("there is no consent {number}"))
            .hint("list them with `taskrun consents --all`; another tenant's need --tenant"));
    };
    let (printer, now) = (&context.printer, context.now());
    match printer.format() {
        OutputFormat::Table => {
            let by = record.revocation.as_ref().map_or("", |revocation| revocation.by.as_str());
            printer.line(format!("consent {number}  revoked by {}", escaped_line(by)));
        }
        OutputFormat::Json => printer.json(&versioned(Row::of(&record, now))),
        OutputFormat::Ndjson => printer.json_line(&versioned(Row::of(&record, now))),
        OutputFormat::Name => printer.line(number),
    }
    Ok(Exit::Completed)
}
