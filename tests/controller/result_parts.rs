//! The rest of a long result, which a model reads part by part (M-56).

use serde_json::{Value, json};
use taskrun_journal::event::Event;
use taskrun_journal::runs::OUTPUT_PART_BYTES_MAX;

use super::common::named;
use super::host_tools::{leader, words};
use crate::native::{ClosurePlanner, World, answer, request};

/// More than a report has, with characters of several bytes.
fn long() -> String {
    (0..2_500).map(|nth| format!("{nth}: ä \"quoted\" `fence`\n")).collect()
}

fn worker(world: &mut World) {
    world.agent("worker", ClosurePlanner::new(|_, _| async { answer(&long()) }));
}

/// The run that the first call started.
fn started(said: &[Value]) -> Value {
    said[0]["id"].clone()
}

#[tokio::test]
async fn m_56_a_long_result_is_read_part_by_part_and_is_the_whole_one_then() {
    let mut world = World::new();
    worker(&mut world);
    leader(&mut world, "lead", &["worker"], |_, said| {
        let read = |from: Value| {
            vec![("get_task_run", json!({ "id": started(said), "result_from": from }))]
        };
        match said.len() {
            0 => vec![("start_task_run", json!({ "task": "write" }))],
            1 => vec![("wait_task_run", json!({ "id": started(said) }))],
            2 => read(json!(0)),
            _ => match said[said.len() - 1].get("result_next") {
                Some(next) => read(next.clone()),
                None => Vec::new(),
            },
        }
    });
    let host = world.start().await;
    let said = words(&host, &host.spawn(&request("lead", "x")).await).await;
    let whole = long().trim().to_owned();
    assert_eq!(said[1]["truncated"], true, "it has to be longer than what is shown");
    let mut read = String::new();
    for part in &said[2..] {
        assert_eq!(part["result_from"], read.len());
        assert_eq!(
            (&part["result_bytes"], &part["status"]),
            (&json!(whole.len()), &json!("completed"))
        );
        let text = part["result"].as_str().expect("a text");
        assert!((1..=OUTPUT_PART_BYTES_MAX).contains(&text.len()), "{}", text.len());
        read.push_str(text);
    }
    assert_eq!(read, whole);
    assert_eq!(said.len() - 2, whole.len().div_ceil(OUTPUT_PART_BYTES_MAX));
}

#[tokio::test]
async fn m_56_parts_begin_with_characters_and_are_those_of_visible_runs() {
    let mut world = World::new();
    world.agent("worker", ClosurePlanner::new(|_, _| async { answer("äö") }));
    leader(&mut world, "lead", &["worker"], |_, said| match said.len() {
        0 => vec![("start_task_run", json!({ "task": "write", "mode": "sync" }))],
        1 => {
            let read =
                |id: Value, from: i64| ("get_task_run", json!({ "id": id, "result_from": from }));
            let own = started(said);
            vec![
                read(own.clone(), 0),
                read(own.clone(), 3),
                read(own.clone(), 4),
                read(own, i64::MAX),
                read(json!("apart"), 0),
            ]
        }
        _ => Vec::new(),
    });
    let host = world.start().await;
    host.spawn(&named("apart", "worker")).await;
    host.end("apart").await;
    let said = words(&host, &host.spawn(&request("lead", "x")).await).await;
    let parts: Vec<_> =
        said[1..5].iter().map(|part| (&part["result"], &part["result_from"])).collect();
    let (whole, second, none) = (json!("äö"), json!("ö"), json!(""));
    let (zero, two, four) = (json!(0), json!(2), json!(4));
    assert_eq!(parts, [(&whole, &zero), (&second, &two), (&none, &four), (&none, &four)]);
    assert!(said[1..5].iter().all(|part| part.get("result_next").is_none()), "{said:?}");
    assert_eq!(said[5]["code"], "not-found");
}

#[tokio::test]
async fn m_56_a_report_says_how_much_of_a_result_it_leaves_out() {
    let mut world = World::new();
    worker(&mut world);
    leader(&mut world, "lead", &["worker"], |_, said| match said.len() {
        0 => vec![("start_task_run", json!({ "task": "write" }))],
        1 => vec![("ask_user", json!({ "question": "Go on?" }))],
        _ => Vec::new(),
    });
    let host = world.start().await;
    let id = host.spawn(&request("lead", "x")).await;
    let asks = |run: &taskrun_journal::run::Run| run.state.awaits.iter().any(|one| !one.answered);
    let run = host.until(&id, "asks", asks).await;
    let child = host.client().tree(run.id().as_str()).await.expect("there").descendants;
    host.end(child[0].id().as_str()).await;
    let yes = taskrun_journal::question::Answer::Text("yes".to_owned());
    host.client().answer(&id, None, yes).await.expect("taken");
    host.end(&id).await;
    let told = host.journal(&id).await.into_iter().find_map(|one| {
        let Event::Reported { text, .. } = one.event else { return None };
        Some(text)
    });
    let told = told.expect("it is told");
    let whole = long().trim().len();
    assert!(
        told.contains(&format!("result (its beginning; {whole} bytes in all):\n```\n")),
        "{told}"
    );
    let shown = told.split("```\n").nth(1).expect("a fence");
    assert!(shown.len() <= OUTPUT_PART_BYTES_MAX + 8, "{}", shown.len());
}
