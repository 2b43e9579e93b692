//! An agent that looks for itself, without tools and models. Each line of its task is one thing to
//! do, and its answer has a line for each:
//!
//! | line | does |
//! | --- | --- |
//! | `list PATH` | names the entries of a folder |
//! | `stat PATH` | tells the size of a file |
//! | `read PATH` | says how a file begins, and how long it is |
//! | `append PATH TEXT` | adds a text to a file |
//! | `get URL` | tells the status of an answer |
//! | `budget` | tells how many turns are left |

use taskrun_guest::{
    agent::{self, Agent, PlanInput, PlanResult, PlanResumeInput, PlannerError},
    http::{self, Request},
    run,
    workspace::{self, WriteMode},
};

/// Characters that are said of a file.
const SHOWN_CHARS: usize = 40;

struct Inspector;

taskrun_guest::export_agent!(Inspector);

impl Agent for Inspector {
    fn start(input: PlanInput) -> Result<PlanResult, PlannerError> {
        let task = agent::task(&input.messages).unwrap_or_default();
        let seen: Vec<String> = task.lines().map(look).collect();
        Ok(PlanResult::final_text(seen.join("\n")))
    }

    fn resume(_: PlanResumeInput) -> Result<PlanResult, PlannerError> {
        Err(PlannerError::new("an inspector calls no tools"))
    }
}

fn look(line: &str) -> String {
    let (act, what) = line.split_once(' ').unwrap_or((line, ""));
    let seen = match act {
        "list" => list(what),
        "stat" => workspace::stat(what)
            .map(|entry| format!("{} bytes", entry.size))
            .map_err(|error| error.text()),
        "read" => read(what),
        "append" => append(what),
        "get" => get(what),
        "budget" => Ok(format!("{:?} turns", run::budget().turns)),
        _ => Err("it is none of what an inspector does".to_owned()),
    };
    seen.unwrap_or_else(|error| error)
}

fn list(path: &str) -> Result<String, String> {
    let listing = workspace::list(path, true, 100).map_err(|error| error.text())?;
    let paths: Vec<String> = listing.entries.into_iter().map(|entry| entry.path).collect();
    Ok(paths.join(" "))
}

fn read(path: &str) -> Result<String, String> {
    let bytes = workspace::read(path, 0, u32::MAX).map_err(|error| error.text())?;
    let text = String::from_utf8_lossy(&bytes);
    let shown: String = text.chars().take(SHOWN_CHARS).collect();
    Ok(format!("{shown} ({} bytes)", bytes.len()))
}

fn append(what: &str) -> Result<String, String> {
    let (path, text) = what.split_once(' ').ok_or("a path and a text")?;
    workspace::write(path, text.as_bytes(), WriteMode::Append).map_err(|error| error.text())?;
    Ok("added".to_owned())
}

fn get(url: &str) -> Result<String, String> {
    let request = Request {
        method: "GET".into(),
        url: url.into(),
        headers: Vec::new(),
        body: Vec::new(),
        timeout: None,
    };
    let response = http::send(&request).map_err(|error| error.text())?;
    Ok(format!("status {}", response.status))
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskrun_guest::{
        agent::Decision,
        native,
        types::{Message, Role},
    };

    #[test]
    fn it_answers_with_a_line_for_each_line_of_its_task() {
        native::reset();
        native::host(|host| {
            host.files.insert("docs/a".into(), b"apples".to_vec());
        });
        let task = "read docs/a\nappend docs/a  pears\nstat docs/a\nread docs/b\nsing";
        let messages = vec![Message::text(Role::User, task)];
        let input = PlanInput { messages, run: run::context(), reminders: Vec::new() };
        let result = Inspector::start(input).expect("a decision");
        let Decision::FinalResponse(last) = result.decision else { panic!("not final") };
        let text = last.message.plain_text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..3], ["apples (6 bytes)", "added", "12 bytes"]);
        assert_eq!(lines.len(), 5);
        assert!(lines[4].contains("none"));
    }
}
