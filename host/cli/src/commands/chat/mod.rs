//! `taskrun chat`.

mod asking;
pub(crate) mod input;
mod policy;
mod question;
mod session;
mod view;

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;

use taskrun::controller::Client;
use taskrun::error::ControllerError;
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
use taskrun_journal::store::SessionEvent;
use taskrun_policy::{Policy, TERMINAL};
use taskrun_runtime::{Storage, Supervisor, SupervisorError};

use super::image;
use crate::args::{ChatArgs, OutputFormat};
use crate::context::{Context, OWNER_DEFAULT};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, background_failure};
use crate::follow::{every, supervisor};
use crate::lookup::agent_of;
use crate::output::escape::escaped_line;
use crate::paths::shown_in;
use crate::shell;
use crate::signals::Interrupts;
use input::Input;
use policy::PolicyRead;
use question::{OpenQuestion, QuestionNews};
use session::{check_open, in_session, inside, lines_of, refused};
use view::{PROMPT, View, is_line};

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
    let session = args.id.trim();
    let context = &in_session(context, session)?;
    let storage = context.storage(&context.data_dir()?)?;
    let mut chat = Chat::open(context, (session, args), &storage).await?;
    let mut interrupts = Interrupts::new();
    let left = tokio::select! {
        biased;
        () = interrupts.pressed() => Exit::Interrupted,
        done = chat.speak() => done?,
        failure = context.printer.fails() => return Err(failure),
    };
    chat.view.rest();
    let read = chat.input.take_read().into_iter().map(|line| line.text);
    chat.aside.extend(read.filter(|line| !line.trim().is_empty()));
    for line in &chat.aside {
        chat.view.note(&format!("not said: {}", escaped_line(line.trim())));
    }
    let (again, agent) = (shell::argument(session, "SESSION"), escaped_line(&chat.agent));
    let text = format!("what runs goes on; `taskrun chat {again}` speaks with {agent} again");
    context.printer.advise(&text);
    Ok(left)
}

/// A conversation at a terminal.
struct Chat<'a> {
    context: &'a Context,
    storage: &'a Storage,
    session: String,
    /// The caller, and the policy under which lines are said.
    client: Client,
    policy: Policy,
    policy_read: PolicyRead,
    supervisor: Supervisor,
    view: View,
    input: Input,
    /// The agent that has the conversation.
    agent: String,
    /// Place up to which the events of the session are shown.
    after: u64,
    /// Runs that ask something.
    asking: BTreeSet<RunId>,
    /// Questions of such runs that are to be asked in this order.
    questions: VecDeque<(RunId, Item)>,
    /// The question that is asked.
    question: Option<OpenQuestion>,
    /// Lines that are said when nothing is asked.
    aside: VecDeque<String>,
    /// Images that belong to the next line.
    images: Vec<ImageBytes>,
    /// True if a line of a pipe was refused.
    has_refused: bool,
}

impl<'a> Chat<'a> {
    async fn open(
        context: &'a Context,
        (session, args): (&str, &ChatArgs),
        storage: &'a Storage,
    ) -> Outcome<Self> {
        check_open(context, storage, session).await?;
        let (_, looking) = context.looking().await?;
        let lines = lines_of(&looking, context, session).await?;
        let known = lines.last().map(|last| {
            last.ending()
                .and_then(|end| end.handed_to.clone())
                .unwrap_or(last.spec.agent_name.clone())
        });
        let Some(agent) = args.agent.clone().or(known) else {
            let message = format!("nobody has spoken in session {session} yet");
            let session = shell::argument(session, "SESSION");
            return Err(Failure::usage("usage", message)
                .hint(format!("name an agent: `taskrun chat --agent NAME {session}`")));
        };
        let policy_read = PolicyRead::new(context)?;
        let policy = policy_read.policy().clone();
        agent_of(&policy, &agent)?;
        let controller = context.accepting_all(storage, &policy).await?;
        let client = context.client(&controller);
        let mut host = context.background_host(&policy, storage)?;
        host.attend().await.map_err(|error| background_failure(&error))?;
        let supervisor = supervisor(context, &controller, storage, Some(host));
        let after = client.last_place().await?;
        let input = Input::stdin();
        let mut chat = Self {
            context,
            storage,
            session: session.to_owned(),
            client,
            policy,
            policy_read,
            supervisor,
            view: View::new(&context.printer, input.clone()),
            input,
            agent,
            after,
            asking: BTreeSet::new(),
            questions: VecDeque::new(),
            question: None,
            aside: VecDeque::new(),
            images: Vec::new(),
            has_refused: false,
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
                let answer = self.client.result(run.id().as_str()).await?;
                self.view.answered(&run, answer.as_deref());
                self.view.forget(run.id());
            } else {
                self.view.add(&run.spec, level);
            }
        }
        let open = Status::ALL.iter().copied().filter(|status| !status.is_terminal()).collect();
        let filter = ListFilter { status: open, ..ListFilter::default() };
        let inside = inside(self.client.controller(), self.context, &self.session);
        for run in inside.list(&filter, None, PAGE_MAX).await?.runs {
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
            self.ask_next().await?;
            if self.question.is_none()
                && !self.view.is_busy()
                && let Some(line) = self.aside.pop_front()
            {
                self.view.repeat(&line);
                self.hear(&line).await?;
                continue;
            }
            let prompt = match &self.question {
                Some(question) => question.prompt(),
                None => (!self.view.is_busy()).then_some(PROMPT),
            };
            let listens = prompt.is_some();
            if let Some(prompt) = prompt.filter(|prompt| self.view.lacks(prompt)) {
                let begun = self.input.begun().map_err(unreadable)?;
                self.view.prompt(prompt, &begun);
            }
            tokio::select! {
                biased;
                page = self.client.next_session_events(&self.session, self.after, PAGE) => {
                    let page = page?;
                    self.after = page.next;
                    for event in &page.events {
                        self.show(event).await?;
                        // Ctrl-C is heard between two of them.
                        tokio::task::yield_now().await;
                    }
                    self.show_news().await?;
                    // A look reads the journal of the run.
                    if self.may_settle(&page.events) {
                        self.leave_settled().await?;
                    }
                }
                news = news_of(&mut self.question) => match news {
                    QuestionNews::Waits => self.begin_answer()?,
                    QuestionNews::Filled(filled) => match filled.map_err(unreadable)? {
                        None => return self.end(),
                        Some(answer) => self.answer(answer).await?,
                    },
                },
                line = self.input.next(), if listens => {
                    let line = line.map_err(unreadable)?;
                    if line.as_ref().is_some_and(|line| line.text.is_empty()) {
                        self.view.clear();
                        continue;
                    }
                    if let Some(line) = &line {
                        self.view.typed();
                        if self.refuses(line)? {
                            continue;
                        }
                    }
                    let line = line.map(|line| line.text);
                    if self.question.is_some() {
                        self.give(line).await?;
                    } else if let Some(line) = line {
                        self.hear(&line).await?;
                    } else {
                        return self.end();
                    }
                }
                _ = again.tick() => {
                    self.policy_read.look();
                    for run in self.view.open() {
                        self.attend(&run).await?;
                    }
                    self.supervisor.attend_due().await?;
                    self.show_news().await?;
                    self.leave_settled().await?;
                }
            }
        }
    }

    /// Sees to it that a run goes on. One that was removed is shown no more.
    async fn attend(&mut self, run: &RunId) -> Outcome<()> {
        match self.supervisor.attend(run).await {
            Err(SupervisorError::Controller(ControllerError::NotFound { .. })) => {
                self.view.forget(run);
            }
            attended => drop(attended?),
        }
        Ok(())
    }

    /// Does as a line that was typed for no question says.
    async fn hear(&mut self, line: &str) -> Outcome<()> {
        let line = line.trim();
        match line.strip_prefix(IMAGE) {
            Some(file) if file.is_empty() || file.starts_with(' ') => {
                self.show_image(file.trim());
                Ok(())
            }
            Some(_) | None if line.is_empty() => Ok(()),
            Some(_) | None => self.say(line).await,
        }
    }

    /// Takes the image in a file for the next line.
    fn show_image(&mut self, file: &str) {
        let text = match image::add(Path::new(file), &mut self.images) {
            Ok(()) => format!("{file} goes with the next line"),
            Err(failure) => self.words(&failure),
        };
        self.view.note(&escaped_line(&text));
    }

    /// A failure in a line, with what helps.
    fn words(&self, failure: &Failure) -> String {
        let hint = failure.hint.as_ref().map(|hint| self.context.printer.completed(hint));
        [Some(failure.reason()), hint].into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    /// Tells of a failure after which the conversation goes on, and what it means.
    fn tell(&mut self, meaning: &str, failure: &Failure) {
        let text = shown_in(&format!("{meaning}: {}", self.words(failure)));
        self.view.note(&escaped_line(&text));
    }

    /// Says a line: a run that begins when those before it have ended. It is refused where the
    /// policy does not have the agent any more.
    async fn say(&mut self, task: &str) -> Outcome<()> {
        self.take_up_policy().await;
        if let Err(failure) = agent_of(&self.policy, &self.agent) {
            self.tell("the line is not said", &failure);
            return Ok(());
        }
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
        let run = self.client.spawn(&request).await.map_err(refused)?;
        let level = self.level();
        self.view.add(&run.spec, level);
        self.attend(run.id()).await
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
        if let Some(answer) = self.client.result(run.id().as_str()).await? {
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
}

/// The next news of the question that is asked, if one is.
async fn news_of(question: &mut Option<OpenQuestion>) -> QuestionNews {
    match question {
        Some(question) => question.news().await,
        None => std::future::pending().await,
    }
}

fn unreadable(error: std::io::Error) -> Box<Failure> {
    Failure::unexpected("the input cannot be read").because(&error)
}
