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

#[test]
fn the_table_has_the_columns_that_are_asked_for_by_their_names_or_those_of_the_json() {
    let project = Project::new();
    let task = json!({ "ops": [{ "log": "long ".repeat(40) }, { "reply": "found it" }] });
    let task = task.to_string();
    let labels = ["--label", "team=docs", "--label", "kind=test", "--owner", "ann"];
    let ran = project.run(&[&["run", "worker", &task, "--wait"][..], &labels].concat());
    assert_eq!(ran.code, 0, "{ran:?}");
    let shown = project.run(&["ps", "-a", "-o", "json"]).json();
    let run = &shown["runs"][0];
    let id = run["id"].as_str().expect("an id");
    let listed = |columns: &str| {
        let ran = project.run(&["ps", "-a", "--columns", columns]);
        assert_eq!(ran.code, 0, "{ran:?}");
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        ran.stdout.lines().map(words).collect::<Vec<_>>()
    };
    assert_eq!(
        listed("labels,agent_name,reason,owner,finished_at,summary"),
        [
            vec!["LABELS", "AGENT", "REASON", "OWNER", "FINISHED", "SUMMARY"],
            vec![
                "kind=test,team=docs",
                "worker",
                "final_response",
                "ann",
                run["finished_at"].as_str().expect("a time"),
                "found",
                "it",
            ],
        ]
    );
    // A text that is not at the end leaves room for what follows it.
    let table = project.run(&["ps", "-a", "--columns", "task,run"]).stdout;
    let line = table.lines().nth(1).expect("a run");
    assert!(line.ends_with(&format!("…  {id}")) && line.chars().count() < 110, "{table}");
    let refused = project.run(&["ps", "--columns", "run", "-o", "json"]);
    assert_eq!((refused.code, &refused.error()["code"]), (2, &json!("usage")), "{refused:?}");
    assert_eq!(refused.stdout, "", "nothing is listed");
}

#[test]
fn in_a_tree_runs_stand_under_others_in_the_first_of_the_columns() {
    let project = Project::new();
    let question = json!({ "clarification": { "id": "which", "question": "Which?" } });
    let script = json!({ "steps": [[{ "plan": { "await": [question] } }]] }).to_string();
    let parent = project.run(&["run", "worker", &script, "-d"]).id();
    project.reach(&parent, "blocked");
    let child = project.run(&["run", "worker", &script, "-d", "--parent", &parent]).id();
    project.reach(&child, "blocked");
    let table = project.run(&["ps", "--tree", "--columns", "agent,parent,id"]).stdout;
    let lines: Vec<Vec<&str>> =
        table.lines().map(|line| line.split_whitespace().collect()).collect();
    let expected = [
        vec!["AGENT", "PARENT", "RUN"],
        vec!["worker", &parent],
        vec!["└", "worker", &parent, &child],
    ];
    assert_eq!(lines, expected, "{table}");
}
