//! `taskrun tree`.

use serde::Serialize;
use taskrun_journal::message::Usage;
use taskrun_journal::money::UsdDisplay;
use taskrun_journal::run::{Run, RunView};

use crate::args::{OutputFormat, TreeArgs};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Outcome;
use crate::follow::beats;
use crate::output::paint::{DIM, with};
use crate::output::{human, run_tree, versioned};
use crate::resolve::resolve;

#[derive(Serialize)]
struct TreeView {
    run: RunView,
    /// Parents before their children.
    descendants: Vec<RunView>,
    /// Of all of them together.
    usage: Usage,
}

pub(super) async fn tree(context: &Context, args: &TreeArgs) -> Outcome {
    let (storage, controller) = context.looking().await?;
    let client = context.client(&controller);
    let run = resolve(&client, &args.run).await?;
    let tree = client.tree(run.id().as_str()).await?;
    let printer = &context.printer;
    let view_of = |run: &Run| RunView::with_children(run, tree.children(run.id()));
    let all = || std::iter::once(&tree.run).chain(&tree.descendants);
    match printer.format() {
        OutputFormat::Table => {
            let runs: Vec<_> = all().cloned().collect();
            let beats = beats(context, &storage, &runs).await?;
            printer.line(run_tree(&runs, &beats, context.now(), printer.width()));
            let cached = match tree.usage.cached_tokens {
                0 => String::new(),
                cached => format!(" ({cached} cached)"),
            };
            let text = format!(
                "{}, {} read{cached} and {} written",
                human::count(runs.len() as u64, "run"),
                human::count(tree.usage.prompt_tokens, "token"),
                tree.usage.completion_tokens
            );
            let cost = match tree.usage.cost_microusd {
                0 => String::new(),
                cost => format!(", {} USD", UsdDisplay(cost)),
            };
            printer.line(with(DIM, &format!("{text}{cost}")));
        }
        OutputFormat::Json => {
            let descendants = tree.descendants.iter().map(view_of).collect();
            let view = TreeView { run: view_of(&tree.run), descendants, usage: tree.usage };
            printer.json(&versioned(view));
        }
        OutputFormat::Ndjson => all().for_each(|run| printer.json_line(&versioned(view_of(run)))),
        OutputFormat::Name => all().for_each(|run| printer.line(run.id())),
    }
    Ok(Exit::Completed)
}
