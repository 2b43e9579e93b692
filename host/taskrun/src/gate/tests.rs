//! The layers of the gate, their order, and consent.

mod engines;
mod narrowing;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use taskrun_journal::event::{Event, Refusal};
use taskrun_journal::message::ToolError;
use taskrun_journal::plan::ToolRequest;
use taskrun_journal::question::{Answer, AwaitItem};
use taskrun_journal::ruling::{Phase, ToolRuling};
use taskrun_journal::stop::CallAbort;
use taskrun_journal::time::Timestamp;
use taskrun_journal::tool::{ToolFailure, ToolHints, ToolSpec};
use taskrun_policy::{
    AskRule, AskRules, CallTimeouts, InterruptionPolicy, Limits, Location, Pattern,
};

use super::consent::{CallQuestions, ConsentRules, PriorConsent, item_id};
use super::layer::ArgumentFailures;
use super::{Admission, Gate, Guard};
use crate::agents::{AgentTools, LoadedTool};
use crate::ports::hook::Veto;
use crate::ports::tool::{Tool, ToolCall, ToolReply};
use crate::scope::CallScope;

/// A tool with one function, which nobody calls.
struct Idle([ToolSpec; 1]);

#[async_trait]
impl Tool for Idle {
    fn digest(&self) -> &str {
        "idle"
    }

    fn hears_cancellation(&self) -> bool {
        false
    }

    fn specs(&self) -> &[ToolSpec] {
        &self.0
    }

    async fn call(
        &self,
        _: ToolCall,
        _: Arc<CallScope>,
    ) -> Result<Result<ToolReply, ToolFailure>, CallAbort> {
        Err(CallAbort::Internal)
    }
}

/// The function `f` of each of these tools.
fn tools(names: &[&str]) -> AgentTools {
    let functions: Vec<_> = names.iter().map(|name| format!("{name}/f")).collect();
    functions_of(&functions)
}

/// The tools with these functions, by their qualified names.
fn functions_of(names: &[String]) -> AgentTools {
    let spec = |function: &str| ToolSpec {
        name: function.to_owned(),
        title: None,
        description: String::new(),
        input_schema: "{}".to_owned(),
        output_schema: None,
        hints: ToolHints::default(),
        timeout: None,
        tags: Vec::new(),
        stated_tags: Vec::new(),
    };
    let tools = names.iter().map(|name| {
        let (tool, function) = name.split_once('/').expect("a qualified name");
        LoadedTool {
            name: tool.to_owned(),
            tool: Arc::new(Idle([spec(function)])),
            limits: Limits::default(),
            interrupted: InterruptionPolicy::Fail,
            tags: None,
            timeouts: CallTimeouts::default(),
        }
    });
    let tools: Vec<_> = tools.collect();
    AgentTools::select(&[Pattern::any()], &tools).expect("tools that fit")
}

fn request(name: &str, id: &str) -> ToolRequest {
    ToolRequest {
        name: name.to_owned(),
        payload: "{}".to_owned(),
        tool_call_id: Some(id.to_owned()),
        parent_tool_call_id: None,
    }
}

fn leaving(tools: &[&str]) -> ToolRuling {
    let tools = tools.iter().map(|name| (*name).to_owned()).collect();
    ToolRuling { allowed_tools: Some(tools), ..ToolRuling::everything(Phase::Calls) }
}

fn misfit() -> ToolFailure {
    ToolFailure { error: ToolError::coded("invalid-arguments", "no"), retry_hint: None }
}

fn veto() -> Veto {
    Veto { hook: "h".to_owned(), reason: "no".to_owned() }
}

/// Rules that want consent to calls of these functions.
fn asking(patterns: &[&str]) -> AskRules {
    let location = Location { file: std::path::Path::new("test").into(), line: 1, column: 1 };
    let rules = patterns.iter().map(|text| AskRule {
        functions: Pattern::parse(text),
        text: (*text).to_owned(),
        location: location.clone(),
    });
    AskRules { rules: rules.collect(), timeout: Duration::from_secs(1) }
}

fn rules(rules: &AskRules) -> ConsentRules<'_> {
    ConsentRules { rules, policy: "/p/taskrun.toml", turn: 3, now: Timestamp(1_000) }
}

/// The consent to a call about which a person was asked once, as this code.
fn asked_as(digest: &str, answer: Option<Answer>) -> PriorConsent {
    let asked = CallQuestions { times: 1, digest: Some(digest.to_owned()) };
    PriorConsent::Asked { asked, answer: answer.map(|answer| (answer, "p".to_owned())) }
}

fn given() -> PriorConsent {
    PriorConsent::Given { asked: CallQuestions::default(), consent: None }
}

fn refusal(admission: &Admission<'_>) -> Option<(Refusal, String)> {
    match admission {
        Admission::Refuse(refused) => {
            Some((refused.refusal, refused.failure.error.code.clone().unwrap_or_default()))
        }
        Admission::Begin { .. } | Admission::Ask(_) | Admission::Wait => None,
    }
}

/// Each set of layers that refuse a call: the first of them counts, and one is enough.
#[test]
fn the_first_layer_that_refuses_counts_and_one_is_enough() {
    let names = [
        (Refusal::Unavailable, "tool-unavailable"),
        (Refusal::Denied, "denied"),
        (Refusal::Denied, "denied"),
        (Refusal::Cap, "cap"),
        (Refusal::Arguments, "invalid-arguments"),
        (Refusal::Declined, "denied"),
    ];
    for refusing in 0..1_u32 << names.len() {
        let refuses = |layer: usize| refusing >> layer & 1 == 1;
        let tools = tools(if refuses(0) { &["other"] } else { &["t", "other"] });
        let decided = leaving(if refuses(1) { &["other/f"] } else { &["t/f", "other/f"] });
        let left = if refuses(3) { (Some(0), None) } else { (Some(1), Some(1)) };
        let misfits: ArgumentFailures =
            refuses(4).then(|| ("1".to_owned(), misfit())).into_iter().collect();
        let mut gate = Gate::new(&tools, left, vec![decided], misfits);
        let call = request("t/f", "1");
        // What hooks are asked about: not the count, and not consent.
        assert_eq!(gate.fits(&call), !(refuses(0) || refuses(1) || refuses(4)), "{refusing:b}");
        if refuses(2) {
            gate.veto([("1".to_owned(), veto())]);
        }
        let asked = asking(if refuses(5) { &["*"] } else { &[] });
        let prior = PriorConsent::Standing { approved: false, by: "p".to_owned() };
        let admission = gate.admit(&call, (&rules(&asked), &prior));
        let expected = (0..names.len()).find(|layer| refuses(*layer));
        let expected = expected.map(|layer| (names[layer].0, names[layer].1.to_owned()));
        assert_eq!(refusal(&admission), expected, "{refusing:b}");
        if let Admission::Refuse(refused) = admission {
            // A hook's word is on record beside the result, and so is a person's.
            let by_hook = !refuses(0) && !refuses(1) && refuses(2);
            let by_person = refused.refusal == Refusal::Declined;
            assert_eq!(refused.decision.is_some(), by_hook || by_person, "{refusing:b}");
        }
    }
}

#[test]
fn another_calls_veto_and_misfit_are_not_this_ones() {
    let tools = tools(&["t"]);
    let misfits = ArgumentFailures::from([("2".to_owned(), misfit())]);
    let mut gate = Gate::new(&tools, (None, None), Vec::new(), misfits);
    gate.veto([("3".to_owned(), veto())]);
    let none = asking(&[]);
    let begins = |id: &str| {
        let admission = gate.admit(&request("t/f", id), (&rules(&none), &PriorConsent::Nothing));
        matches!(admission, Admission::Begin { consent: None, .. })
    };
    assert_eq!(["1", "2", "3", "4"].map(begins), [true, false, false, true]);
}

#[test]
fn engines_take_away_together_and_one_that_disables_takes_all() {
    let tools = tools(&["t", "u"]);
    let disabled = ToolRuling { disable_tools: true, ..ToolRuling::everything(Phase::Calls) };
    let none = asking(&[]);
    for (decided, t, u) in [
        (vec![], true, true),
        (vec![leaving(&["t/f"])], true, false),
        (vec![leaving(&["t/f"]), leaving(&["u/f"])], false, false),
        (vec![leaving(&["t/f", "u/f"]), leaving(&["u/f"])], false, true),
        (vec![leaving(&["t/f", "u/f"]), disabled], false, false),
    ] {
        let mut gate = Gate::new(&tools, (None, None), decided.clone(), ArgumentFailures::new());
        let mut begins = |name: &str| {
            let consent = (&rules(&none), &PriorConsent::Nothing);
            refusal(&gate.admit(&request(name, "1"), consent)).is_none()
        };
        assert_eq!((begins("t/f"), begins("u/f")), (t, u), "{decided:?}");
    }
}

#[test]
fn calls_are_counted_where_they_pass_and_the_smallest_number_is_left() {
    let tools = tools(&["t"]);
    let capped =
        |calls| ToolRuling { tool_calls: Some(calls), ..ToolRuling::everything(Phase::Calls) };
    let none = asking(&[]);
    for (run, turn, decided, passing) in [
        (None, None, vec![], 9),
        (Some(2), None, vec![], 2),
        (Some(5), Some(3), vec![], 3),
        (Some(5), Some(3), vec![capped(4), capped(1)], 1),
        (Some(5), None, vec![capped(4)], 4),
        (None, Some(0), vec![capped(4)], 0),
    ] {
        let mut gate = Gate::new(&tools, (run, turn), decided, ArgumentFailures::new());
        let consent = (&rules(&none), &PriorConsent::Nothing);
        // One that does not pass is not counted.
        assert!(refusal(&gate.admit(&request("none/f", "0"), consent)).is_some());
        let passed = (0..9)
            .filter(|id| refusal(&gate.admit(&request("t/f", &id.to_string()), consent)).is_none());
        assert_eq!(passed.count(), passing, "{run:?} {turn:?}");
    }
}

#[test]
fn what_passes_again_is_refused_by_the_layers_of_now_whatever_a_person_said() {
    let tools = tools(&["t"]);
    let asked = asking(&["t/*"]);
    for (prior, passes_once_more) in [
        (given(), true),
        (asked_as("idle", Some(Answer::Confirmed(true))), true),
        (asked_as("idle", None), false),
    ] {
        for again in [false, true] {
            let decided = vec![leaving(&["other/f"])];
            let left = (Some(1), None);
            let mut gate = Gate::new(&tools, left, decided, ArgumentFailures::new()).again(again);
            let admission = gate.admit(&request("t/f", "1"), (&rules(&asked), &prior));
            let is_refused = refusal(&admission).is_some();
            assert_eq!(is_refused, again && passes_once_more, "{prior:?}, again: {again}");
        }
    }
}

#[test]
fn a_person_is_asked_once_and_the_answer_decides() {
    let tools = tools(&["t", "u"]);
    let asked = asking(&["t/*"]);
    let call = request("t/f", "1");
    let admit = |call: &ToolRequest, prior: &PriorConsent| {
        let mut gate = Gate::new(&tools, (Some(1), None), Vec::new(), ArgumentFailures::new());
        let admission = gate.admit(call, (&rules(&asked), prior));
        // It is counted unless it was when a person was asked.
        let left = gate.admit(&request("u/f", "9"), (&rules(&asked), &PriorConsent::Nothing));
        assert_eq!(refusal(&left).is_some(), prior.passes_layers(false), "{prior:?}");
        match admission {
            Admission::Begin { consent, .. } => match consent {
                Some(Event::ToolAuthorization {
                    approved, decided_by, for_run, consent, ..
                }) => {
                    let number = consent.map(|number| format!(", consent {number}"));
                    let number = number.unwrap_or_default();
                    format!("begins: {approved} by {decided_by}, for the run: {for_run}{number}")
                }
                Some(other) => panic!("{other:?}"),
                None => "begins".to_owned(),
            },
            Admission::Ask(item) => {
                assert_eq!(item.until, Some(Timestamp(2_000)));
                match item.id() == item_id(3, "1", 0) {
                    true => "asks".to_owned(),
                    false => format!("asks {}", item.id()),
                }
            }
            Admission::Wait => "waits".to_owned(),
            Admission::Refuse(refused) => {
                let Some(Event::ToolAuthorization { approved, for_run, consent, .. }) =
                    refused.decision
                else {
                    panic!("{:?}", refused.failure)
                };
                let number = consent.map(|number| format!(", consent {number}"));
                let number = number.unwrap_or_default();
                format!("declined: {approved}, for the run: {for_run}{number}")
            }
        }
    };
    let standing = |approved| PriorConsent::Standing { approved, by: "p".to_owned() };
    let lasting = |approved| PriorConsent::Lasting { number: 7, approved, by: "p".to_owned() };
    let answered = |answer| asked_as("idle", Some(answer));
    let other = |answer| asked_as("other code", Some(answer));
    let given_as = |digest: &str| {
        let asked = CallQuestions { times: 2, digest: Some(digest.to_owned()) };
        PriorConsent::Given { asked, consent: None }
    };
    for (prior, expected) in [
        (PriorConsent::Nothing, "asks"),
        (standing(true), "begins: true by p, for the run: true"),
        (standing(false), "declined: false, for the run: true"),
        (lasting(true), "begins: true by p, for the run: false, consent 7"),
        (lasting(false), "declined: false, for the run: false, consent 7"),
        (asked_as("idle", None), "waits"),
        (asked_as("other code", None), "waits"),
        (answered(Answer::Confirmed(true)), "begins: true by p, for the run: false"),
        (answered(Answer::Confirmed(false)), "declined: false, for the run: false"),
        (answered(Answer::ConfirmedForRun(true)), "begins: true by p, for the run: true"),
        (answered(Answer::ConfirmedForRun(false)), "declined: false, for the run: true"),
        (answered(Answer::TimedOut), "declined: false, for the run: false"),
        (given(), "begins"),
        (given_as("idle"), "begins"),
        // Consent to other code is none, and a refusal is one.
        (given_as("other code"), "asks confirm:3.3:1"),
        (other(Answer::Confirmed(true)), "asks confirm:3.2:1"),
        (other(Answer::ConfirmedForRun(true)), "asks confirm:3.2:1"),
        (other(Answer::ConfirmedForRun(false)), "declined: false, for the run: true"),
        (other(Answer::TimedOut), "declined: false, for the run: false"),
    ] {
        assert_eq!(admit(&call, &prior), expected, "{prior:?}");
    }
    // Where no rule wants it, nobody is asked, whatever was decided about the function.
    for prior in [PriorConsent::Nothing, standing(false), lasting(false)] {
        assert_eq!(admit(&request("u/f", "1"), &prior), "begins");
    }
}

#[test]
fn a_call_that_a_person_was_asked_about_has_passed_the_other_layers() {
    let tools = tools(&["t"]);
    let asked = asking(&["*"]);
    let misfits: BTreeMap<_, _> = [("1".to_owned(), misfit())].into();
    let mut gate = Gate::new(&tools, (Some(0), Some(0)), vec![leaving(&[])], misfits);
    gate.veto([("1".to_owned(), veto())]);
    let begins = gate.admit(&request("t/f", "1"), (&rules(&asked), &given()));
    assert!(matches!(begins, Admission::Begin { consent: None, .. }));
    // Not so if the agent does not have the tool any more.
    let gone = gate.admit(&request("gone/f", "1"), (&rules(&asked), &given()));
    assert_eq!(refusal(&gone).map(|(refusal, _)| refusal), Some(Refusal::Unavailable));
}

/// The question about a call with these arguments.
fn question(payload: &str) -> String {
    let tools = tools(&["t"]);
    let asked = asking(&["t/*"]);
    let call = ToolRequest { payload: payload.to_owned(), ..request("t/f", "1") };
    let mut gate = Gate::new(&tools, (None, None), Vec::new(), ArgumentFailures::new());
    let Admission::Ask(item) = gate.admit(&call, (&rules(&asked), &PriorConsent::Nothing)) else {
        panic!("nobody is asked")
    };
    assert_eq!(item.id(), "confirm:3:1");
    let AwaitItem::Confirmation { question, payload: whole, digest, policy, .. } = item.what else {
        panic!("not a question for consent")
    };
    assert_eq!(digest.as_deref(), Some("idle"), "the code that is asked about");
    assert_eq!(policy.as_deref(), Some("/p/taskrun.toml"), "the file whose rule asks");
    assert_eq!(whole, payload, "what is decided about is the whole");
    question
}

#[test]
fn a_person_sees_the_arguments_or_both_ends_of_long_ones() {
    let ask = |shown: &str| format!("May t/f be called with {shown}? (\"t/*\")");
    let short = "s".repeat(200);
    assert_eq!(question(&short), ask(&short));
    let long = format!("{}{}{}", "a".repeat(140), "b".repeat(100), "c".repeat(60));
    let both = format!("{} ... {} (300 bytes in all)", "a".repeat(140), "c".repeat(60));
    assert_eq!(question(&long), ask(&both));
    // No character is cut in two.
    let umlauts = "\u{e4}".repeat(151);
    assert!(question(&umlauts).contains(&format!(" ... {} (302", "\u{e4}".repeat(30))));
}

#[test]
fn a_call_of_a_tool_that_there_is_not_is_told_of_those_that_the_engines_leave() {
    let none = asking(&[]);
    let told = |tools: &AgentTools, decided: Vec<ToolRuling>| {
        let mut gate = Gate::new(tools, (None, None), decided, ArgumentFailures::new());
        let consent = (&rules(&none), &PriorConsent::Nothing);
        let Admission::Refuse(refused) = gate.admit(&request("x/f", "1"), consent) else {
            panic!("there is no such tool")
        };
        refused.failure.retry_hint.and_then(|hint| hint.message).expect("it is told")
    };
    let two = tools(&["t", "u"]);
    assert_eq!(told(&two, Vec::new()), "available are: t/f, u/f");
    assert_eq!(told(&two, vec![leaving(&["t/f", "u/f"]), leaving(&["u/f"])]), "available are: u/f");
    let disabled = ToolRuling { disable_tools: true, ..ToolRuling::everything(Phase::Plan) };
    assert_eq!(told(&two, vec![disabled]), "no tool is available");
    let many: Vec<String> = (0..40).map(|number| format!("t{number}/f")).collect();
    let told = told(&functions_of(&many), Vec::new());
    assert!(told.ends_with(", and 8 more"), "{told}");
    assert_eq!(told.matches("/f").count(), 32, "{told}");
}
