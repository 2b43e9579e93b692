//! The number of files that the process may have open (case 33).

use std::process::Command;

use crate::project::{Project, Ran};

/// Runs the program in a shell that first lets itself have so many files open, as soft and as hard
/// limit.
fn run_with(project: &Project, soft: u32, hard: u32, args: &[&str]) -> Ran {
    let script = format!("ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$@\"");
    run_in_shell(project, Command::new("sh"), &script, args)
}

/// Runs the program as the last thing that a script of this shell does: `exec "$@"`.
pub(crate) fn run_in_shell(project: &Project, shell: Command, script: &str, args: &[&str]) -> Ran {
    in_shell(project, shell, script, args).output().expect("starts").into()
}

/// The command that does so.
pub(crate) fn in_shell(
    project: &Project,
    mut shell: Command,
    script: &str,
    args: &[&str],
) -> Command {
    let program = project.command(args);
    shell.args(["-c", script, "sh"]).arg(program.get_program()).args(program.get_args());
    shell.current_dir(project.path());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}

#[test]
fn case_33_a_process_that_may_have_few_files_open_executes_no_guest_and_says_what_to_do() {
    let project = Project::new();
    let ran = run_with(&project, 512, 512, &["run", "readonly_researcher", "apples"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("the process may have 512 files open"), "{ran:?}");
    assert!(ran.stderr.contains("ulimit -n 1024"), "{ran:?}");
}

#[test]
fn case_33_a_process_raises_the_number_of_files_that_it_may_have_open() {
    let project = Project::new();
    let ran = run_with(&project, 64, 1_024, &["run", "readonly_researcher", "apples"]);
    assert_eq!(ran.code, 0, "{ran:?}");
}
