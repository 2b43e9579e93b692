use taskrun_fixtures::{asked, blocked, run_id, run_of, spec, started};
use taskrun_journal::hold::Wait;
use taskrun_journal::status::BlockedOn;

use super::*;

/// A run that waits for other ones in this way.
fn waits(id: &str, runs: &[&str], mode: WaitMode, until: Option<Timestamp>) -> Run {
    let runs = runs.iter().map(|id| run_id(id)).collect();
    held(id, Hold::Runs { runs, mode, until })
}

fn held(id: &str, hold: Hold) -> Run {
    let mut run = run_of(spec(id), []);
    run.state.hold = hold;
    run
}

/// The run that keeps another one, of those that weigh much and those that weigh little.
fn keeps(run: &Run, tree: &[&Run], [grave, light]: [&[&str]; 2]) -> Option<String> {
    let tree: HashMap<RunId, Run> =
        tree.iter().map(|run| (run.id().clone(), (*run).clone())).collect();
    let find = |run: &Run| {
        let id = run.id().as_str();
        let is_grave = grave.contains(&id);
        (is_grave || light.contains(&id)).then(|| (is_grave, id.to_owned()))
    };
    hindrance(run, &tree, &find).map(|(_, id)| id)
}

#[test]
fn a_run_that_waits_for_all_is_kept_by_any_and_one_that_waits_for_any_by_all() {
    let (one, two) = (held("one", Hold::Nobody), held("two", Hold::Nobody));
    let tree = [&one, &two];
    let all = waits("w", &["one", "two"], WaitMode::All, None);
    let any = waits("w", &["one", "two"], WaitMode::Any, None);
    let none: [&[&str]; 2] = [&[], &[]];
    for (found, of_all, of_any) in [
        (none, None, None),
        ([&["one"], &[]], Some("one"), None),
        ([&[], &["two"]], Some("two"), None),
        ([&["two"], &["one"]], Some("two"), Some("one")),
        ([&["one", "two"], &[]], Some("one"), Some("one")),
    ] {
        assert_eq!(keeps(&all, &tree, found).as_deref(), of_all, "{found:?}");
        assert_eq!(keeps(&any, &tree, found).as_deref(), of_any, "{found:?}");
    }
    // One that has been removed has ended.
    assert_eq!(keeps(&any, &[&one], [&["one"], &[]]), None);
}

#[test]
fn a_run_that_goes_on_at_a_time_is_kept_by_none_that_it_waits_for() {
    let one = held("one", Hold::Nobody);
    let timed = waits("timed", &["one"], WaitMode::All, Some(Timestamp(9)));
    assert_eq!(keeps(&timed, &[&one], [&["one"], &[]]), None);
    let above = waits("w", &["timed"], WaitMode::All, None);
    let tree = [&one, &timed];
    assert_eq!(keeps(&above, &tree, [&["one"], &[]]), None);
    assert_eq!(keeps(&above, &tree, [&["one"], &["timed"]]).as_deref(), Some("timed"));
}

#[test]
fn a_question_that_one_of_several_asks_does_not_keep_a_run_that_any_of_them_lets_go_on() {
    let waits_for_it = blocked(BlockedOn::Input, Wait::Answers { at: None });
    let asks = run_of(spec("asks"), [started(), asked("q"), waits_for_it]);
    let goes = held("goes", Hold::Beat);
    let tree: HashMap<RunId, Run> =
        [asks, goes].into_iter().map(|run| (run.id().clone(), run)).collect();
    let of = |mode| {
        let run = waits("w", &["asks", "goes"], mode, None);
        asking(&run, &tree, Timestamp(0)).map(|run| run.id().as_str().to_owned())
    };
    assert_eq!(of(WaitMode::All).as_deref(), Some("asks"));
    assert_eq!(of(WaitMode::Any), None);
}
