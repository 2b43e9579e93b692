//! An agent that calls a function of the host from as deep a stack as it is told, with the heaviest
//! argument that there is for it. Its task is `DEPTH FUNCTION`.

use std::cell::RefCell;
use std::fmt::Debug;
use std::hint::black_box;
use taskrun_guest::{
    agent::{Agent, PlanInput, PlanResult, PlanResumeInput, PlannerError, task},
    controller::{self, Answer, ListFilter, SpawnRequest},
    conversation, events,
    http::{self, Request},
    log, memory, metrics,
    model::{self, CompletionRequest},
    prompts, random,
    reminders::{self, Attachment, ReminderSpec, Tier},
    run, state,
    types::{Message, Part, Role},
    workspace::{self, WriteMode},
};

struct Deep;

taskrun_guest::export_agent!(Deep);

thread_local! {
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Functions of the host, each with what is done to it.
const ACTS: &[(&str, fn())] = &[
    ("nothing", || said(&())),
    ("log", || said(&log::log(log::Level::Info, &text(MIB), &pairs(KIB)))),
    ("context", || said(&run::context())),
    ("tools", || said(&run::tools())),
    ("result", || said(&run::read_result(&text(64), 0, u32::MAX))),
    ("random", || said(&random::bytes(65_536))),
    ("state", || {
        said(&state::set("key", Some(&text(MIB))));
        said(&state::get("key"));
        said(&state::keys());
    }),
    ("reminder", || said(&reminders::add(&reminder()))),
    ("metric", || said(&metrics::record_value("deep", 1.0, &pairs(KIB)))),
    ("chunk", || said(&events::assistant_chunk(&text(MIB)))),
    ("thought", || said(&events::planner_thought(&text(MIB), &pairs(KIB)))),
    ("prompt", || said(&prompts::render("deep", &nested(120, 60 * KIB)))),
    ("complete", || said(&model::complete(&question()))),
    ("stream", || said(&model::stream(&question()).map(|stream| stream.next(1_024)))),
    ("complete-about", || said(&conversation::complete(Some(&text(MIB)), &question()))),
    ("stream-about", || {
        said(&conversation::stream(Some(&text(MIB)), &question()).map(|stream| stream.next(1_024)));
    }),
    ("conversation", || said(&conversation::read(0, u32::MAX))),
    ("fact", || said(&memory::get(&text(KIB)))),
    ("search", || said(&memory::search(&"word ".repeat(64 * KIB), u32::MAX))),
    ("list", || said(&workspace::list("docs", true, u32::MAX))),
    ("stat", || said(&workspace::stat(&"docs/".repeat(700)))),
    ("read", || said(&workspace::read("docs/large", 0, u32::MAX).map(|bytes| bytes.len()))),
    ("write", || {
        said(&workspace::create_directory("docs/a/b/c/d/e"));
        said(&workspace::write("docs/a/b/new", text(4 * MIB).as_bytes(), WriteMode::Replace));
        said(&workspace::remove("docs/a/b/new"));
    }),
    ("http", || said(&http::send(&request("http")))),
    ("https", || said(&http::send(&request("https")))),
    ("spawn", || {
        said(&controller::spawn(&SpawnRequest {
            labels: pairs(16),
            metadata: pairs(16),
            envelope: pairs(16),
            ..SpawnRequest::new("deep", text(200 * KIB))
        }))
    }),
    ("runs", || said(&controller::list(&ListFilter::all(), None, Some(u32::MAX)))),
    ("wait", || said(&controller::wait(&text(KIB), Some(1)))),
    ("provide", || {
        said(&controller::provide(&text(64), None, &Answer::Text(text(60 * KIB))));
    }),
];

/// Keeps what the host answered, as far as it is short.
fn said(answer: &dyn Debug) {
    let text = format!("{answer:?}");
    SAID.with_borrow_mut(|said| {
        said.push_str(text.get(..200).unwrap_or(&text));
        said.push(' ');
    });
}

fn text(bytes: usize) -> String {
    "x".repeat(bytes)
}

fn pairs(count: usize) -> Vec<(String, String)> {
    (0..count).map(|n| (format!("key{n}"), text(16))).collect()
}

fn reminder() -> ReminderSpec {
    ReminderSpec {
        id: text(256),
        text: text(4 * KIB),
        priority: Tier::Guidance,
        attachment: Attachment::UserTurn,
        max_per_run: None,
        min_turns_between: 0,
    }
}

/// An object as deep as that, with so long a text at its end.
fn nested(depth: usize, bytes: usize) -> String {
    format!("{}\"{}\"{}", "{\"a\":".repeat(depth), text(bytes), "}".repeat(depth))
}

fn question() -> CompletionRequest {
    let message = Message { role: Role::User, parts: vec![Part::Text(text(KIB)); 1_000] };
    CompletionRequest::new(vec![message; 2])
}

fn request(scheme: &str) -> Request {
    Request {
        method: "POST".into(),
        url: format!("{scheme}://localhost:9/{}", "a/".repeat(KIB)),
        headers: (0..90).map(|n| (format!("x-{n}"), text(256))).collect(),
        body: vec![0; 4 * MIB],
        timeout: None,
    }
}

/// Small frames: the stack of calls ends before the one that the guest keeps in its memory.
fn deeper(depth: u64, act: fn()) -> u64 {
    let depth = black_box(depth);
    if depth == 0 {
        act();
        return 0;
    }
    deeper(depth - 1, act) ^ depth
}

impl Agent for Deep {
    fn start(input: PlanInput) -> Result<PlanResult, PlannerError> {
        let task = task(&input.messages).unwrap_or_default();
        let (depth, name) = task.split_once(' ').unwrap_or_default();
        if name == "names" {
            let names: Vec<&str> = ACTS.iter().map(|(name, _)| *name).collect();
            return Ok(PlanResult::final_text(names.join(" ")));
        }
        let act = ACTS.iter().find(|(known, _)| *known == name);
        let (Ok(depth), Some((_, act))) = (depth.parse(), act) else {
            return Err(PlannerError::new("the task is not `DEPTH FUNCTION`"));
        };
        black_box(deeper(depth, *act));
        Ok(PlanResult::final_text(SAID.take()))
    }

    fn resume(_: PlanResumeInput) -> Result<PlanResult, PlannerError> {
        Err(PlannerError::new("there is one step"))
    }
}
