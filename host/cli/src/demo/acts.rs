//! The three acts, and whether each ended as it should.

use std::path::PathBuf;
use std::time::Duration;

use taskrun::controller::Controller;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::ids::RunId;
use taskrun_journal::message::LogLevel;
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::status::Status;
use taskrun_journal::stop::CallAbort;
use taskrun_runtime::Storage;

use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::follow::{CtrlC, Follow, FollowEnd, Lines, Notes, Screen, supervisor, wait_timed_out};
use crate::output::escape::escaped_line;
use crate::output::paint::{BAD, BOLD, DIM, GOOD, with};
use crate::output::{human, status_text};
use crate::paths::shown_in;

/// Longest act; on a slow machine the first one reads some files, no more.
const ACT_MAX: Duration = Duration::from_secs(60);
const QUESTION: &str =
    "What happens to a component that imports a capability which no rule mentions?";
/// A file that the read-only agent tries to write over.
const FORBIDDEN: &str = "docs/README.md";

/// Where the acts are played.
pub(super) struct Stage {
    pub(super) context: Context,
    pub(super) controller: Controller,
    pub(super) storage: Storage,
    pub(super) folder: PathBuf,
}

/// Runs to look at afterwards.
pub(super) struct DemoRuns {
    /// The one that answered a question.
    pub(super) answered: RunId,
}

/// A run that came to its end, and its journal.
struct EndedRun {
    run: Run,
    events: Vec<Event>,
}

impl Stage {
    pub(super) async fn play(&self) -> Outcome<DemoRuns> {
        let answered = self.answers().await?;
        self.is_refused().await?;
        self.is_stopped().await?;
        Ok(DemoRuns { answered })
    }

    async fn answers(&self) -> Outcome<RunId> {
        self.title("1", "An agent answers a question from the documents it may read");
        self.say(&format!("readonly_researcher is asked: {QUESTION}"));
        let ended = self.run("readonly_researcher", QUESTION).await?;
        self.tell_end(&ended.run);
        let view = RunView::from(&ended.run);
        let cites = view.result.as_deref().is_some_and(|result| result.contains("docs/"));
        let called = ended.run.state.tool_calls > 0;
        if ended.run.status() == Status::Completed && cites && called {
            Ok(ended.run.id().clone())
        } else {
            Err(wrong(&ended.run, "an answer that cites the documents"))
        }
    }

    async fn is_refused(&self) -> Outcome<()> {
        self.title("2", "An agent wants to write, and its policy lets it read only");
        self.say(&format!("readonly_writer plays a script that writes over {FORBIDDEN}"));
        let path = self.folder.join(FORBIDDEN);
        let before = std::fs::read(&path).ok();
        let ended = self.run("readonly_writer", &write_script(FORBIDDEN)).await?;
        self.tell_end(&ended.run);
        let decided = ended.events.iter().find_map(|event| {
            let Event::PolicyDecision { capability, rule, .. } = event else { return None };
            (capability == "workspace-write").then(|| rule.clone())
        });
        let Some(rule) = decided.filter(|_| std::fs::read(&path).ok() == before) else {
            return Err(wrong(&ended.run, "a refusal by a rule, and the file as it was"));
        };
        let rule = shown_in(&escaped_line(&rule));
        self.say(&format!("{} {rule}", with(BOLD, "the rule that decided:")));
        Ok(())
    }

    async fn is_stopped(&self) -> Outcome<()> {
        self.title("3", "An agent computes for ever, and is stopped");
        self.say("spinner has one second for a plan step ([agent.spinner] limits).");
        let ended = self.run("spinner", "spin").await?;
        self.tell_end(&ended.run);
        let failure = ended.run.ending().and_then(|ending| ending.failure.clone());
        match failure {
            Some(CallAbort::Deadline { limit_ms }) => {
                let reason = RunView::from(&ended.run).stop_reason;
                let reason = reason.map_or_else(String::new, |reason| reason.to_string());
                self.say(&format!(
                    "{} deadline of {limit_ms} ms; stop reason {reason}",
                    with(BOLD, "why, typed:")
                ));
                Ok(())
            }
            Some(_) | None => Err(wrong(&ended.run, "a guest stopped by its deadline")),
        }
    }

    fn title(&self, number: &str, title: &str) {
        self.context.printer.line(format!("\n{}", with(BOLD, &format!("{number}. {title}"))));
    }

    fn say(&self, text: &str) {
        self.context.printer.line(format!("   {text}").trim_end());
    }

    fn tell_end(&self, run: &Run) {
        let view = RunView::from(run);
        let took = human::duration(Duration::from_millis(view.duration_ms.unwrap_or(0)));
        let turns = human::count(u64::from(view.turns), "turn");
        let calls = human::count(u64::from(run.state.tool_calls), "tool call");
        let mark =
            if run.status() == Status::Completed { with(GOOD, "✓") } else { with(BAD, "✗") };
        let text = format!("{} in {took}, {turns}, {calls}, run {}", status_text(run), run.id());
        self.say(&format!("{mark} {}", with(DIM, &text)));
        if let Some(error) = view.error {
            self.say(&with(DIM, &escaped_line(&error)));
        }
    }

    /// Starts a run and shows it until it has ended.
    async fn run(&self, agent: &str, task: &str) -> Outcome<EndedRun> {
        let request = SpawnRequest {
            owner_user_id: "local".to_owned(),
            parent_session_id: "demo".to_owned(),
            agent_name: agent.to_owned(),
            task: task.to_owned(),
            ..SpawnRequest::default()
        };
        let run = self.context.client(&self.controller).spawn(&request).await?;
        let printer = self.context.printer.clone();
        let mut screen = Screen::new(&printer, Notes::Stdout).indented();
        let mut lines = Lines::new(LogLevel::Warn);
        let mut events = Vec::new();
        let id = run.id().clone();
        let supervisor = supervisor(&self.context, &self.controller, &self.storage, None);
        let mut follow = Follow::new(&self.context, &self.controller, id.clone(), supervisor);
        let show = |recorded: &EventRecord| {
            lines.of(recorded).iter().for_each(|line| screen.show(line));
            screen.progress(lines.progress());
            events.push(recorded.event.clone());
        };
        let followed = follow.follow(Some(ACT_MAX), CtrlC::Leaves, show).await?;
        screen.end();
        match followed {
            FollowEnd::Ended(run) | FollowEnd::Reached(run) => Ok(EndedRun { run: *run, events }),
            FollowEnd::Blocked(run) => Err(wrong(&run, "an end")),
            FollowEnd::TimedOut => Err(wait_timed_out(&id, None)),
            FollowEnd::Detached => {
                Err(Failure::new(Exit::Interrupted, "interrupted", "the demo was interrupted")
                    .hint("start it again: it can be played any number of times"))
            }
        }
    }
}

/// A script that calls `workspace/write` and says how that went.
fn write_script(path: &str) -> String {
    let call = serde_json::json!({ "call": {
        "name": "workspace/write",
        "args": { "path": path, "contents": "An agent was here.\n", "mode": "replace" },
    }});
    let steps = serde_json::json!({ "steps": [[call], [{ "reply": "I tried." }]] });
    steps.to_string()
}

fn wrong(run: &Run, expected: &str) -> Box<Failure> {
    let mut failure =
        Failure::unexpected(format!("the act did not end as it should: {expected} was expected"))
            .about(run.id())
            .hint(format!("look at it with `taskrun events {}` in taskrun-demo", run.id()));
    failure.causes.push(format!("the run is {}", status_text(run)));
    failure
}
