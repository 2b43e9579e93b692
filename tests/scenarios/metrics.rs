//! L-014: what components count and measure, through real ones.

use serde_json::{Value, json};
use taskrun_journal::event::Event;
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::status::Status;
use taskrun_tests::{Builder, House, Script, Storage};

const POLICY: &str = r#"
[tool.meter]
component = "components/meter.wasm"

[agent.counter]
component = "components/scripted.wasm"
tools = ["meter/*"]
allow = ["metrics: *"]

[agent.narrow]
component = "components/scripted.wasm"
tools = ["meter/*"]
allow = ["metrics: pages"]
"#;

async fn run(house: &House, agent: &str, script: Script) -> Run {
    let run = house.run(agent, &script.then().reply("done").task()).await;
    assert_eq!(run.status(), Status::Completed, "{run:?}");
    run
}

fn shown(run: &Run) -> Value {
    serde_json::to_value(RunView::from(run)).expect("a view can be written")["metrics"].clone()
}

#[tokio::test]
async fn l_014_what_tools_count_and_measure_is_shown_with_the_run() {
    for storage in [Storage::Memory, Storage::Sqlite] {
        let house = Builder::new(POLICY).storage(storage).open().await;
        let script = Script::new()
            .call("c1", "meter/count", json!({ "name": "pages", "of": "docs" }))
            .call("c2", "meter/measure", json!({ "name": "wait_ms", "values": [1.5, 0.25, 4] }))
            .then()
            .call("c3", "meter/count", json!({ "name": "pages", "of": "docs", "delta": 41 }))
            .call("c4", "meter/count", json!({ "name": "not-a-name" }));
        let ended = run(&house, "counter", script).await;
        let expected = json!({
            "series": [
                { "source": "meter", "name": "pages", "labels": { "of": "docs" },
                  "kind": "counter", "sum": 42 },
                { "source": "meter", "name": "wait_ms",
                  "kind": "values", "count": 3, "sum": 5.75, "min": 0.25, "max": 4.0 },
            ],
            "dropped": 1,
        });
        assert_eq!(shown(&ended), expected);
        // Read again from where it is kept.
        let again = house.client().get(ended.id().as_str()).await.expect("there");
        assert_eq!(shown(&again), expected);
    }
}

#[tokio::test]
async fn l_014_metrics_that_no_rule_names_are_dropped_and_the_journal_says_so_once() {
    let house = Builder::new(POLICY).open().await;
    let script = Script::new().call("c1", "meter/count", json!({ "name": "pages" })).call(
        "c2",
        "meter/measure",
        json!({ "name": "wait_ms", "values": [1, 2, 3] }),
    );
    let ended = run(&house, "narrow", script).await;
    let expected = json!({
        "series": [{ "source": "meter", "name": "pages", "kind": "counter", "sum": 1 }],
    });
    assert_eq!(shown(&ended), expected);
    let journal = house.journal(ended.id().as_str()).await;
    let decided: Vec<_> = journal
        .iter()
        .filter_map(|one| {
            let Event::PolicyDecision { capability, subject, .. } = &one.event else { return None };
            Some((capability.as_str(), subject.as_str()))
        })
        .collect();
    assert_eq!(decided, [("metrics", "wait_ms")]);
}
