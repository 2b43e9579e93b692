//! The program `taskrun`.

fn main() -> std::process::ExitCode {
    taskrun_cli::main()
}
