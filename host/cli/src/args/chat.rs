//! The command that speaks with an agent.

use clap::Args;

use super::parse::some_text;

/// Arguments of `chat`.
#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    /// Session that is continued
    #[arg(value_name = "SESSION", value_parser = some_text)]
    pub id: String,
    /// Agent to speak with [default: the one that has the conversation]
    #[arg(long)]
    pub agent: Option<String>,
}
