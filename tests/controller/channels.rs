//! Channels: bound to a run as the policy has them, shared with runs beneath it and never widened, told
//! what runs answer, and heard only where that is open; and the terminal of a session as a subscriber.

use serde_json::{Value, json};
use taskrun::error::ControllerError;
use taskrun::ports::transport::TransportKind;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::channel::{Channel, ChannelAccess};
use taskrun_journal::dispatch::DispatchState;
use taskrun_journal::event::Event;
use taskrun_journal::status::Status;

use super::common::{Gates, named, soon};
use super::dispatches::{People, acts, registered};
use super::host_tools::{leader_with, words};
use crate::native::{ClosurePlanner, Native, OWNER, SESSION, World, answer, request};

fn channel(name: &str, to: &str) -> Channel {
    let (name, to) = (name.to_owned(), to.to_owned());
    Channel { name, to, access: ChannelAccess::ReadWrite, muted: false, hidden: false }
}

/// Channels of each kind, by their names.
fn channels() -> [Channel; 5] {
    [
        channel("email-out", "transport/mail"),
        Channel { access: ChannelAccess::ReadOnly, ..channel("board", "transport/board") },
        Channel { muted: true, ..channel("quiet", "transport/quiet") },
        Channel { hidden: true, ..channel("audit", "transport/audit") },
        Channel { access: ChannelAccess::WriteOnly, ..channel("tips", "transport/tips") },
    ]
}

fn names() -> Vec<String> {
    channels().map(|channel| channel.name).to_vec()
}

fn in_policy(world: &mut World) {
    world.channels = channels().map(|channel| (channel.name.clone(), channel)).into();
}

/// Waits until all that is to be told of a run is.
async fn told(host: &Native, id: &str) -> Vec<String> {
    let rows = soon("all is told", async {
        loop {
            let rows = host.client().dispatches_of(id).await.expect("it is there");
            if rows.iter().all(|row| row.state == DispatchState::Delivered) {
                return rows;
            }
            tokio::task::yield_now().await;
        }
    });
    let mut names: Vec<_> = rows.await.into_iter().map(|row| row.key.subscriber).collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rs_10_a_shared_channel_appears_beneath_as_it_is_and_is_told_what_the_child_answers() {
    let mut world = World::new();
    in_policy(&mut world);
    let (_, mail, mails) = People::listening(TransportKind::Text);
    let others = ["board", "quiet", "audit", "tips"];
    let others = others.map(|name| (name, People::listening(TransportKind::Text).2));
    world.subscribers = registered([("mail", mails)]).with(&registered(others));
    // Its own agent's channels are none of a run beneath another one.
    world.agent_with("reviewer", ClosurePlanner::new(|_, _| async { answer("fine") }), |agent| {
        agent.channels = names();
    });
    leader_with(
        &mut world,
        ("assistant", &["reviewer"]),
        |_, said| {
            let shares = |names: Value| json!({ "agent": "reviewer", "task": "Review.", "share_channels": names });
            match said.len() {
                0 => vec![
                    ("delegate_task", shares(json!(["email-out", "board", "quiet", "audit"]))),
                    ("delegate_task", shares(json!(["tips", "nobody"]))),
                    ("delegate_task", json!({ "agent": "reviewer", "task": "Look." })),
                ],
                3 => {
                    let ids: Vec<_> = said.iter().map(|one| &one["task_id"]).collect();
                    vec![("await_tasks", json!({ "task_ids": ids }))]
                }
                _ => Vec::new(),
            }
        },
        |agent| agent.channels = names(),
    );
    let host = world.start().await;
    let id = host.spawn(&request("assistant", "x")).await;
    let said = words(&host, &id).await;
    let child = |nth: usize| said[nth]["task_id"].as_str().expect("an id").to_owned();
    let bound = |id: String| {
        let host = &host;
        async move { host.get(&id).await.spec.channels.clone() }
    };
    let [email, board, quiet, audit, tips] = channels();
    let mut shared = bound(child(0)).await;
    shared.sort_by(|one, other| other.name.cmp(&one.name));
    let by_name = [quiet, email, board, audit];
    assert_eq!(shared, by_name, "none of them is wider");
    assert_eq!(bound(child(1)).await, [tips], "others are passed over");
    assert_eq!(bound(child(2)).await, []);
    let to = ["audit", "board", "mail", "quiet"].map(|name| format!("transport/{name}"));
    assert_eq!(told(&host, &child(0)).await, to);
    assert_eq!(told(&host, &child(1)).await, [] as [String; 0], "nobody is told over it");
    // That of the conversation itself is told, too.
    told(&host, &id).await;
    let mut mails = acts(&mail);
    mails.sort();
    let mut expected = [
        format!("said: reviewer {}: completed", child(0)),
        format!("said: assistant {id}: completed"),
    ];
    expected.sort();
    assert_eq!(mails, expected);
}

fn delegates(agent: &str, names: Value) -> (&'static str, Value) {
    ("delegate_task", json!({ "agent": agent, "task": "Go.", "share_channels": names }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_has_no_channel_that_none_above_it_shares() {
    let mut world = World::new();
    in_policy(&mut world);
    world.agent("leaf", ClosurePlanner::new(|_, _| async { answer("fine") }));
    leader_with(
        &mut world,
        ("middle", &["leaf"]),
        |_, said| match said.len() {
            0 => vec![delegates("leaf", json!(["email-out", "board"]))],
            1 => vec![("await_tasks", json!({ "task_ids": [said[0]["task_id"]] }))],
            _ => Vec::new(),
        },
        |agent| agent.channels = names(),
    );
    leader_with(
        &mut world,
        ("top", &["middle"]),
        |_, said| match said.len() {
            0 => vec![delegates("middle", json!(["board"]))],
            1 => vec![("await_tasks", json!({ "task_ids": [said[0]["task_id"]] }))],
            _ => Vec::new(),
        },
        |agent| agent.channels = names(),
    );
    let host = world.start().await;
    let id = host.spawn(&request("top", "x")).await;
    let said = words(&host, &id).await;
    let middle = said[0]["task_id"].as_str().expect("an id");
    let said = words(&host, middle).await;
    let leaf = said[0]["task_id"].as_str().expect("an id");
    let [_, board, ..] = channels();
    assert_eq!(host.get(middle).await.spec.channels, std::slice::from_ref(&board));
    assert_eq!(host.get(leaf).await.spec.channels, [board]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r_026_a_room_has_the_channels_of_the_policy_where_the_call_names_none() {
    let mut world = World::new();
    in_policy(&mut world);
    world.agent("worker", ClosurePlanner::new(|_, _| async { answer("fine") }));
    leader_with(
        &mut world,
        ("lead", &["worker"]),
        |_, said| match said.is_empty() {
            true => vec![
                ("delegate_task", json!({ "agent": "worker", "task": "a" })),
                (
                    "delegate_task",
                    json!({ "agent": "worker", "task": "b", "share_channels": ["quiet"] }),
                ),
            ],
            false => Vec::new(),
        },
        |agent| {
            agent.channels = names();
            agent.delegation.share_channels = vec!["board".to_owned(), "tips".to_owned()];
        },
    );
    let host = world.start().await;
    let said = words(&host, &host.spawn(&request("lead", "x")).await).await;
    let mut bound = Vec::new();
    for child in &said {
        let run = host.get(child["task_id"].as_str().expect("an id")).await;
        let mut names: Vec<_> = run.spec.channels.iter().map(|one| one.name.clone()).collect();
        names.sort();
        bound.push(names);
    }
    assert_eq!(bound, [vec!["board", "tips"], vec!["quiet"]]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_are_heard_over_open_channels_and_no_others() {
    let (mut world, gates) = (World::new(), Gates::new());
    in_policy(&mut world);
    world.agent_with("a", gates.planner(), |agent| agent.channels = vec!["email-out".to_owned()]);
    let host = world.start().await;
    let all = names().into_iter().chain(["email-out".to_owned()]).collect();
    host.spawn(&SpawnRequest { channels: all, ..named("r", "a") }).await;
    gates.have_come(1).await;
    let client = host.client();
    for (name, is_heard) in
        [("email-out", true), ("audit", true), ("tips", true), ("board", false), ("quiet", false)]
    {
        match (client.hear("r", name, "Look.").await, is_heard) {
            (Ok(_), true) | (Err(ControllerError::Forbidden { .. }), false) => {}
            (other, _) => panic!("{name}: {other:?}"),
        }
    }
    let unknown = client.hear("r", "phone", "Look.").await;
    assert!(matches!(unknown, Err(ControllerError::Invalid { field: "channels", .. })));
    let by: Vec<String> = host
        .journal("r")
        .await
        .into_iter()
        .filter_map(|one| {
            let Event::Injected { by, .. } = one.event else { return None };
            Some(by)
        })
        .collect();
    assert_eq!(by, ["channel/email-out", "channel/audit", "channel/tips"]);
    gates.open("r");
}

#[tokio::test]
async fn only_channels_of_the_policy_are_named_and_beneath_a_run_only_its_own() {
    let (mut world, gates) = (World::new(), Gates::new());
    in_policy(&mut world);
    world.agent("a", gates.planner());
    let host = world.start().await;
    let refused = |request: SpawnRequest| {
        let client = host.client();
        async move {
            let refused = client.submit(&request).await;
            assert!(
                matches!(refused, Err(ControllerError::Invalid { field: "channels", .. })),
                "{refused:?}"
            );
        }
    };
    refused(SpawnRequest { channels: vec!["phone".to_owned()], ..request("a", "x") }).await;
    host.spawn(&named("above", "a")).await;
    refused(SpawnRequest {
        channels: vec!["email-out".to_owned()],
        parent_run_id: Some("above".to_owned()),
        ..request("a", "x")
    })
    .await;
    let subscribers = (0..13).map(|nth| format!("transport/t{nth}")).collect();
    refused(SpawnRequest { channels: names(), subscribers, ..request("a", "x") }).await;
}

/// The runs of which the terminal of a session is told now.
async fn at_terminal(host: &Native, owner: &str, session: &str) -> Vec<String> {
    let news = host.client().news_for_terminal(owner, session).await.expect("it may ask");
    news.iter().map(|one| one.news.run.id.to_string()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_is_told_of_the_runs_of_its_session_once_whenever_it_is_opened() {
    let mut world = World::new();
    world.agent_with("a", ClosurePlanner::new(|_, _| async { answer("done") }), |agent| {
        agent.subscribers = vec!["terminal".to_owned()];
    });
    let host = world.start().await;
    host.spawn(&named("own", "a")).await;
    host.spawn(&SpawnRequest { owner_user_id: "other".into(), ..named("foreign", "a") }).await;
    host.spawn(&SpawnRequest { parent_session_id: "elsewhere".into(), ..named("apart", "a") })
        .await;
    let one_shot =
        SpawnRequest { parent_session_id: String::new(), one_shot: true, ..named("alone", "a") };
    host.spawn(&one_shot).await;
    for id in ["own", "foreign", "apart", "alone"] {
        assert_eq!(host.end(id).await.status(), Status::Completed);
    }
    let rows = host.client().dispatches_of("alone").await.expect("it is there");
    assert_eq!(rows, [], "it has no session");
    let closed = world.door().await;
    let news = closed.client().news_for_terminal(OWNER, SESSION).await.expect("it may ask");
    let [only] = news.as_slice() else { panic!("{news:?}") };
    assert!(only.news.text.contains("a own: completed") && only.news.text.contains("done"));
    // The terminal was closed before it showed that: another one, in another process, does.
    let door = world.door().await;
    let again = door.client().news_for_terminal(OWNER, SESSION).await.expect("it may ask");
    assert_eq!(again.len(), 1);
    door.client().was_shown(&again[0]).await.expect("kept");
    for host in [&host, &closed, &door] {
        assert_eq!(at_terminal(host, OWNER, SESSION).await, [] as [String; 0]);
    }
    assert_eq!(at_terminal(&host, "other", SESSION).await, ["foreign"]);
    assert_eq!(at_terminal(&host, OWNER, "elsewhere").await, ["apart"]);
}
