//! Runs for which nobody answers, and those for which the host does (C-030, C-031, M-34, M-35).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::json;
use taskrun::agents::Agent;
use taskrun::autonomy::AutonomyRequest;
use taskrun::ports::planner::Decision;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::answers::Answers;
use taskrun_journal::event::Event;
use taskrun_journal::question::{Answer, AwaitItem, Question};
use taskrun_journal::status::Status;
use taskrun_journal::tool::ToolHints;
use taskrun_policy::{AskRule, AskRules, AutonomySettings, InterruptionPolicy, Location, Pattern};

use super::common::{Handle, beneath, check_journal, following, named};
use super::dying::{Point, at_every_write, survive};
use super::host_tools::{leader, words};
use crate::native::{ClosurePlanner, ClosureTool, Native, World, answer, decided, request, value};

/// Calls of `mail` need consent.
fn asks(agent: &mut Agent) {
    let location = Location { file: std::path::Path::new("test").into(), line: 1, column: 1 };
    let functions = Pattern::all_of("mail");
    let rules = vec![AskRule { functions, text: "tool: mail/*".to_owned(), location }];
    agent.ask = AskRules { rules, timeout: Duration::from_secs(3_600) };
}

/// A world with an agent `a` that sends a mail, for which it asks, and how often one was sent.
fn world() -> (World, Arc<AtomicU32>) {
    let mut world = World::new();
    let sent = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&sent);
    let tool = ClosureTool::new("f", ToolHints::default(), move |call, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move { value(&call.payload) }
    });
    world.tool("mail", InterruptionPolicy::Fail, tool);
    let mail = || following(vec![vec![("c", "mail/f", "{}")]]);
    world.agent_with("a", mail(), asks);
    (world, sent)
}

fn with(answers: Answers, request: SpawnRequest) -> SpawnRequest {
    SpawnRequest { answers: Some(answers), ..request }
}

/// Why a request is refused.
async fn refusal(host: &Native, request: &SpawnRequest) -> String {
    host.client().spawn(request).await.expect_err("refused").to_string()
}

#[tokio::test]
async fn cs_10_a_run_that_asks_and_that_nobody_answers_is_refused_before_it_begins() {
    let (mut world, sent) = world();
    let steps = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&steps);
    let planner = move || {
        let counted = Arc::clone(&counted);
        ClosurePlanner::new(move |_, _| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { answer("done") }
        })
    };
    world.agent_with("asks", planner(), asks);
    world.agent("beneath", planner());
    leader(&mut world, "speaks", &[], |_, _| Vec::new());
    let host = world.start().await;
    let said = refusal(&host, &with(Answers::Nobody, request("asks", "x"))).await;
    assert!(said.contains("agent asks asks for consent (\"tool: mail/*\")"), "{said}");
    assert!(said.contains("nobody is named who answers"), "{said}");
    assert_eq!(steps.load(Ordering::SeqCst), 0, "no model was asked");
    // Somebody is named, or there is nothing to ask.
    let refuse = Answers::Refuse { reason: "at night".to_owned() };
    for (agent, answers) in [
        ("asks", Answers::Inbox),
        ("asks", refuse),
        ("beneath", Answers::Nobody),
        ("speaks", Answers::Nobody),
    ] {
        let id = host.spawn(&with(answers, request(agent, "x"))).await;
        assert_eq!(host.end(&id).await.status(), Status::Completed);
    }
    // The rules of a run above bind those beneath it, and so does who answers.
    let refuse = Answers::Refuse { reason: "at night".to_owned() };
    let parent = host.spawn(&with(refuse, named("p", "a"))).await;
    let said = refusal(&host, &with(Answers::Nobody, beneath(&parent, "c", "beneath"))).await;
    assert!(said.contains("agent a asks for consent"), "{said}");
    host.end(&parent).await;
    assert_eq!(sent.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn c_030_the_policy_says_who_answers_an_autonomous_run_that_does_not_say() {
    let (mut world, _) = world();
    let refuse = Answers::Refuse { reason: "at night".to_owned() };
    let answers = Some(refuse.clone());
    world.agent_with("said", ClosurePlanner::new(|_, _| async { answer("done") }), |agent| {
        asks(agent);
        let settings = AutonomySettings { answers, rounds: Some(1), ..AutonomySettings::default() };
        agent.autonomous = Some(settings);
    });
    let host = world.start().await;
    let autonomous = |agent: &str| {
        let autonomous = Some(AutonomyRequest::default());
        SpawnRequest { autonomous, ..request(agent, "x") }
    };
    let said = refusal(&host, &autonomous("a")).await;
    assert!(said.contains("nobody is named who answers"), "{said}");
    let id = host.spawn(&autonomous("said")).await;
    assert_eq!(host.end(&id).await.spec.answers, refuse);
    // The request says otherwise, and one that is not autonomous is attended.
    let said = refusal(&host, &with(Answers::Nobody, autonomous("said"))).await;
    assert!(said.contains("nobody is named who answers"), "{said}");
    let id = host.spawn(&request("said", "x")).await;
    assert_eq!(host.end(&id).await.spec.answers, Answers::Inbox);
}

#[tokio::test]
async fn c_031_a_refusal_is_the_result_of_the_call_and_nobody_is_waited_for() {
    let (mut world, sent) = world();
    leader(&mut world, "speaks", &[], |_, said| match said.len() {
        0 => vec![("ask_user", json!({ "question": "JWT?" }))],
        _ => Vec::new(),
    });
    let host = world.start().await;
    let refuse = || Answers::Refuse { reason: "at night".to_owned() };
    let id = host.spawn(&with(refuse(), request("speaks", "x"))).await;
    assert_eq!(words(&host, &id).await, [json!("(no user available: at night)")]);
    let fixed = Answers::Fixed { text: "42".to_owned() };
    let id = host.spawn(&with(fixed, request("speaks", "x"))).await;
    assert_eq!(words(&host, &id).await, [json!("42")]);
    let id = host.spawn(&with(refuse(), request("a", "x"))).await;
    let run = host.end(&id).await;
    let said = run.state.reply.result().expect("it answers");
    assert!(said.contains("denied") || said.contains("declined"), "{said}");
    assert_eq!(sent.load(Ordering::SeqCst), 0, "what was not consented to is not done");
    let journal = host.journal(&id).await;
    assert!(journal.iter().all(|one| one.event.kind() != "blocked"), "it did not wait");
}

#[tokio::test]
async fn cs_25_questions_of_a_planner_are_answered_by_the_host() {
    let mut world = World::new();
    let text = |text: &str| text.to_owned();
    let items = vec![
        AwaitItem::Clarification {
            id: text("which"),
            question: text("Which?"),
            missing_fields: Vec::new(),
            restrict_to_tool: None,
            example_input: None,
            clarifying_prompt: None,
        },
        AwaitItem::Questions {
            id: text("form"),
            tool_name: text("ask"),
            tool_call_id: text("f"),
            payload: text("{}"),
            title: None,
            questions: vec![Question {
                id: text("q"),
                prompt: text("?"),
                options: Vec::new(),
                allow_multiple: false,
            }],
        },
    ];
    let planner = ClosurePlanner::new(move |input, _| {
        let asked = items.clone();
        let told = input.messages.iter().map(|one| one.joined_text()).collect::<Vec<_>>();
        async move {
            match input.resume {
                None => decided(Decision::Await(asked.into_iter().map(Into::into).collect())),
                Some(_) => answer(&told.join("|")),
            }
        }
    });
    world.agent("a", planner);
    let host = world.start().await;
    let id = host.spawn(&with(Answers::Nobody, request("a", "x"))).await;
    let run = host.end(&id).await;
    let said = run.state.reply.result().expect("it answers");
    assert!(said.contains("(no user available: no interactive user is there)"), "{said}");
    let fixed = Answers::Fixed { text: text("42") };
    let id = host.spawn(&with(fixed, request("a", "x"))).await;
    host.end(&id).await;
    let answers: Vec<Answer> = host
        .journal(&id)
        .await
        .into_iter()
        .filter_map(|one| {
            let Event::Answered { answer, .. } = one.event else { return None };
            Some(answer)
        })
        .collect();
    let choices = BTreeMap::from([(text("q"), vec![text("42")])]);
    assert_eq!(answers, [Answer::Text(text("42")), Answer::Choices(choices)]);
}

/// Plays the run once, with the death of a host at a point; gives how many died.
async fn play(point: Point) -> u32 {
    let (mut world, sent) = world();
    let door = world.door().await;
    let refuse = Answers::Refuse { reason: "at night".to_owned() };
    let outside = async {
        door.spawn(&with(refuse, named("1", "a"))).await;
        door.end("1").await
    };
    let (run, deaths) = survive(&mut world, &[point], &Handle::default(), outside).await;
    assert_eq!(run.status(), Status::Completed, "{point:?}");
    assert_eq!(sent.load(Ordering::SeqCst), 0, "{point:?}");
    let journal = door.journal("1").await;
    check_journal(&journal);
    let answered = journal.iter().filter(|one| one.event.kind() == "answered");
    assert_eq!(answered.count(), 1, "{point:?}");
    deaths
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c_031_a_host_may_die_at_every_write_of_a_run_whose_questions_are_refused() {
    at_every_write(play).await;
}
