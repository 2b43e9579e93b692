//! Guests that cost their host more than they should.

use std::io::{Read, Write};
use std::net::TcpListener;

use serde_json::{Value, json};
use taskrun_examples::evil;

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
        Self { name: agent, work: Work::Run { agent, task: task.into() }, count }
    }

    /// One that makes a call again and again.
    fn calling(agent: &'static str, name: &str, args: &Value) -> Self {
        let call = json!([{ "call": { "name": name, "args": args } }]);
        Self::new(agent, json!({ "steps": vec![call; 1_000] }).to_string(), 1)
    }
}

/// Neighbours that make the host work and hardly compute themselves. A server is asked again and again
/// within one call, as guests spin in one, or once a turn, which is a commit more each time.
pub(crate) fn others(servers: &Servers) -> [Neighbour; 8] {
    let fetchers = |name, function, port| Neighbour {
        name,
        count: 3,
        ..Neighbour::calling(
            "fetcher",
            function,
            &json!({ "url": format!("http://127.0.0.1:{port}/") }),
        )
    };
    [
        fetchers("flooded", "asker/ask", servers.flooding),
        fetchers("answered", "asker/ask", servers.polite),
        fetchers("flooded once a turn", "fetch/get", servers.flooding),
        fetchers("answered once a turn", "fetch/get", servers.polite),
        // Nobody answers for it, or says that there is none.
        Neighbour::calling("fetcher", "fetch/get", &json!({ "url": "http://nobody.example/" })),
        Neighbour::calling(
            "filler",
            "evil/fill",
            &json!({ "folder": "full", "files": 200, "bytes": 65536, "how": "create" }),
        ),
        Neighbour::new("bomber", bombs(), 1),
        Neighbour { name: "compilation", work: Work::Compilation, count: 1 },
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
/// port. Ends with the process. It stands for another machine, and so its own work waits for all of
/// the host's.
pub(crate) fn server(answer: &'static [u8], goes_on: bool) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        // Of this thread and those that it starts.
        rustix::process::setpriority_process(None, 19).expect("it may be lowered");
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
