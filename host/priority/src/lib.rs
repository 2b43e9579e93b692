//! The priority of threads that compute for long, and the turns of those whose work is short.

use std::thread::JoinHandle;
use std::time::Duration;

/// Added to the niceness of the process: a thread that computes for long has a tenth of a processor
/// that something else wants, and all of one that nothing wants.
const NICENESS: i32 = 10;
/// Time for which the kernel lets such a thread have a processor before it looks for another. It is
/// longer than that of all other threads, at most 3 ms, and that is its purpose: Linux, since 6.12,
/// takes a processor away at once for a thread that wakes up with a shorter slice, and else leaves
/// it to the thread that has it until the next tick, 4 ms later. The threads that woke up then
/// were, above all, the kernel's own threads that end the writes of the disk.
const SLICE: Duration = Duration::from_millis(20);
/// The same of a thread whose work is short and waited for: the least that Linux has. One that wakes
/// up is given the processor at once if the one that has it had its turn, and else waits for the next
/// tick, so a short turn of the one is a short wait of the other.
const SHORT_SLICE: Duration = Duration::from_micros(100);

/// A priority below that of all other threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// A niceness higher by ten, and turns of 20 ms.
    Low,
    /// A niceness higher by ten, and turns of 0.1 ms, for a thread that offers the processor by itself
    /// after each piece of work ([`std::thread::yield_now`]). Linux, since 6.18, takes what is left of
    /// a turn from a thread that does: with turns of 20 ms, beside threads that never pause, a
    /// thousandth of a processor would be left for pieces of 0.1 ms; with these it is a twentieth.
    LowCooperative,
    /// Linux's class for what is to run where nothing else wants the processor, which knows neither
    /// niceness nor slices: a thread that wakes up has the processor at once, and is given one that
    /// has only such work as if that had none. Beside threads that never pause, one of this class
    /// has hardly anything.
    Idle,
}

/// Lowers the priority of this thread and of those that it starts. Elsewhere than on Linux, where
/// threads have none of their own, it changes nothing.
///
/// # Errors
/// Those of the system, which then leaves the thread as it is.
pub fn lower(priority: Priority) -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        let now = rustix::process::getpriority_process(None)?;
        let lowered = now.saturating_add(NICENESS).min(19);
        let (policy, flags) = match priority {
            Priority::Low | Priority::LowCooperative => (0, libc::SCHED_FLAG_KEEP_POLICY),
            Priority::Idle => (libc::SCHED_IDLE, 0),
        };
        let slice = match priority {
            Priority::LowCooperative => SHORT_SLICE,
            Priority::Low | Priority::Idle => SLICE,
        };
        // A kernel without such slices takes no notice of them; one that refuses (a process with a
        // policy for real time) may still take the niceness.
        if set(policy, flags, lowered, slice).is_err() {
            rustix::process::setpriority_process(None, lowered)?;
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = priority;
    Ok(())
}

/// Gives this thread turns of 0.1 ms, with the priority that it has. Threads and processes that it
/// starts have the usual ones. Elsewhere than on Linux since 6.12, for a thread of another than the
/// usual class or with a niceness below zero, which those that it starts would lose, and where the
/// system refuses, it changes nothing: all works with the usual turns, too. Such a thread cannot be
/// [lowered](lower) to the class for idle times afterwards.
pub fn shorten_turns() {
    #[cfg(target_os = "linux")]
    if class() == libc::SCHED_OTHER
        && let Ok(niceness @ 0..) = rustix::process::getpriority_process(None)
    {
        // Beside the flag that keeps the class this one is not heard.
        set(libc::SCHED_OTHER, libc::SCHED_FLAG_RESET_ON_FORK, niceness, SHORT_SLICE).ok();
    }
}

/// Starts a thread with [turns of 0.1 ms](shorten_turns).
///
/// # Errors
/// Those of the system, if there is no thread.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(|| {
        shorten_turns();
        work();
    })
}

/// The class of this thread.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "neither the standard library nor rustix has this call")]
fn class() -> i32 {
    // SAFETY: the call takes a number and gives one; 0 is the thread that calls.
    unsafe { libc::sched_getscheduler(0) }
}

/// Sets niceness and slice, and the class unless the flags keep it.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "neither the standard library nor rustix has this call")]
fn set(policy: i32, flags: i32, niceness: i32, slice: Duration) -> std::io::Result<()> {
    let attributes = libc::sched_attr {
        size: ATTRIBUTES_BYTES,
        sched_policy: policy as u32,
        sched_flags: flags as u64,
        sched_nice: niceness,
        sched_priority: 0,
        sched_runtime: u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX),
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel reads as many bytes as the structure says that it has.
    let answer = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if answer == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[cfg(target_os = "linux")]
const ATTRIBUTES_BYTES: u32 = size_of::<libc::sched_attr>() as u32;

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Class, niceness and slice of this thread.
    #[expect(unsafe_code, reason = "as above")]
    fn attributes() -> (i32, i32, Duration) {
        // SAFETY: all fields are numbers.
        let mut found: libc::sched_attr = unsafe { std::mem::zeroed() };
        let (to, size) = (&raw mut found, ATTRIBUTES_BYTES);
        // SAFETY: the kernel writes at most as many bytes as it is told.
        let answer = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, to, size, 0) };
        assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
        (found.sched_policy as i32, found.sched_nice, Duration::from_nanos(found.sched_runtime))
    }

    #[test]
    fn a_thread_of_low_priority_has_a_longer_slice_unless_it_is_cooperative() {
        for (priority, expected) in
            [(Priority::Low, SLICE), (Priority::LowCooperative, SHORT_SLICE)]
        {
            std::thread::spawn(move || {
                let (class, niceness, usual) = attributes();
                lower(priority).expect("lowered");
                let (same, lowered, slice) = attributes();
                assert_eq!((same, lowered), (class, (niceness + NICENESS).min(19)));
                // Kernels before 6.12 have no slices of single threads and tell of none.
                assert!(usual.is_zero() || slice == expected, "{usual:?} {slice:?}");
            })
            .join()
            .expect("holds");
        }
    }

    #[test]
    fn a_thread_whose_work_is_short_has_a_short_slice_and_the_priority_that_it_had() {
        std::thread::spawn(|| {
            let (class, niceness, usual) = attributes();
            if class != libc::SCHED_OTHER || niceness < 0 {
                return;
            }
            shorten_turns();
            let (same, as_before, shorter) = attributes();
            assert_eq!((same, as_before), (class, niceness));
            assert!(usual.is_zero() || shorter == SHORT_SLICE, "{usual:?} {shorter:?}");
            let started = std::thread::spawn(attributes).join().expect("tells");
            assert_eq!(started, (class, niceness, usual), "it has the usual one");
        })
        .join()
        .expect("holds");
    }

    #[test]
    fn a_thread_of_idle_priority_has_that_class() {
        std::thread::spawn(|| {
            lower(Priority::Idle).expect("lowered");
            assert_eq!(attributes().0, libc::SCHED_IDLE);
        })
        .join()
        .expect("holds");
    }
}
