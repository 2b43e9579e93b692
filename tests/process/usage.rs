//! Lines that the parser of the command line refuses, as programs are told of them.

use crate::project::Project;

#[test]
fn a_line_that_is_refused_says_what_is_wrong_and_names_the_help_of_its_command() {
    let project = Project::new();
    let cases: [(&[&str], &str, &str); 5] = [
        (&["run", "counter", "x", "--rounds", "3", "-o", "json"], "provided: --autonomous", "run "),
        (&["transcript", "r", "--format", "pdf"], "[possible values: md, json", "transcript "),
        (&["agent", "show", "a", "--nope"], "unexpected argument '--nope' found", "agent show "),
        (&["agent"], "no command is given", "agent "),
        (&["rum"], "unrecognized subcommand 'rum'", ""),
    ];
    for (args, message, command) in cases {
        let ran = project.run(args);
        assert_eq!(ran.code, 2, "{args:?}: {ran:?}");
        let error = ran.error();
        assert_eq!(error["code"], "usage", "{args:?}: {error}");
        let told = error["message"].as_str().unwrap_or_default();
        assert!(told.contains(message) && !told.contains('\n'), "{args:?}: {told}");
        assert_eq!(error["hint"], format!("see `taskrun {command}--help`"), "{args:?}");
    }
}
