//! Commands about sessions and what is old, and about what runs ask.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::parse::{components_kept, duration};

/// The sessions from which runs are started.
#[derive(Debug, Subcommand)]
pub(crate) enum SessionCommand {
    /// Makes a session known
    ///
    /// No session needs it: a name that was never mentioned is an open session. Repeated, it
    /// changes nothing.
    Create(SessionArgs),
    /// Shows a session
    Show(SessionArgs),
    /// Ends a session: no run is started in it any more, and what runs goes on
    End(SessionArgs),
    /// Ends a session, cancels its open runs, removes all of its runs with their journals, and
    /// forgets its facts
    Delete(SessionArgs),
}

/// The arguments of commands about one session.
#[derive(Debug, Args)]
pub(crate) struct SessionArgs {
    /// Name of the session
    #[arg(value_name = "ID")]
    pub id: String,
}

/// Arguments of `gc`.
#[derive(Debug, Args)]
pub(crate) struct GcArgs {
    /// Least time since the end of a run
    #[arg(long, value_name = "DURATION", default_value = "30d", value_parser = duration)]
    pub older_than: Duration,
    /// Least time since a component was wanted, by a run or a policy in use; an hour at least
    /// [default: that of the policy, or 30d]
    #[arg(long, value_name = "DURATION", value_parser = components_kept)]
    pub components_older_than: Option<Duration>,
    /// Removes nothing and says what would be removed
    #[arg(long)]
    pub dry_run: bool,
}

/// Arguments of `inbox`.
#[derive(Debug, Args)]
pub(crate) struct InboxArgs {}

/// Arguments of `answer`.
#[derive(Debug, Args)]
pub(crate) struct AnswerArgs {
    /// The run
    pub run: String,
    /// The item, unless only one is asked, and the answer: TEXT for a clarification; KEY=VALUE for
    /// each question of a form, or a JSON object; for external tools a JSON object with a result
    /// for each call, `{"failure": "TEXT"}` for one that failed. `-` reads the answer from stdin,
    /// `@FILE` from a file
    #[arg(value_name = "ITEM|ANSWER")]
    pub words: Vec<String>,
    /// Consents to what is to be confirmed
    #[arg(long, conflicts_with = "decline")]
    pub accept: bool,
    /// Refuses what is to be confirmed
    #[arg(long)]
    pub decline: bool,
    /// Says the same for all further calls of the same function in the run
    #[arg(long, conflicts_with_all = ["for_session", "always"])]
    pub for_run: bool,
    /// Says the same for calls of the function in all runs of the agent in the session of the run
    #[arg(long, conflicts_with = "always")]
    pub for_session: bool,
    /// Says the same for calls of the function in all runs of the agent
    #[arg(long)]
    pub always: bool,
    /// The time after which what is said with --for-session or --always is over, at most 3650d
    /// [default: 90d with --always]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub expires: Option<Duration>,
}
