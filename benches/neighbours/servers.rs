//! The servers that neighbours ask. They stand for other machines, so what they do is to take nothing of
//! the host. They are another process, as threads of one process share the lock of its memory; their
//! thread has Linux's class for what is to run where nothing else wants the processor; it is one
//! thread, as each that Linux let wait has a claim before whatever wakes up beside it; and it offers the
//! processor after each answer, as it would keep it by such a claim until the kernel's next tick.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// The argument with which this program is the process of the servers.
pub(crate) const SERVE: &str = "serve";

/// Ports of the servers, and their process, which ends when this is dropped or this process ends.
pub(crate) struct Servers {
    /// Answers `100 Continue` without end.
    pub(crate) flooding: u16,
    /// Answers that there is nothing.
    pub(crate) polite: u16,
    process: Child,
}

impl Servers {
    /// Starts them.
    pub(crate) fn start() -> Self {
        let program = std::env::current_exe().expect("Linux tells");
        let mut command = Command::new(program);
        let command = command.arg(SERVE).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("it starts");
        let mut lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let mut port = || {
            let line = lines.next().expect("it tells its ports").expect("text");
            line.parse().expect("a port")
        };
        Self { flooding: port(), polite: port(), process }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        // One that has ended cannot be killed.
        self.process.kill().ok();
        self.process.wait().expect("it was started here");
    }
}

/// The program as the process of the servers: prints their ports, a line each, and serves until its
/// input ends.
pub(crate) fn serve_main() -> ExitCode {
    work_behind_all_others();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    runtime.expect("a runtime").block_on(async {
        println!("{}", serve(b"HTTP/1.1 100 Continue\r\n\r\n", true).await);
        let nothing = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        println!("{}", serve(nothing, false).await);
        let ended = tokio::task::spawn_blocking(|| {
            std::io::copy(&mut std::io::stdin(), &mut std::io::sink())
        });
        ExitCode::from(u8::from(!ended.await.is_ok_and(|ended| ended.is_ok())))
    })
}

/// Says this to everybody who asks, again and again if it is to go on; gives its port.
async fn serve(answer: &'static [u8], goes_on: bool) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(async move {
        let many: Arc<[u8]> = answer.repeat(1_000).into();
        while let Ok((mut connection, _)) = listener.accept().await {
            let many = Arc::clone(&many);
            tokio::spawn(async move {
                if goes_on {
                    // Until whoever asked is gone.
                    while connection.write_all(&many).await.is_ok() {
                        std::thread::yield_now();
                    }
                } else {
                    // The request fits into one read. A connection for each, as where it floods.
                    if connection.read(&mut [0; 4096]).await.is_ok_and(|bytes| bytes > 0) {
                        connection.write_all(answer).await.ok();
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    port
}

/// Gives this thread, and those that it starts, the class. With the lowest niceness alone a thread of the
/// host that wakes up waits until the slice of the one that has the processor is over, some 3 ms.
#[expect(unsafe_code, reason = "neither the standard library nor rustix has this call")]
fn work_behind_all_others() {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads the structure, which lives until the call is over.
    let answer = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const priority) };
    assert_eq!(answer, 0, "the class may be lowered");
}
