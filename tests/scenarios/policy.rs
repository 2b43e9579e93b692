//! Policies that decide about tools, through real components.

use serde_json::json;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::event::Event;
use taskrun_journal::status::Status;
use taskrun_journal::tool::{ToolFailure, ToolOutcome};
use taskrun_tests::{Builder, House, Script, Storage};

const POLICY: &str = r#"
[tool.lookup]
component = "components/scripted-tool.wasm"
tags = ["test"]

[tool.workspace]
component = "components/workspace.wasm"

[agent.worker]
component = "components/scripted.wasm"
tools = ["lookup/*", "workspace/*"]
allow = ["workspace-read: **"]
deny = ["workspace-write: **"]
policy = { allow = ["workspace/read"], allow_tags = ["test"], block = ["lookup/change"] }
timeouts = { "lookup/lookup" = "50ms" }

[agent.guarded]
component = "components/scripted.wasm"
tools = ["lookup/*"]
policy = { component = "components/cautious.wasm", timeout = "2s" }
"#;

/// The failure of each call, by its id, in the order of the journal.
async fn failures(house: &House, id: &str) -> Vec<(String, ToolFailure)> {
    let results = house.journal(id).await.into_iter().filter_map(|recorded| {
        let Event::ToolResult { output, .. } = recorded.event else { return None };
        match output.outcome {
            ToolOutcome::Failure(failure) => Some((output.tool_call_id, failure)),
            ToolOutcome::Value(_) => None,
        }
    });
    results.collect()
}

#[tokio::test]
async fn l_032_lists_and_hints_of_the_policy_hold_for_components() {
    for storage in [Storage::Memory, Storage::Sqlite] {
        let house = Builder::new(POLICY).storage(storage).open().await;
        let again = json!({ "fail": { "message": "again", "hint": {
            "reason": "invalid-arguments", "restrict_to_tool": true } } });
        let script = Script::new()
            .call("blocked", "lookup/change", json!({}))
            .call("unlisted", "workspace/list", json!({ "path": "" }))
            .call("hints", "lookup/finish", again)
            .then()
            .call("other", "lookup/lookup", json!({}))
            .then()
            .reply("went on");
        let id = house.spawn(&house.request("worker", &script.task())).await;
        let run = house.end(&id).await;
        assert_eq!(run.status(), Status::Completed, "{run:?}");
        let failures = failures(&house, &id).await;
        let codes: Vec<_> = failures
            .iter()
            .map(|(id, failure)| (id.as_str(), failure.error.code.as_deref().unwrap_or("none")))
            .collect();
        let denied = "denied";
        let expected =
            [("blocked", denied), ("unlisted", denied), ("hints", "none"), ("other", denied)];
        assert_eq!(codes, expected, "{storage:?}");
        let decided = house.journal(&id).await.into_iter().filter_map(|recorded| {
            let Event::PolicyDecision { rule, decided, .. } = recorded.event else { return None };
            assert!(rule.contains("taskrun.toml:14:10"), "{rule}");
            Some(decided?.to_string())
        });
        let all = "only lookup/finish, lookup/ids, lookup/lookup, lookup/measure, workspace/read";
        let expected = [all, "only lookup/finish; 1 tool call", all];
        assert_eq!(decided.collect::<Vec<_>>(), expected);
    }
}

#[tokio::test]
async fn l_025_a_call_that_takes_longer_than_its_function_may_is_ended() {
    let house = Builder::new(POLICY).open().await;
    let script = Script::new()
        .call("slow", "lookup/lookup", json!({ "sleep_ms": 5_000 }))
        .then()
        .reply("went on");
    let id = house.spawn(&house.request("worker", &script.task())).await;
    assert_eq!(house.end(&id).await.status(), Status::Completed);
    let failures = failures(&house, &id).await;
    assert_eq!(failures[0].1.error.code.as_deref(), Some("deadline"), "{failures:?}");
    assert!(failures[0].1.error.message.contains("50 ms"), "{failures:?}");
}

#[tokio::test]
async fn l_075_arguments_that_do_not_fit_come_back_with_fields_values_and_an_example() {
    let house = Builder::new(POLICY).open().await;
    let wrong = json!({ "fail": { "message": "m", "hint": { "reason": "bored" } } });
    let script = Script::new()
        .call("wrong", "lookup/lookup", wrong)
        .call("none", "workspace/read", json!({}))
        .then()
        .raw(json!("reply_input"));
    let id = house.spawn(&house.request("worker", &script.task())).await;
    let seen = house.end(&id).await.state.reply.result().expect("what the planner was given");
    let failures = failures(&house, &id).await;
    let hint = |index: usize| failures[index].1.retry_hint.clone().expect("a hint");
    let question = hint(0).clarifying_question.expect("a question");
    let asks = "What should lookup/lookup be given as fail/hint/reason (one of: invalid-arguments,";
    assert!(question.starts_with(asks), "{question}");
    assert_eq!(hint(1).missing_fields, ["path"]);
    assert_eq!(hint(1).example_input.as_deref(), Some(r#"{"path":"..."}"#));
    // It stands behind the results, where planners and models read it.
    assert!(seen.contains("To call workspace/read again: Missing: path."), "{seen}");
}

/// The decisions about the tools of a run, in a line each.
async fn decisions(house: &House, id: &str) -> Vec<String> {
    let decided = house.journal(id).await.into_iter().filter_map(|recorded| {
        let Event::PolicyDecision { rule, decided, .. } = recorded.event else { return None };
        assert!(
            rule.contains("policy component (") && rule.contains("taskrun.toml:20:10"),
            "{rule}"
        );
        Some(decided?.to_string())
    });
    decided.collect()
}

/// A run under the component, with these labels.
async fn guarded(house: &House, script: &Script, labels: &[(&str, &str)]) -> String {
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let request = house.request("guarded", &script.task());
    house.spawn(&SpawnRequest { labels: labels.collect(), ..request }).await
}

#[tokio::test]
async fn m_40_a_component_decides_which_tools_a_run_may_use() {
    let house = Builder::new(POLICY).open().await;
    let call = |script: Script, id: &str, name: &str| script.call(id, name, json!({}));
    let script = call(Script::new(), "1", "lookup/change");
    let script = call(call(script.then(), "2", "lookup/change"), "3", "lookup/lookup");
    let script = call(script.then(), "4", "lookup/change").then().reply("went on");
    let id = guarded(&house, &script, &[]).await;
    assert_eq!(house.end(&id).await.state.tool_calls, 1, "only the one that looks");
    assert_eq!(
        decisions(&house, &id).await,
        ["only lookup/finish, lookup/ids, lookup/lookup, lookup/measure"]
    );

    let id = guarded(&house, &script, &[("approved", "yes")]).await;
    let run = house.end(&id).await;
    assert_eq!(run.status(), Status::Completed, "{run:?}");
    let failures = failures(&house, &id).await;
    let codes: Vec<_> = failures
        .iter()
        .map(|(id, failure)| (id.as_str(), failure.error.code.as_deref().unwrap_or("none")))
        .collect();
    // The first call was let through; what it labelled the run with decides from then on.
    assert_eq!(codes, [("2", "denied"), ("4", "denied")]);
    let expected = [
        "all tools; 1 tool call; labels destroyed=perhaps",
        "only lookup/finish, lookup/ids, lookup/lookup, lookup/measure",
    ];
    assert_eq!(decisions(&house, &id).await, expected);
}

#[tokio::test]
async fn m_40_a_component_that_does_not_decide_leaves_no_tool() {
    let house = Builder::new(POLICY).open().await;
    for (word, why) in [
        ("trap", "unreachable"),
        ("spin", "2000 ms"),
        ("error", "no decision, on request"),
        ("flood", "labels are more than 64"),
    ] {
        let script = Script::new().call("c", "lookup/lookup", json!({})).then().reply("went on");
        let id = guarded(&house, &script, &[("policy", word)]).await;
        let run = house.end(&id).await;
        assert_eq!(run.status(), Status::Completed, "{word}: {run:?}");
        assert_eq!(run.state.tool_calls, 0, "{word}");
        let failures = failures(&house, &id).await;
        assert_eq!(failures[0].1.error.code.as_deref(), Some("denied"), "{word}");
        let rule = house.journal(&id).await.into_iter().find_map(|recorded| {
            let Event::PolicyDecision { rule, .. } = recorded.event else { return None };
            Some(rule)
        });
        let rule = rule.expect("it is said why");
        assert!(rule.contains("did not decide") && rule.contains(why), "{word}: {rule}");
    }
}
