//! `taskrun get`.

use crate::args::{GetArgs, OutputFormat};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Outcome;
use crate::output::{run_details, run_object};
use crate::resolve::resolve;

pub(super) async fn get(context: &Context, args: &GetArgs) -> Outcome {
    let (_, controller) = context.looking().await?;
    let run = resolve(&controller, &context.scope(), &args.run).await?;
    let printer = &context.printer;
    match printer.format() {
        OutputFormat::Table => printer.line(run_details(&run, context.now())),
        OutputFormat::Json => printer.json(&run_object(&run)),
        OutputFormat::Ndjson => printer.json_line(&run_object(&run)),
        OutputFormat::Name => printer.line(run.id()),
    }
    Ok(Exit::Completed)
}
