//! Models of a policy, as the program tells of them.

use serde_json::Value;

use crate::project::{Project, Ran};

const KEY: &str = "sk-test-31d0";
const POLICY: &str = r#"[model.default]
provider = "openai-chat"
base_url = "http://127.0.0.1:1/v1"
model = "m-1"
key_env = "TASKRUN_TEST_MODEL_KEY"

[agent.talker]
component = "components/scripted.wasm"
model = "default"
"#;

fn models_check(ran: &Ran) -> Value {
    let checks = ran.json()["checks"].as_array().cloned().expect("checks");
    checks.into_iter().find(|check| check["name"] == "models").expect("a check of models")
}

#[test]
fn doctor_and_show_say_who_answers_and_where_and_never_the_key() {
    let project = Project::new();
    project.write("taskrun.toml", POLICY.as_bytes());
    let who = "openai-chat m-1 at http://127.0.0.1:1/v1";
    let check = models_check(&project.run(&["doctor", "-o", "json"]));
    let detail = check["detail"].as_str().expect("a text");
    assert_eq!(check["health"], "bad");
    assert!(detail.contains(&format!("default: {who}")), "{detail}");
    assert!(detail.contains("TASKRUN_TEST_MODEL_KEY is not set"), "{detail}");

    let with_key = |args: &[&str]| -> Ran {
        let mut command = project.command(args);
        command.env("TASKRUN_TEST_MODEL_KEY", KEY).output().expect("starts").into()
    };
    let doctor = with_key(&["doctor", "-o", "json"]);
    assert_eq!(models_check(&doctor)["health"], "good");
    let shown = with_key(&["agent", "show", "talker", "-o", "json"]);
    assert_eq!(shown.json()["provider"], who);
    for ran in [doctor, shown] {
        assert!(!format!("{ran:?}").contains(KEY), "{ran:?}");
    }
}
