//! The parts, messages and errors that make a run's result (TS-22).

use taskrun_journal::run::RunView;
use taskrun_journal::status::{Status, StopReason};
use taskrun_tests::{Builder, Script};

const POLICY: &str = r#"
[agent.worker]
component = "components/scripted.wasm"
"#;

#[tokio::test]
async fn ts_22_parts_full_messages_and_errors_make_the_result() {
    let house = Builder::new(POLICY).open().await;
    let table = [
        (Script::new().delta("a").delta("b").reply("abc"), Some("abc"), None),
        (Script::new().delta("a").delta("b").reply("abc").delta("d"), Some("abc"), None),
        (Script::new().reply("first").reply("second"), Some("second"), None),
        (Script::new().reply("text").err("broken"), Some("text"), Some("broken")),
        (Script::new().err("first").err("broken").reply("text"), Some("text"), Some("broken")),
        (Script::new().delta("only ").delta("parts").close(), Some("only parts"), None),
    ];
    for (script, result, error) in table {
        let view = RunView::from(&house.run("worker", &script.task()).await);
        assert_eq!((view.result.as_deref(), view.error.as_deref()), (result, error), "{script:?}");
        let (status, reason) = match error {
            Some(_) => (Status::Failed, StopReason::AgentError),
            None => (Status::Completed, StopReason::FinalResponse),
        };
        assert_eq!((view.status, view.stop_reason), (status, Some(reason)), "{script:?}");
        assert_eq!(view.summary.as_deref(), error.or(result));
    }
}

#[tokio::test]
async fn ts_22_an_agent_that_says_nothing_has_not_answered() {
    let house = Builder::new(POLICY).open().await;
    let view = RunView::from(&house.run("worker", &Script::new().close().task()).await);
    assert_eq!(view.status, Status::Failed);
    assert_eq!(view.error.as_deref(), Some("empty output"));
}
