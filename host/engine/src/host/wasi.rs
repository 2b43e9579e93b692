//! WASI as components get it: enough to start, and nothing to reach.
//!
//! Environment and arguments are empty, standard input is at its end, output goes into the run's
//! log, `exit` ends the call. Clocks and random numbers are the scope's. The file system has the
//! folders that the workspace's rules come to, and usually none. Interfaces are added one by
//! one, never all together.

use taskrun::scope::RANDOM_BYTES_MAX;
use wasmtime::component::{HasData, HasSelf, Linker, ResourceTable};
use wasmtime_wasi::cli::{WasiCli, WasiCliView};
use wasmtime_wasi::clocks::{WasiClocks, WasiClocksView};
use wasmtime_wasi::p2::bindings::{cli, clocks, filesystem, io, random};
use wasmtime_wasi::{WasiCtxView, WasiView};
use wasmtime_wasi_http::p2::bindings::http;
use wasmtime_wasi_http::{WasiHttp, WasiHttpView};

use super::{wasi_entries, wasi_messages};
use crate::failure::Violation;
use crate::inspect::given::GivenInterface;
use crate::state::CallState;
use crate::wasi::WasiState;

impl CallState {
    pub(super) fn wasi(&mut self) -> (&mut WasiState, &mut ResourceTable) {
        self.enter_wasi();
        let Self { wasi, table, guest, scope, course, mode, .. } = self;
        let wasi =
            wasi.get_or_insert_with(|| Box::new(WasiState::new(guest, scope, course, *mode)));
        (wasi, table)
    }
}

impl WasiView for CallState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        let (wasi, table) = self.wasi();
        WasiCtxView { ctx: &mut wasi.ctx, table }
    }
}

struct HasTable;

impl HasData for HasTable {
    type Data<'a> = &'a mut ResourceTable;
}

type T = CallState;
type Own = HasSelf<CallState>;

fn table(state: &mut CallState) -> &mut ResourceTable {
    state.wasi().1
}

/// Adds one interface of those that everybody gets.
pub(crate) fn add_given(linker: &mut Linker<CallState>, name: &str) -> wasmtime::Result<()> {
    use GivenInterface as Given;

    let l = linker;
    // Any other one was refused before.
    let Some(given) = Given::named(name) else { return Ok(()) };
    match given {
        Given::Environment => cli::environment::add_to_linker::<T, Own>(l, |state| state),
        Given::Exit => cli::exit::add_to_linker::<T, WasiCli>(l, T::cli),
        Given::Stdin => cli::stdin::add_to_linker::<T, WasiCli>(l, T::cli),
        Given::Stdout => cli::stdout::add_to_linker::<T, WasiCli>(l, T::cli),
        Given::Stderr => cli::stderr::add_to_linker::<T, WasiCli>(l, T::cli),
        Given::TerminalInput => cli::terminal_input::add_to_linker::<T, WasiCli>(l, T::cli),
        Given::TerminalOutput => cli::terminal_output::add_to_linker::<T, WasiCli>(l, T::cli),
        Given::TerminalStdin => cli::terminal_stdin::add_to_linker::<T, WasiCli>(l, T::cli),
        Given::TerminalStdout => cli::terminal_stdout::add_to_linker::<T, WasiCli>(l, T::cli),
        Given::TerminalStderr => cli::terminal_stderr::add_to_linker::<T, WasiCli>(l, T::cli),
        Given::Error => {
            io::error::add_to_linker::<T, HasTable>(l, table)?;
            wasi_entries::add_error(l)
        }
        Given::Poll => io::poll::add_to_linker::<T, HasTable>(l, table),
        Given::Streams => io::streams::add_to_linker::<T, HasTable>(l, table),
        Given::WallClock => clocks::wall_clock::add_to_linker::<T, Own>(l, |state| state),
        Given::MonotonicClock => {
            clocks::monotonic_clock::add_to_linker::<T, WasiClocks>(l, T::clocks)
        }
        Given::Random => random::random::add_to_linker::<T, Own>(l, |state| state),
        Given::Insecure => random::insecure::add_to_linker::<T, Own>(l, |state| state),
        Given::InsecureSeed => random::insecure_seed::add_to_linker::<T, Own>(l, |state| state),
        Given::Preopens => wasi_entries::add_preopens(l),
        Given::Files => {
            filesystem::types::add_to_linker::<T, Own>(l, |state| state)?;
            wasi_entries::add_files(l)
        }
    }
}

/// Adds one interface of WASI's HTTP.
pub(crate) fn add_http(linker: &mut Linker<CallState>, name: &str) -> wasmtime::Result<()> {
    match name {
        "wasi:http/outgoing-handler" => {
            http::outgoing_handler::add_to_linker::<T, WasiHttp>(linker, T::http)
        }
        "wasi:http/types" => {
            let options = wasmtime_wasi_http::p2::bindings::LinkOptions::default();
            http::types::add_to_linker::<T, WasiHttp>(linker, &options.into(), T::http)?;
            wasi_messages::add_types(linker)
        }
        _ => Ok(()),
    }
}

impl cli::environment::Host for CallState {
    fn get_environment(&mut self) -> wasmtime::Result<Vec<(String, String)>> {
        self.enter()?;
        Ok(Vec::new())
    }

    fn get_arguments(&mut self) -> wasmtime::Result<Vec<String>> {
        self.enter()?;
        Ok(Vec::new())
    }

    fn initial_cwd(&mut self) -> wasmtime::Result<Option<String>> {
        self.enter()?;
        Ok(None)
    }
}

impl clocks::wall_clock::Host for CallState {
    fn now(&mut self) -> wasmtime::Result<clocks::wall_clock::Datetime> {
        self.enter()?;
        let ms = self.scope.now().0;
        let nanoseconds = u32::try_from(ms % 1_000).unwrap_or(0) * 1_000_000;
        Ok(clocks::wall_clock::Datetime { seconds: ms / 1_000, nanoseconds })
    }

    fn resolution(&mut self) -> wasmtime::Result<clocks::wall_clock::Datetime> {
        self.enter()?;
        Ok(clocks::wall_clock::Datetime { seconds: 0, nanoseconds: 1_000_000 })
    }
}

impl CallState {
    fn random_bytes(&mut self, len: u64) -> wasmtime::Result<Vec<u8>> {
        self.enter()?;
        let limit = u64::from(RANDOM_BYTES_MAX);
        let len = u32::try_from(len).ok().filter(|len| *len <= RANDOM_BYTES_MAX);
        let len = len.ok_or(Violation::Limit { what: "random bytes at once", limit })?;
        Ok(self.scope.random(len))
    }

    fn random_u64(&mut self) -> wasmtime::Result<u64> {
        let bytes = self.random_bytes(8)?;
        Ok(bytes.try_into().map_or(0, u64::from_le_bytes))
    }
}

impl random::random::Host for CallState {
    fn get_random_bytes(&mut self, len: u64) -> wasmtime::Result<Vec<u8>> {
        self.random_bytes(len)
    }

    fn get_random_u64(&mut self) -> wasmtime::Result<u64> {
        self.random_u64()
    }
}

impl random::insecure::Host for CallState {
    fn get_insecure_random_bytes(&mut self, len: u64) -> wasmtime::Result<Vec<u8>> {
        self.random_bytes(len)
    }

    fn get_insecure_random_u64(&mut self) -> wasmtime::Result<u64> {
        self.random_u64()
    }
}

impl random::insecure_seed::Host for CallState {
    fn insecure_seed(&mut self) -> wasmtime::Result<(u64, u64)> {
        Ok((self.random_u64()?, self.random_u64()?))
    }
}
