//! The capabilities: the rule that grants each, the one that denies all of it, and what uses it.

use taskrun_journal::fact::MemoryScope;
use taskrun_journal::operation::Operation;

use super::super::{Capability, CapabilityAccess, HttpTarget, Use};
use super::agent;
use crate::selector::Selector;

const WRITE: Capability = Capability::WorkspaceWrite;

#[test]
fn a_rule_that_is_to_be_added_is_told_as_a_policy_takes_it() {
    let a = agent("allow = [\"workspace-write: Cafe\u{301}/**\"]");
    let fault = a.grants.preopens().expect_err("it cannot be read");
    let told = fault.to_string();
    assert!(told.contains("add \"workspace-read: Cafe\u{301}/**\", or"), "{told}");
}

#[test]
fn each_capability_is_granted_by_its_rule_and_denied_as_a_whole() {
    for capability in Capability::ALL {
        let granted = agent(&format!("allow = [{:?}]", capability.grant_rule()));
        assert_eq!(granted.grants.access(capability), CapabilityAccess::Selective, "{capability}");
        let denied = agent(&format!("deny = [{:?}]", capability.everything_rule()));
        assert!(
            matches!(denied.grants.access(capability), CapabilityAccess::Denied(_)),
            "{capability}"
        );
        let has_paths = matches!(denied.grants.rules()[0].selector, Selector::Paths(_));
        assert_eq!(capability.has_paths(), has_paths, "{capability}");
    }
}

#[test]
fn a_use_names_its_capability_and_the_thing_that_is_used() {
    let to = |scheme, port| {
        let target = HttpTarget { scheme, host: "a.example", port, path: "/x" };
        Use::Http("GET", target)
    };
    let http = Capability::Http;
    for (used, capability, subject) in [
        (Use::Path(WRITE, "notes/a"), WRITE, "notes/a"),
        (to("https", 443), http, "GET https://a.example/x"),
        (to("http", 80), http, "GET http://a.example/x"),
        (to("https", 80), http, "GET https://a.example:80/x"),
        (to("http", 443), http, "GET http://a.example:443/x"),
        (Use::Model("fast"), Capability::Model, "fast"),
        (Use::Prompt("brief"), Capability::Prompts, "brief"),
        (Use::Operation(Operation::Wait), Capability::Controller, "wait"),
        (Use::Memory(Capability::Memory, MemoryScope::Session), Capability::Memory, "session"),
        (Use::Metric("seen"), Capability::Metrics, "seen"),
    ] {
        assert_eq!(used.capability(), capability, "{subject}");
        assert_eq!(used.subject(), subject);
    }
}

#[test]
fn a_use_by_a_capability_of_another_kind_is_denied() {
    let all = agent("allow = [\"model: *\", \"memory: *\", \"workspace-read: **\"]").grants;
    let tenant = MemoryScope::Tenant;
    assert!(all.decide(&Use::Memory(Capability::Memory, tenant)).allowed);
    assert!(!all.decide(&Use::Memory(Capability::Model, tenant)).allowed);
    assert!(!all.decide(&Use::Path(Capability::Memory, "tenant")).allowed);
}

#[test]
fn the_rule_that_is_named_for_a_missing_controller_grants_all_of_it() {
    let rule = Capability::Controller.grant_rule();
    let agent = agent(&format!("allow = [{rule:?}]"));
    for operation in Operation::ALL {
        assert!(agent.grants.decide(&Use::Operation(operation)).allowed, "{operation:?}");
    }
}
