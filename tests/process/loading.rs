//! A component that takes long to compile, beside honest ones.

use taskrun_examples::evil;

use crate::project::Project;

const POLICY: &str = r#"
[agent.slow]
component = "components/slow.wasm"

[agent.worker]
component = "components/scripted.wasm"
"#;

const REPLY: &str = r#"{"steps":[[{"reply":"served"}]]}"#;

#[test]
fn an_honest_agent_is_served_while_another_is_compiled_and_people_are_told() {
    let project = Project::untouched();
    project.write("components/slow.wasm", &evil::slow_to_compile(0));
    project.write("taskrun.toml", POLICY.as_bytes());
    let slow = project.run(&["run", "slow", REPLY, "-d"]).id();
    // Started without the terminal that asked: said where people look.
    let told = "agent slow is being loaded for";
    let said = |args: &[&str]| project.run(args).stderr.contains(told);
    project.until("it is told", || said(&["get", &slow]));
    assert!(project.run(&["doctor"]).stdout.contains(told));
    for _ in 0..3 {
        let ran = project.run(&["run", "worker", REPLY, "--wait"]);
        assert_eq!((ran.code, ran.stdout.trim()), (0, "served"), "{ran:?}");
    }
    let run = project.get(&slow);
    assert_eq!((&run["status"], &run["started_at"]), (&"queued".into(), &serde_json::Value::Null));
    assert!(said(&["ps"]) && said(&["wait", &slow, "--timeout", "1s"]));
    assert_eq!(project.reach(&slow, "completed")["result"], "served");
    assert!(!project.run(&["doctor"]).stdout.contains(told), "it is there");
}
