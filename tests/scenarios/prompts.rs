//! LS-17's rendering: prompts of the policy through a real component.

use serde_json::json;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::event::{Event, OverrideReason};
use taskrun_journal::list::ListFilter;
use taskrun_journal::run::RunView;
use taskrun_journal::status::Status;
use taskrun_tests::{Builder, House, Storage};

const POLICY: &str = r#"
[prompt.brief]
template = """
Answer in one sentence:
{{ question }}"""
overrides = [
  { labels = ["tier=gold"], template = "Answer at length: {{ question }}" },
  { session = "s-loud", template = "ANSWER: {{ question|upper }}" },
]

[prompt.needy]
template = "{{ question }} {{ answer }}"

[prompt.secret]
template = "never seen"

[agent.briefer]
component = "components/briefer.wasm"
allow = ["prompts: *"]
deny = ["prompts: secret"]
"#;

async fn run(house: &House, task: &str, change: impl FnOnce(&mut SpawnRequest)) -> RunView {
    let mut request = house.request("briefer", task);
    change(&mut request);
    let id = house.spawn(&request).await;
    RunView::from(&house.end(&id).await)
}

#[tokio::test]
async fn ls_17_a_rendered_prompt_is_in_the_journal_with_its_digest() {
    for storage in [Storage::Memory, Storage::Sqlite] {
        let house = Builder::new(POLICY).storage(storage).open().await;
        let view = run(&house, "brief why?", |_| {}).await;
        assert_eq!(view.result.as_deref(), Some("Answer in one sentence:\nwhy?"), "{view:?}");
        let journal = house.journal(view.id.as_str()).await;
        let rendered: Vec<_> =
            journal.iter().filter(|one| one.event.kind() == "prompt_rendered").collect();
        let [rendered] = rendered.as_slice() else { panic!("{journal:#?}") };
        let Event::PromptRendered { id, digest, chosen_by: None } = &rendered.event else {
            panic!("{rendered:?}")
        };
        assert_eq!((id.as_str(), digest.len()), ("brief", 64));
        let text = serde_json::to_value(&rendered.event).expect("it can be written");
        let shown = json!({"kind": "prompt_rendered", "id": "brief", "digest": digest});
        assert_eq!(text, shown);
    }
}

#[tokio::test]
async fn ls_17_a_one_shot_run_is_in_no_session_and_has_its_journal() {
    for storage in [Storage::Memory, Storage::Sqlite] {
        let house = Builder::new(POLICY).storage(storage).open().await;
        let session = house.request("briefer", "brief why?").parent_session_id;
        let view = run(&house, "brief why?", |request| {
            request.parent_session_id = String::new();
            request.one_shot = true;
        })
        .await;
        assert_eq!(view.result.as_deref(), Some("Answer in one sentence:\nwhy?"), "{view:?}");
        let journal = house.journal(view.id.as_str()).await;
        let kinds: Vec<_> = journal.iter().map(|one| one.event.kind()).collect();
        assert_eq!((kinds[0], kinds[kinds.len() - 1]), ("queued", "finished"));
        assert_eq!(kinds.iter().filter(|kind| **kind == "prompt_rendered").count(), 1);
        for (id, code) in [(session.as_str(), "not-found"), ("", "invalid")] {
            let refused = house.client().session(id).await.expect_err("refused");
            assert_eq!(refused.code(), code, "no session is known by it");
        }
        let of_session = house.scope.clone().session(&session);
        let listed = house.controller.at(&of_session).list(&ListFilter::default(), None, 16).await;
        assert_eq!(listed.expect("lists").runs, []);
    }
}

#[tokio::test]
async fn l_016_sessions_come_before_labels_and_both_before_the_prompt_itself() {
    let house = Builder::new(POLICY).open().await;
    let gold = |request: &mut SpawnRequest| {
        request.labels.insert("tier".into(), "gold".into());
    };
    let loud = |request: &mut SpawnRequest| request.parent_session_id = "s-loud".into();
    let both = |request: &mut SpawnRequest| {
        gold(request);
        loud(request);
    };
    type Change<'c> = &'c dyn Fn(&mut SpawnRequest);
    let cases: [(&str, Change<'_>, OverrideReason); 3] = [
        ("Answer at length: why?", &gold, OverrideReason::Labels),
        ("ANSWER: WHY?", &loud, OverrideReason::Session),
        ("ANSWER: WHY?", &both, OverrideReason::Session),
    ];
    for (text, change, by) in cases {
        let view = run(&house, "brief why?", change).await;
        assert_eq!(view.result.as_deref(), Some(text), "{view:?}");
        let journal = house.journal(view.id.as_str()).await;
        let says = |one: &taskrun_journal::event::EventRecord| matches!(one.event, Event::PromptRendered { chosen_by: Some(found), .. } if found == by);
        assert!(journal.iter().any(says), "{journal:#?}");
    }
}

#[tokio::test]
async fn a_prompt_that_cannot_be_had_is_an_error_with_its_case() {
    let house = Builder::new(POLICY).open().await;
    for (task, said) in [
        ("absent x", "there is no prompt absent"),
        ("needy x", "undefined value"),
        ("secret x", "denied by \"prompts: secret\""),
    ] {
        let view = run(&house, task, |_| {}).await;
        assert_eq!(view.status, Status::Failed, "{view:?}");
        assert!(view.error.as_deref().is_some_and(|error| error.contains(said)), "{view:?}");
        let journal = house.journal(view.id.as_str()).await;
        let kinds: Vec<_> = journal.iter().map(|one| one.event.kind()).collect();
        assert!(!kinds.contains(&"prompt_rendered"), "{kinds:?}");
        assert_eq!(kinds.contains(&"policy_decision"), task.starts_with("secret"), "{kinds:?}");
    }
}
