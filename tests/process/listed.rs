//! Listings of more runs than a page has.

use serde_json::json;
use taskrun_journal::list::PAGE_MAX;

use crate::copies::copies;
use crate::project::Project;

#[test]
fn without_a_filter_all_runs_are_listed_that_have_not_ended_also_those_of_a_second_page() {
    let project = Project::new();
    let question = json!({ "clarification": { "id": "which", "question": "Which?" } });
    let script = json!({ "steps": [[{ "plan": { "await": [question] } }]] }).to_string();
    let first = project.run(&["run", "worker", &script, "-d"]).id();
    project.reach(&first, "blocked");
    let mut open = copies(&project, &first, PAGE_MAX);
    open.push(first);
    open.sort();

    let listed = project.run(&["ps", "-o", "name"]);
    assert_eq!((listed.code, listed.stderr.as_str()), (0, ""), "{listed:?}");
    let mut ids: Vec<_> = listed.stdout.lines().collect();
    ids.sort_unstable();
    assert_eq!(ids, open);
    let listed = project.run(&["ps", "-o", "json"]).json();
    let rows = listed["runs"].as_array().map(Vec::len);
    assert_eq!((rows, &listed["next_cursor"]), (Some(open.len()), &json!(null)));
    // Beside them are the ones that changed last, whatever became of them.
    let ended = project.run(&["run", "worker", "done", "--wait", "-o", "name"]).id();
    let listed = project.run(&["ps", "-o", "name"]);
    assert_eq!(listed.stdout.lines().count(), open.len() + 1, "{listed:?}");
    assert_eq!(listed.stdout.lines().next(), Some(ended.as_str()), "it changed last");
}
