//! `taskrun chat`.

pub(crate) mod input;
mod view;

use std::collections::BTreeSet;
use std::path::Path;

use taskrun::controller::{Client, Controller};
use taskrun::image::ImageBytes;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::channel::Channel;
use taskrun_journal::event::{DialogEvent, EventView, LifecycleEvent};
use taskrun_journal::ids::RunId;
use taskrun_journal::list::{ListFilter, PAGE_MAX};
use taskrun_journal::message::LogLevel;
use taskrun_journal::question::Item;
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_journal::store::{SessionEvent, SessionKey};
use taskrun_policy::TERMINAL;
use taskrun_runtime::{Storage, Supervisor};

use super::form::Form;
use super::image;
use super::result::whole_result;
use crate::args::{ChatArgs, OutputFormat};
use crate::context::{Context, OWNER_DEFAULT};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, background_failure};
use crate::follow::{every, supervisor};
use crate::lookup::agent_of;
use crate::output::escape::escaped_line;
use crate::signals::Interrupts;
use input::Input;
use view::{View, is_line};

/// Lines of the conversation that are shown when it is opened.
const LINES_SHOWN: usize = 20;
/// Begins a line that gives an image, whose file stands behind it.
const IMAGE: &str = "/image";
/// Events read at once.
const PAGE: usize = 1_000;

pub(super) async fn chat(context: &Context, args: &ChatArgs) -> Outcome {
    if context.printer.format() != OutputFormat::Table {
        return Err(Failure::usage("usage", "a conversation has no other output format").hint(
            "`taskrun run AGENT TASK --session ID -o json` says one line of it, and \
             `taskrun events --session ID -o ndjson -f` tells what happens",
        ));
    }
    let storage = context.storage(&context.data_dir()?)?;
    let mut chat = Chat::open(context, args, &storage).await?;
    let mut interrupts = Interrupts::new();
    let left = tokio::select! {
        biased;
        () = interrupts.pressed() => Exit::Interrupted,
        done = chat.speak() => done?,
        failure = context.printer.fails() => return Err(failure),
    };
    chat.view.rest();
    let (session, agent) = (escaped_line(&args.id), escaped_line(&chat.agent));
    context
        .printer
        .talk(format!("what runs goes on; `taskrun chat {session}` speaks with {agent} again"));
    Ok(left)
}

/// A conversation at a terminal.
struct Chat<'a> {
    context: &'a Context,
    session: String,
    /// The caller, and the caller within the session.
    client: Client,
    inside: Client,
    supervisor: Supervisor,
    view: View,
    input: Input,
    /// The agent that has the conversation.
    agent: String,
    /// Place up to which the events of the session are shown.
    after: u64,
    /// Runs that ask something.
    asking: BTreeSet<RunId>,
    /// Images that belong to the next line.
    images: Vec<ImageBytes>,
}

impl<'a> Chat<'a> {
    async fn open(context: &'a Context, args: &ChatArgs, storage: &Storage) -> Outcome<Self> {
        let (_, looking) = context.looking().await?;
        let lines = lines_of(&looking, context, &args.id).await?;
        let known = lines.last().map(|last| {
            last.ending()
                .and_then(|end| end.handed_to.clone())
                .unwrap_or(last.spec.agent_name.clone())
        });
        let Some(agent) = args.agent.clone().or(known) else {
            let message = format!("nobody has spoken in session {} yet", args.id);
            return Err(Failure::usage("usage", message)
                .hint(format!("name an agent: `taskrun chat {} --agent NAME`", args.id)));
        };
        let policy = context.policy()?;
        agent_of(&policy, &agent)?;
        let file = policy.path.clone();
        // Any of them may be handed the conversation.
        let names: Vec<String> = policy.agents.keys().cloned().collect();
        let controller = context.accepting(storage, &policy, &names).await?;
        let client = context.client(&controller);
        let inside = SessionKey::of(&client.principal().scope, &args.id).scope();
        let inside = controller.at(&inside);
        let mut host = context.background_host(&file, storage)?;
        host.attend().await.map_err(|error| background_failure(&error))?;
        let supervisor = supervisor(context, &controller, storage, Some(host));
        let after = client.last_place().await?;
        let mut chat = Self {
            context,
            session: args.id.clone(),
            client,
            inside,
            supervisor,
            view: View::new(&context.printer),
            input: Input::stdin(),
            agent,
            after,
            asking: BTreeSet::new(),
            images: Vec::new(),
        };
        chat.recall(lines).await?;
        chat.show_news().await?;
        Ok(chat)
    }

    /// Shows what was said before, and what is under way.
    async fn recall(&mut self, lines: Vec<Run>) -> Outcome<()> {
        let level = self.level();
        for run in &lines {
            // It may have gone on since it was listed.
            let run = self.client.get(run.id().as_str()).await?;
            if !run.spec.is_nudge() {
                self.view.said(&run.spec.task);
            }
            if run.status().is_terminal() {
                let answer = whole_result(&self.client, &run).await?;
                self.view.answered(&run, answer.as_deref());
                self.view.forget(run.id());
            } else {
                self.view.add(&run.spec, level);
            }
        }
        let open = Status::ALL.iter().copied().filter(|status| !status.is_terminal()).collect();
        let filter = ListFilter { status: open, ..ListFilter::default() };
        for run in self.inside.list(&filter, None, PAGE_MAX).await?.runs {
            if self.view.is_new(run.id()) {
                self.view.add(&run.spec, level);
            }
            if run.state.awaits.iter().any(|one| !one.answered) {
                self.asking.insert(run.id().clone());
            }
        }
        Ok(())
    }

    fn level(&self) -> LogLevel {
        if self.context.globals.verbose > 0 { LogLevel::Debug } else { LogLevel::Warn }
    }

    /// Line after line, until the input is at its end.
    async fn speak(&mut self) -> Outcome<Exit> {
        let mut again = every();
        loop {
            if let Some(run) = self.asking.pop_first() {
                match self.ask(&run).await? {
                    true => continue,
                    false => return Ok(Exit::Completed),
                }
            }
            let listens = !self.view.is_busy();
            if listens {
                self.view.prompt();
            }
            let input = self.input.clone();
            tokio::select! {
                biased;
                page = self.client.next_session_events(&self.session, self.after, PAGE) => {
                    let page = page?;
                    self.after = page.next;
                    for event in &page.events {
                        self.show(event).await?;
                    }
                    self.show_news().await?;
                }
                line = input.next(), if listens => match line.map_err(unreadable)? {
                    None => return Ok(Exit::Completed),
                    Some(line) => {
                        self.view.typed();
                        match line.trim() {
                            "" => {}
                            line => match line.strip_prefix(IMAGE) {
                                Some(file) if file.is_empty() || file.starts_with(' ') => {
                                    self.show_image(file.trim());
                                }
                                Some(_) | None => self.say(line).await?,
                            },
                        }
                    }
                },
                _ = again.tick() => {
                    for run in self.view.open() {
                        self.supervisor.attend(&run).await?;
                    }
                    self.supervisor.attend_due().await?;
                    self.show_news().await?;
                }
            }
        }
    }

    /// Takes the image in a file for the next line.
    fn show_image(&mut self, file: &str) {
        let text = match image::add(Path::new(file), &mut self.images) {
            Ok(()) => format!("{file} goes with the next line"),
            Err(failure) => {
                let texts = [Some(failure.message), failure.hint];
                texts.into_iter().flatten().collect::<Vec<_>>().join("; ")
            }
        };
        self.view.note(&escaped_line(&text));
    }

    /// Says a line: a run that begins when those before it have ended.
    async fn say(&mut self, task: &str) -> Outcome<()> {
        let owner = self.context.globals.owner.clone();
        let request = SpawnRequest {
            owner_user_id: owner.unwrap_or_else(|| OWNER_DEFAULT.to_owned()),
            parent_session_id: self.session.clone(),
            agent_name: self.agent.clone(),
            task: task.to_owned(),
            images: std::mem::take(&mut self.images),
            serial: true,
            converses: true,
            ..SpawnRequest::default()
        };
        let run = self.client.spawn(&request).await?;
        let level = self.level();
        self.view.add(&run.spec, level);
        self.supervisor.attend(run.id()).await?;
        Ok(())
    }

    async fn show(&mut self, event: &SessionEvent) -> Outcome<()> {
        let SessionEvent { run: id, recorded, .. } = event;
        match recorded.event.view() {
            EventView::Lifecycle(LifecycleEvent::Queued { spec }) if self.view.is_new(id) => {
                // Said at another terminal. What a host says is no line of a person.
                if is_line(spec) && !spec.is_nudge() {
                    self.view.said(&spec.task);
                }
                let level = self.level();
                self.view.add(spec, level);
            }
            EventView::Dialog(DialogEvent::Asked { .. }) => {
                self.asking.insert(id.clone());
            }
            EventView::Lifecycle(_)
            | EventView::Dialog(_)
            | EventView::Step(_)
            | EventView::Call(_)
            | EventView::Taped(_)
            | EventView::Account(_) => {}
        }
        if self.view.show(id, recorded) {
            let run = self.client.get(id.as_str()).await?;
            if is_line(&run.spec)
                && let Some(agent) = run.ending().and_then(|end| end.handed_to.clone())
            {
                self.view.note(&format!("{} has the conversation", escaped_line(&agent)));
                self.agent = agent;
            }
            self.asking.remove(id);
            let is_background = self.view.is_background(id);
            self.view.ended(&run);
            if is_background {
                self.show_said(&run).await?;
            }
        }
        Ok(())
    }

    /// Shows what a run in the background said over channels that are not hidden.
    async fn show_said(&mut self, run: &Run) -> Outcome<()> {
        // What this terminal is told itself comes as news.
        let is_shown = |one: &&Channel| one.is_told() && !one.hidden && one.to != TERMINAL;
        let shown = run.spec.channels.iter().filter(is_shown);
        let names: Vec<&str> = shown.map(|channel| channel.name.as_str()).collect();
        if names.is_empty() {
            return Ok(());
        }
        if let Some(answer) = whole_result(&self.client, run).await? {
            let agent = escaped_line(&run.spec.agent_name);
            self.view.note(&format!("{agent} {} said over {}:", run.id(), names.join(", ")));
            self.view.guest_text(&answer);
        }
        Ok(())
    }

    /// Shows what subscribers are told of which this terminal is one, while nothing else is said.
    async fn show_news(&mut self) -> Outcome<()> {
        if self.view.is_busy() {
            return Ok(());
        }
        let owner = self.context.globals.owner.as_deref().unwrap_or(OWNER_DEFAULT);
        for one in self.client.news_for_terminal(owner, &self.session).await? {
            // Lines are shown in their place.
            let run = self.client.get(one.news.run.id.as_str()).await?;
            if !is_line(&run.spec) {
                self.view.guest_text(one.news.text.trim_end());
            }
            self.context.printer.written()?;
            self.client.was_shown(&one).await?;
        }
        Ok(())
    }

    /// Asks what a run asks, in order, and gives each answer at once. False at the end of the input.
    async fn ask(&mut self, run: &RunId) -> Outcome<bool> {
        let Ok(items) = self.client.asks(run.as_str()).await else { return Ok(true) };
        for item in items {
            self.view.rest();
            let record = self.client.get(run.as_str()).await?;
            if !is_line(&record.spec) {
                let agent = escaped_line(&record.spec.agent_name).into_owned();
                self.view.note(&format!("{agent} {run} asks:"));
            }
            let Some(answer) = self.fill(&item).await? else { return Ok(false) };
            // Somebody else may have answered meanwhile.
            if let Err(error) = self.client.answer_shown(run.as_str(), &item, answer).await {
                self.view.note(&error.to_string());
            }
        }
        self.supervisor.attend(run).await?;
        Ok(true)
    }

    async fn fill(&self, item: &Item) -> Outcome<Option<taskrun_journal::question::Answer>> {
        let (reader, item) = (self.input.reader(), item.clone());
        let (done, filled) = tokio::sync::oneshot::channel();
        // A thread that the end of the program does not wait for.
        std::thread::spawn(move || {
            done.send(Form::new(reader, std::io::stderr()).fill(&item)).ok();
        });
        let filled = filled.await.expect("a form does not panic");
        filled.map_err(unreadable)
    }
}

fn unreadable(error: std::io::Error) -> Box<Failure> {
    Failure::unexpected("the input cannot be read").because(&error)
}

/// The last lines of a conversation, the earliest first.
async fn lines_of(controller: &Controller, context: &Context, session: &str) -> Outcome<Vec<Run>> {
    let client = context.client(controller);
    let inside = controller.at(&SessionKey::of(&client.principal().scope, session).scope());
    let (mut lines, mut cursor) = (Vec::new(), None);
    loop {
        let page = inside.list(&ListFilter::default(), cursor.as_ref(), PAGE_MAX).await?;
        lines.extend(page.runs.into_iter().filter(|run| is_line(&run.spec)));
        cursor = page.next;
        if cursor.is_none() || lines.len() >= LINES_SHOWN {
            break;
        }
    }
    lines.sort_by_key(|run| (run.spec.created_at, run.id().clone()));
    Ok(lines.split_off(lines.len().saturating_sub(LINES_SHOWN)))
}
