//! The queue, and waiting for it.

use taskrun_journal::schedule::RESUMES_IN_A_ROW;

use super::*;

pub(crate) async fn claims_take_the_highest_priority_and_then_the_oldest(f: &Fixture) {
    for (id, priority) in [("b", 0), ("a", 0), ("low", -3), ("high", 7), ("high-2", 7)] {
        create(&*f.store, RunSpec { priority, ..spec(id) }).await;
    }
    let first = f.store.claim(wish("h", 3, 2_000)).await.expect("claims");
    assert_eq!(ids(&first), ["high", "high-2", "b"]);
    let rest = f.store.claim(wish("h", 9, 2_000)).await.expect("claims");
    assert_eq!(ids(&rest), ["a", "low"]);
    assert_eq!(f.store.claim(wish("h", 9, 2_000)).await.expect("claims"), []);
}

pub(crate) async fn a_claim_records_what_the_state_machine_decides(f: &Fixture) {
    let queued = create(&*f.store, spec("r")).await;
    let run = claim_one(&*f.store, "h").await;
    assert_eq!((run.status(), run.state.epoch, run.state.head), (Status::Running, 1, 2));
    assert_eq!(run.state.updated_at, Timestamp(2_000));
    journal_is(&*f.store, &run).await;
    let events = f.store.read(run.id(), 1, 10).await.expect("reads");
    let decided = machine::decide::claim(&queued, &host_id("h"), Timestamp(2_000));
    assert_eq!(events.first().map(|recorded| &recorded.event), decided.as_ref());
}

pub(crate) async fn a_claim_is_no_earlier_than_what_came_before_it(f: &Fixture) {
    let late = |id: &str| RunSpec { created_at: Timestamp(50_000), ..spec(id) };
    // Whoever claims looked at the clock and then waited for the store, in which others wrote.
    create(&*f.store, late("a")).await;
    let taken = f.store.claim(wish("h", 1, 49_000)).await.expect("claims");
    let (_, joint) = both(&*f.store, new_run(late("b")), wish("h", 1, 49_000)).await;
    for run in taken.iter().chain(&joint) {
        assert_eq!(run.state.updated_at, Timestamp(50_000), "{}", run.id());
        journal_is(&*f.store, run).await;
    }
    assert_eq!((ids(&taken), ids(&joint)), (vec!["a"], vec!["b"]));
    // Nobody waits for so long: this is a clock that was set back.
    create(&*f.store, late("c")).await;
    let run = f.store.claim(wish("h", 1, 10_000)).await.expect("claims").remove(0);
    assert_eq!(run.state.updated_at, Timestamp(10_000));
}

pub(crate) async fn a_claim_takes_only_what_is_ready_in_the_order_of_the_queue(f: &Fixture) {
    let pinned = |id: &str, pin: &str| RunSpec { pin: pin.to_owned(), ..spec(id) };
    create(&*f.store, pinned("other", "x")).await;
    create(&*f.store, pinned("last", "z")).await;
    create(&*f.store, RunSpec { priority: 1, ..pinned("first", "y") }).await;
    create(&*f.store, pinned("second", "z")).await;
    let claim = |ready, limit| f.store.claim(Claim { ready, limit, ..wish("h", 9, 2_000) });
    assert_eq!(claim(Ready::only(["none"]), 9).await.expect("claims"), []);
    let runs = claim(Ready::only(["y", "z"]), 2).await.expect("claims");
    assert_eq!(ids(&runs), ["first", "last"]);
    create(&*f.store, pinned("third", "y")).await;
    assert_eq!(ids(&claim(Ready::All, 2).await.expect("claims")), ["other", "second"]);
    assert_eq!(ids(&claim(Ready::All, 9).await.expect("claims")), ["third"]);
}

pub(crate) async fn a_run_that_is_kept_with_a_claim_is_taken_at_once(f: &Fixture) {
    let (created, runs) = both(&*f.store, new_run(spec("r")), wish("h", 1, 2_000)).await;
    assert!(created.is_new(), "{created:?}");
    assert_eq!(ids(&runs), ["r"]);
    let run = f.store.get(&run_id("r")).await.expect("gets").expect("it is there");
    assert_eq!((run.status(), run.state.epoch, run.state.head), (Status::Running, 1, 2));
    assert_eq!(runs, std::slice::from_ref(&run));
    journal_is(&*f.store, &run).await;
    assert_eq!(f.store.prospect(&wish("h", 1, 2_000)).await.expect("answers"), Prospect::Nothing);
}

pub(crate) async fn a_claim_that_comes_with_a_run_takes_what_comes_first(f: &Fixture) {
    create(&*f.store, RunSpec { priority: 1, ..spec("first") }).await;
    let other = RunSpec { pin: "not ready".to_owned(), priority: 2, ..spec("other") };
    create(&*f.store, other).await;
    let (created, runs) = both(&*f.store, new_run(spec("r")), wish("h", 1, 2_000)).await;
    assert!(created.is_new(), "{created:?}");
    assert_eq!(ids(&runs), ["first"]);
    let (_, runs) = both(&*f.store, new_run(spec("last")), wish("h", 9, 2_000)).await;
    assert_eq!(ids(&runs), ["r", "last"]);
}

pub(crate) async fn with_a_run_that_is_refused_nothing_is_taken(f: &Fixture) {
    create(&*f.store, spec("r")).await;
    let (created, runs) = both(&*f.store, new_run(spec("r")), wish("h", 9, 2_000)).await;
    assert!(matches!(created, CreateOutcome::Taken(_)), "{created:?}");
    assert_eq!(runs, []);
    assert_eq!(ids(&f.store.claim(wish("h", 9, 2_000)).await.expect("claims")), ["r"]);
}

/// Gives a run as it stands this pin.
async fn adopted(f: &Fixture, id: &str, to: &str, at: u64) -> Run {
    let run = f.store.get(&run_id(id)).await.expect("gets").expect("it is there");
    let events = machine::decide::adopt(&run, to, "b").expect("nothing of it is under way");
    append(&*f.store, next(&run, 700 + at, at, events)).await
}

async fn wanted(f: &Fixture) -> Vec<String> {
    let wanted = f.store.wanted().await.expect("answers");
    wanted.iter().map(|pins| pins.as_str().to_owned()).collect()
}

pub(crate) async fn a_run_that_was_given_another_pin_is_taken_by_whoever_has_that(f: &Fixture) {
    let pinned = |id: &str, pin: &str| RunSpec { pin: pin.to_owned(), ..spec(id) };
    let above = Ancestor {
        agent_name: "boss".to_owned(),
        pin: "boss@9".to_owned(),
        narrow: Narrowing::default(),
        autonomous: false,
    };
    create(&*f.store, RunSpec { ancestors: vec![above], ..pinned("a", "w@1") }).await;
    create(&*f.store, pinned("b", "w@1")).await;
    create(&*f.store, pinned("c", "w@2")).await;
    let run = adopted(f, "a", "w@2", 2_000).await;
    assert_eq!((run.pin(), run.spec.pin.as_str()), ("w@2", "w@1"));
    journal_is(&*f.store, &run).await;
    assert_eq!(wanted(f).await, ["w@2 boss@9", "w@1", "w@2"]);
    let pins = f.store.pins(None).await.expect("reads");
    let pins: Vec<_> = pins.iter().map(Pins::as_str).collect();
    assert_eq!(pins, ["w@1", "w@2", "w@2 boss@9"]);
    let claim = |pins: &'static [&'static str]| {
        let ready = Ready::only(pins.iter().copied());
        f.store.claim(Claim { ready, ..wish("h", 9, 3_000) })
    };
    assert_eq!(ids(&claim(&["w@1", "boss@9"]).await.expect("claims")), ["b"]);
    // Its place in the queue is the one that it had.
    assert_eq!(ids(&claim(&["w@2", "boss@9"]).await.expect("claims")), ["a", "c"]);

    // One that waits for others, and is paused.
    let run = f.store.get(&run_id("a")).await.expect("gets").expect("it is there");
    let wait = vec![for_runs(&["c"], WaitMode::All)];
    let run = append(&*f.store, next(&run, 50, 4_000, wait)).await;
    let pause = machine::decide::pause(&run, "b", None, None).expect("it listens");
    append(&*f.store, next(&run, 60, 4_100, pause)).await;
    adopted(f, "a", "w@3", 4_200).await;
    assert_eq!(claim(&["w@2", "w@3", "boss@9"]).await.expect("claims"), []);
    let run = f.store.get(&run_id("a")).await.expect("gets").expect("it is there");
    let resume = machine::decide::resume(&run, "b", None, &[]).expect("it listens");
    append(&*f.store, next(&run, 70, 4_300, resume)).await;
    assert_eq!(wanted(f).await, ["w@3 boss@9"]);
    assert_eq!(claim(&["w@2", "boss@9"]).await.expect("claims"), []);
    assert_eq!(ids(&claim(&["w@3", "boss@9"]).await.expect("claims")), ["a"]);

    // One that waits for others goes on waiting, and its end of the wait is found under the new pin.
    let run = f.store.get(&run_id("a")).await.expect("gets").expect("it is there");
    let wait = vec![for_runs(&["c"], WaitMode::All)];
    append(&*f.store, next(&run, 80, 5_000, wait)).await;
    adopted(f, "a", "w@4", 5_100).await;
    let ended = f.store.get(&run_id("c")).await.expect("gets").expect("it is there");
    append(&*f.store, next(&ended, 90, 5_200, end())).await;
    assert_eq!(claim(&["w@3", "boss@9"]).await.expect("claims"), []);
    assert_eq!(ids(&claim(&["w@4", "boss@9"]).await.expect("claims")), ["a"]);
}

pub(crate) async fn a_run_with_another_pin_makes_room_for_the_next_of_its_tree(f: &Fixture) {
    let root = create(&*f.store, spec("root")).await;
    assert_eq!(claim_one(&*f.store, "h").await.id(), root.id());
    let beneath = |id: &str| RunSpec { pin: "w@1".to_owned(), ..child(id, &root.spec) };
    for id in ["first", "second", "third"] {
        create(&*f.store, beneath(id)).await;
    }
    adopted(f, "first", "w@2", 2_000).await;
    let claim = |pin: &'static str| {
        f.store.claim(Claim { ready: Ready::only([pin]), tree_slots: 9, ..wish("h", 1, 3_000) })
    };
    assert_eq!(ids(&claim("w@1").await.expect("claims")), ["second"]);
    adopted(f, "third", "w@2", 2_100).await;
    assert_eq!(claim("w@1").await.expect("claims"), []);
    assert_eq!(ids(&claim("w@2").await.expect("claims")), ["first"]);
    assert_eq!(ids(&claim("w@2").await.expect("claims")), ["third"]);
}

pub(crate) async fn of_some_agents_only_runs_are_taken_that_were_never_executed(f: &Fixture) {
    let pinned = |id: &str| RunSpec { pin: "w@1".to_owned(), ..spec(id) };
    create(&*f.store, pinned("begun")).await;
    let all = Claim { ready: Ready::only(["w@1"]), ..wish("h", 9, 2_000) };
    let taken = f.store.claim(all.clone()).await.expect("claims");
    assert_eq!(ids(&taken), ["begun"]);
    let released = machine::decide::release(&taken[0], 0, Timestamp(0));
    append(&*f.store, next(&taken[0], 50, 2_100, released)).await;
    create(&*f.store, pinned("fresh")).await;
    let fresh = Arc::new(BTreeSet::from(["w@1".to_owned()]));
    let ready = Ready::Only { own: Arc::default(), fresh, ancestors: Arc::default() };
    let claim = Claim { ready, ..wish("h", 9, 3_000) };
    assert_eq!(f.store.prospect(&claim).await.expect("looks"), Prospect::Claim);
    assert_eq!(ids(&f.store.claim(claim.clone()).await.expect("claims")), ["fresh"]);
    assert_eq!(f.store.prospect(&claim).await.expect("looks"), Prospect::Unready);
    assert_eq!(f.store.claim(claim).await.expect("claims"), []);
    assert_eq!(ids(&f.store.claim(all).await.expect("claims")), ["begun"]);
}

pub(crate) async fn a_run_is_taken_where_all_above_it_have_their_pins(f: &Fixture) {
    let under = |pin: &str| Ancestor {
        agent_name: "above".to_owned(),
        pin: pin.to_owned(),
        narrow: Narrowing::default(),
        autonomous: false,
    };
    let root = create(&*f.store, RunSpec { pin: "top".to_owned(), ..spec("root") }).await;
    let beneath = RunSpec { ancestors: vec![under("top")], ..child("beneath", &root.spec) };
    create(&*f.store, beneath).await;
    let claim = |pins: &'static [&'static str]| {
        let ready = Ready::only(pins.iter().copied());
        f.store.claim(Claim { ready, ..wish("h", 9, 2_000) })
    };
    assert_eq!(claim(&[PIN]).await.expect("claims"), []);
    assert_eq!(ids(&claim(&["top"]).await.expect("claims")), ["root"]);
    assert_eq!(ids(&claim(&[PIN, "top"]).await.expect("claims")), ["beneath"]);
}

pub(crate) async fn wanted_names_each_pin_once_best_first(f: &Fixture) {
    let of = |id: &str, pin: &str| RunSpec { pin: pin.to_owned(), ..spec(id) };
    let wanted = async || {
        let wanted = f.store.wanted().await.expect("answers");
        wanted.iter().map(|pins| pins.as_str().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(wanted().await, [""; 0]);
    create(&*f.store, of("cold", "slow")).await;
    // Of the same tree, and accepted later: neither waits for the other.
    let behind = RunSpec { root_run_id: run_id("cold"), depth: 1, ..of("behind", "quick") };
    create(&*f.store, behind).await;
    create(&*f.store, of("warm", "quick")).await;
    create(&*f.store, RunSpec { priority: 1, ..of("also-cold", "slower") }).await;
    create(&*f.store, of("cold-too", "slow")).await;
    assert_eq!(wanted().await, ["slower", "slow", "quick"]);
    let claim = |pins: &'static [&'static str]| {
        let ready = Ready::only(pins.iter().copied());
        f.store.claim(Claim { ready, ..wish("h", 9, 2_000) })
    };
    assert_eq!(ids(&claim(&["quick"]).await.expect("claims")), ["behind", "warm"]);
    assert_eq!(wanted().await, ["slower", "slow"]);
    assert_eq!(ids(&claim(&["slow"]).await.expect("claims")), ["cold", "cold-too"]);
    assert_eq!(ids(&claim(&["slower"]).await.expect("claims")), ["also-cold"]);
    assert_eq!(wanted().await, [""; 0]);
}

pub(crate) async fn a_run_is_given_to_one_of_many_claimers(f: &Fixture) {
    const RUNS: usize = 60;
    for n in 0..RUNS {
        create(&*f.store, spec(&format!("r-{n}"))).await;
    }
    let claimers: Vec<_> = (0..6)
        .map(|host| {
            let store = Arc::clone(&f.store);
            tokio::spawn(async move {
                let mut mine = Vec::new();
                loop {
                    let wish = wish(&format!("h-{host}"), 3, 2_000);
                    let runs = store.claim(wish).await.expect("claims");
                    if runs.is_empty() {
                        return mine;
                    }
                    mine.extend(runs);
                }
            })
        })
        .collect();
    let mut seen = BTreeSet::new();
    for claimer in claimers {
        for run in within(claimer).await.expect("no panic") {
            assert!(seen.insert(run.id().clone()), "{} was given twice", run.id());
            assert_eq!(run.state.epoch, 1);
        }
    }
    assert_eq!(seen.len(), RUNS);
}

pub(crate) async fn a_run_that_was_canceled_in_the_queue_is_not_claimed(f: &Fixture) {
    let run = create(&*f.store, spec("r")).await;
    let mut events = vec![cancel()];
    events.extend(end());
    append(&*f.store, next(&run, 50, 1_500, events)).await;
    assert_eq!(f.store.claim(wish("h", 9, 2_000)).await.expect("claims"), []);
}

pub(crate) async fn work_wakes_when_a_run_is_queued(f: &Fixture) {
    // The loop of a host: claim, and wait where there is nothing.
    let store = Arc::clone(&f.store);
    let host = tokio::spawn(async move {
        let mut taken = 0;
        while taken < 3 {
            let runs = store.claim(wish("h", 9, 2_000)).await.expect("claims");
            taken += runs.len();
            if runs.is_empty() {
                store.work().await;
            }
        }
    });
    for id in ["a", "b", "c"] {
        create(&*f.store, spec(id)).await;
        tokio::task::yield_now().await;
    }
    within(host).await.expect("no panic");
}

/// Claims a run and gives it back, wanted from a time on.
async fn put_off(f: &Fixture, id: &str, until: u64) -> Run {
    let run = claim_one(&*f.store, "h").await;
    assert_eq!(run.id().as_str(), id);
    append(&*f.store, next(&run, 90, 2_500, vec![lost("h", 2, Timestamp(until))])).await
}

pub(crate) async fn what_resumes_is_taken_before_what_never_began(f: &Fixture) {
    for (id, priority) in [("low", -3), ("mid", 0), ("mid-2", 0), ("high", 7)] {
        create(&*f.store, RunSpec { priority, ..spec(id) }).await;
        put_off(f, id, 3_000).await;
    }
    create(&*f.store, RunSpec { priority: 9, ..spec("fresh") }).await;
    let runs = f.store.claim(wish("h", 2, 4_000)).await.expect("claims");
    assert_eq!(ids(&runs), ["high", "mid"]);
    let runs = f.store.claim(wish("h", 9, 4_000)).await.expect("claims");
    assert_eq!(ids(&runs), ["mid-2", "low", "fresh"]);
}

pub(crate) async fn a_run_that_never_began_is_taken_first_where_it_is_the_turn_of_those(
    f: &Fixture,
) {
    for id in ["one", "two"] {
        create(&*f.store, spec(id)).await;
        put_off(f, id, 3_000).await;
    }
    for (id, priority) in [("low", -3), ("high", 7)] {
        create(&*f.store, RunSpec { priority, ..spec(id) }).await;
    }
    let turn =
        |limit| f.store.claim(Claim { resumes: RESUMES_IN_A_ROW, ..wish("h", limit, 4_000) });
    assert_eq!(ids(&turn(2).await.expect("claims")), ["high", "one"]);
    assert_eq!(ids(&turn(1).await.expect("claims")), ["low"]);
    assert_eq!(ids(&turn(9).await.expect("claims")), ["two"], "there is no other");
    // One behind a run of its own tree stays behind that.
    let root = create(&*f.store, spec("root")).await;
    put_off(f, "root", 3_000).await;
    create(&*f.store, child("beneath", &root.spec)).await;
    create(&*f.store, spec("alone")).await;
    assert_eq!(ids(&turn(9).await.expect("claims")), ["alone", "root", "beneath"]);
    // The turn comes within a claim, too.
    for id in ["1", "2", "3", "4", "5", "6"] {
        create(&*f.store, spec(id)).await;
        put_off(f, id, 3_000).await;
    }
    for id in ["new", "newer"] {
        create(&*f.store, spec(id)).await;
    }
    let runs = f.store.claim(wish("h", 9, 4_000)).await.expect("claims");
    assert_eq!(ids(&runs), ["1", "2", "3", "4", "new", "5", "6", "newer"]);
}

pub(crate) async fn a_run_is_not_taken_before_its_time(f: &Fixture) {
    create(&*f.store, RunSpec { priority: 9, ..spec("r") }).await;
    let run = put_off(f, "r", 5_000).await;
    create(&*f.store, spec("fresh")).await;
    assert_eq!(ids(&f.store.claim(wish("h", 9, 4_999)).await.expect("claims")), ["fresh"]);
    journal_is(&*f.store, &run).await;
    let runs = f.store.claim(wish("h", 9, 5_000)).await.expect("claims");
    assert_eq!(ids(&runs), ["r"]);
    journal_is(&*f.store, &runs[0]).await;
}

pub(crate) async fn a_run_that_waits_for_a_time_is_taken_from_then_on(f: &Fixture) {
    create(&*f.store, spec("r")).await;
    let run = claim_one(&*f.store, "h").await;
    let waits = blocked(Wait::Time { at: Timestamp(5_000) });
    let waiting = append(&*f.store, next(&run, 90, 2_500, vec![waits])).await;
    assert_eq!(f.store.claim(wish("g", 9, 4_999)).await.expect("claims"), []);
    journal_is(&*f.store, &waiting).await;
    let runs = f.store.claim(wish("g", 9, 5_000)).await.expect("claims");
    assert_eq!(ids(&runs), ["r"]);
    assert_eq!(runs[0].status(), Status::Running);
    journal_is(&*f.store, &runs[0]).await;
}

pub(crate) async fn a_time_has_not_come_for_a_host_whose_clock_is_behind(f: &Fixture) {
    for id in ["a", "b"] {
        create(&*f.store, spec(id)).await;
        put_off(f, id, 5_000).await;
    }
    assert_eq!(ids(&f.store.claim(wish("h", 1, 6_000)).await.expect("claims")), ["a"]);
    assert_eq!(f.store.claim(wish("behind", 9, 4_999)).await.expect("claims"), []);
    assert_eq!(ids(&f.store.claim(wish("behind", 9, 5_000)).await.expect("claims")), ["b"]);
}

pub(crate) async fn whatever_is_wanted_can_be_claimed(f: &Fixture) {
    for id in ["running", "canceling", "finalizing", "answered"] {
        create(&*f.store, spec(id)).await;
    }
    let runs = f.store.claim(wish("h", 9, 2_000)).await.expect("claims");
    let ending = Event::Finalizing { ending: Ending::completed(StopReason::FinalResponse) };
    let gone = lost("h", 2, Timestamp(0));
    let [asked, answered] = asked_and_answered("q");
    let all = [
        vec![gone.clone()],
        vec![cancel(), gone.clone()],
        vec![ending, gone],
        vec![asked, blocked(Wait::Answers { at: None }), answered],
    ];
    for (run, events) in runs.iter().zip(all) {
        append(&*f.store, next(run, 50, 3_000, events)).await;
    }
    let runs = f.store.claim(wish("other", 9, 4_000)).await.expect("claims");
    assert_eq!(ids(&runs), ["running", "canceling", "finalizing", "answered"]);
    let statuses: Vec<Status> = runs.iter().map(Run::status).collect();
    let expected = [Status::Running, Status::Canceling, Status::Finalizing, Status::Running];
    assert_eq!(statuses, expected);
    for run in runs {
        assert_eq!(run.state.hold.host(), Some(&host_id("other")));
        journal_is(&*f.store, &run).await;
    }
}

pub(crate) async fn a_paused_run_is_passed_over_and_keeps_its_place(f: &Fixture) {
    for id in ["a", "b", "c"] {
        create(&*f.store, spec(id)).await;
    }
    let pause =
        |run: &Run, until| machine::decide::pause(run, "b", None, until).expect("it can be paused");
    let get = async |id: &str| f.store.get(&run_id(id)).await.expect("gets").expect("there");
    let (a, b) = (get("a").await, get("b").await);
    let a = append(&*f.store, next(&a, 50, 2_000, pause(&a, None))).await;
    append(&*f.store, next(&b, 60, 2_000, pause(&b, Some(Timestamp(6_000))))).await;
    assert_eq!(ids(&f.store.claim(wish("h", 9, 3_000)).await.expect("claims")), ["c"]);
    let resumed = machine::decide::resume(&a, "b", None, &[]).expect("it is paused");
    create(&*f.store, spec("d")).await;
    append(&*f.store, next(&a, 70, 4_000, resumed)).await;
    assert_eq!(ids(&f.store.claim(wish("h", 9, 5_999)).await.expect("claims")), ["a", "d"]);
    let b = f.store.claim(wish("h", 9, 6_000)).await.expect("claims");
    assert_eq!((ids(&b), b[0].status()), (vec!["b"], Status::Running));
    journal_is(&*f.store, &b[0]).await;
}

pub(crate) async fn runs_that_resume_are_taken_with_their_pins_only(f: &Fixture) {
    create(&*f.store, spec("r")).await;
    put_off(f, "r", 0).await;
    let theirs = Claim { ready: Ready::only(["other"]), ..wish("h", 9, 3_000) };
    assert_eq!(f.store.claim(theirs).await.expect("claims"), []);
    assert_eq!(ids(&f.store.claim(wish("h", 9, 3_000)).await.expect("claims")), ["r"]);
}

pub(crate) async fn work_is_not_waited_for_beyond_the_time_of_a_run(f: &Fixture) {
    create(&*f.store, spec("r")).await;
    put_off(f, "r", 5_000).await;
    // Whatever the store was told of the time, whoever waits gets to look.
    for now in [3_000, 4_000] {
        assert_eq!(f.store.claim(wish("h", 9, now)).await.expect("claims"), []);
        within(f.store.work()).await;
    }
    assert_eq!(ids(&f.store.claim(wish("h", 9, 5_000)).await.expect("claims")), ["r"]);
}
