//! Columns of the table of runs.

use clap::ValueEnum;

/// A column of the table of runs. Where a field of the JSON has the same, its name stands for the
/// column, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RunColumn {
    /// Its id
    #[value(alias = "id")]
    Run,
    /// The name that stands for it
    Name,
    /// Its agent
    #[value(alias = "agent_name")]
    Agent,
    /// Its status, with the reason for it
    Status,
    /// The time since it was accepted
    Age,
    /// The time since its execution began, or that it took
    Time,
    /// Its turns so far
    Turns,
    /// Its tool calls so far
    Tools,
    /// Its task
    Task,
    /// The owner who asked for it
    #[value(alias = "owner_user_id")]
    Owner,
    /// The session from which it was asked for
    #[value(alias = "parent_session_id")]
    Session,
    /// The run that started it
    #[value(alias = "parent_run_id")]
    Parent,
    /// Its labels
    Labels,
    /// The rounds of an autonomous run, the present one included
    Rounds,
    /// Its tokens so far, without those beneath it
    Tokens,
    /// Their price in US dollars, as far as prices are known
    Cost,
    /// The reason for its end
    #[value(alias = "stop_reason")]
    Reason,
    /// The moment at which it was accepted
    #[value(alias = "created_at")]
    Created,
    /// The moment at which its status changed last
    #[value(alias = "updated_at")]
    Updated,
    /// The moment at which it ended
    #[value(alias = "finished_at")]
    Finished,
    /// The beginning of its result, or of its error
    Summary,
}

impl RunColumn {
    /// The columns of a table for which none were asked.
    pub(crate) const USUAL: [Self; 9] = [
        Self::Run,
        Self::Name,
        Self::Agent,
        Self::Status,
        Self::Age,
        Self::Time,
        Self::Turns,
        Self::Tools,
        Self::Task,
    ];

    /// The heading of the column.
    #[must_use]
    pub(crate) fn heading(self) -> &'static str {
        match self {
            Self::Run => "RUN",
            Self::Name => "NAME",
            Self::Agent => "AGENT",
            Self::Status => "STATUS",
            Self::Age => "AGE",
            Self::Time => "TIME",
            Self::Turns => "TURNS",
            Self::Tools => "TOOLS",
            Self::Task => "TASK",
            Self::Owner => "OWNER",
            Self::Session => "SESSION",
            Self::Parent => "PARENT",
            Self::Labels => "LABELS",
            Self::Rounds => "ROUNDS",
            Self::Tokens => "TOKENS",
            Self::Cost => "COST",
            Self::Reason => "REASON",
            Self::Created => "CREATED",
            Self::Updated => "UPDATED",
            Self::Finished => "FINISHED",
            Self::Summary => "SUMMARY",
        }
    }

    /// True if it has text that is of use without its end, too.
    #[must_use]
    pub(crate) fn is_free(self) -> bool {
        matches!(self, Self::Task | Self::Labels | Self::Summary)
    }
}
