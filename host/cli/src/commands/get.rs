//! `taskrun get`.

use taskrun_journal::run::RunView;

use super::result::whole_result;
use crate::args::{GetArgs, OutputFormat};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Outcome;
use crate::host::{load_text, told, waited_for};
use crate::output::{run_details, versioned};
use crate::resolve::resolve;

pub(super) async fn get(context: &Context, args: &GetArgs) -> Outcome {
    let (books, controller) = context.looking().await?;
    let run = resolve(&controller, &context.scope(), &args.run).await?;
    let printer = &context.printer;
    if args.result {
        if let Some(result) = whole_result(&controller, &context.scope(), &run).await? {
            printer.guest_text(&result);
        }
        return Ok(Exit::Completed);
    }
    if let Some(hash) = &args.artifact {
        let bytes = controller.artifact(&context.scope(), run.id().as_str(), hash).await?;
        printer.guest_text(&String::from_utf8_lossy(&bytes));
        return Ok(Exit::Completed);
    }
    let children = controller.children(&run).await?;
    let object = || versioned(RunView::with_children(&run, children));
    match printer.format() {
        OutputFormat::Table => printer.line(run_details(&run, children, context.now())),
        OutputFormat::Json => printer.json(&object()),
        OutputFormat::Ndjson => printer.json_line(&object()),
        OutputFormat::Name => printer.line(run.id()),
    }
    let told = told(&context.data_dir()?, &books.hosts.hosts().await?);
    for load in waited_for(&told, std::slice::from_ref(&run)) {
        printer.talk(load_text(load, context.now()));
    }
    Ok(Exit::Completed)
}
