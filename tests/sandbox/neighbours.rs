//! Case 11: spinning guests beside an honest one.

use serde_json::json;
use taskrun_journal::status::Status;
use taskrun_tests::{Builder, Script};

use super::EVIL;

/// Four times as many as the house has threads for guests of each kind.
const SPINNERS: usize = 8;
/// Turns of the honest run.
const TURNS: usize = 50;

#[tokio::test]
async fn case_11_an_honest_run_goes_on_while_four_times_as_many_guests_spin_as_there_are_threads() {
    let house = Builder::new(EVIL).slots(2 * SPINNERS).open().await;
    let (mut planners, mut callers) = (Vec::new(), Vec::new());
    let spin = Script::new().call("c1", "evil/spin", json!({})).task();
    for _ in 0..SPINNERS / 2 {
        planners.push(house.spawn(&house.request("patient_evil", "spin")).await);
        callers.push(house.spawn(&house.request("patient", &spin)).await);
    }
    for id in planners.iter().chain(&callers) {
        house.reach(id, Status::Running).await;
    }
    for id in &callers {
        house.event(id, |one| one.event.kind() == "tool_call_scheduled").await;
    }
    let mut honest = Script::new();
    for turn in 0..TURNS {
        let args = json!({ "result": { "turn": turn } });
        honest = honest.call(&format!("c{turn}"), "honest/lookup", args).then();
    }
    let run = house.run("honest", &honest.reply("survived").task()).await;
    assert_eq!(run.status(), Status::Completed, "{run:?}");
    assert_eq!(run.state.turns as usize, TURNS + 1);
    for id in planners.iter().chain(&callers) {
        let run = house.client().get(id).await.expect("there");
        assert_eq!(run.status(), Status::Running, "it spins all the while");
        house.client().cancel(id, None).await.expect("answers");
    }
    for id in planners.iter().chain(&callers) {
        assert_eq!(house.end(id).await.status(), Status::Canceled);
    }
}
