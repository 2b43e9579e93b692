//! The run that an argument names: a whole id, a name, the beginning of an id, or `@last`.
//!
//! They are tried in this order. A name never is the beginning of an id that a host made; of one
//! that a caller gave it can be, and then means the run of that name. An open run of the name comes
//! before one that ended. `@last` is the run that was started last, but for those that agents and
//! hosts start: a person who cancels it means the whole that was asked for, and not a part of it.

mod last;

use taskrun::controller::Client;
use taskrun::error::ControllerError;
use taskrun_journal::list::{Cursor, ListFilter, PAGE_MAX};
use taskrun_journal::name::check_name;
use taskrun_journal::run::Run;
use taskrun_runtime::asking_run;

use self::last::last;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::output::escape::escaped_line;
use crate::output::human;

/// The word for the run that was started last.
const LAST: &str = "@last";
/// Fewest characters that may stand for an id; fewer are more likely a mistake.
pub(crate) const PREFIX_CHARS_MIN: usize = 4;
/// Most pages that are searched for a prefix: the ten thousand runs changed last.
const PAGES_MAX: usize = 50;
/// Candidates that an error names.
const CANDIDATES_NAMED_MAX: usize = 5;

/// The runs that these mean, in their order.
///
/// # Errors
/// The first of which there is none, or more than one.
pub(crate) async fn resolve_all(client: &Client, texts: &[String]) -> Outcome<Vec<Run>> {
    let mut runs = Vec::with_capacity(texts.len());
    for text in texts {
        runs.push(resolve(client, text).await?);
    }
    Ok(runs)
}

/// The run that `text` means.
///
/// # Errors
/// If there is none, or more than one.
pub(crate) async fn resolve(client: &Client, text: &str) -> Outcome<Run> {
    if text == LAST {
        return last(client).await;
    }
    if text.trim().is_empty() {
        return Err(Failure::usage("invalid", "empty run id")
            .hint("give an id or a name from `taskrun ps -a`, or @last"));
    }
    if text.starts_with('@') {
        return Err(Failure::usage("not-found", format!("{text:?} means no run")).hint(
            "write @last for the run started last that no agent and no host started, or an id or \
             a name from `taskrun ps -a`",
        ));
    }
    match client.get(text).await {
        Ok(run) => return Ok(run),
        Err(ControllerError::NotFound { .. }) => {}
        Err(other) => return Err(other.into()),
    }
    if check_name(text).is_ok()
        && let Some(run) = named(client, text).await?
    {
        return Ok(run);
    }
    if text.chars().count() < PREFIX_CHARS_MIN {
        let message = format!("there is no run of the name {text:?}");
        return Err(Failure::usage("not-found", message).hint(format!(
            "list the runs with `taskrun ps -a`; the beginning of an id has at least \
             {PREFIX_CHARS_MIN} characters"
        )));
    }
    let mut found = Vec::new();
    let mut pages = Pages::of(client);
    while let Some(runs) = pages.next().await? {
        found.extend(runs.into_iter().filter(|run| run.id().as_str().starts_with(text)));
    }
    match found.len() {
        0 => {
            let failure = Box::<Failure>::from(ControllerError::NotFound { id: text.to_owned() });
            Err(if pages.are_over {
                failure
            } else {
                failure.hint(
                    "only the runs changed last are searched for a beginning; give the whole id",
                )
            })
        }
        1 => Ok(found.remove(0)),
        _ => Err(ambiguous(text, "the beginning", "give more of the id", &found)),
    }
}

/// The open run of a name, or else the one that ended last.
async fn named(client: &Client, name: &str) -> Outcome<Option<Run>> {
    let all = ListFilter { name: Some(name.to_owned()), ..ListFilter::default() };
    let open = ListFilter { name: all.name.clone(), ..ListFilter::open() };
    let mut found = client.list(&open, None, PAGE_MAX).await?.runs;
    if found.len() > 1 {
        let hint = "give an id, or say whose it is with --owner and --session";
        return Err(ambiguous(name, "the name", hint, &found));
    }
    if found.is_empty() {
        found = client.list(&all, None, 1).await?.runs;
    }
    Ok(found.pop())
}

fn ambiguous(text: &str, what: &str, hint: &'static str, found: &[Run]) -> Box<Failure> {
    let count = human::count(found.len() as u64, "run");
    let mut failure =
        Failure::usage("ambiguous", format!("{text:?} is {what} of {count}")).hint(hint);
    failure.causes = found
        .iter()
        .take(CANDIDATES_NAMED_MAX)
        .map(|run| format!("{} ({}, {})", run.id(), run.spec.agent_name, run.status()))
        .collect();
    if found.len() > CANDIDATES_NAMED_MAX {
        failure.causes.push(format!("and {} more", found.len() - CANDIDATES_NAMED_MAX));
    }
    failure
}

/// The run that is to be answered where `text` is given: of `@last`, if that asks nothing itself,
/// the one that it waits for and that asks. Tells of it then.
///
/// # Errors
/// As [`resolve`], and those of looking at what the run waits for.
pub(crate) async fn resolve_asking(context: &Context, client: &Client, text: &str) -> Outcome<Run> {
    let run = resolve(client, text).await?;
    if text != LAST || !client.asks(run.id().as_str()).await?.is_empty() {
        return Ok(run);
    }
    let Some(found) = asked_beneath(context, client, &run).await? else { return Ok(run) };
    let agent = escaped_line(&found.spec.agent_name);
    context.printer.talk(format!("{LAST} waits for {agent} {}, which asks", found.id()));
    Ok(found)
}

/// The run that asks something and that another one, which asks nothing itself, waits for; `None`
/// where there is none, or none that the caller sees.
///
/// # Errors
/// Those of looking at what the run waits for.
pub(crate) async fn asked_beneath(
    context: &Context,
    client: &Client,
    run: &Run,
) -> Outcome<Option<Run>> {
    let Some(found) = asking_run(client, run, context.now()).await? else { return Ok(None) };
    let asks = match client.asks(found.id().as_str()).await {
        Err(ControllerError::NotFound { .. }) => false,
        asked => !asked?.is_empty(),
    };
    Ok(asks.then_some(found))
}

/// Pages of all runs that a client sees, those first that changed last.
struct Pages<'a> {
    client: &'a Client,
    after: Option<Cursor>,
    left: usize,
    /// True once the last run was on a page.
    are_over: bool,
}

impl<'a> Pages<'a> {
    fn of(client: &'a Client) -> Self {
        Self { client, after: None, left: PAGES_MAX, are_over: false }
    }

    /// The next page; `None` after the last one, and after as many as are searched.
    async fn next(&mut self) -> Outcome<Option<Vec<Run>>> {
        if self.are_over || self.left == 0 {
            return Ok(None);
        }
        let page = self.client.list(&ListFilter::default(), self.after.as_ref(), PAGE_MAX).await?;
        self.left -= 1;
        self.are_over = page.next.is_none();
        self.after = page.next;
        Ok(Some(page.runs))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use taskrun_journal::event::{Event, EventRecord};
    use taskrun_journal::ids::HostId;
    use taskrun_journal::list::Scope;
    use taskrun_journal::machine;
    use taskrun_journal::pin::Ready;
    use taskrun_journal::spec::RunSpec;
    use taskrun_journal::status::StopReason;
    use taskrun_journal::store::{Admission, Append, AppendOutcome, Claim, CreateOutcome, NewRun};
    use taskrun_journal::time::Timestamp;
    use taskrun_runtime::Storage;

    use super::*;
    use crate::context::no_agents;

    fn spec(id: &str, owner: &str, name: Option<&str>) -> RunSpec {
        let spec = serde_json::json!({
            "id": id, "root_run_id": id, "tenant": "default", "owner_user_id": owner,
            "parent_session_id": "cli", "child_session_id": format!("session of {id}"),
            "agent_name": "a", "agent_digest": "d",
            "pin": "p", "task": "t", "depth": 0, "priority": 0, "created_at": 1_000,
            "name": name,
        });
        serde_json::from_value(spec).expect("all that has no default")
    }

    async fn keep(storage: &Storage, spec: RunSpec) -> Run {
        let event = Event::Queued { spec: Arc::new(spec) };
        let first = EventRecord { seq: 1, id: 1, at: Timestamp(1_000), event };
        let run = machine::begin(&first).expect("begins");
        let new = NewRun {
            run: run.clone(),
            events: vec![first],
            idempotency: None,
            task: None,
            artifacts: Vec::new(),
            admission: Admission::UNBOUNDED,
        };
        let created = storage.store.create(new).await.expect("creates");
        assert!(matches!(created, CreateOutcome::New), "{created:?}");
        run
    }

    /// Has a host execute all runs that wait for one, each in a session of its own.
    async fn execute(storage: &Storage) {
        let claim = Claim {
            host: HostId::new("h"),
            limit: 9,
            finalizers: 0,
            tree_slots: u32::MAX,
            ready: Ready::All,
            resumes: 0,
            now: Timestamp(2_500),
        };
        storage.store.claim(claim).await.expect("claims");
    }

    async fn end(storage: &Storage, run: &Run, at: u64) {
        let mut state = run.state.clone();
        let mut events = Vec::new();
        for event in machine::decide::cancel(run, StopReason::CanceledByOwner, None) {
            let one = EventRecord { seq: state.head + 1, id: at, at: Timestamp(at), event };
            state = machine::apply(state, &one).expect("fits");
            events.push(one);
        }
        let append = Append {
            run: Arc::new(Run { spec: Arc::clone(&run.spec), state }),
            epoch: run.state.epoch,
            expected_head: run.state.head,
            events: events.into(),
            artifacts: Vec::new(),
            reports: None,
        };
        assert_eq!(storage.store.append(append).await.expect("appends"), AppendOutcome::Done);
    }

    /// The id of the run that a text means, or the code and causes of the failure.
    async fn meant(storage: &Storage, scope: &Scope, text: &str) -> Result<String, String> {
        match resolve(&storage.watch(no_agents()).at(scope), text).await {
            Ok(run) => Ok(run.id().to_string()),
            Err(failure) => Err(format!("{}: {}", failure.code, failure.causes.join("; "))),
        }
    }

    #[tokio::test]
    async fn a_name_means_its_open_run_or_else_the_one_that_ended_last() {
        let storage = Storage::in_memory();
        let all = Scope::tenant("default");
        for (id, at) in [("0199-a", 3_000), ("0199-b", 2_000)] {
            let run = keep(&storage, spec(id, "ann", Some("up"))).await;
            end(&storage, &run, at).await;
        }
        assert_eq!(meant(&storage, &all, "up").await, Ok("0199-a".to_owned()));
        keep(&storage, spec("0199-c", "ann", Some("up"))).await;
        assert_eq!(meant(&storage, &all, "up").await, Ok("0199-c".to_owned()));
        keep(&storage, spec("0199-d", "bob", Some("up"))).await;
        let ambiguous = "ambiguous: 0199-d (a, queued); 0199-c (a, queued)";
        assert_eq!(meant(&storage, &all, "up").await, Err(ambiguous.to_owned()));
        let bob = all.clone().owner("bob");
        assert_eq!(meant(&storage, &bob, "up").await, Ok("0199-d".to_owned()));
        let nobody = all.clone().owner("eve");
        assert!(meant(&storage, &nobody, "up").await.is_err());
    }

    /// The request of a run that the agent of `above` started.
    fn beneath(above: &RunSpec, id: &str, at: u64) -> RunSpec {
        RunSpec {
            parent_run_id: Some(above.id.clone()),
            root_run_id: above.root_run_id.clone(),
            parent_session_id: format!("session of {}", above.id),
            root_session_id: Some("cli".to_owned()),
            depth: above.depth + 1,
            created_at: Timestamp(at),
            ..spec(id, "ann", None)
        }
    }

    /// A run that an agent started beneath another one, both of which a host executes.
    async fn delegated(storage: &Storage) -> [Run; 2] {
        let root = keep(storage, spec("0199-a", "ann", None)).await;
        execute(storage).await;
        let child = keep(storage, beneath(&root.spec, "0199-b", 2_000)).await;
        execute(storage).await;
        [root, child]
    }

    #[tokio::test]
    async fn the_last_run_is_none_that_an_agent_or_a_host_started() {
        let storage = Storage::in_memory();
        let all = Scope::tenant("default");
        let [_, child] = delegated(&storage).await;
        keep(&storage, beneath(&child.spec, "0199-c", 3_000)).await;
        let batch = RunSpec {
            entries: vec![child.id().clone()],
            created_at: Timestamp(4_000),
            ..spec("0199-d", "ann", None)
        };
        keep(&storage, batch).await;
        assert_eq!(meant(&storage, &all, "@last").await, Ok("0199-a".to_owned()));
        // Where nothing else is seen, it is the last of what is.
        let child_session = all.clone().session("session of 0199-b");
        assert_eq!(meant(&storage, &child_session, "@last").await, Ok("0199-c".to_owned()));
    }

    #[tokio::test]
    async fn the_last_run_may_be_one_that_a_person_put_beneath_another() {
        let storage = Storage::in_memory();
        let all = Scope::tenant("default");
        let [root, child] = delegated(&storage).await;
        let put = |above: &RunSpec, id: &str, at, session: &str| {
            let root_session_id = (session != "cli").then(|| "cli".to_owned());
            let parent_session_id = session.to_owned();
            RunSpec { parent_session_id, root_session_id, ..beneath(above, id, at) }
        };
        let last = async || meant(&storage, &all, "@last").await;
        keep(&storage, put(&root.spec, "0199-c", 3_000, "cli")).await;
        assert_eq!(last().await, Ok("0199-c".to_owned()));
        keep(&storage, put(&root.spec, "0199-d", 4_000, "other")).await;
        assert_eq!(last().await, Ok("0199-d".to_owned()));
        // Put beneath one that an agent started, it has the session from which that was asked for.
        let of_child = put(&child.spec, "0199-e", 5_000, "session of 0199-a");
        let waits = keep(&storage, of_child).await;
        assert_eq!(last().await, Ok("0199-e".to_owned()));
        // No agent has begun there.
        keep(&storage, put(&waits.spec, "0199-f", 6_000, "session of 0199-a")).await;
        assert_eq!(last().await, Ok("0199-f".to_owned()));
        // The run above it is of another session than the one that is looked at.
        let first =
            RunSpec { parent_session_id: "other".to_owned(), ..spec("0199-g", "ann", None) };
        keep(&storage, first).await;
        let other = all.clone().session("other");
        assert_eq!(meant(&storage, &other, "@last").await, Ok("0199-d".to_owned()));
    }

    #[tokio::test]
    async fn what_is_too_short_for_an_id_is_no_name_and_the_last_of_nobody_fits_not() {
        let storage = Storage::in_memory();
        let all = Scope::tenant("default");
        let said = async |scope: &Scope, text: &str| {
            let client = storage.watch(no_agents()).at(scope);
            resolve(&client, text).await.err().map(|failure| failure.message)
        };
        let none = Some("there are no runs yet".to_owned());
        assert_eq!(said(&all, "@last").await, none);
        keep(&storage, spec("0199-a", "ann", Some("n1"))).await;
        assert_eq!(said(&all, "@last").await, None);
        assert_eq!(said(&all, "n1").await, None);
        let short = Some("there is no run of the name \"n2\"".to_owned());
        assert_eq!(said(&all, "n2").await, short);
        let fits = Some("no run fits".to_owned());
        assert_eq!(said(&all.clone().owner("bob"), "@last").await, fits);
    }

    #[tokio::test]
    async fn an_id_comes_before_a_name_and_a_name_before_the_beginning_of_an_id() {
        let storage = Storage::in_memory();
        let all = Scope::tenant("default");
        keep(&storage, spec("report", "ann", None)).await;
        keep(&storage, spec("1", "ann", Some("report"))).await;
        keep(&storage, spec("nightly-1", "ann", None)).await;
        keep(&storage, spec("2", "ann", Some("nightly"))).await;
        assert_eq!(meant(&storage, &all, "report").await, Ok("report".to_owned()));
        assert_eq!(meant(&storage, &all, "nightly").await, Ok("2".to_owned()));
        assert_eq!(meant(&storage, &all, "nightly-").await, Ok("nightly-1".to_owned()));
    }
}
