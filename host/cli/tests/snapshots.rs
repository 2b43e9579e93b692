//! The output of the program, held against files: help texts, tables, JSON, failures.

use std::sync::Arc;

use clap::CommandFactory;
use taskrun::error::{ControllerError, LockedWait};
use taskrun_cli::{
    Beats, Cli, Failure, RunList, Surroundings, UsageBeneath, policy_failure, run_details,
    run_object, run_table, run_tree, versioned,
};
use taskrun_journal::autonomy::{Autonomy, AutonomyMode, Done, Schedule, StateReport};
use taskrun_journal::ending::Ending;
use taskrun_journal::event::{DecisionKind, Event, EventRecord};
use taskrun_journal::hold::Wait;
use taskrun_journal::ids::{HostId, RunId};
use taskrun_journal::machine;
use taskrun_journal::message::{Labels, Message, Role, Usage};
use taskrun_journal::progress::Children;
use taskrun_journal::question::{AnswerRefusal, AwaitItem, Item};
use taskrun_journal::reply::Reply;
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::spec::{Continuation, RunClass, RunSpec};
use taskrun_journal::status::{BlockedOn, StopReason};
use taskrun_journal::stop::CallAbort;
use taskrun_journal::time::Timestamp;
use taskrun_policy::Policy;
use taskrun_runtime::PolicyLoadError;

/// When everything happens.
const START: Timestamp = Timestamp(1_767_225_600_000);
const NOW: Timestamp = Timestamp(START.0 + 125_000);

fn spec(number: u8, agent: &str, task: &str) -> RunSpec {
    let id = RunId::generate(START.0 + u64::from(number) * 1_000, &[number; 10]);
    RunSpec {
        tenant: "default".to_owned(),
        owner_user_id: "local".to_owned(),
        parent_session_id: "cli".to_owned(),
        agent_name: agent.to_owned(),
        agent_digest: "blake3:00ff".to_owned(),
        pin: "aa".to_owned(),
        task: task.to_owned(),
        labels: Labels::from([("team".to_owned(), "docs".to_owned())]),
        created_at: Timestamp(START.0 + u64::from(number) * 1_000),
        ..taskrun_fixtures::spec(id.as_str())
    }
}

/// A run after these events, each a second after the one before.
fn run(spec: RunSpec, events: Vec<Event>) -> Run {
    let recorded = |seq: u64, event| EventRecord {
        seq,
        id: seq,
        at: Timestamp(spec.created_at.0 + (seq - 1) * 1_000),
        event,
    };
    let first = recorded(1, Event::Queued { spec: Arc::new(spec.clone()) });
    let mut run = machine::begin(&first).expect("begins");
    for (index, event) in events.into_iter().enumerate() {
        let recorded = recorded(index as u64 + 2, event);
        let state = machine::apply(run.state, &recorded).expect("fits");
        run = Run { spec: Arc::clone(&run.spec), state };
    }
    run
}

fn started() -> Event {
    Event::Started {
        host: HostId::new("host-1"),
        epoch: 1,
        child_session_id: "session-1".to_owned(),
        request_id: "request-1".to_owned(),
        batch: None,
    }
}

fn runs() -> Vec<Run> {
    let usage =
        Usage { prompt_tokens: 20, completion_tokens: 3, total_tokens: 23, ..Usage::default() };
    let answer = Event::AssistantMessage {
        message: Message::text(Role::Assistant, "In the cellar.\n\x1b[2J(docs/a.md:3)"),
        usage: Some(usage),
        model: None,
        streamed: false,
    };
    let decided = Event::PlanDecided {
        turn: 1,
        decision: DecisionKind::FinalResponse,
        state: Vec::new(),
        reminders: Vec::new(),
        expected_children: None,
        parents: std::collections::BTreeMap::new(),
        ran_ms: 0,
    };
    let finished = || Event::Finished { metadata: Labels::new(), finalizer_error: None };
    let completed = Ending::completed(StopReason::FinalResponse);
    let failed =
        Ending::failed(StopReason::TurnTimeout, "deadline exceeded: a plan step may take 1000 ms")
            .because(CallAbort::Deadline { limit_ms: 1_000 });
    let question = spec(1, "readonly_researcher", "Where are apples kept?\nAnd \x1b[31mpears?");
    vec![
        run(spec(3, "note_writer", "write"), vec![]),
        run(
            spec(2, "spinner", "spin"),
            vec![started(), Event::Finalizing { ending: failed }, finished()],
        ),
        run(
            question,
            vec![started(), answer, decided, Event::Finalizing { ending: completed }, finished()],
        ),
        run(spec(0, "note_writer", "a long task ".repeat(20).trim()), vec![started()]),
    ]
}

#[test]
fn help_texts_are_as_reviewed() {
    let mut command = Cli::command().term_width(100);
    command.build();
    insta::assert_snapshot!("help", command.render_long_help());
    for sub in command.get_subcommands_mut() {
        let name = sub.get_name().to_owned();
        if sub.is_hide_set() {
            continue;
        }
        insta::assert_snapshot!(
            format!("help_{name}"),
            short_of_globals(&sub.render_long_help().to_string())
        );
        for inner in sub.get_subcommands_mut() {
            let text = inner.render_long_help().to_string();
            insta::assert_snapshot!(
                format!("help_{name}_{}", inner.get_name()),
                short_of_globals(&text)
            );
        }
    }
}

/// The global options stand in the first text.
fn short_of_globals(help: &str) -> &str {
    help.split("Global options:").next().unwrap_or(help).trim_end()
}

#[test]
fn the_command_line_is_well_formed() {
    Cli::command().debug_assert();
}

#[test]
fn tables_fit_and_guests_cannot_write_to_the_terminal() {
    let runs = runs();
    insta::assert_snapshot!("table_wide", run_table(&runs, &Beats::new(), NOW, Some(140)));
    insta::assert_snapshot!("table_narrow", run_table(&runs, &Beats::new(), NOW, Some(80)));
    insta::assert_snapshot!("table_pipe", run_table(&runs, &Beats::new(), NOW, None));
    for run in &runs {
        let details = run_details(run, &Surroundings::default(), NOW);
        assert!(!details.contains('\x1b'), "{details}");
    }
    insta::assert_snapshot!(
        "details_completed",
        run_details(&runs[2], &Surroundings::default(), NOW)
    );
    insta::assert_snapshot!("details_failed", run_details(&runs[1], &Surroundings::default(), NOW));
}

#[test]
fn names_are_shown_where_a_run_has_one() {
    let mut runs = runs();
    let parent = runs[3].spec.id.clone();
    let report = RunSpec {
        name: Some("report".to_owned()),
        parent_run_id: Some(parent),
        attached: true,
        ..spec(4, "note_writer", "write")
    };
    runs.insert(0, run(report, vec![]));
    insta::assert_snapshot!("table_named", run_table(&runs, &Beats::new(), NOW, Some(140)));
    insta::assert_snapshot!("details_named", run_details(&runs[0], &Surroundings::default(), NOW));
    let json = serde_json::to_string_pretty(&run_object(&runs[0])).expect("JSON");
    insta::assert_snapshot!("json_named", json);
}

#[test]
fn an_entry_is_shown_with_the_heartbeat_that_takes_it() {
    let entry = run(RunSpec { class: RunClass::Heartbeat, ..spec(4, "patient", "x") }, vec![]);
    let (runs, at) = ([entry.clone()], Timestamp(NOW.0 + 7_200_000));
    let beats = Beats::from([(entry.id().clone(), at)]);
    let table = run_table(&runs, &beats, NOW, None);
    assert!(table.contains("queued (heartbeat, due in 2h)"), "{table}");
    let table = run_table(&runs, &Beats::new(), NOW, None);
    assert!(table.contains("queued (heartbeat)"), "{table}");
    let around = Surroundings { beat: Some(at), ..Surroundings::default() };
    let details = run_details(&entry, &around, NOW);
    assert!(details.contains(&format!("{at} (due in 2h)")), "{details}");
}

/// A run that goes on by itself, continues another one, and ended for its next wake-up; it said more
/// than it should.
fn autonomous() -> Run {
    let autonomy = Autonomy {
        mode: AutonomyMode::Standing,
        continuation: "continue".to_owned(),
        rounds: Some(50),
        result_schema: None,
        done: None,
        states: Vec::new(),
        max_defer_ms: None,
        longest_defer_ms: None,
        exits_on_defer: true,
    };
    let continues = Continuation {
        run: spec(0, "watcher", "").id,
        turns: 4,
        rounds: 3,
        tool_calls: 2,
        ran_ms: 0,
        usage: Usage::default(),
        is_final: false,
        reply: Reply::default(),
        due: None,
    };
    let spec = RunSpec {
        autonomy: Some(autonomy),
        continues: Some(Box::new(continues)),
        ..spec(1, "watcher", "Watch the mirror.")
    };
    let finished = Event::Finished { metadata: Labels::new(), finalizer_error: None };
    let ending = Ending::completed(StopReason::Deferred);
    let mut run = run(spec, vec![started(), Event::Finalizing { ending }, finished]);
    let rounds = &mut run.state.rounds;
    rounds.state =
        Some(StateReport { state: "idle".to_owned(), detail: Some("no\x1b[2J mirror".to_owned()) });
    let detail = "as far as\nit goes".to_owned();
    rounds.done =
        Some(Done { detail, result: Some(r#"{"seen":["a\u001b[2J"]}"#.to_owned()), failed: None });
    let at = Timestamp(NOW.0 + 3_600_000);
    rounds.scheduled = Some(Schedule { at, prompt: None, detail: None, cron: None });
    run
}

#[test]
fn a_run_that_goes_on_by_itself_is_shown_with_its_rounds_and_its_own_words() {
    let details = run_details(&autonomous(), &Surroundings::default(), NOW);
    assert!(!details.contains('\x1b'), "{details}");
    insta::assert_snapshot!("details_autonomous", details);
}

/// A run that asks something, and one that it started.
fn family() -> Vec<Run> {
    let parent = spec(1, "coordinator", "write the report");
    let question = AwaitItem::Clarification {
        id: "which".to_owned(),
        question: "Which quarter?\x1b[2J".to_owned(),
        missing_fields: Vec::new(),
        restrict_to_tool: None,
        example_input: None,
        clarifying_prompt: None,
    };
    let asked = Event::Asked {
        item: Box::new(Item { what: question, tool_call_id: None, until: None, default: None }),
    };
    let blocked =
        Event::Blocked { on: BlockedOn::Input, wait: Wait::Answers { at: None }, ran_ms: 10 };
    let child = |number| RunSpec {
        parent_run_id: Some(parent.id.clone()),
        root_run_id: parent.id.clone(),
        depth: 1,
        ..spec(number, "note_writer", "write down what was said")
    };
    let lost = Event::Lost {
        host: HostId::new("host-1"),
        epoch: 2,
        not_before: Timestamp(0),
        crashed: true,
        ran_ms: 0,
    };
    let (first, second) = (child(2), child(3));
    vec![
        run(second, vec![]),
        run(parent.clone(), vec![started(), asked, blocked]),
        run(first, vec![started(), lost]),
        run(spec(0, "spinner", "spin"), vec![started()]),
    ]
}

#[test]
fn a_sum_that_is_not_that_of_all_runs_beneath_a_run_is_said_to_be_the_least() {
    let children = Children { started: 3, finished: 2 };
    let usage =
        |total_tokens, cost_microusd| Usage { total_tokens, cost_microusd, ..Usage::default() };
    for (usage, is_least, text) in [
        (usage(0, 0), false, "2 of 3 runs ended"),
        (usage(7, 50_000), false, "2 of 3 runs ended, 7 tokens, 0.05 USD"),
        (usage(7, 50_000), true, "2 of 3 runs ended, at least 7 tokens, 0.05 USD"),
        (usage(0, 0), true, "2 of 3 runs ended, at least 0 tokens"),
    ] {
        let beneath = UsageBeneath { usage, is_least };
        let around = Surroundings { children, beneath, ..Surroundings::default() };
        let details = run_details(&family()[1], &around, NOW);
        let line = details.lines().find(|line| line.starts_with("beneath")).expect("a line");
        assert!(line.ends_with(text), "{line}");
    }
}

#[test]
fn children_stand_under_their_parents_and_questions_with_their_run() {
    let family = family();
    insta::assert_snapshot!("tree_wide", run_tree(&family, &Beats::new(), NOW, Some(140)));
    insta::assert_snapshot!("tree_narrow", run_tree(&family, &Beats::new(), NOW, Some(80)));
    let details = run_details(&family[1], &Surroundings::default(), NOW);
    assert!(!details.contains('\x1b'), "{details}");
    insta::assert_snapshot!("details_blocked", details);
    let json = serde_json::to_string_pretty(&run_object(&family[1])).expect("JSON");
    insta::assert_snapshot!("json_blocked", json);
}

#[test]
fn json_is_a_contract() {
    let runs = runs();
    for (name, run) in [("queued", &runs[0]), ("failed", &runs[1]), ("completed", &runs[2])] {
        let json = serde_json::to_string_pretty(&run_object(run)).expect("JSON");
        insta::assert_snapshot!(format!("json_{name}"), json);
    }
    let list = RunList { runs: vec![RunView::from(&runs[0])], next_cursor: None };
    let json = serde_json::to_string_pretty(&versioned(list)).expect("JSON");
    insta::assert_snapshot!("json_list", json);
}

/// The refusals of the controller that people can do something about.
fn refusals() -> Vec<ControllerError> {
    let id = || RunId::new("r-1").expect("an id");
    let limit = |kind, cap| ControllerError::Limit { kind, cap };
    let no = |why| ControllerError::NotAwaitable { id: id(), why };
    let locked = |holder: &str, waits| ControllerError::Locked {
        id: id(),
        holder: holder.to_owned(),
        waits,
    };
    vec![
        ControllerError::NameTaken { name: "report".to_owned(), id: id() },
        locked("host-1", None),
        locked("nobody", Some(LockedWait::Paused)),
        locked("nobody", Some(LockedWait::Deferred)),
        locked("nobody", Some(LockedWait::Asking)),
        ControllerError::Invalid { field: "ask", reason: "nobody is named who answers".to_owned() },
        ControllerError::Invalid {
            field: "ids",
            reason: "at most 1000 runs can be waited for at once".to_owned(),
        },
        limit("queue", 10_000),
        limit("tree", 64),
        limit("depth", 8),
        limit("slots", 4),
        ControllerError::SessionEnded { id: "s".to_owned() },
        ControllerError::ParentEnded { id: "r-1".to_owned() },
        no(AnswerRefusal::UnknownItem),
        no(AnswerRefusal::Answered),
        no(AnswerRefusal::Ended),
        ControllerError::Inconsistent {
            id: id(),
            detail: "its journal has other events under the ids of these".to_owned(),
        },
    ]
}

#[test]
fn failures_say_what_helps() {
    let runs = runs();
    let failure = Failure::of_run(&runs[1]).expect("it failed");
    insta::assert_snapshot!("failure_run", format!("{}\n{}", failure.text(), failure.json()));
    let refused: Vec<String> = refusals()
        .into_iter()
        .map(|error| {
            let failure = Box::<Failure>::from(error);
            format!("{} {}\n{}", failure.exit.code(), failure.text(), failure.json())
        })
        .collect();
    insta::assert_snapshot!("failure_refusals", refused.join("\n\n"));
    assert!(Failure::of_run(&runs[2]).is_none());
    let text = "[agent.a]\ncomponnet = \"a.wasm\"\nallow = [\"workspace-wrte: **\"]\n";
    let errors = Policy::parse(text, "taskrun.toml".as_ref()).expect_err("two mistakes");
    let failure = policy_failure(&PolicyLoadError::Invalid(errors), false);
    insta::assert_snapshot!("failure_policy", format!("{}\n{}", failure.text(), failure.json()));
}
