//! Commands about agents, tools, components and this installation.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::parse::{argument, duration, lease};

/// The agents of the policy.
#[derive(Debug, Subcommand)]
pub(crate) enum AgentCommand {
    /// Lists the agents
    Ls,
    /// Shows an agent: what its components ask for, and what the policy gives
    Show {
        /// The agent
        agent: String,
    },
    /// Loads agents as a host does, and says what is wrong
    Check {
        /// The agents [default: all]
        agents: Vec<String>,
    },
    /// Lists the versions of agents that runs were accepted with, and which one is current
    ///
    /// A version is all that decides about the runs of an agent: what the policy says about them,
    /// and the bytes of the components. Its pin is a digest of that. Listed are the versions of the
    /// runs on record, those that are kept for runs, and those of the policy in use.
    Versions {
        /// The agent [default: all]
        agent: Option<String>,
    },
    /// Shows what differs between two versions of an agent
    ///
    /// The exit code is 0 whether anything differs or not, and 2 if a version is not known.
    Diff(AgentDiffArgs),
}

/// Arguments of `agent diff`.
#[derive(Debug, Args)]
pub(crate) struct AgentDiffArgs {
    /// The agent
    pub agent: String,
    /// A version, by its pin or by the first digits of that (at least 4)
    #[arg(value_name = "PIN")]
    pub from: String,
    /// Another one [default: the current one]
    #[arg(value_name = "PIN")]
    pub to: Option<String>,
}

/// The tools of the policy.
#[derive(Debug, Subcommand)]
pub(crate) enum ToolCommand {
    /// Lists the tools
    Ls,
    /// Shows a tool: its functions, and what it asks for
    Show {
        /// The tool
        tool: String,
        /// Agent under whose grants it is loaded [default: the first that lists it]
        #[arg(long)]
        agent: Option<String>,
    },
    /// Calls a function of a tool once, under the grants of an agent
    Call(ToolCallArgs),
}

/// The models of the policy.
#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// Lists the models: who answers, where, and from where the key is
    Ls,
    /// Asks a model once, and says what came of it
    ///
    /// It says the protocol and the address, what the protocol can carry, what the answer was, the
    /// tokens and the price of the question, or what is wrong. The question offers a tool, as some
    /// models take none in some protocols. It is paid for like any other, and is written into no
    /// cassette.
    ///
    /// The exit code is 0 if the model answered, 2 if the provider does not accept the request, 3 if
    /// it does not accept the key or its account has no quota left, 5 if it declines to answer, and
    /// 10 if it cannot be reached or wants a pause.
    Test {
        /// The model, by its name in the policy
        model: String,
    },
}

/// The policy, and whether it is used where it is found.
#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Uses a policy from now on wherever it is found, from its folder and below
    ///
    /// It decides which files, hosts and keys agents get, so one that is found and not named with
    /// --config is used only if it belongs to you or to root, no other user can write it, and you
    /// trust its folder. In a terminal you are asked; a later change of the file does not ask again.
    Trust {
        /// The policy file, or its folder [default: the nearest, from here upward]
        policy: Option<PathBuf>,
    },
    /// Says which policy this is, and which ones the hosts of the data directory execute runs under
    ///
    /// A host takes up its own file as it changes; one with a mistake changes nothing, and is named
    /// here. A run that a host under another file executes is bound by the rules of that file, too.
    Show,
    /// Checks a policy and everything that it names, as a host takes it up, and changes nothing
    ///
    /// Mistakes are told with line and column; prompts are read, models opened, and the components
    /// of all agents and of their policy engines loaded. Where there is a data directory, it says
    /// of which agents runs are open that were accepted under another version: these go on within
    /// the rules of both, or are adopted where their agent has `upgrade = "adopt"`.
    ///
    /// The exit code is 0 if all of it can be used, and 2 if not.
    Check {
        /// The policy file, or its folder [default: that of --config, else the nearest, from here
        /// upward]
        policy: Option<PathBuf>,
    },
    /// Checks the policy as `policy check` does, and waits until all living hosts execute under it
    ///
    /// A host takes up its file by itself within two seconds of a change, so nothing has to be
    /// applied; this says when all of them have, and which ones cannot. If anything is wrong with
    /// the policy it waits for nobody, and the hosts stay under the one before.
    ///
    /// The exit code is 0 if it is in force in all hosts that were started with this file, also if
    /// there is none; 2 if it cannot be used; 124 if the time is up before.
    Apply(ApplyArgs),
    /// Says which rule decides about a use of a capability, and what would change that
    ///
    /// Every layer that has to allow it is asked, by the code that decides when a component asks:
    /// the agent's rules, and with --run those of now and those that the run was accepted with, of
    /// its agent and of the agents above it, and what requests took away. The exit code is 0 if the
    /// use is allowed or a person would be asked, and 4 if it is denied.
    ///
    /// The keys of --arg: path (workspace-read, workspace-write); url and method (http; GET unless
    /// given); name (model: the agent's own unless given; metrics); id (prompts); operation,
    /// and for spawn agent (controller); scope (memory, memory-write); name, as TOOL/FUNCTION (tool).
    Explain(ExplainArgs),
}

/// Arguments of `policy apply`.
#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// Longest wait for the hosts
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub timeout: Duration,
}

/// Arguments of `policy explain`.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The agent whose components ask [default, with --run: that of the run]
    #[arg(long, required_unless_present = "run")]
    pub agent: Option<String>,
    /// The capability, or `tool` for the call of a tool
    #[arg(long = "cap", value_name = "CAPABILITY")]
    pub capability: String,
    /// A part of the use, such as path=docs/a.md; may be repeated
    #[arg(long = "arg", value_name = "KEY=VALUE", value_parser = argument)]
    pub arguments: Vec<(String, String)>,
    /// The run in which it is asked for
    #[arg(long)]
    pub run: Option<String>,
}

/// Arguments of `tool call`.
#[derive(Debug, Args)]
pub(crate) struct ToolCallArgs {
    /// The function, as TOOL/FUNCTION
    #[arg(value_name = "TOOL/FUNCTION")]
    pub function: String,
    /// The arguments as JSON; `-` reads them from stdin, `@FILE` from a file
    #[arg(value_name = "JSON", default_value = "{}")]
    pub arguments: String,
    /// The agent whose grants it has [default: the only agent that may call the function]
    #[arg(long)]
    pub agent: Option<String>,
    /// Consents to the call where the rules of the agent ask a person
    #[arg(long)]
    pub accept: bool,
}

/// Arguments of `inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// The component
    pub component: PathBuf,
}

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Looks at everything in the store: each page, each run with its journal, each index. Takes as
    /// long as reading all of it
    #[arg(long)]
    pub check: bool,
    /// Looks at everything, and makes a damaged store anew from the journals in it. The damaged file
    /// is kept beside it; runs of whose journals a part is missing are left out. Nothing else may use
    /// the data directory meanwhile
    #[arg(long)]
    pub repair: bool,
}

/// Arguments of `host`.
#[derive(Debug, Args)]
pub(crate) struct HostArgs {
    /// Exits after that long without work; 0 never does
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = idle)]
    pub idle_exit: Duration,
    /// Stays all the same while a run is due within that time
    #[arg(long, value_name = "DURATION", default_value = "1h", env = "TASKRUN_IDLE_RELEASE",
        hide_env = true, value_parser = idle)]
    pub idle_release: Duration,
    /// Stays until it is told to end, whatever is due: for a service manager
    #[arg(long, conflicts_with = "idle_exit", conflicts_with = "background")]
    pub service: bool,
    /// Runs executed at once
    #[arg(long, value_name = "N", default_value_t = 64, env = "TASKRUN_SLOTS", hide_env = true,
        value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub slots: u16,
    /// Agents kept loaded at once; runs of others wait for room
    #[arg(long, value_name = "N", default_value_t = 32, env = "TASKRUN_LOADED_AGENTS",
        hide_env = true, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub loaded_agents: u16,
    /// Other hosts take over the runs of this one when it has given no sign of life for so long
    #[arg(long, value_name = "DURATION", default_value = "30s", env = "TASKRUN_LEASE",
        hide_env = true, value_parser = lease)]
    pub lease: Duration,
    /// Ends at once if another background host does the same.
    #[arg(long, hide = true)]
    pub background: bool,
}

fn idle(text: &str) -> Result<Duration, String> {
    if text == "0" { Ok(Duration::ZERO) } else { duration(text) }
}
