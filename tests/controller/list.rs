//! Listing: filters, order, pages (M-23).

use std::time::Duration;

use taskrun_journal::ids::RunId;
use taskrun_journal::list::{Cursor, ListFilter, Scope};
use taskrun_journal::status::Status;
use taskrun_journal::time::Clock;

use crate::native::{ClosurePlanner, Gate, Native, OWNER, SESSION, World, answer, request};

/// A host with an agent that answers and one that stays at the gate.
async fn host(world: &mut World, gate: &Gate) -> Native {
    world.agent("quick", ClosurePlanner::new(|_, _| async { answer("done") }));
    world.agent("slow", gate.answering("done"));
    world.start().await
}

async fn listed(host: &Native, scope: &Scope, filter: &ListFilter) -> Vec<String> {
    let page = host.controller.at(scope).list(filter, None, 200).await.expect("a page");
    page.runs.iter().map(|run| run.id().to_string()).collect()
}

#[tokio::test]
async fn m_23_every_filter_narrows_and_all_hold_together() {
    let (mut world, gate) = (World::new(), Gate::new());
    let host = host(&mut world, &gate).await;
    let mut asked = request("slow", "x");
    asked.id = Some("root".into());
    asked.labels.insert("team".into(), "red".into());
    asked.parent_app_name = Some("app".into());
    host.spawn(&asked).await;
    gate.reached_by(1).await;
    world.clock.advance(Duration::from_secs(1));
    let later = world.clock.now();
    for (id, agent, parent) in
        [("child", "slow", "root"), ("grandchild", "slow", "child"), ("other", "quick", "")]
    {
        let mut asked = request(agent, "x");
        asked.id = Some(id.into());
        asked.parent_run_id = Some(parent.to_owned()).filter(|parent| !parent.is_empty());
        host.spawn(&asked).await;
    }
    gate.reached_by(3).await;
    host.end("other").await;
    let mut theirs = request("quick", "x");
    theirs.owner_user_id = "user-b".into();
    theirs.id = Some("theirs".into());
    host.spawn(&theirs).await;
    host.end("theirs").await;

    let id = |id: &str| RunId::new(id).expect("an id");
    let mine = host.scope.clone().owner(OWNER).session(SESSION);
    let none = ListFilter::default;
    let table: &[(ListFilter, &[&str])] = &[
        (none(), &["child", "grandchild", "other", "root"]),
        (ListFilter { status: vec![Status::Running], ..none() }, &["child", "grandchild", "root"]),
        (
            ListFilter { status: vec![Status::Running, Status::Completed], ..none() },
            &["child", "grandchild", "other", "root"],
        ),
        (ListFilter { status: vec![Status::Failed], ..none() }, &[]),
        (ListFilter { agent_name: Some("quick".into()), ..none() }, &["other"]),
        (ListFilter { parent_run_id: Some(id("root")), ..none() }, &["child"]),
        (ListFilter { root_run_id: Some(id("root")), ..none() }, &["child", "grandchild", "root"]),
        (ListFilter { root_run_id: Some(id("other")), ..none() }, &["other"]),
        (ListFilter { root_run_id: Some(id("child")), ..none() }, &[]),
        (ListFilter { labels: [("team".into(), "red".into())].into(), ..none() }, &["root"]),
        (ListFilter { labels: [("team".into(), "blue".into())].into(), ..none() }, &[]),
        (ListFilter { since: Some(later), ..none() }, &["child", "grandchild", "other"]),
        (
            ListFilter { root_run_id: Some(id("root")), since: Some(later), ..none() },
            &["child", "grandchild"],
        ),
    ];
    for (filter, expected) in table {
        let mut found = listed(&host, &mine, filter).await;
        found.sort();
        assert_eq!(found, *expected, "{filter:?}");
    }
    let app = Scope { parent_app_name: Some("app".into()), ..mine };
    assert_eq!(listed(&host, &app, &none()).await, ["root"]);
    assert_eq!(listed(&host, &host.scope.clone().owner("user-b"), &none()).await, ["theirs"]);
    assert_eq!(listed(&host, &Scope::tenant("other"), &none()).await, [""; 0]);
    gate.open();
}

#[tokio::test]
async fn m_23_the_run_changed_last_comes_first_ties_by_id_and_pages_fit_together() {
    let (mut world, gate) = (World::new(), Gate::new());
    // Nobody executes anything, so that only the test changes runs.
    world.settings.slots = 0;
    let host = host(&mut world, &gate).await;
    // Three times two runs in the same millisecond, accepted against the order of their ids.
    for pair in [["a-2", "a-1"], ["b-1", "b-2"], ["c-2", "c-1"]] {
        for id in pair {
            let mut asked = request("quick", "x");
            asked.id = Some(id.into());
            host.spawn(&asked).await;
        }
        world.clock.advance(Duration::from_secs(1));
    }
    let all = listed(&host, &host.scope, &ListFilter::default()).await;
    assert_eq!(all, ["c-2", "c-1", "b-2", "b-1", "a-2", "a-1"]);
    host.client().cancel("a-1", None).await.expect("there");
    let all = listed(&host, &host.scope, &ListFilter::default()).await;
    assert_eq!(all, ["a-1", "c-2", "c-1", "b-2", "b-1", "a-2"]);
    for limit in 1..=7 {
        let (mut cursor, mut paged) = (None::<Cursor>, Vec::new());
        loop {
            let filter = ListFilter::default();
            let page = host.client().list(&filter, cursor.as_ref(), limit).await;
            let page = page.expect("a page");
            assert!(page.runs.len() <= limit);
            paged.extend(page.runs.iter().map(|run| run.id().to_string()));
            // Callers keep cursors as text.
            cursor = page.next.map(|next| next.to_string().parse().expect("its own text"));
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(paged, all, "pages of {limit}");
    }
}

#[tokio::test]
async fn m_23_progress_does_not_reorder() {
    let (mut world, gate) = (World::new(), Gate::new());
    let own = gate.clone();
    world.agent(
        "talks",
        ClosurePlanner::new(move |_, scope| {
            let gate = own.clone();
            async move {
                gate.pass().await;
                scope.record(taskrun_journal::event::Event::AssistantChunk { text: "do".into() });
                scope.stop().forced().await;
                answer("never")
            }
        }),
    );
    let host = world.start().await;
    let first = host.spawn(&request("talks", "x")).await;
    gate.reached_by(1).await;
    world.clock.advance(Duration::from_secs(1));
    let second = host.spawn(&request("talks", "x")).await;
    gate.reached_by(2).await;
    world.clock.advance(Duration::from_secs(1));
    gate.open();
    for id in [&first, &second] {
        host.until(id, "talks", |run| run.state.progress.event_count == 1).await;
    }
    let order = listed(&host, &host.scope, &ListFilter::default()).await;
    assert_eq!(order, [second, first]);
}
