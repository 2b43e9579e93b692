//! Requests of callers: pages of a journal, the error of each end, refusals (LS-14, LS-19, LS-26,
//! LS-28).

use std::time::Duration;

use taskrun::error::ControllerError;
use taskrun_journal::list::{Cursor, ListFilter};
use taskrun_journal::plan::PlannerError;
use taskrun_journal::run::RunView;
use taskrun_journal::status::{Status, StopReason};

use crate::native::{ClosurePlanner, Gate, World, answer, request};

fn code<T>(result: Result<T, ControllerError>) -> Option<&'static str> {
    result.map_err(|error| error.code()).err()
}

#[tokio::test]
async fn ls_14_a_journal_is_read_in_pages_that_join_and_bad_pages_are_refused() {
    let mut world = World::new();
    world.agent("a", ClosurePlanner::new(|_, _| async { answer("done") }));
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    let head = host.end(&id).await.state.head;
    let (controller, scope) = (&host.controller, &host.scope);
    let mut positions = Vec::new();
    loop {
        let after = positions.last().copied().unwrap_or(0);
        let page = controller.at(scope).events(&id, after, 2).await.expect("reads");
        assert!(page.len() <= 2);
        if page.is_empty() {
            break;
        }
        positions.extend(page.iter().map(|recorded| recorded.seq));
    }
    assert_eq!(positions, (1..=head).collect::<Vec<_>>());
    let mut stream = controller.at(scope).follow(&id, head).await.expect("it is there");
    assert_eq!(stream.next(2).await.expect("it has ended"), []);
    assert_eq!(code(controller.at(scope).events(&id, 0, 0).await), Some("invalid"));
    assert_eq!(code(stream.next(0).await), Some("invalid"));
    assert_eq!(code(controller.at(scope).events("", 0, 2).await), Some("invalid"));
    assert!("not-an-int".parse::<Cursor>().is_err());
    let all = controller.at(scope).list(&ListFilter::default(), None, 16).await.expect("lists");
    assert!(all.next.is_none(), "there is no page after the last");
}

#[tokio::test]
async fn ls_19_every_end_has_its_status_and_error_and_what_has_not_ended_has_none() {
    let (mut world, gate) = (World::new(), Gate::new());
    world.agent("good", ClosurePlanner::new(|_, _| async { answer("done") }));
    let refuses = |_, _| async {
        Ok(Err(PlannerError {
            code: None,
            message: "no".into(),
            causes: Vec::new(),
            retry_after_ms: None,
        }))
    };
    world.agent("bad", ClosurePlanner::new(refuses));
    world.agent("slow", gate.answering("late"));
    let host = world.start().await;
    let ended = async |id: &str| {
        let view = RunView::from(&host.end(id).await);
        (view.status, view.stop_reason, view.error)
    };
    let good = host.spawn(&request("good", "x")).await;
    assert_eq!(ended(&good).await, (Status::Completed, Some(StopReason::FinalResponse), None));
    let bad = host.spawn(&request("bad", "x")).await;
    let (status, reason, error) = ended(&bad).await;
    assert_eq!((status, reason), (Status::Failed, Some(StopReason::AgentError)));
    assert_eq!(error.as_deref(), Some("no"));

    let mut asked = request("slow", "x");
    asked.timeout = Some(Duration::from_secs(10));
    let late = host.spawn(&asked).await;
    gate.reached_by(1).await;
    let open = host.view(&late).await;
    assert_eq!((open.status, open.stop_reason, open.error), (Status::Running, None, None));
    world.next(Duration::from_secs(10)).await;
    let (status, reason, error) = ended(&late).await;
    assert_eq!((status, reason), (Status::Failed, Some(StopReason::RunTimeout)));
    assert!(error.is_some_and(|text| text.contains("deadline exceeded")));

    let canceled = host.spawn(&request("slow", "x")).await;
    gate.reached_by(2).await;
    host.client().cancel(&canceled, None).await.expect("can be canceled");
    let (status, reason, error) = ended(&canceled).await;
    assert_eq!((status, reason), (Status::Canceled, Some(StopReason::CanceledByOwner)));
    assert_eq!(error, None, "to be canceled is no error");
}

#[tokio::test]
async fn ls_26_a_run_needs_a_session() {
    let mut world = World::new();
    world.agent("a", ClosurePlanner::new(|_, _| async { answer("done") }));
    let host = world.start().await;
    for session in ["", "  "] {
        let mut asked = request("a", "x");
        asked.parent_session_id = session.into();
        let refused = host.client().spawn(&asked).await.expect_err("refused");
        let ControllerError::Invalid { field, .. } = &refused else { panic!("{refused:?}") };
        assert_eq!(*field, "parent_session_id");
    }
    let one_shot = |session: &str, serial| {
        let mut asked = request("a", "x");
        asked.parent_session_id = session.into();
        (asked.one_shot, asked.serial) = (true, serial);
        asked
    };
    for (asked, refused) in
        [(one_shot("s", false), "parent_session_id"), (one_shot("", true), "serial")]
    {
        let error = host.client().spawn(&asked).await.expect_err("refused");
        let ControllerError::Invalid { field, .. } = &error else { panic!("{error:?}") };
        assert_eq!(*field, refused);
    }
    let all = host.client().list(&ListFilter::default(), None, 16).await;
    assert_eq!(all.expect("lists").runs, [], "nothing was stored");
    let id = host.spawn(&one_shot(" ", false)).await;
    assert_eq!(host.end(&id).await.spec.parent_session_id, "");
}

#[tokio::test]
async fn ls_28_a_known_run_is_canceled_once_and_no_other_is() {
    let (mut world, gate) = (World::new(), Gate::new());
    world.agent("a", gate.answering("late"));
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    gate.reached_by(1).await;
    let (controller, scope) = (&host.controller, &host.scope);
    assert_eq!(code(controller.at(scope).cancel("", None).await), Some("invalid"));
    // M-21: nothing was canceled, and that is said.
    assert_eq!(code(controller.at(scope).cancel("nobody", None).await), Some("not-found"));
    assert!(controller.at(scope).cancel(&id, None).await.expect("known").changed);
    host.end(&id).await;
    assert!(!controller.at(scope).cancel(&id, None).await.expect("known").changed);
    let kinds = host.kinds(&id).await;
    assert_eq!(kinds.iter().filter(|kind| **kind == "cancel_requested").count(), 1);
}
