//! Rules of a policy that would hold nothing: about functions that no tool has and tags that no
//! function has, and a budget in dollars where nobody knows what a model costs.

use serde_json::{Value, json};

use crate::project::{Project, Ran};

const POLICY: &str = r#"[tool.scripted]
component = "components/scripted-tool.wasm"
tags = ["look"]

[agent.x]
component = "components/scripted.wasm"
tools = ["scripted/*"]
"#;
/// The line of what is written behind the policy.
const LINE: usize = 8;

fn with(more: &str) -> Project {
    let project = Project::untouched();
    project.write("taskrun.toml", format!("{POLICY}{more}\n").as_bytes());
    project
}

fn check(project: &Project, command: &str) -> Ran {
    project.run(&[command, "check", "-o", "json"])
}

/// The only agent of a report.
fn agent(ran: &Ran) -> Value {
    let report = ran.json();
    let [agent] = report["agents"].as_array().expect("agents").as_slice() else {
        panic!("{report}")
    };
    agent.clone()
}

#[test]
fn a_rule_about_a_function_that_the_tool_does_not_have_is_a_mistake_under_every_key() {
    for (key, rule) in [
        ("ask", "ask = [\"tool: scripted/FUNCTION\"]"),
        ("policy.allow", "policy = { allow = [\"scripted/FUNCTION\"] }"),
        ("policy.block", "policy = { block = [\"scripted/FUNCTION\"] }"),
        ("timeouts", "timeouts = { \"scripted/FUNCTION\" = \"5s\" }"),
    ] {
        let right = with(&rule.replace("FUNCTION", "change"));
        let misspelt = with(&rule.replace("FUNCTION", "chagne"));
        for command in ["agent", "policy"] {
            let checked = check(&right, command);
            assert_eq!((checked.code, &agent(&checked)["ok"]), (0, &json!(true)), "{checked:?}");
            let refused = check(&misspelt, command);
            let error = refused.error();
            assert_eq!((refused.code, &error["code"]), (2, &json!("tools")), "{refused:?}");
            let told = agent(&refused)["error"]["message"].to_string();
            assert!(told.contains(&format!("`{key}` (")), "{key}: {told}");
            assert!(told.contains(&format!("taskrun.toml:{LINE}:")), "{key}: {told}");
            assert!(told.contains("tool scripted has no function"), "{key}: {told}");
            assert!(told.contains("chagne") && told.contains("change"), "{key}: {told}");
        }
    }
}

#[test]
fn rules_about_tags_that_no_function_has_are_noted_and_no_mistake() {
    let idle = with(
        "ask = [\"tag: tets\", \"tag: look\"]\n\
         policy = { allow_tags = [\"look\", \"lok\"], block_tags = [\"danegr\"] }",
    );
    for command in ["agent", "policy"] {
        let checked = check(&idle, command);
        let agent = agent(&checked);
        assert_eq!((checked.code, &agent["ok"]), (0, &json!(true)), "{checked:?}");
        let notes = agent["notes"].as_array().expect("notes");
        assert_eq!(notes.len(), 3, "{agent}");
        for (note, rule) in notes.iter().zip(["tag: tets", "danegr", "lok"]) {
            let note = note.as_str().expect("a text");
            assert!(note.contains(rule) && note.contains("taskrun.toml:"), "{note}");
        }
        let text = idle.run(&[command, "check"]);
        assert!(text.stdout.contains("✓ x: `ask` \"tag: tets\" ("), "{text:?}");
    }
    let fine = check(&with("ask = [\"tag: look\"]"), "policy");
    assert!(agent(&fine).get("notes").is_none(), "{fine:?}");
}

#[test]
fn an_agent_whose_budget_is_in_dollars_and_whose_model_has_no_price_is_a_mistake() {
    let policy = |prices: &str| {
        with(&format!(
            "model = \"m\"\nbudget = {{ usd = 1.0 }}\n[model.m]\nprovider = \"echo\"\n{prices}"
        ))
    };
    let explain = ["policy", "explain", "--agent", "x", "--cap", "model", "-o", "json"];
    let priced = policy("prices = { prompt = 1, completion = 1 }");
    let unpriced = policy("");
    for command in ["agent", "policy"] {
        assert_eq!(check(&priced, command).code, 0);
        let refused = check(&unpriced, command);
        assert_eq!((refused.code, &refused.error()["code"]), (2, &json!("budget")), "{refused:?}");
        let error = agent(&refused)["error"].to_string();
        for part in ["model m", "`usd`", "taskrun.toml:5:1", "taskrun.toml:10:1"] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
    let allowed = priced.run(&explain);
    assert_eq!((allowed.code, &allowed.json()["verdict"]), (0, &json!("allowed")), "{allowed:?}");
    let denied = unpriced.run(&explain);
    let told = denied.json();
    assert_eq!((denied.code, &told["verdict"]), (4, &json!("denied")), "{denied:?}");
    let layers = told["layers"].as_array().expect("layers");
    let decides = layers.iter().find(|layer| layer["decides"] == true).expect("one decides");
    assert_eq!((&decides["layer"], &decides["section"]["line"]), (&json!("budget"), &json!(10)));
}
