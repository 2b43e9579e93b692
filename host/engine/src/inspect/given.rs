//! The interfaces of WASI that every component gets, by name: those that the host has, and no other
//! of their packages.

/// An interface of WASI 0.2 that every component gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GivenInterface {
    Environment,
    Exit,
    Stdin,
    Stdout,
    Stderr,
    TerminalInput,
    TerminalOutput,
    TerminalStdin,
    TerminalStdout,
    TerminalStderr,
    Error,
    Poll,
    Streams,
    WallClock,
    MonotonicClock,
    Random,
    Insecure,
    InsecureSeed,
    Preopens,
    Files,
}

impl GivenInterface {
    /// The interface of a name without its version, if it is one that every component gets.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "wasi:cli/environment" => Self::Environment,
            "wasi:cli/exit" => Self::Exit,
            "wasi:cli/stdin" => Self::Stdin,
            "wasi:cli/stdout" => Self::Stdout,
            "wasi:cli/stderr" => Self::Stderr,
            "wasi:cli/terminal-input" => Self::TerminalInput,
            "wasi:cli/terminal-output" => Self::TerminalOutput,
            "wasi:cli/terminal-stdin" => Self::TerminalStdin,
            "wasi:cli/terminal-stdout" => Self::TerminalStdout,
            "wasi:cli/terminal-stderr" => Self::TerminalStderr,
            "wasi:io/error" => Self::Error,
            "wasi:io/poll" => Self::Poll,
            "wasi:io/streams" => Self::Streams,
            "wasi:clocks/wall-clock" => Self::WallClock,
            "wasi:clocks/monotonic-clock" => Self::MonotonicClock,
            "wasi:random/random" => Self::Random,
            "wasi:random/insecure" => Self::Insecure,
            "wasi:random/insecure-seed" => Self::InsecureSeed,
            "wasi:filesystem/preopens" => Self::Preopens,
            "wasi:filesystem/types" => Self::Files,
            _ => return None,
        })
    }

    /// True if rules about files say what it gives.
    pub(crate) fn is_of_files(self) -> bool {
        matches!(self, Self::Preopens | Self::Files)
    }
}
