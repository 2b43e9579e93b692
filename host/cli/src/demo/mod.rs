//! `taskrun demo`: three lives of agents, in a folder to look around in afterwards.

mod acts;
mod folder;
mod invocation;

use taskrun::controller::DRAIN_DEFAULT;
use taskrun_runtime::{Options, Runtime};

use self::acts::Stage;
use self::folder::DemoFolder;
use self::invocation::invocation;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, open_failure};
use crate::output::paint::{BOLD, DIM, GOOD, with};
use crate::paths::shown;
use crate::shell;

/// Runs executed at once; the acts come one after the other.
const SLOTS: usize = 4;
/// Files that were changed and are named, each in a line; the others are counted.
const COPIES_NAMED_MAX: usize = 5;

/// Makes the folder and plays the acts.
///
/// # Errors
/// If anything keeps the acts from being played, or one does not end as it should.
pub(crate) async fn demo(context: &Context) -> Outcome {
    let here = std::env::current_dir()
        .map_err(|error| Failure::unexpected("the working directory is gone").because(&error))?;
    let folder = DemoFolder::make(&here)?;
    let printer = &context.printer;
    printer.line(format!("{} {}", with(BOLD, "The demo's project:"), shown(&folder.path)));
    printer.line("  taskrun.toml   who may do what");
    printer.line("  components/    agents and tools: WebAssembly components");
    printer.line("  docs/, notes/  files that they work with");
    tell_copies(context, &folder);
    // Whoever played it knows whose it is. Where that cannot be kept, the first look says what helps.
    context.trust.trust(&folder.path, &folder.policy()).ok();
    let began = context.clock.monotonic();
    let options = Options {
        slots: SLOTS,
        preload: true,
        ..context.options(folder.policy(), folder.data_dir())
    };
    let runtime = Runtime::open(options).await;
    let runtime = runtime.map_err(|error| open_failure(error, context.is_colourful()))?;
    let took = context.clock.monotonic().saturating_sub(began);
    let took = crate::output::human::duration(took);
    let count = runtime.policy().agents.len();
    printer.line(with(DIM, &format!("  {count} agents loaded in {took}")));
    let stage = Stage {
        context: everybodys(context),
        controller: runtime.controller().clone(),
        storage: runtime.storage().clone(),
        folder: folder.path.clone(),
    };
    let played = stage.play().await;
    runtime.controller().close(DRAIN_DEFAULT).await;
    let runs = played?;
    printer.line(format!(
        "\n{} {}",
        with(GOOD, "✓"),
        with(BOLD, "All three ended as they should.")
    ));
    tell_what_is_left(context, &folder, runs.answered.as_str());
    Ok(Exit::Completed)
}

fn tell_copies(context: &Context, folder: &DemoFolder) {
    let printer = &context.printer;
    for (file, copy) in folder.copies.iter().take(COPIES_NAMED_MAX) {
        let copy = shown(copy);
        printer.talk(format!("{file} was changed and is written anew; what it was is in {copy}"));
    }
    let more = folder.copies.len().saturating_sub(COPIES_NAMED_MAX);
    if more > 0 {
        printer.talk(format!("and so for {more} more, in the same folder"));
    }
}

fn tell_what_is_left(context: &Context, folder: &DemoFolder, answered: &str) {
    let call = invocation(&folder.path);
    let commands = [
        ("ps -a".to_owned(), "every run, from any process"),
        (format!("get {answered}"), "the first one in full"),
        (format!("transcript {answered}"), "what it asked, read and said"),
        ("events @last".to_owned(), "the journal of the last one"),
        ("agent show readonly_researcher".to_owned(), "what it asks for, what it gets, by which rule"),
        (
            "tool call workspace/write --agent note_writer '{\"path\":\"notes/a.md\",\"contents\":\"hello\",\"mode\":\"append\"}'".to_owned(),
            "the same tool in another world",
        ),
        (
            "run readonly_researcher \"How is a spinning guest stopped?\"".to_owned(),
            "a question of your own",
        ),
    ];
    let printer = &context.printer;
    printer.line("\nThe runs are kept. Look around:\n");
    printer.line(format!("  cd {}", shell::path(&folder.path, "FOLDER")));
    for (command, what) in commands {
        printer.line(format!("  {call} {command}  {}", with(DIM, &format!("# {what}"))));
    }
}

/// The demo's runs belong to no person, whoever plays it.
fn everybodys(context: &Context) -> Context {
    let mut context = context.clone();
    context.globals.tenant = None;
    context.globals.owner = None;
    context.globals.session = None;
    context
}
