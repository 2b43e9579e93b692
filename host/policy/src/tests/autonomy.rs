//! `autonomous` of an agent.

use taskrun_journal::answers::Answers;
use taskrun_journal::autonomy::{AutonomyMode, DoneTool};

use super::super::{AutonomySettings, Policy, PolicyErrors};
use super::parse;

fn read(body: &str) -> Result<Policy, PolicyErrors> {
    parse(&format!("[agent.a]\ncomponent = \"a.wasm\"\n{body}\n"))
}

fn settings(body: &str) -> Option<AutonomySettings> {
    let policy = read(body).unwrap_or_else(|errors| panic!("{body}: {errors}"));
    policy.agents["a"].autonomous.clone()
}

#[test]
fn c_015_what_is_not_stated_has_its_default_and_rounds_are_bounded() {
    assert_eq!(settings(""), None);
    let default = AutonomySettings::default();
    assert_eq!((settings("autonomous = {}"), default.rounds), (Some(default), Some(50)));
    let all = settings(
        "autonomous = { mode = \"bounded\", rounds = 7, continuation = \" go on \", \
         result = '{\"type\":\"object\"}', done = { name = \"finish\", description = \"Ends.\" }, \
         states = [\"on\", \"off\"], max_defer = \"7d\", answers = \"refuse:not now\" }",
    );
    let text = |text: &str| Some(text.to_owned());
    let expected = AutonomySettings {
        mode: Some(AutonomyMode::Bounded),
        rounds: Some(7),
        continuation: text("go on"),
        result_schema: text("{\"type\":\"object\"}"),
        done: Some(DoneTool { name: text("finish"), description: text("Ends.") }),
        states: vec!["on".to_owned(), "off".to_owned()],
        max_defer: Some(std::time::Duration::from_secs(7 * 24 * 3_600)),
        answers: Some(Answers::Refuse { reason: "not now".to_owned() }),
    };
    assert_eq!(all, Some(expected));
    let unbounded = "budget = { usd = 1 }\nautonomous = { rounds = \"none\" }";
    assert_eq!(settings(unbounded).and_then(|settings| settings.rounds), None);
}

#[test]
fn what_cannot_be_meant_is_told_with_what_to_write_instead() {
    let table = [
        ("rounds = \"none\"", "nothing else bounds what the run spends"),
        ("rounds = \"many\"", "it is no number"),
        ("rounds = 0", "rounds"),
        ("mode = \"forever\"", "standing"),
        ("continuation = \"  \"", "it has 1 to 16384 bytes"),
        ("result = \"{\"", "it is not JSON"),
        ("done = { name = \"Finish it\" }", "it is none of a function"),
        ("done = { name = \"ask_user\" }", "another tool of the host has this name"),
        ("states = [\"two words\"]", "it is no word"),
        ("answers = \"somebody\"", "it names nobody"),
        ("answers = \"fixed:\"", "its text has 1 to 4096 bytes"),
        ("round = 3", "did you mean `rounds`?"),
    ];
    for (body, expected) in table {
        let refused = read(&format!("autonomous = {{ {body} }}")).expect_err(body).to_string();
        assert!(refused.contains(expected), "{body}: {refused}");
    }
}

#[test]
fn pins_do_not_change_with_it_as_each_run_keeps_what_it_was_accepted_with() {
    let pin = |body: &str| {
        let policy = read(body).unwrap_or_else(|errors| panic!("{body}: {errors}"));
        let digest = |_: &std::path::Path| Some("blake3:00".to_owned());
        policy.closure(&policy.agents["a"], &digest).expect("known").pin()
    };
    assert_eq!(pin(""), pin("autonomous = { rounds = 3 }"));
}
