//! An agent as people are shown it.

use std::collections::BTreeMap;

use taskrun_policy::{InterruptionPolicy, Retry, RetryOn};

use super::{AgentView, CapabilityView, Part, interrupted, retry};
use crate::output::escape::escaped_line;
use crate::output::{human, pairs, table};
use crate::paths::shown_in;

pub(super) fn text(shown: &AgentView, width: Option<usize>) -> String {
    let list = |map: &BTreeMap<&'static str, String>| {
        map.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
    };
    let part = |part: &Part| {
        let size = human::bytes(part.size);
        format!("{} ({size}, {})\n{}", part.path, part.digest, part.imports.join("\n"))
    };
    let mut head = vec![("agent", format!("{} ({})", shown.name, shown_in(&shown.location)))];
    if let Some(description) = &shown.description {
        head.push(("about", escaped_line(description).into_owned()));
    }
    head.push(("component", part(&shown.component)));
    for tool in &shown.tools {
        head.push(("tool", format!("{}: {}", tool.part.name, part(&tool.part))));
        if tool.interrupted != interrupted(InterruptionPolicy::default()) {
            head.push(("interrupted", format!("{}: {}", tool.part.name, tool.interrupted)));
        }
    }
    if !shown.members.is_empty() {
        head.push(("members", shown.members.join(", ")));
    }
    head.push(("model", shown.model.clone().unwrap_or_else(|| "none".to_owned())));
    if let Some(provider) = &shown.provider {
        head.push(("provider", provider.clone()));
    }
    head.push(("workspace", shown.workspace.clone()));
    head.push(("limits", list(&shown.limits)));
    head.push(("budget", list(&shown.budget)));
    if !shown.durable {
        head.push(("durable", "no: its runs fail when their host dies".to_owned()));
    }
    if shown.retry != retry(Retry::default(), &RetryOn::default()) {
        head.push(("retry", list(&shown.retry)));
    }
    if !shown.timeouts.is_empty() {
        let all = shown.timeouts.iter().map(|(pattern, timeout)| format!("{pattern} {timeout}"));
        head.push(("timeouts", all.collect::<Vec<_>>().join(", ")));
    }
    if !shown.policy.is_empty() {
        head.push(("policy", list(&shown.policy)));
    }
    if let Some(timeout) = &shown.ask_timeout {
        let rules = shown.ask.iter().map(|rule| escaped_line(rule)).collect::<Vec<_>>();
        head.push(("ask", format!("{}, for {timeout}", rules.join(", "))));
    }
    if let Some(autonomous) = &shown.autonomous {
        head.push(("autonomous", escaped_line(&list(autonomous)).into_owned()));
    }
    if let Some(heartbeat) = &shown.heartbeat {
        let every = match heartbeat.get("interval") {
            Some(interval) => format!("every {interval}"),
            None => format!("at {} ({})", heartbeat["cron"], heartbeat["zone"]),
        };
        let prompt = heartbeat.get("prompt").map(|prompt| escaped_line(prompt).into_owned());
        head.push((
            "heartbeat",
            [Some(every), prompt].into_iter().flatten().collect::<Vec<_>>().join(": "),
        ));
    }
    head.extend(shown.delivery.clone().map(|delivery| ("delivery", delivery)));
    head.extend(shown.conversation.map(|told| ("conversation", told.to_owned())));
    head.extend(shown.upgrade.map(|upgrade| ("upgrade", upgrade.to_owned())));
    let mut text = pairs(&head);
    if !shown.functions.is_empty() {
        let rows = shown
            .functions
            .iter()
            .map(|function| vec![function.name.clone(), function.title.clone()]);
        text.push_str("\n\n");
        text.push_str(&table(&["FUNCTION", "TITLE"], rows.collect(), width));
    }
    let rows: Vec<Vec<String>> = shown.capabilities.iter().flat_map(capability_rows).collect();
    text.push_str("\n\n");
    if rows.is_empty() {
        text.push_str("asks for no capability and is granted none");
    } else {
        let headings = ["CAPABILITY", "ASKED FOR BY", "GIVEN", "RULE"];
        text.push_str(&table(&headings, rows, None));
    }
    text
}

fn capability_rows(given: &CapabilityView) -> Vec<Vec<String>> {
    let asked =
        if given.asked_by.is_empty() { "nobody".to_owned() } else { given.asked_by.join(", ") };
    let first = [given.capability.to_owned(), asked, given.standing.to_owned()];
    let mut rows: Vec<Vec<String>> = given
        .rules
        .iter()
        .map(|rule| vec![String::new(), String::new(), String::new(), shown_in(rule)])
        .collect();
    if rows.is_empty() {
        rows.push(vec![String::new(), String::new(), String::new(), String::new()]);
    }
    if let Some(row) = rows.first_mut() {
        row[..3].clone_from_slice(&first);
    }
    rows
}
