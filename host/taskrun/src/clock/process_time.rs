//! The time of this process: real time, without that in which the process stood still as a whole.
//!
//! A process that is stopped (Ctrl-Z, `SIGSTOP`), or frozen with its container, does nothing, while
//! the clocks of the system go on. When it goes on every timer in it would be over at once, and end
//! what had no time to come to its end. So a thread looks at the clock while something is executed,
//! and of what passes from one look to the next at most [`COUNTED_MAX`] counts, whoever asks for the
//! time first after a standstill. While nothing is executed all time counts, and nobody looks.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// The pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Most time that counts from one look to the next. A look that is late on a busy machine is late by
/// less than the rest of it.
const COUNTED_MAX: Duration = Duration::from_secs(1);
/// Attempts to read the time beside whoever changes the account.
const READS_MAX: u32 = 100;

/// The time that counts. All times are real ones since some fixed point.
#[derive(Debug)]
struct Account {
    /// Those for whom no standstill is to count.
    users: usize,
    /// The time of the last look.
    last: Duration,
    /// The time that did not count before that.
    stood: Duration,
}

impl Account {
    const fn new() -> Self {
        Self { users: 0, last: Duration::ZERO, stood: Duration::ZERO }
    }

    /// All the time that did not count until now.
    fn stood(&self, now: Duration) -> Duration {
        match self.users {
            0 => self.stood,
            _ => self.stood + now.saturating_sub(self.last).saturating_sub(COUNTED_MAX),
        }
    }

    fn time(&self, now: Duration) -> Duration {
        // A processor may have read its clock a little before it read the account.
        let now = now.max(self.last);
        now.saturating_sub(self.stood(now))
    }

    fn look(&mut self, now: Duration) {
        self.stood = self.stood(now);
        self.last = now;
    }

    fn begin(&mut self, now: Duration) {
        self.look(now);
        self.users += 1;
    }

    fn end(&mut self, now: Duration) {
        self.look(now);
        self.users -= 1;
    }
}

/// The account as all threads read it, who wait for nobody: what they read is of one moment, or
/// they read it again.
struct Shown {
    /// An odd number while the account is written.
    version: AtomicU64,
    users: AtomicUsize,
    /// Nanoseconds, of which there are enough for 584 years.
    last: AtomicU64,
    /// As the one before.
    stood: AtomicU64,
}

impl Shown {
    /// Of an account without users.
    const fn new() -> Self {
        Self {
            version: AtomicU64::new(0),
            users: AtomicUsize::new(0),
            last: AtomicU64::new(0),
            stood: AtomicU64::new(0),
        }
    }

    /// Changes an account as of now, and shows it. Nobody else does meanwhile: whoever calls this
    /// has the only way to the account. The clock is read in between, so that no reader who missed
    /// the change has a later time than it.
    fn change(
        &self,
        account: &mut Account,
        now: impl FnOnce() -> Duration,
        change: impl FnOnce(&mut Account, Duration),
    ) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        change(account, now());
        self.users.store(account.users, Ordering::Relaxed);
        self.last.store(nanos(account.last), Ordering::Relaxed);
        self.stood.store(nanos(account.stood), Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// The time, with a clock that is read while the account stays as it is; `None` if it was
    /// changed.
    fn time(&self, now: impl FnOnce() -> Duration) -> Option<Duration> {
        let version = self.version.load(Ordering::Acquire);
        if !version.is_multiple_of(2) {
            return None;
        }
        let account = Account {
            users: self.users.load(Ordering::Relaxed),
            last: Duration::from_nanos(self.last.load(Ordering::Relaxed)),
            stood: Duration::from_nanos(self.stood.load(Ordering::Relaxed)),
        };
        let now = now();
        fence(Ordering::Acquire);
        let is_of_one_moment = self.version.load(Ordering::Relaxed) == version;
        is_of_one_moment.then(|| account.time(now))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

struct Shared {
    account: Account,
    /// The thread that looks, and whether it rests. It ends with the process.
    thread: Option<Thread>,
    rests: bool,
}

/// The fixed point.
static ORIGIN: OnceLock<Instant> = OnceLock::new();
static SHOWN: Shown = Shown::new();
static SHARED: Mutex<Shared> =
    Mutex::new(Shared { account: Account::new(), thread: None, rests: false });

fn shared() -> MutexGuard<'static, Shared> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn change(&mut self, change: impl FnOnce(&mut Account, Duration)) {
        SHOWN.change(&mut self.account, now, change);
    }
}

/// The real time.
#[expect(clippy::disallowed_methods, reason = "the clock of the system is one of this time")]
fn now() -> Duration {
    let now = Instant::now();
    // Whoever read the clock before the one who fixed the point is told zero, too.
    now.saturating_duration_since(*ORIGIN.get_or_init(|| now))
}

/// The time of this process since some fixed point in its life; never goes backwards.
#[must_use]
pub fn process_time() -> Duration {
    for _ in 0..READS_MAX {
        if let Some(time) = SHOWN.time(now) {
            return time;
        }
        std::hint::spin_loop();
    }
    // The thread that changes the account does not come to the end of that: it has no processor.
    let shared = shared();
    shared.account.time(now())
}

/// A user of the time for whom no standstill is to count; until this is dropped.
#[derive(Debug)]
pub(crate) struct ProcessTimeUse {
    /// False if the system has no thread that looks: then all time counts, also that.
    is_looked_after: bool,
}

impl ProcessTimeUse {
    pub(crate) fn begin() -> Self {
        let mut shared = shared();
        if shared.thread.is_none() {
            let begun = std::thread::Builder::new().name("taskrun-time".to_owned()).spawn(look);
            match begun {
                Ok(thread) => shared.thread = Some(thread.thread().clone()),
                Err(error) => {
                    drop(shared);
                    tracing::warn!(%error, "time in which this process stands still counts");
                    return Self { is_looked_after: false };
                }
            }
        }
        shared.change(Account::begin);
        if std::mem::take(&mut shared.rests)
            && let Some(thread) = &shared.thread
        {
            thread.unpark();
        }
        Self { is_looked_after: true }
    }
}

impl Drop for ProcessTimeUse {
    fn drop(&mut self) {
        if self.is_looked_after {
            shared().change(Account::end);
        }
    }
}

/// Looks at the clock again and again, and rests while nobody uses the time.
fn look() {
    loop {
        std::thread::park_timeout(LOOK_EVERY);
        let mut shared = shared();
        shared.change(Account::look);
        shared.rests = shared.account.users == 0;
        while shared.rests {
            drop(shared);
            std::thread::park();
            shared = self::shared();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn of_a_standstill_no_more_counts_than_from_one_look_to_the_next() {
        let mut account = Account::new();
        account.begin(ms(10_000));
        assert_eq!(account.time(ms(10_400)), ms(10_400));
        account.look(ms(10_500));
        // Whoever asks before the next look is told the same as after it.
        assert_eq!(account.time(ms(70_500)), ms(11_500));
        account.look(ms(70_500));
        assert_eq!(account.time(ms(70_500)), ms(11_500));
        account.look(ms(71_000));
        assert_eq!(account.time(ms(71_100)), ms(12_100));
    }

    #[test]
    fn all_time_counts_while_nobody_uses_it() {
        let mut account = Account::new();
        assert_eq!(account.time(ms(60_000)), ms(60_000));
        account.begin(ms(60_000));
        account.begin(ms(60_100));
        account.end(ms(60_200));
        assert_eq!(account.time(ms(90_200)), ms(61_200), "one still does");
        account.end(ms(90_200));
        assert_eq!(account.time(ms(120_200)), ms(91_200));
        account.begin(ms(120_200));
        assert_eq!(account.time(ms(120_200)), ms(91_200), "time never goes back");
    }

    #[test]
    fn time_never_goes_back_for_those_who_read_it_while_it_is_changed() {
        const CHANGES: u64 = 30_000;
        let (shown, clock, last_read) = (Shown::new(), AtomicU64::new(0), AtomicU64::new(0));
        let (is_done, went_back) = (AtomicBool::new(false), AtomicBool::new(false));
        let now = || ms(clock.load(Ordering::SeqCst));
        let read = || {
            let before = last_read.load(Ordering::SeqCst);
            let time = shown.time(now).map(nanos);
            if let Some(time) = time {
                went_back.fetch_or(time < before, Ordering::SeqCst);
                last_read.fetch_max(time, Ordering::SeqCst);
            }
            time
        };
        let (mut account, mut wrong) = (Account::new(), 0);
        std::thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| {
                    while !is_done.load(Ordering::SeqCst) {
                        read();
                    }
                });
            }
            for number in 0..CHANGES {
                // Every third time it stood still before.
                let passed = if number.is_multiple_of(3) { 5_000 } else { 400 };
                clock.fetch_add(passed, Ordering::SeqCst);
                match number % 7 {
                    1 => shown.change(&mut account, now, Account::begin),
                    6 => shown.change(&mut account, now, Account::end),
                    _ => shown.change(&mut account, now, Account::look),
                }
                // Nobody changes it now.
                wrong += usize::from(read() != Some(nanos(account.time(now()))));
            }
            is_done.store(true, Ordering::SeqCst);
        });
        assert!(!went_back.into_inner(), "a reader was told an earlier time than one before it");
        assert_eq!(wrong, 0, "what is shown is the account");
        assert!(account.stood > Duration::ZERO, "it stood still");
    }

    #[test]
    fn whoever_reads_the_time_waits_for_nobody_who_has_the_account() {
        let held = shared();
        let (sender, receiver) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || sender.send(process_time()));
        let read = receiver.recv_timeout(Duration::from_secs(60));
        drop(held);
        read.expect("it is read while the account is held");
        reader.join().expect("ends").expect("was heard");
    }

    #[test]
    fn the_time_of_the_process_goes_on_while_it_is_used() {
        let used = ProcessTimeUse::begin();
        let before = process_time();
        while process_time() == before {
            std::thread::yield_now();
        }
        drop(used);
        assert!(process_time() > before);
    }
}
