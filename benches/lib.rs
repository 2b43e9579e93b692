//! The instruments of the benchmarks.

mod report;

pub use report::{Args, refused};

/// The figure that so many percent of all do not exceed, to two decimals; NaN for none.
#[must_use]
pub fn percentile(figures: &[f64], percent: usize) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let index = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    let figure = sorted.get(index).copied().unwrap_or(f64::NAN);
    (figure * 100.0).round() / 100.0
}

/// CPU time that this process has used, in microseconds.
#[must_use]
pub fn cpu_us() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// Bytes of memory that this process has resident.
#[must_use]
pub fn resident_bytes() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux tells");
    let pages: f64 = statm.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("a number");
    pages * rustix::param::page_size() as f64
}

/// Milliseconds, in steps of ten, for which the machine beneath a virtual one had this one's processors
/// do nothing, all of them together, since it was started.
#[must_use]
pub fn stolen_ms() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").expect("Linux tells");
    let ticks = stat.split_whitespace().nth(8).and_then(|ticks| ticks.parse::<f64>().ok());
    ticks.expect("a number") * 1e3 / rustix::param::clock_ticks_per_second() as f64
}
