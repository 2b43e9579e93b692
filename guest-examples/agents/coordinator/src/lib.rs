//! An agent that gives each line of its task, `AGENT: WHAT TO DO`, to a run of another agent,
//! waits for all of them without a slot, and answers with what became of each. Images of its task go
//! to each of them, and its answer has those of theirs.

use serde::{Deserialize, Serialize};
use taskrun_guest::{
    agent::{
        Agent, Message, Part, PlanInput, PlanResult, PlanResumeInput, PlannerError, Role,
        ToolOutcome, task, task_images,
    },
    controller::{self, SpawnRequest},
    state,
    types::Media,
};

/// Key of the run's state under which the lines are kept.
const LINES: &str = "lines";

/// A line of the task and what became of it.
#[derive(Serialize, Deserialize)]
struct Line {
    agent: String,
    /// The run that does it, or why there is none.
    run: Result<String, String>,
}

/// A run as it stands when the wait for it is over.
#[derive(Deserialize)]
struct Ended {
    run_id: String,
    status: String,
    result: Option<String>,
    error: Option<String>,
}

struct Coordinator;

taskrun_guest::export_agent!(Coordinator);

impl Agent for Coordinator {
    fn start(input: PlanInput) -> Result<PlanResult, PlannerError> {
        let task = task(&input.messages).unwrap_or_default();
        let images = task_images(&input.messages);
        let lines = task.lines().filter(|line| !line.trim().is_empty());
        let lines: Vec<Line> = lines.map(|line| delegate(line, &images)).collect();
        let runs: Vec<String> = lines.iter().filter_map(|line| line.run.clone().ok()).collect();
        if runs.is_empty() {
            return Ok(PlanResult::final_text(answer(&lines, &[])));
        }
        let kept = serde_json::to_string(&lines).map_err(|error| broken(&error))?;
        state::set(LINES, Some(&kept))
            .map_err(|error| PlannerError::new(format!("the lines cannot be kept: {error:?}")))?;
        Ok(PlanResult::await_runs(runs))
    }

    fn resume(input: PlanResumeInput) -> Result<PlanResult, PlannerError> {
        let kept = state::get(LINES).unwrap_or_default();
        let lines: Vec<Line> = serde_json::from_str(&kept).map_err(|error| broken(&error))?;
        let waited = input.tool_outputs.last();
        let ended: Vec<Ended> = match waited.map(|output| &output.outcome) {
            Some(ToolOutcome::Value(json)) => {
                serde_json::from_str(json).map_err(|error| broken(&error))?
            }
            Some(ToolOutcome::Failure(failure)) => {
                return Err(PlannerError::new(failure.error.message.clone()));
            }
            None => Vec::new(),
        };
        let mut message = Message::text(Role::Assistant, answer(&lines, &ended));
        let images = waited.into_iter().flat_map(|output| output.media.iter().cloned());
        message.parts.extend(images.map(Part::Media));
        Ok(PlanResult::final_message(message))
    }
}

fn broken(error: &serde_json::Error) -> PlannerError {
    PlannerError::new(format!("not what was kept: {error}"))
}

fn delegate(line: &str, images: &[Media]) -> Line {
    let Some((agent, task)) = line.split_once(':') else {
        let why = "a line is AGENT: WHAT TO DO".to_owned();
        return Line { agent: line.trim().to_owned(), run: Err(why) };
    };
    let agent = agent.trim().to_owned();
    let request = SpawnRequest::new(&agent, task.trim()).images(images.iter().cloned());
    let run = controller::spawn(&request).map(|run| run.id).map_err(|error| error.text());
    Line { agent, run }
}

fn answer(lines: &[Line], ended: &[Ended]) -> String {
    let told = lines.iter().map(|line| {
        let what = match &line.run {
            Err(why) => format!("not started: {why}"),
            Ok(id) => match ended.iter().find(|ended| ended.run_id == *id) {
                Some(Ended { result: Some(result), .. }) => result.clone(),
                Some(Ended { error: Some(error), status, .. }) => format!("{status}: {error}"),
                Some(Ended { status, .. }) => status.clone(),
                None => "not ended".to_owned(),
            },
        };
        format!("{}: {what}", line.agent)
    });
    told.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskrun_guest::{
        agent::{Decision, ToolOutput},
        controller::ControllerError,
        native, run,
    };

    fn start(task: &str) -> PlanResult {
        let messages = vec![Message::text(Role::User, task)];
        let input = PlanInput { messages, run: run::context(), reminders: Vec::new() };
        Coordinator::start(input).expect("a decision")
    }

    fn resume(outcome: ToolOutcome) -> String {
        let output = ToolOutput {
            name: "controller/wait".into(),
            tool_call_id: "1".into(),
            payload: "{}".into(),
            outcome,
            result_bytes: 0,
            result_omitted: None,
            server_data: None,
            bounds: None,
            telemetry: None,
            children_count: 0,
            run_link: None,
            media: Vec::new(),
        };
        let input = PlanResumeInput {
            messages: Vec::new(),
            run: run::context(),
            reminders: Vec::new(),
            tool_outputs: vec![output],
            finalize: None,
        };
        text(Coordinator::resume(input).expect("a decision"))
    }

    fn text(result: PlanResult) -> String {
        let Decision::FinalResponse(last) = result.decision else { panic!("not final") };
        last.message.plain_text()
    }

    #[test]
    fn each_line_is_a_run_and_the_answer_says_what_became_of_it() {
        native::reset();
        native::host(|host| {
            let no = ControllerError::Forbidden("not a member".into());
            host.spawn_errors.insert("boss".into(), no);
        });
        let Decision::AwaitRuns(wait) =
            start("reader: read\n\nboss: decide\nwriter: write\nnobody").decision
        else {
            panic!("it waits");
        };
        assert_eq!(wait.runs, ["child-1", "child-2"]);
        let ended = r#"[{"run_id":"child-1","status":"completed","result":"done"},
            {"run_id":"child-2","status":"failed","error":"no ink"}]"#;
        assert_eq!(
            resume(ToolOutcome::Value(ended.into())),
            "reader: done\nboss: not started: not a member\nwriter: failed: no ink\n\
             nobody: not started: a line is AGENT: WHAT TO DO"
        );
    }

    #[test]
    fn without_a_run_it_waits_for_nothing() {
        native::reset();
        assert_eq!(text(start("nobody")), "nobody: not started: a line is AGENT: WHAT TO DO");
    }
}
