use super::*;
use taskrun_guest::{
    agent::{Decision, Termination, TerminationReason, ToolFailure},
    native,
    types::{Message, Role, ToolError, ToolSpec},
};

fn start(question: &str) -> Result<PlanResult, PlannerError> {
    Researcher::start(PlanInput {
        messages: vec![Message::text(Role::User, question)],
        run: run::context(),
        reminders: Vec::new(),
    })
}

fn offer_tools() {
    native::reset();
    native::host(|host| {
        host.tools = [SEARCH, READ].map(|name| ToolSpec::new(name, "", "{}")).into();
    });
}

fn output(name: &str, payload: &str, outcome: ToolOutcome) -> ToolOutput {
    ToolOutput {
        name: name.into(),
        tool_call_id: "call".into(),
        payload: payload.into(),
        outcome,
        result_bytes: 0,
        result_omitted: None,
        server_data: None,
        bounds: None,
        telemetry: None,
        children_count: 0,
        run_link: None,
        media: Vec::new(),
    }
}

fn resume(tool_outputs: Vec<ToolOutput>, finalize: Option<Termination>) -> PlanResult {
    let input = PlanResumeInput {
        messages: Vec::new(),
        run: run::context(),
        reminders: Vec::new(),
        tool_outputs,
        finalize,
    };
    Researcher::resume(input).expect("it decides")
}

fn final_text(result: &PlanResult) -> String {
    let Decision::FinalResponse(last) = &result.decision else {
        panic!("not final: {:?}", result.decision)
    };
    last.message.plain_text()
}

fn searched(hits: &str) -> ToolOutput {
    let query = r#"{"query":"What is the retry limit?"}"#;
    output(SEARCH, query, ToolOutcome::Value(format!(r#"{{"hits":[{hits}]}}"#)))
}

const HIT: &str = r#"{"path":"a.md","line":3,"heading":"","excerpt":"The retry limit","score":2}"#;

#[test]
fn a_run_without_the_tools_fails_and_names_them() {
    native::reset();
    let error = start("What?").expect_err("it cannot work");
    assert!(error.message.contains("workspace/search and workspace/read"), "{error:?}");
}

#[test]
fn it_searches_reads_and_answers_with_places() {
    offer_tools();
    let Decision::ToolCalls(calls) = start("What is the retry limit?").expect("a plan").decision
    else {
        panic!("no calls")
    };
    assert_eq!(calls[0].name, SEARCH);

    let Decision::ToolCalls(calls) = resume(vec![searched(HIT)], None).decision else {
        panic!("no calls")
    };
    assert_eq!(calls[0].name, READ);
    assert_eq!(calls[0].payload, r#"{"line_count":13,"path":"a.md","start_line":1}"#);

    let lines = r##"{"text":"1: # Limits\n2: \n3: The retry limit is three.\n4: It cannot be raised. Nobody asked.\n5: \n6: Else."}"##;
    let read = output(READ, &calls[0].payload, ToolOutcome::Value(lines.into()));
    let text = final_text(&resume(vec![searched(HIT), read], None));
    assert_eq!(text, "The retry limit is three. It cannot be raised. (a.md:3)\n\nSources: a.md:3");
}

#[test]
fn nothing_found_is_said_plainly() {
    let text = final_text(&resume(vec![searched("")], None));
    assert!(text.starts_with("Nothing was found"), "{text}");
}

#[test]
fn a_failed_search_is_said_plainly_and_a_failed_read_falls_back_to_the_excerpt() {
    let failure =
        || ToolOutcome::Failure(ToolFailure { error: ToolError::new("denied"), retry_hint: None });
    let text = final_text(&resume(vec![output(SEARCH, "{}", failure())], None));
    assert_eq!(text, "The workspace could not be searched: denied");
    let text = final_text(&resume(vec![searched(HIT), output(READ, "{}", failure())], None));
    assert_eq!(text, "The retry limit (a.md:3)\n\nSources: a.md:3");
}

#[test]
fn asked_for_a_last_answer_it_uses_the_excerpts() {
    let finalize = Termination { reason: TerminationReason::ToolCap, message: "no calls".into() };
    let text = final_text(&resume(vec![searched(HIT)], Some(finalize)));
    assert!(text.contains("a.md:3"), "{text}");
}

#[test]
fn below_a_heading_stands_the_paragraph_it_announces() {
    let lines = "1: # Limits\n2:\n3: Three.\n4: Not four.\n5:\n6: x";
    assert_eq!(answer::paragraph(lines, 1).as_deref(), Some("Three. Not four."));
    assert_eq!(answer::paragraph(lines, 4).as_deref(), Some("Three. Not four."));
    assert_eq!(answer::paragraph(lines, 9), None);
    assert_eq!(answer::paragraph("1: # Alone", 1), None);
}
