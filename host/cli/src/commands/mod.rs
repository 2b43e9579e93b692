//! One file for each command.

mod accepted;
mod adopt;
mod agent;
mod agent_change;
mod agent_diff;
mod agent_notes;
mod agent_show;
mod agent_versions;
mod answer;
mod asking;
mod cancel;
mod changes;
pub(crate) mod chat;
mod consents;
mod context_messages;
mod continuation;
mod doctor;
pub(crate) mod event_line;
mod event_object;
mod events;
mod explain;
mod export;
pub(crate) mod form;
mod gc;
mod get;
mod gone_subscribers;
mod image;
mod inbox;
mod inspect;
mod labels;
mod logs;
mod memory;
mod model;
mod narrowing;
mod outbox;
mod outbox_dispatches;
mod pause;
mod policy;
mod policy_apply;
mod policy_check;
mod policy_show;
mod policy_tools;
pub(crate) mod ps;
mod replay;
mod run;
mod session;
mod session_events;
mod text;
mod tool;
mod tool_call;
mod transcript;
mod tree;
mod wait;

use clap::CommandFactory;

use crate::args::{AgentCommand, Cli, Command, ModelCommand, PolicyCommand, ToolCommand};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Outcome;

/// True if a command asks the store, prints and ends, so that a runtime has nothing to do for it beside
/// its one future, and the store needs no threads.
pub(crate) fn is_brief(context: &Context, command: &Command) -> bool {
    match command {
        Command::Run(args) => run::is_brief(context, args),
        Command::Logs(args) => !args.follow,
        Command::Transcript(args) => !args.follow,
        Command::Ps(_)
        | Command::Get(_)
        | Command::Tree(_)
        | Command::Cancel(_)
        | Command::Pause(_)
        | Command::Inject(_)
        | Command::Wake(_)
        | Command::Inbox(_)
        | Command::Consents(_)
        | Command::Outbox(_)
        | Command::Memory(_) => true,
        // Some of these wait for runs, for people, models, components or the disk, and the others are
        // not started often.
        Command::Chat(_)
        | Command::Top
        | Command::Wait(_)
        | Command::Adopt(_)
        | Command::Resume(_)
        | Command::Events(_)
        | Command::Export(_)
        | Command::Replay(_)
        | Command::Answer(_)
        | Command::Session(_)
        | Command::Gc(_)
        | Command::Agent(_)
        | Command::Tool(_)
        | Command::Model(_)
        | Command::Policy(_)
        | Command::Inspect(_)
        | Command::Demo(_)
        | Command::Doctor(_)
        | Command::Host(_)
        | Command::Completions { .. }
        | Command::CompileWorker => false,
    }
}

/// Does what was asked.
///
/// # Errors
/// The message of the program before it ends.
pub(crate) async fn execute(context: &Context, command: Command) -> Outcome {
    match command {
        Command::Run(args) => run::run(context, &args).await,
        Command::Chat(args) => chat::chat(context, &args).await,
        Command::Ps(args) => ps::ps(context, &args).await,
        Command::Get(args) => get::get(context, &args).await,
        Command::Tree(args) => tree::tree(context, &args).await,
        Command::Wait(args) => wait::wait(context, &args).await,
        Command::Cancel(args) => cancel::cancel(context, &args).await,
        Command::Adopt(args) => adopt::adopt(context, &args).await,
        Command::Pause(args) => pause::pause(context, &args).await,
        Command::Resume(args) => pause::resume(context, &args).await,
        Command::Inject(args) => pause::inject(context, &args).await,
        Command::Wake(args) => pause::wake(context, &args).await,
        Command::Logs(args) => logs::logs(context, &args).await,
        Command::Events(args) => events::events(context, &args).await,
        Command::Transcript(args) => transcript::transcript(context, &args).await,
        Command::Export(args) => export::export(context, &args).await,
        Command::Replay(args) => replay::replay(context, &args).await,
        Command::Top => crate::top::top(context).await,
        Command::Inbox(_) => inbox::inbox(context).await,
        Command::Answer(args) => answer::answer(context, &args).await,
        Command::Consents(args) => consents::consents(context, &args).await,
        Command::Outbox(command) => outbox::outbox(context, &command).await,
        Command::Session(command) => session::session(context, &command).await,
        Command::Memory(command) => memory::memory(context, &command).await,
        Command::Gc(args) => gc::gc(context, &args).await,
        Command::Agent(command) => agent_command(context, &command).await,
        Command::Tool(command) => tool_command(context, &command).await,
        Command::Model(command) => model_command(context, &command).await,
        Command::Policy(command) => policy_command(context, &command).await,
        Command::Inspect(args) => inspect::inspect(context, &args).await,
        Command::Demo(_) => crate::demo::demo(context).await,
        Command::Doctor(args) => doctor::doctor(context, &args).await,
        Command::Host(args) => crate::host::host(context, &args).await,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "taskrun", &mut script);
            context.printer.file(&script);
            Ok(Exit::Completed)
        }
        // Handled before there is a runtime.
        Command::CompileWorker => Ok(Exit::Unexpected),
    }
}

async fn agent_command(context: &Context, command: &AgentCommand) -> Outcome {
    match command {
        AgentCommand::Ls => agent::ls(context),
        AgentCommand::Show { agent } => agent_show::show(context, agent).await,
        AgentCommand::Check { agents } => agent::check(context, agents).await,
        AgentCommand::Versions { agent } => {
            agent_versions::versions(context, agent.as_deref()).await
        }
        AgentCommand::Diff(args) => agent_diff::diff(context, args).await,
    }
}

async fn tool_command(context: &Context, command: &ToolCommand) -> Outcome {
    match command {
        ToolCommand::Ls => tool::ls(context),
        ToolCommand::Show { tool, agent } => tool::show(context, tool, agent.as_deref()).await,
        ToolCommand::Call(args) => tool_call::call(context, args).await,
    }
}

async fn model_command(context: &Context, command: &ModelCommand) -> Outcome {
    match command {
        ModelCommand::Ls => model::ls(context),
        ModelCommand::Test { model } => model::test(context, model).await,
    }
}

async fn policy_command(context: &Context, command: &PolicyCommand) -> Outcome {
    match command {
        PolicyCommand::Trust { policy } => policy::trust(context, policy.as_deref()),
        PolicyCommand::Show => policy_show::show(context).await,
        PolicyCommand::Check { policy } => policy_check::check(context, policy.as_deref()).await,
        PolicyCommand::Apply(args) => policy_apply::apply(context, args).await,
        PolicyCommand::Explain(args) => explain::explain(context, args).await,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::Program;

    fn is_brief_as_typed(line: &str) -> bool {
        let cli = Cli::try_parse_from(line.split(' ')).expect("a command");
        is_brief(&Context::new(cli.globals, Program::default()), &cli.command)
    }

    #[test]
    fn a_command_is_brief_if_it_waits_for_nothing_but_the_store() {
        for line in ["run a task -d", "-o json run a task", "logs r", "ps", "cancel r"] {
            assert!(is_brief_as_typed(&format!("taskrun {line}")), "{line}");
        }
        for line in [
            "run a task --wait",
            "run a --replay file",
            "logs r -f",
            "transcript r -f",
            "wait r",
            "host",
        ] {
            assert!(!is_brief_as_typed(&format!("taskrun {line}")), "{line}");
        }
    }
}
