//! Lines that the parser of the command line refuses, as programs are told of them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::project::{Project, Ran};

#[test]
fn a_line_that_is_refused_says_what_is_wrong_and_names_the_help_of_its_command() {
    let project = Project::new();
    let cases: [(&[&str], &str, &str); 6] = [
        (&["run", "counter", "x", "--rounds", "3", "-o", "json"], "provided: --autonomous", "run "),
        (&["transcript", "r", "--format", "pdf"], "[possible values: md, json", "transcript "),
        (&["ps", "--columns", "id,agnet"], "'agnet' for '--columns <COLUMN,..>' [possible", "ps "),
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

#[test]
fn a_variable_whose_value_is_no_utf_8_is_named_and_one_that_names_a_file_may_have_any() {
    let project = Project::new();
    let cases: [(&[&str], &str); 3] = [
        (&["ps"], "TASKRUN_SESSION"),
        (&["run", "worker", "x"], "TASKRUN_STORE_MAX"),
        (&["host"], "TASKRUN_SLOTS"),
    ];
    for (args, variable) in cases {
        let mut command = project.command(args);
        command.env("TASKRUN_CONFIG", OsStr::from_bytes(b"taskr\xfcn.toml"));
        command.env(variable, OsStr::from_bytes(b"\xff"));
        let ran = Ran::from(command.output().expect("starts"));
        assert_eq!((ran.code, &ran.error()["code"]), (2, &"usage".into()), "{ran:?}");
        let message = format!("the value of {variable} is no UTF-8");
        assert_eq!(ran.error()["message"], message, "{ran:?}");
        assert!(ran.stderr.starts_with(&format!("error: {message}\n")), "{ran:?}");
    }
    let mut command = project.command(&["run", "worker"]);
    command.arg(OsStr::from_bytes(b"\xff"));
    let ran = Ran::from(command.output().expect("starts"));
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("in one or more arguments"), "{ran:?}");
}
