//! A pipe in the place of a file that the policy names: nobody waits for its writer.

use rustix::fs::{CWD, Mode, mkfifoat};

use crate::project::Project;

const POLICY: &str = r#"
[prompt.brief]
file = "brief.md"

[model.m]
provider = "scripted"
script = "script.jsonl"

[agent.prompted]
component = "components/scripted.wasm"
allow = ["prompts: brief"]

[agent.modelled]
component = "components/scripted.wasm"
model = "m"

[agent.worker]
component = "components/scripted.wasm"
"#;
const REPLY: &str = r#"{"steps":[[{"reply":"served"}]]}"#;
/// The files that the policy names, each with an agent that needs it.
const FILES: [(&str, &str, &str); 2] = [
    ("brief.md", "prompted", "Answer: {{ question }}"),
    ("script.jsonl", "modelled", r#"{"responses": [{"text": "4"}]}"#),
];

#[test]
fn a_pipe_in_the_place_of_a_file_keeps_nobody_and_takes_nothing_from_other_agents() {
    let project = Project::new();
    project.write("taskrun.toml", POLICY.as_bytes());
    FILES.iter().for_each(|(file, _, text)| project.write(file, text.as_bytes()));
    // The host that executes this one looks at the files from now on.
    let served = ["run", "worker", REPLY, "--wait"];
    assert_eq!(project.run(&served).code, 0);
    for (file, agent, text) in FILES {
        let path = project.path().join(file);
        std::fs::remove_file(&path).expect("it was there");
        mkfifoat(CWD, &path, Mode::from_raw_mode(0o600)).expect("a pipe");
        let run = ["run", agent, REPLY, "--wait"];
        for refused in [&["policy", "check"][..], &run] {
            let refused = project.ends(project.start(refused));
            assert!(refused.code != 0 && refused.said().contains(file), "{refused:?}");
        }
        for shown in [&["agent", "show", agent][..], &["doctor"]] {
            project.ends(project.start(shown));
        }
        let other = project.ends(project.start(&served));
        assert_eq!((other.code, other.stdout.trim()), (0, "served"), "{other:?}");
        std::fs::remove_file(&path).expect("it was there");
        project.write(file, text.as_bytes());
        let again = project.ends(project.start(&run));
        assert_eq!((again.code, again.stdout.trim()), (0, "served"), "{again:?}");
    }
}
