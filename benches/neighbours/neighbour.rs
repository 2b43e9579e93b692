//! Guests that cost their host more than they should.

use std::io::{Read, Write};
use std::net::TcpListener;

use serde_json::{Value, json};
use taskrun_examples::evil;

use crate::cores;

/// Calls in the task of an agent that makes dear ones.
const BOMBS: usize = 200;
/// Bytes of arguments of which one task may have many.
const SMALL_BYTES: usize = 1 << 10;

/// Runs that go on while the honest one works.
pub(crate) struct Neighbour {
    /// The name in the report.
    pub(crate) name: &'static str,
    pub(crate) work: Work,
    pub(crate) count: usize,
    /// The most times as long that a turn beside them is to take.
    pub(crate) goal: f64,
}

/// The work of a neighbour.
pub(crate) enum Work {
    /// A run of an agent.
    Run { agent: &'static str, task: String },
    /// Compilations, one after the other, each of another component.
    Compilation,
}

impl Neighbour {
    pub(crate) fn new(agent: &'static str, task: impl Into<String>, count: usize) -> Self {
        let goal = if count < 4 * cores() { 2.0 } else { 3.0 };
        Self { name: agent, work: Work::Run { agent, task: task.into() }, count, goal }
    }

    /// Some that make a call again and again.
    fn calling(agent: &'static str, count: usize, name: &str, args: &Value) -> Self {
        let call = json!([{ "call": { "name": name, "args": args } }]);
        Self::new(agent, json!({ "steps": vec![call; 1_000] }).to_string(), count)
    }
}

/// Neighbours that make the host work and hardly compute themselves. A server is asked again and again
/// within one call, as guests spin in one, or once a turn, which is a commit more each time.
pub(crate) fn others(servers: &Servers) -> [Neighbour; 10] {
    let fetchers = |name, count, function, port| {
        let args = json!({ "url": format!("http://127.0.0.1:{port}/") });
        Neighbour { name, ..Neighbour::calling("fetcher", count, function, &args) }
    };
    let nobody = json!({ "url": "http://nobody.example/" });
    [
        fetchers("flooded", cores(), "asker/ask", servers.flooding),
        fetchers("flooded", 3, "asker/ask", servers.flooding),
        fetchers("flooded", 4 * cores(), "asker/ask", servers.flooding),
        fetchers("answered", 3, "asker/ask", servers.polite),
        fetchers("flooded once a turn", 3, "fetch/get", servers.flooding),
        fetchers("answered once a turn", 3, "fetch/get", servers.polite),
        // Nobody answers for it, or says that there is none.
        Neighbour::calling("fetcher", 1, "fetch/get", &nobody),
        Neighbour::calling(
            "filler",
            1,
            "evil/fill",
            &json!({ "folder": "full", "files": 200, "bytes": 65536, "how": "create" }),
        ),
        Neighbour::new("bomber", bombs(), 1),
        Neighbour { name: "compilation", work: Work::Compilation, count: 1, goal: 2.0 },
    ]
}

/// The task of an agent that gives functions arguments that are dear to hold to their schemas, each
/// once and those that are small again and again, with an honest call between two of them: mistakes
/// without one end a run.
pub(crate) fn bombs() -> String {
    let honest = json!([{ "call": { "name": "lookup/lookup", "args": { "result": 1 } } }]);
    let (all, mut steps) = (evil::schema_bombs(), Vec::new());
    let small = all.iter().filter(|(_, args)| args.len() < SMALL_BYTES);
    for (name, args) in all.iter().chain(small.cycle()).take(BOMBS) {
        let args: Value = serde_json::from_str(args).expect("JSON");
        steps.push(json!([{ "call": { "name": format!("schema/{name}"), "args": args } }]));
        steps.push(honest.clone());
    }
    json!({ "steps": steps }).to_string()
}

/// Ports of the servers.
pub(crate) struct Servers {
    /// Answers `100 Continue` without end.
    pub(crate) flooding: u16,
    /// Answers that there is nothing.
    pub(crate) polite: u16,
}

/// A server that says this to everybody who asks, again and again if it is to go on; gives its
/// port. Ends with the process. It stands for another machine, so its own work is to take nothing of
/// this one that the host wants.
pub(crate) fn server(answer: &'static [u8], goes_on: bool) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        work_behind_all_others();
        for connection in listener.incoming().flatten() {
            std::thread::spawn(move || {
                if goes_on {
                    let many = answer.repeat(1_000);
                    // Until whoever asked is gone.
                    while (&connection).write_all(&many).is_ok() {}
                } else {
                    // The request fits into one read. A connection for each, as where it floods.
                    if (&connection).read(&mut [0; 4096]).is_ok_and(|bytes| bytes > 0) {
                        (&connection).write_all(answer).ok();
                    }
                }
            });
        }
    });
    port
}

/// Gives this thread, and those that it starts, Linux's class for what is to run where nothing else wants
/// the processor. With the lowest niceness alone a thread of the host that wakes up waits until the slice
/// of the one that has the processor is over, some 3 ms.
#[expect(unsafe_code, reason = "neither the standard library nor rustix has this call")]
fn work_behind_all_others() {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads the structure, which lives until the call is over.
    let answer = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const priority) };
    assert_eq!(answer, 0, "the class may be lowered");
}
