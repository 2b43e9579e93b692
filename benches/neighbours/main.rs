//! Measures what hostile guests cost their neighbours, and prints one JSON object.
//!
//! `cargo bench -p taskrun-benches --bench neighbours -- [--compare FILE] [PART]`, where a part is one
//! of `spinners`, `others`, `cancels` and `memory`; all of them otherwise. An honest run makes a tool
//! call each turn; in alternating blocks guests spin in the same host, or fetch from servers that
//! flood them, or write to a workspace that is full, or give arguments that are dear to hold to their
//! schemas, or a component is compiled, or none of these. Beside those that are flooded it is measured
//! what as many cost whose servers answer, and take a connection for each answer, too. What counts is
//! the ratio of two blocks of turns in one process and one minute, so that it holds on a loaded
//! machine. Then a host is measured before and after thousands of hostile calls; more than 32 MiB
//! left behind is a failure.

mod beside;
mod host;
mod memory;
mod neighbour;
mod servers;

use std::num::NonZero;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use taskrun_benches::{Args, refused};

use crate::host::Host;
use crate::memory::GROWN_MIB_MAX;
use crate::neighbour::{Neighbour, others};
use crate::servers::{SERVE, Servers, serve_main};

/// The argument with which this program is a compile worker.
const COMPILE: &str = "compile-worker";

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some(COMPILE) => return taskrun_engine::compile_worker_main(),
        Some(SERVE) => return serve_main(),
        _ => {}
    }
    let asked = Args::of_process().and_then(|args| {
        let parts: Option<Vec<Part>> = args.words.iter().map(|word| Part::of(word)).collect();
        let known = "known are --compare FILE, spinners, others, cancels, memory";
        Ok((parts.ok_or(known)?, args))
    });
    let (parts, args) = match asked {
        Ok(asked) => asked,
        Err(wrong) => return refused(&wrong),
    };
    let runtime = taskrun_runtime::control_plane().expect("a runtime");
    let report = runtime.block_on(measure(&parts));
    let grown = report["after_hostile_calls"]["grown"].as_f64();
    args.print(report);
    // The one bar here that is no ratio of times.
    if grown.is_some_and(|mib| mib > GROWN_MIB_MAX) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// A part of the report that can be asked for by its name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Turns beside guests that spin.
    Spinners,
    /// Turns beside guests that make the host work.
    Others,
    /// Cancellations of a run whose arguments are held to dear schemas.
    Cancels,
    /// Memory after hostile calls.
    Memory,
}

impl Part {
    fn of(name: &str) -> Option<Self> {
        match name {
            "spinners" => Some(Self::Spinners),
            "others" => Some(Self::Others),
            "cancels" => Some(Self::Cancels),
            "memory" => Some(Self::Memory),
            _ => None,
        }
    }
}

async fn measure(parts: &[Part]) -> Value {
    let wanted = |one: Part| parts.is_empty() || parts.contains(&one);
    let servers = Servers::start();
    let host = Host::new(&servers).await;
    let mut report = json!({ "v": 1 });
    let mut all = Vec::new();
    if wanted(Part::Spinners) {
        for count in [cores(), 4 * cores()] {
            all.push(host.beside(&Neighbour::new("spinner", "spin", count)).await);
        }
    }
    if wanted(Part::Others) {
        for neighbour in others(&servers) {
            all.push(host.beside(&neighbour).await);
        }
    }
    report["turns_of_an_honest_run_beside"] = all.into();
    if wanted(Part::Cancels) {
        report["cancel_of_a_check_of_arguments"] = host.cancels().await;
    }
    if wanted(Part::Memory) {
        report["after_hostile_calls"] = host.hostile().await;
    }
    host.controller.close(Duration::ZERO).await;
    report
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}
