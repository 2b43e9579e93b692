//! Commands about facts.

use clap::{Args, Subcommand};

use super::parse::label;

/// Facts of a session, if one is named with --session, or else of the tenant.
#[derive(Debug, Subcommand)]
pub(crate) enum MemoryCommand {
    /// Lists facts by key
    Ls(MemoryLsArgs),
    /// Prints the text of a fact
    Get(MemoryKeyArgs),
    /// Lists facts that have words of a query, the best first
    ///
    /// The more of the words are in key, text and labels of a fact the earlier it comes, then the
    /// later it was written.
    Search(MemorySearchArgs),
    /// Keeps a fact, in place of the one that has its key
    Put(MemoryPutArgs),
    /// Forgets facts
    Rm(MemoryRmArgs),
}

/// Arguments of `memory ls`.
#[derive(Debug, Args)]
pub(crate) struct MemoryLsArgs {
    /// Most facts, 1 to 200
    #[arg(long, value_name = "N", default_value_t = 50,
        value_parser = clap::value_parser!(u16).range(1..=200))]
    pub limit: u16,
    /// Only facts after this key, as printed by the page before
    #[arg(long, value_name = "KEY")]
    pub after: Option<String>,
}

/// The arguments of commands about one fact.
#[derive(Debug, Args)]
pub(crate) struct MemoryKeyArgs {
    /// Key of the fact
    pub key: String,
}

/// Arguments of `memory search`.
#[derive(Debug, Args)]
pub(crate) struct MemorySearchArgs {
    /// Words to search for
    #[arg(required = true)]
    pub words: Vec<String>,
    /// Most facts, 1 to 100
    #[arg(long, value_name = "N", default_value_t = 10,
        value_parser = clap::value_parser!(u16).range(1..=100))]
    pub limit: u16,
}

/// Arguments of `memory put`.
#[derive(Debug, Args)]
pub(crate) struct MemoryPutArgs {
    /// Key of the fact
    pub key: String,
    /// Text to remember; `-` reads it from stdin, `@FILE` from a file
    pub text: String,
    /// Key and value to tell it from others by; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub labels: Vec<(String, String)>,
}

/// Arguments of `memory rm`.
#[derive(Debug, Args)]
pub(crate) struct MemoryRmArgs {
    /// Keys of the facts
    #[arg(required = true, value_name = "KEY")]
    pub keys: Vec<String>,
}
