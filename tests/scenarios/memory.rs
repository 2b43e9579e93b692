//! L-014: facts that tools write and planners read, through real components.

use serde_json::{Value, json};
use taskrun::spawn::SpawnRequest;
use taskrun_journal::event::Event;
use taskrun_journal::fact::{MemoryScope, OwnerSession};
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_journal::tool::ToolOutcome;
use taskrun_tests::{Builder, House, Script, Storage};

const POLICY: &str = r#"
[tool.notes]
component = "components/notes.wasm"

[agent.keeper]
component = "components/scripted.wasm"
tools = ["notes/*"]
members = ["keeper"]
allow = ["memory: *", "memory-write: *"]

[agent.careful]
component = "components/scripted.wasm"
tools = ["notes/*"]
members = ["keeper"]
allow = ["memory: *", "memory-write: session"]

[agent.recaller]
component = "components/recaller.wasm"
allow = ["memory: *"]

[agent.local]
component = "components/recaller.wasm"
allow = ["memory: session"]

[agent.forgetful]
component = "components/recaller.wasm"
deny = ["memory: *"]
"#;

fn keep(key: &str, text: &str, scope: &str) -> String {
    let args = json!({ "key": key, "text": text, "scope": scope });
    Script::new().call("c1", "notes/keep", args).then().reply("said").task()
}

async fn ask(house: &House, request: &SpawnRequest) -> Run {
    let id = house.spawn(request).await;
    house.end(&id).await
}

async fn told(house: &House, agent: &str, question: &str) -> String {
    ask(house, &house.request(agent, question)).await.state.reply.result().unwrap_or_default()
}

/// The outcome of the tool call of a run.
async fn outcome(house: &House, run: &Run) -> ToolOutcome {
    let journal = house.journal(run.id().as_str()).await;
    let results = journal.into_iter().filter_map(|one| {
        let Event::ToolResult { output, .. } = one.event else { return None };
        Some(output.outcome)
    });
    let results: Vec<_> = results.collect();
    let [only] = results.as_slice() else { panic!("{results:?}") };
    only.clone()
}

#[tokio::test]
async fn l_014_what_a_tool_keeps_a_planner_reads_in_a_later_run() {
    for storage in [Storage::Memory, Storage::Sqlite] {
        let house = Builder::new(POLICY).storage(storage).open().await;
        assert_eq!(told(&house, "recaller", "when do we deploy?").await, "nothing is remembered");
        let task = keep("deploy-day", "We deploy on Friday.", "session");
        let kept = ask(&house, &house.request("keeper", &task)).await;
        assert_eq!(kept.status(), Status::Completed, "{kept:?}");
        let journal = house.journal(kept.id().as_str()).await;
        let appended: Vec<_> =
            journal.iter().filter(|one| one.event.kind() == "memory_appended").collect();
        let [appended] = appended.as_slice() else { panic!("{journal:#?}") };
        let expected = Event::MemoryAppended {
            scope: MemoryScope::Session,
            key: "deploy-day".to_owned(),
            bytes: Some(30),
        };
        assert_eq!(appended.event, expected);

        let said = "deploy-day: We deploy on Friday.";
        assert_eq!(told(&house, "recaller", "when do we DEPLOY?").await, said);
        assert_eq!(told(&house, "recaller", "key: deploy-day").await, said);
        let recalled = ask(&house, &house.request("recaller", "deploy")).await;
        let journal = house.journal(recalled.id().as_str()).await;
        let kinds: Vec<_> = journal.iter().map(|one| one.event.kind()).collect();
        assert!(kinds.contains(&"host_answered"), "{kinds:?}");

        let forget = json!({ "key": "deploy-day" });
        let task = Script::new().call("c1", "notes/forget", forget).then().reply("x").task();
        let forgot = ask(&house, &house.request("keeper", &task)).await;
        assert_eq!(outcome(&house, &forgot).await, ToolOutcome::Value("true".to_owned()));
        assert_eq!(told(&house, "recaller", "deploy").await, "nothing is remembered");
    }
}

#[tokio::test]
async fn l_014_a_session_comes_before_the_tenant_and_nobody_reads_those_of_others() {
    for storage in [Storage::Memory, Storage::Sqlite] {
        let house = Builder::new(POLICY).storage(storage).open().await;
        let ours = house.request("keeper", &keep("day", "Friday for us", "session"));
        ask(&house, &ours).await;
        let all = house.request("keeper", &keep("day", "Monday for all", "tenant"));
        ask(&house, &all).await;
        let more = house.request("keeper", &keep("hour", "nine for all", "tenant"));
        ask(&house, &more).await;
        assert_eq!(
            told(&house, "recaller", "for us all").await,
            "day: Friday for us\nhour: nine for all"
        );
        assert_eq!(told(&house, "recaller", "key: day").await, "day: Friday for us");
        assert_eq!(told(&house, "local", "for").await, "day: Friday for us");
        for change in [
            (|request| request.parent_session_id = "parent-b".into()) as fn(&mut SpawnRequest),
            |request| request.owner_user_id = "user-b".into(),
        ] {
            let mut request = house.request("recaller", "key: day");
            change(&mut request);
            let run = ask(&house, &request).await;
            assert_eq!(run.state.reply.result().as_deref(), Some("day: Monday for all"));
            let mut request = house.request("local", "for us all");
            change(&mut request);
            let run = ask(&house, &request).await;
            assert_eq!(run.state.reply.result().as_deref(), Some("nothing is remembered"));
        }
        let zeta = taskrun_journal::list::Scope::tenant("zeta");
        let request = house.request("recaller", "for us all");
        let run = house.controller.at(&zeta).spawn(&request).await.expect("accepted");
        let ended =
            house.controller.at(&zeta).wait(run.id().as_str(), None).await.expect("ends").run;
        assert_eq!(ended.state.reply.result().as_deref(), Some("nothing is remembered"));
    }
}

#[tokio::test]
async fn l_014_rules_say_which_memory_is_read_and_which_is_written() {
    let house = Builder::new(POLICY).open().await;
    let refused = ask(&house, &house.request("careful", &keep("k", "t", "tenant"))).await;
    let ToolOutcome::Failure(failure) = outcome(&house, &refused).await else { panic!("kept") };
    assert_eq!(failure.error.code.as_deref(), Some("denied"), "{failure:?}");
    let journal = house.journal(refused.id().as_str()).await;
    let decided: Vec<_> = journal
        .iter()
        .filter_map(|one| {
            let Event::PolicyDecision { capability, subject, .. } = &one.event else { return None };
            Some((capability.as_str(), subject.as_str()))
        })
        .collect();
    assert_eq!(decided, [("memory-write", "tenant")]);
    let kept = ask(&house, &house.request("careful", &keep("k", "t", "session"))).await;
    assert_eq!(outcome(&house, &kept).await, ToolOutcome::Value("true".to_owned()));

    let denied = ask(&house, &house.request("forgetful", "t")).await;
    assert_eq!(denied.status(), Status::Failed, "{denied:?}");
    let error = denied.ending().and_then(|ending| ending.error.clone()).unwrap_or_default();
    assert!(error.contains("memory: *"), "{error}");
}

#[tokio::test]
async fn l_014_runs_beneath_a_run_share_the_memory_of_its_session_and_not_more_than_its_rules() {
    let house = Builder::new(POLICY).open().await;
    let parent = house.request("careful", &Script::new().block().task());
    let parent = house.spawn(&parent).await;
    house.reach(&parent, Status::Running).await;
    // As a component starts it: from the parent's own session.
    let beneath = |task: String| SpawnRequest {
        parent_run_id: Some(parent.clone()),
        parent_session_id: "taskrun:of-the-parent".into(),
        ..house.request("keeper", &task)
    };
    let kept = ask(&house, &beneath(keep("k", "from beneath", "session"))).await;
    assert_eq!(outcome(&house, &kept).await, ToolOutcome::Value("true".to_owned()));
    assert_eq!(told(&house, "recaller", "beneath").await, "k: from beneath");
    let refused = ask(&house, &beneath(keep("k", "t", "tenant"))).await;
    let ToolOutcome::Failure(failure) = outcome(&house, &refused).await else { panic!("kept") };
    assert!(failure.error.message.contains("agent careful"), "{failure:?}");
    house.client().cancel(&parent, None).await.expect("canceled");
}

#[tokio::test]
async fn l_014_facts_end_with_their_session_and_others_stay() {
    for storage in [Storage::Memory, Storage::Sqlite] {
        let house = Builder::new(POLICY).storage(storage).open().await;
        for (key, scope) in [("a", "session"), ("b", "session"), ("c", "tenant")] {
            ask(&house, &house.request("keeper", &keep(key, "fact", scope))).await;
        }
        let deleted = house.client().delete_session("parent-a").await;
        assert_eq!(deleted.expect("deleted").facts, 2);
        let session =
            OwnerSession { owner_user_id: "user-a".to_owned(), id: "parent-a".to_owned() };
        let left = house.client().facts(Some(&session), None, 9).await;
        assert_eq!(left.expect("listed"), []);
        let left = house.client().facts(None, None, 9).await.expect("listed");
        assert_eq!(left.iter().map(|fact| fact.key.as_str()).collect::<Vec<_>>(), ["c"]);
    }
}

#[tokio::test]
async fn l_014_a_tool_finds_what_it_kept_and_is_told_its_bounds() {
    let house = Builder::new(POLICY).open().await;
    let task = Script::new()
        .call("c1", "notes/keep", json!({ "key": "k", "text": "apples", "topic": "cellar" }))
        .then()
        .call("c2", "notes/find", json!({ "query": "CELLAR \" OR *" }))
        .then()
        .call("c3", "notes/keep", json!({ "key": "a\u{7}b", "text": "t" }))
        .then()
        .reply("done")
        .task();
    let run = ask(&house, &house.request("keeper", &task)).await;
    let journal = house.journal(run.id().as_str()).await;
    let outcomes: Vec<ToolOutcome> = journal
        .into_iter()
        .filter_map(|one| {
            let Event::ToolResult { output, .. } = one.event else { return None };
            Some(output.outcome)
        })
        .collect();
    let [kept, found, refused] = outcomes.as_slice() else { panic!("{outcomes:?}") };
    assert_eq!(kept, &ToolOutcome::Value("true".to_owned()));
    let ToolOutcome::Value(found) = found else { panic!("{found:?}") };
    let found: Value = serde_json::from_str(found).expect("JSON");
    assert_eq!(found, json!({ "notes": [{ "key": "k", "text": "apples" }] }));
    let ToolOutcome::Failure(refused) = refused else { panic!("{refused:?}") };
    assert_eq!(refused.error.code.as_deref(), Some("invalid"));
}
