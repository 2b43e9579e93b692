//! `taskrun top`: the open runs of a tenant on one page, and what they are at.

mod asking;
mod calls;
mod draw;
mod lines;
mod rows;
mod screen;
#[cfg(test)]
mod tests;
mod view;

use std::collections::HashMap;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use crossterm::event::{Event, EventStream};
use futures::StreamExt;
use taskrun::controller::{Client, Controller, PauseRequest, ResumeRequest};
use taskrun_journal::ids::RunId;
use taskrun_journal::list::{Cursor, ListFilter, PAGE_MAX};
use taskrun_journal::question::Answer;
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_policy::Policy;
use taskrun_runtime::Storage;
use tokio::signal::unix::{SignalKind, signal};

use self::asking::{Asking, FormNews};
use self::calls::Calls;
use self::draw::draw;
use self::rows::Row;
use self::screen::Screen;
use self::view::{Page, QuestionStage, View, Wish};
use crate::args::{OutputFormat, PsArgs, StatusWord};
use crate::budget::Trees;
use crate::commands::{event_line, ps};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::follow::{next_beat, supervisor_telling};
use crate::output::{Surroundings, run_details};
use crate::signals::Interrupts;
use crate::terminal::has_unread;

/// The pause between two looks at the store: four a second.
const REFRESH: Duration = Duration::from_millis(250);
/// Events that the page of one run shows.
const EVENTS_SHOWN: u64 = 20;
/// Lines of the screen that are not rows: headings, numbers, keys.
const FRAME_LINES: u16 = 4;

/// Shows the open runs until somebody has seen enough; where nobody sees it, prints them once.
pub(crate) async fn top(context: &Context) -> Outcome {
    let is_seen = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if !is_seen || context.printer.asked().is_some() {
        context.printer.talk("no screen: the open runs once; `watch taskrun ps` repeats it");
        return ps::ps(&printing_lines(context), &open_runs()).await;
    }
    let (storage, controller) = context.looking().await?;
    // Without a policy, or with one that has a mistake, budgets are not known.
    let policy = match context.policy_file()? {
        Some(_) => context.policy().ok(),
        None => None,
    };
    let mut top = Top {
        context: context.clone(),
        client: context.client(&controller),
        controller,
        storage,
        policy,
        pages: Vec::new(),
        next: None,
        trees: Trees::default(),
        calls: HashMap::new(),
        asking: None,
        view: View::new(),
    };
    top.run().await
}

/// The same context, which prints a line of JSON for each run where nothing else was asked for.
fn printing_lines(context: &Context) -> Context {
    let mut context = context.clone();
    context.globals.output = context.globals.output.or(Some(OutputFormat::Ndjson));
    context.printer = context.printer.with_default(OutputFormat::Ndjson);
    context
}

fn open_runs() -> PsArgs {
    PsArgs { all: true, status: vec![StatusWord(ListFilter::open().status)], ..PsArgs::default() }
}

struct Top {
    context: Context,
    client: Client,
    controller: Controller,
    storage: Storage,
    policy: Option<Policy>,
    /// The ends of the pages before this one, each with its rows.
    pages: Vec<(Option<Cursor>, usize)>,
    /// The end of this page, if there are more.
    next: Option<Cursor>,
    /// The consumption of the runs on this page that have others beneath them.
    trees: Trees,
    /// The tool calls under way of the runs on this page.
    calls: HashMap<RunId, Calls>,
    /// The question that is asked on the screen.
    asking: Option<Asking>,
    view: View,
}

impl Top {
    async fn run(&mut self) -> Outcome {
        let failed = |error: std::io::Error| Failure::unexpected("no screen").because(&error);
        let mut ctrl_c = Interrupts::new();
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut hang_up = signal(SignalKind::hangup()).map_err(failed)?;
        let mut screen = Screen::open().map_err(failed)?;
        let mut keys = EventStream::new();
        let mut refresh = tokio::time::interval(REFRESH);
        refresh.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let now = self.context.now();
            screen.draw(|frame| draw(frame, &mut self.view, now)).map_err(failed)?;
            let mut news = FormNews::Text;
            let wish = tokio::select! {
                biased;
                () = ctrl_c.pressed() => Wish::Quit,
                _ = terminate.recv() => return Ok(Exit::Interrupted),
                _ = hang_up.recv() => return Ok(Exit::Interrupted),
                key = keys.next() => match key {
                    Some(Ok(Event::Key(key))) => self.view.key(key),
                    Some(Ok(Event::Paste(text))) => {
                        self.view.paste(&text);
                        Wish::Nothing
                    }
                    Some(Ok(_)) => Wish::Nothing,
                    // The terminal is gone.
                    Some(Err(_)) | None => Wish::Quit,
                },
                () = all_read(), if self.view.question == QuestionStage::Drawn => {
                    self.view.question = QuestionStage::Open;
                    Wish::Nothing
                }
                of_form = news_of(&mut self.asking) => {
                    news = of_form;
                    Wish::Nothing
                }
                _ = refresh.tick() => {
                    self.refresh(screen.size().height).await;
                    Wish::Nothing
                }
            };
            let done = match (wish, news) {
                (Wish::Nothing, FormNews::Text) => {
                    self.show_form();
                    continue;
                }
                (Wish::Quit, _) => return Ok(Exit::Completed),
                (_, FormNews::Filled(answer)) => self.answer(answer).await,
                (_, FormNews::Failed) => self.leave_form("the question cannot be asked"),
                (wish, FormNews::Text) => self.act(wish).await,
            };
            if let Some(message) = done.unwrap_or_else(|failure| Some(failure.reason())) {
                self.view.message = Some(message);
            }
            self.refresh(screen.size().height).await;
        }
    }

    /// Shows the text of the form as it is.
    fn show_form(&mut self) {
        if let (Some(asking), Page::Ask { text, .. }) = (&self.asking, &mut self.view.page) {
            *text = asking.text();
        }
    }

    /// Asks the first open question of a run, or says that it has none.
    async fn ask(&mut self, run: &RunId) -> Outcome<bool> {
        let asked = self.client.asks(run.as_str()).await?;
        let Some(item) = asked.into_iter().next() else { return Ok(false) };
        self.asking = Some(Asking::new(run.clone(), item));
        self.view.ask(Page::Ask { text: String::new(), up: 0, typed: String::new() });
        Ok(true)
    }

    /// Gives an answer, and asks what else the run asks. A person who is refused is told why.
    async fn answer(&mut self, answer: Answer) -> Outcome<Option<String>> {
        self.view.page = Page::Runs;
        let Some(Asking { run, item, .. }) = self.asking.take() else { return Ok(None) };
        let answered = self.client.answer_shown(run.as_str(), &item, answer).await?;
        if self.ask(&run).await? {
            return Ok(None);
        }
        let told = self.find_host(&answered).await?;
        Ok(Some(told.unwrap_or_else(|| format!("answered {run}"))))
    }

    fn leave_form(&mut self, why: &str) -> Outcome<Option<String>> {
        self.asking = None;
        self.view.page = Page::Runs;
        Ok(Some(why.to_owned()))
    }

    /// Does what a key asks for, and gives what there is to say about it.
    async fn act(&mut self, wish: Wish) -> Outcome<Option<String>> {
        let changed = |run: &Run, did: &str, changed: bool| {
            let how = if changed { did } else { "nothing to do for" };
            Some(format!("{how} {}", run.id()))
        };
        match wish {
            Wish::Nothing | Wish::Quit => Ok(None),
            Wish::Answer(id) => match self.ask(&id).await? {
                true => Ok(None),
                false => Ok(Some(format!("{id} asks nothing"))),
            },
            Wish::Send(line) => {
                let is_read = self.asking.as_ref().is_some_and(|asking| asking.send(&line));
                Ok((!is_read).then(|| "the line was not read".to_owned()))
            }
            Wish::Unanswered => self.leave_form("left unanswered"),
            Wish::Look => {
                self.view.page = Page::Run { text: String::new(), from: 0 };
                Ok(None)
            }
            Wish::Back => {
                self.view.page = Page::Runs;
                Ok(None)
            }
            Wish::NextPage => {
                if let Some(next) = self.next.take() {
                    self.pages.push((Some(next), self.view.rows.len()));
                    self.view.selected = None;
                }
                Ok(None)
            }
            Wish::PageBefore => {
                self.pages.pop();
                self.view.selected = None;
                Ok(None)
            }
            Wish::Pause(id) => {
                let done = self.client.pause(id.as_str(), &PauseRequest::default()).await?;
                Ok(changed(&done.run, "paused", done.changed))
            }
            Wish::Resume(id) => {
                let done = self.client.resume(id.as_str(), &ResumeRequest::default()).await?;
                let told = self.find_host(&done.run).await?;
                Ok(told.or_else(|| changed(&done.run, "resumed", done.changed)))
            }
            Wish::Cancel(id) => {
                self.view.page = Page::Runs;
                let done = self.client.cancel(id.as_str(), None).await?;
                let told = self.find_host(&done.run).await?;
                Ok(told.or_else(|| changed(&done.run, "canceled", done.changed)))
            }
        }
    }

    /// Sees to it that a run is executed, and gives what there is to tell of that.
    async fn find_host(&self, run: &Run) -> Outcome<Option<String>> {
        let told = Arc::<Mutex<Option<String>>>::default();
        let last = Arc::clone(&told);
        let tell = move |text: String| {
            *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
        };
        let mut supervisor =
            supervisor_telling(&self.context, &self.controller, &self.storage, tell);
        supervisor.find_host(run).await?;
        let told = told.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(told)
    }

    /// Looks at the store. Where that fails, what was seen stays, and the next look tries again.
    async fn refresh(&mut self, height: u16) {
        let looked = self.look(height).await;
        self.view.trouble = looked.err().map(|failure| failure.reason());
        self.show_form();
    }

    /// Looks at the runs of the page, and at no others.
    async fn look(&mut self, height: u16) -> Outcome<()> {
        let lines = usize::from(height.saturating_sub(FRAME_LINES)).clamp(1, PAGE_MAX);
        let after = self.pages.last().and_then(|(cursor, _)| cursor.clone());
        let page = self.client.list(&ListFilter::open(), after.as_ref(), lines).await?;
        if let Some(policy) = &self.policy {
            let reader = (&self.client, &*self.context.clock);
            self.trees.look(reader, policy, &page.runs).await?;
        }
        let now = self.context.now();
        let mut calls = HashMap::new();
        let mut rows = Vec::with_capacity(page.runs.len());
        for run in &page.runs {
            // The calls of a run that executes nothing have ended, or are waited for.
            let of_run = if run.status() == Status::Running && run.state.tool_calls > 0 {
                let known = self.calls.remove(run.id());
                Calls::of(&self.client, run, known).await?
            } else {
                Calls::default()
            };
            let used = self.trees.used(run.id());
            rows.push(Row::of(run, self.policy.as_ref(), used, of_run.first(), now));
            calls.insert(run.id().clone(), of_run);
        }
        self.calls = calls;
        self.next = page.next;
        self.view.more = self.next.is_some();
        self.view.before = self.pages.iter().map(|(_, rows)| rows).sum();
        self.view.show(rows);
        if let Page::Run { text, .. } = &mut self.view.page {
            let Some(id) = &self.view.selected else { return Ok(()) };
            *text = details(&self.context, &self.client, self.policy.as_ref(), id).await?;
        }
        Ok(())
    }
}

/// Returns when everything that was typed by now has been read. The keys are read by others.
async fn all_read() {
    while has_unread() {
        tokio::task::yield_now().await;
    }
}

/// The next news of the form, if there is one.
async fn news_of(asking: &mut Option<Asking>) -> FormNews {
    match asking {
        Some(asking) => asking.news().await,
        None => std::future::pending().await,
    }
}

/// A run with its last events, as text without styles.
async fn details(
    context: &Context,
    client: &Client,
    policy: Option<&Policy>,
    id: &RunId,
) -> Outcome<String> {
    let run = client.get(id.as_str()).await?;
    let children = client.controller().children(&run).await?;
    let beat = policy.and_then(|policy| next_beat(policy, &run, context.now()));
    let around = Surroundings { children, beat, ..Surroundings::default() };
    let mut text = run_details(&run, &around, context.now());
    text.push_str("\n\n");
    for recorded in calls::last_events(client, &run, EVENTS_SHOWN).await? {
        text.push_str(&event_line::event_line(&recorded, run.spec.created_at));
        text.push('\n');
    }
    Ok(anstream::adapter::strip_str(&text).to_string())
}
