//! Guests that cost their host more than they should.

use serde_json::{Value, json};
use taskrun_examples::evil;

use crate::cores;
use crate::servers::Servers;

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
