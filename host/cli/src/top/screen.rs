//! The terminal as a screen of its own. It is given back as it was when this ends, also by a panic.

use std::io::{self, Stdout};
use std::mem::ManuallyDrop;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crossterm::cursor::Show;
use crossterm::event::{DisableBracketedPaste, EnableBracketedPaste};
use crossterm::execute;
use crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::backend::CrosstermBackend;
use ratatui::layout::Size;
use ratatui::{Frame, Terminal};

use crate::tracing_setup;

/// True while the terminal is a screen of this process.
static TAKEN: AtomicBool = AtomicBool::new(false);
/// The hook for panics is set once in a process.
static HOOK: Once = Once::new();

/// The screen. Dropping it gives the terminal back. A process has one terminal, and so one of these.
pub(super) struct Screen {
    /// It is never dropped: of a terminal that is gone it would say on stderr that the cursor cannot
    /// be shown, and panic if that is gone, too.
    terminal: ManuallyDrop<Terminal<CrosstermBackend<Stdout>>>,
}

impl Screen {
    /// Takes the terminal. A panic of any thread gives it back before it says anything.
    ///
    /// # Errors
    /// Those of the terminal, which is given back.
    pub(super) fn open() -> io::Result<Self> {
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                give_back();
                before(panic);
            }));
        });
        TAKEN.store(true, Ordering::Release);
        tracing_setup::hold();
        let taken = enable_raw_mode()
            .and_then(|()| execute!(io::stdout(), EnterAlternateScreen, EnableBracketedPaste))
            .and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        match taken {
            Ok(terminal) => Ok(Self { terminal: ManuallyDrop::new(terminal) }),
            Err(error) => {
                give_back();
                Err(error)
            }
        }
    }

    /// Draws, unless a panic of another thread has given the terminal back.
    ///
    /// # Errors
    /// Those of the terminal, or that it was given back.
    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        if !TAKEN.load(Ordering::Acquire) {
            return Err(io::Error::other("a part of the program has panicked"));
        }
        self.terminal.draw(draw).map(|_| ())
    }

    /// Its columns and lines; none where it does not say.
    pub(super) fn size(&self) -> Size {
        self.terminal.size().unwrap_or_default()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Gives the terminal back, once. What fails on the way fails as there is no terminal any more.
fn give_back() {
    if !TAKEN.swap(false, Ordering::AcqRel) {
        return;
    }
    execute!(io::stdout(), DisableBracketedPaste, LeaveAlternateScreen, Show).ok();
    disable_raw_mode().ok();
    tracing_setup::release();
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::{FromRawFd, OwnedFd};
    use std::process::{Child, Command, Stdio};

    use rustix::io::{FdFlags, fcntl_setfd};
    use rustix::termios::{LocalModes, tcgetattr};

    use super::*;

    /// Tells the process of a test that it is the one with the screen.
    const CHILD: &str = "TASKRUN_TEST_SCREEN";
    const NAME: &str = "top::screen::tests::a_panic_of_any_thread_gives_the_terminal_back";

    #[expect(unsafe_code, reason = "pseudo-terminals are had from the C library only")]
    fn pseudo_terminal() -> (File, OwnedFd) {
        let (mut master, mut slave) = (-1, -1);
        let size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let (name, modes, size) = (std::ptr::null_mut(), std::ptr::null(), &raw const size);
        // SAFETY: both point to integers, and the size is there; names and modes are not asked for.
        let made = unsafe { libc::openpty(&raw mut master, &raw mut slave, name, modes, size) };
        assert_eq!(made, 0, "a pseudo-terminal");
        // SAFETY: both were opened just now, and nobody else has them.
        unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) }
    }

    /// A test of this program alone, in a process at this terminal.
    fn test_at(terminal: OwnedFd, name: &str) -> Child {
        let end = || Stdio::from(terminal.try_clone().expect("a descriptor"));
        Command::new(std::env::current_exe().expect("the test is a program"))
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, "1")
            .stdin(end())
            .stdout(end())
            .stderr(Stdio::from(terminal))
            .spawn()
            .expect("it starts")
    }

    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "the process of a test knows by this that it is one"
    )]
    fn a_terminal_that_is_gone_makes_no_panic() {
        const NAME: &str = "top::screen::tests::a_terminal_that_is_gone_makes_no_panic";
        const DRAWN: &[u8] = b"it is drawn";
        if std::env::var(CHILD).is_ok() {
            let mut screen = Screen::open().expect("a terminal");
            screen.draw(|frame| frame.render_widget("a screen", frame.area())).expect("drawn");
            io::stdout().write_all(DRAWN).and_then(|()| io::stdout().flush()).expect("written");
            // No key is pressed: it returns when the terminal is gone, with nothing or an error.
            assert_eq!(io::stdin().read(&mut [0]).unwrap_or(0), 0);
            drop(screen);
            // The harness would say there how the test ended.
            std::process::exit(7);
        }
        let (mut master, slave) = pseudo_terminal();
        fcntl_setfd(&master, FdFlags::CLOEXEC).expect("it is no descriptor of the child");
        let mut child = test_at(slave, NAME);
        let mut written = Vec::new();
        let mut buffer = [0; 4096];
        while !written.windows(DRAWN.len()).any(|part| part == DRAWN) {
            let count = master.read(&mut buffer).expect("the child lives");
            written.extend_from_slice(&buffer[..count]);
        }
        drop(master);
        assert_eq!(child.wait().expect("it ends").code(), Some(7));
    }

    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "the process of a test knows by this that it is one"
    )]
    fn a_panic_of_any_thread_gives_the_terminal_back() {
        if std::env::var(CHILD).is_ok() {
            let mut screen = Screen::open().expect("a terminal");
            screen.draw(|frame| frame.render_widget("a screen", frame.area())).expect("drawn");
            std::thread::spawn(|| panic!("it went wrong")).join().expect_err("a panic");
            screen.draw(|_| ()).expect_err("nothing is drawn over the message");
            return;
        }
        let (mut master, slave) = pseudo_terminal();
        let mut child = test_at(slave, NAME);
        let mut terminal = vt100::Parser::default();
        let mut written = Vec::new();
        let mut buffer = [0; 4096];
        // The end of the program is an error here.
        while let Ok(count) = master.read(&mut buffer)
            && count > 0
        {
            written.extend_from_slice(&buffer[..count]);
        }
        terminal.process(&written);
        let was_taken = String::from_utf8_lossy(&written).contains("\u{1b}[?1049h");
        let screen = terminal.screen();
        assert_eq!(child.wait().expect("it ends").code(), Some(0), "{}", screen.contents());
        assert!(was_taken && screen.contents().contains("it went wrong"), "{}", screen.contents());
        assert!(!screen.alternate_screen() && !screen.hide_cursor() && !screen.bracketed_paste());
        let modes = tcgetattr(&master).expect("it has modes").local_modes;
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO));
    }
}
