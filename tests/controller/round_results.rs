//! The results that runs which go on by themselves have to give (CS-13, R-047, RS-19).

use serde_json::json;
use taskrun::agents::Agent;
use taskrun::autonomy::AutonomyRequest;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::ending::EndedBy;
use taskrun_journal::event::Refusal;
use taskrun_journal::status::{Status, StopReason};

use super::common::named;
use super::rounds::Turn::{self, Call, Say};
use super::rounds::{
    autonomous, bounded, end, outcome, prompts, report, results, work, world, world_with,
};

const SCHEMA: &str = r#"{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}"#;

#[tokio::test]
async fn cs_13_all_names_of_the_tool_end_the_run_and_an_empty_result_does_not() {
    let names = [
        "host/report_done",
        "return_result",
        "mark_task_done",
        "host/submit_result",
        "mcp__gateway__submit_result",
    ];
    for name in names {
        let (mut world, _) = world(vec![
            Call(vec![("e", name, json!({ "result": "  " }))]),
            Call(vec![("d", name, json!({ "result": "RCA: the disk" }))]),
            Say(""),
        ]);
        let (host, run) = end(&mut world, &autonomous("1")).await;
        assert_eq!(run.detail.as_deref(), Some("RCA: the disk"), "{name}");
        assert_eq!((run.rounds, run.stop_reason), (Some(1), Some(StopReason::Done)), "{name}");
        assert_eq!(run.returned, Some(json!("RCA: the disk")), "{name}");
        let (words, refused) = &results(&host).await[0];
        assert!(words.starts_with("\"rejected: result is required"), "{words}");
        assert_eq!(*refused, None);
    }
    // A tool of a component keeps its name.
    let (mut world, _) = world(vec![
        Call(vec![("d", "submit_result_extra", json!({ "result": "x" }))]),
        report("it"),
        Say("end"),
    ]);
    let (host, _) = end(&mut world, &autonomous("1")).await;
    assert_eq!(results(&host).await[0].1, Some(Refusal::Unavailable));
}

#[tokio::test]
async fn r_047_a_run_that_submits_that_it_failed_has_failed() {
    let given = json!({ "status": "failed", "summary": "no luck", "reason": "no network" });
    let submits = Call(vec![("d", "submit_result", given)]);
    let (mut world, _) = world(vec![submits, Say("sorry")]);
    let (host, run) = end(&mut world, &autonomous("1")).await;
    let expected = (Status::Failed, Some(StopReason::AgentError), Some(1), Some("sorry"));
    assert_eq!(outcome(&run), expected);
    assert_eq!(run.error.as_deref(), Some("no network"));
    assert_eq!(run.error_code.as_deref(), Some("task-failed"));
    assert_eq!(run.returned.expect("it gave one")["status"], "failed");
    let go_on = host.client().continuation("1").await.expect("it may be continued");
    assert!(!host.client().submit(&go_on).await.expect("accepted").reused, "it may try again");
}

#[tokio::test]
async fn r_047_a_failure_counts_under_result_and_with_a_schema_as_well() {
    let form = r#"{"type":"object","required":["summary","status"]}"#;
    let failure = json!({ "summary": "s", "status": "failed", "reason": "no luck" });
    let under = json!({ "result": failure });
    let mut beside = failure.clone();
    beside["result"] = json!({ "n": 1 });
    let all = [
        (None, under.clone()),
        (Some(form), under),
        (Some(form), failure),
        (None, beside.clone()),
        (Some(SCHEMA), beside),
    ];
    for (schema, given) in all {
        let submits = Call(vec![("d", "submit_result", given.clone())]);
        let stated = |agent: &mut Agent| agent.autonomous = Some(bounded(schema));
        let (mut world, _) = world_with(vec![submits, Say("sorry")], stated);
        let (_, run) = end(&mut world, &autonomous("1")).await;
        assert_eq!((run.status, run.error_code.as_deref()), (Status::Failed, Some("task-failed")));
        assert_eq!(run.error.as_deref(), Some("no luck"), "{schema:?}: {given}");
    }
    // A status in a result of another form is a finding.
    let finding = json!({ "result": { "status": "failed", "host": "a" } });
    let (mut world, _) = world(vec![Call(vec![("d", "submit_result", finding)]), Say("end")]);
    let (_, run) = end(&mut world, &autonomous("1")).await;
    assert_eq!((run.status, run.stop_reason), (Status::Completed, Some(StopReason::Done)));
}

#[tokio::test]
async fn rs_19_a_submitted_result_has_the_defaults_of_what_is_missing_or_of_another_kind() {
    let given = json!({ "summary": "s", "data": "not-a-dict", "deliverables": "nope" });
    let (mut world, _) = world(vec![Call(vec![("d", "submit_result", given)]), Say("")]);
    let (_, run) = end(&mut world, &autonomous("1")).await;
    let result = json!({ "status": "completed", "summary": "s", "data": {}, "deliverables": [] });
    assert_eq!((run.returned, run.detail.as_deref()), (Some(result), Some("s")));
}

#[tokio::test]
async fn r_047_a_result_that_is_missing_is_asked_for_three_times_and_then_the_run_fails() {
    let stated = |agent: &mut Agent| agent.autonomous = Some(bounded(Some(SCHEMA)));
    let silent = vec![Say("one"), Say("two"), Say("three"), Say("four")];
    let (mut world, shown) = world_with(silent, stated);
    let (_, run) = end(&mut world, &autonomous("1")).await;
    assert_eq!((run.status, run.by), (Status::Failed, Some(EndedBy::Orchestration)));
    let code = "no_structured_result_after_4_attempts";
    assert_eq!(run.error_code.as_deref(), Some(code));
    assert_eq!(run.result.as_deref(), Some("four"), "the last words are there");
    assert!(prompts(&shown)[1].contains("`report_done`"));
    // One that does not fit is asked for again at once, and counts alike.
    let wrong = || Call(vec![("d", "submit_result", json!({ "result": { "n": "x" } }))]);
    let (mut world, _) = world_with(vec![wrong(), wrong(), wrong(), wrong()], stated);
    let (host, run) = end(&mut world, &autonomous("1")).await;
    assert_eq!(run.error_code.as_deref(), Some(code));
    let (words, _) = &results(&host).await[0];
    assert!(words.starts_with("\"rejected: the result does not fit its schema"), "{words}");
    // One that fits ends it: under its name, written as a text, or as the arguments themselves.
    let fits =
        [json!({ "result": { "n": 1 } }), json!({ "result": "{\"n\": 1}" }), json!({ "n": 1 })];
    for given in fits {
        let right = Call(vec![("d", "host/report_done", given)]);
        let (mut world, _) = world_with(vec![Say("hm"), wrong(), right, Say("end")], stated);
        let (_, run) = end(&mut world, &autonomous("1")).await;
        assert_eq!(
            (run.stop_reason, run.returned),
            (Some(StopReason::Done), Some(json!({"n": 1})))
        );
    }
}

#[tokio::test]
async fn a_standing_run_that_worked_since_it_was_asked_for_its_result_is_asked_as_often_again() {
    let idle = [Say("idle"), Say("idle"), Say("idle")];
    let worked = [work(), Say("worked")];
    let last = [Call(vec![("d", "host/report_done", json!({ "n": 1 }))]), Say("end")];
    let turns = [&idle[..], &worked, &idle, &worked, &idle, &last].concat();
    let asked =
        AutonomyRequest { result_schema: Some(SCHEMA.to_owned()), ..AutonomyRequest::default() };
    let request = SpawnRequest { autonomous: Some(asked), ..named("1", "a") };
    let (mut world, shown) = world(turns);
    let (_, run) = end(&mut world, &request).await;
    assert_eq!(run.stop_reason, Some(StopReason::Done), "{run:?}");
    let asked = prompts(&shown).iter().filter(|text| text.contains("A result is required")).count();
    assert_eq!(asked, 9, "three times in each stretch of idle rounds");
    // Without work in between it fails.
    let (mut world, _) = self::world(vec![Say("idle"); 4]);
    let (_, run) = end(&mut world, &request).await;
    assert_eq!(run.error_code.as_deref(), Some("no_structured_result_after_4_attempts"));
}

#[tokio::test]
async fn a_standing_run_that_works_is_not_asked_for_its_result_before_it_is_idle() {
    let asked =
        AutonomyRequest { result_schema: Some(SCHEMA.to_owned()), ..AutonomyRequest::default() };
    let request = SpawnRequest { autonomous: Some(asked), ..named("1", "a") };
    let right = Call(vec![("d", "host/report_done", json!({ "result": { "n": 1 } }))]);
    let mut turns: Vec<Turn> = Vec::new();
    for _ in 0..6 {
        turns.extend([work(), Say("working")]);
    }
    turns.extend([Say("idle"), right, Say("end")]);
    let (mut world, shown) = world(turns);
    let (_, run) = end(&mut world, &request).await;
    assert_eq!((run.stop_reason, run.rounds), (Some(StopReason::Done), Some(8)));
    let prompts = prompts(&shown);
    assert_eq!(prompts.iter().filter(|one| *one == "continue").count(), 6);
    assert_eq!(prompts.iter().filter(|one| one.starts_with("A result is required")).count(), 1);
}
