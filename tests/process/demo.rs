//! The demo, as a stranger runs it.

use crate::documents::root;
use crate::project::Project;

#[test]
fn the_demo_shows_three_lives_twice_and_leaves_a_store_to_look_at() {
    let project = Project::new();
    let policy = project.path().join("taskrun-demo/taskrun.toml");
    let copy = "taskrun-demo/before-demo/taskrun.toml";
    for is_changed in [false, true] {
        if is_changed {
            let mut changed = std::fs::read(&policy).expect("it is there");
            changed.extend_from_slice(b"# mine\n");
            std::fs::write(&policy, changed).expect("written");
        }
        let ran = project.run(&["demo"]);
        assert_eq!(ran.code, 0, "{ran:?}");
        let told =
            format!("taskrun.toml was changed and is written anew; what it was is in {copy}");
        assert_eq!(ran.stderr.contains(&told), is_changed, "{ran:?}");
        let all = format!("{}{}", ran.stdout, ran.stderr);
        // An answer with a citation, a refusal with its rule, and a stop with its reason.
        assert!(all.contains("docs/") && all.contains(".md:"), "{all}");
        assert!(all.contains("workspace-write: **") && all.contains("taskrun.toml:"), "{all}");
        assert!(all.contains("deadline"), "{all}");
    }
    let text = |path: &std::path::Path| std::fs::read_to_string(path).expect("it is there");
    let kept = text(&project.path().join(copy));
    assert_eq!(kept, format!("{}# mine\n", text(&policy)));
    // The folder has every page of the documents.
    for document in ["docs", "docs/decisions"] {
        let folder = root().join(document);
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let name = entry.expect("an entry").file_name();
            let copy = project.path().join("taskrun-demo/docs").join(document).join(&name);
            assert!(copy.exists(), "{document}/{} is not in the demo", name.display());
        }
    }
    let left = ["--config", "taskrun-demo/taskrun.toml"];
    let with = |args: &[&str]| {
        let all: Vec<&str> = left.iter().chain(args).copied().collect();
        let ran = project.run(&all);
        assert_eq!(ran.code, 0, "{ran:?}");
        ran
    };
    // What is executed again when the test ends.
    assert_eq!(project.left().len(), 1);
    let runs = with(&["ps", "-a", "-o", "json"]).json();
    let runs = runs["runs"].as_array().expect("runs").clone();
    assert_eq!(runs.len(), 6);
    for run in &runs {
        let id = run["id"].as_str().expect("an id");
        assert_eq!(with(&["get", id, "-o", "json"]).json()["id"], run["id"]);
        assert!(with(&["transcript", id]).stdout.contains("user"));
    }
}
