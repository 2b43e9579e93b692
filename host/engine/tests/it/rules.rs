//! Rules that are replaced while a guest works under them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use taskrun::ports::tool::ToolCall;
use taskrun::scope::{CallScope, CurrentRules, StopSignal};
use taskrun_engine::AgentGrants;
use taskrun_examples as examples;
use taskrun_journal::stop::{CallAbort, StopCause};
use taskrun_policy::{AgentRules, CallRules, Chain};

use crate::support::*;

const ALL: &str = r#"allow = [
    "workspace-read: docs/**", "workspace-read: notes/**", "workspace-write: notes/**",
]"#;

/// A guest that writes a file of `notes`, under rules that the test replaces.
struct Writer {
    dir: tempfile::TempDir,
    with: AgentGrants,
    rules: Arc<CurrentRules>,
    stop: StopSignal,
    scope: Arc<CallScope>,
    call: tokio::task::JoinHandle<CallResult>,
}

impl Writer {
    /// Begins to write; it has when this returns.
    async fn begin(bytes: &[u8], function: &str, payload: serde_json::Value) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["docs", "notes"] {
            std::fs::create_dir(dir.path().join(folder)).unwrap();
        }
        let mut with = under(dir.path(), ALL);
        with.limits.host_calls = u32::MAX;
        let rules = Arc::new(CurrentRules::new(rules(&with), Vec::new()));
        let engine = engine();
        let stop = StopSignal::new(engine.interrupt());
        let scope = scope_with(|parts| {
            (parts.rules, parts.stop) = (Arc::clone(&rules), stop.clone());
        });
        let tool = tool(&engine, bytes.to_vec(), with.clone()).await.unwrap();
        let call = ToolCall { name: function.to_owned(), payload: payload.to_string(), ..call() };
        let asked = Arc::clone(&scope);
        let call = tokio::spawn(async move { ask(&*tool, call, asked).await });
        let writer = Self { dir, with, rules, stop, scope, call };
        writer.goes_on().await;
        writer
    }

    /// Returns when it has written something since.
    async fn goes_on(&self) {
        let written = || {
            let files = std::fs::read_dir(self.dir.path().join("notes")).unwrap();
            // One that is just being replaced is not there.
            let files = files.filter_map(|file| std::fs::read(file.unwrap().path()).ok());
            let modified = self.dir.path().join("notes").metadata().unwrap().modified().unwrap();
            (files.collect::<Vec<_>>(), modified)
        };
        let before = written();
        while written() == before {
            assert!(!self.call.is_finished(), "it has ended");
            tokio::task::yield_now().await;
        }
    }

    /// Puts rules in force beneath which the guest works from now on.
    fn switch(&self, now: &str) {
        let now = under(self.dir.path(), now);
        let mut chain = Chain::new(self.dir.path());
        chain.push_now(Arc::new(AgentRules {
            agent: "tester".to_owned(),
            workspace: self.dir.path().to_owned(),
            grants: now.grants,
        }));
        let rules = CallRules::new(Arc::clone(&self.with.grants), Some(Arc::new(chain)));
        self.rules.replace(rules, Vec::new());
    }

    async fn end(self) -> (CallResult, Vec<(String, String, String)>) {
        (self.call.await.unwrap(), decisions(&self.scope))
    }
}

fn under(dir: &Path, rules: &str) -> AgentGrants {
    AgentGrants { workspace: dir.to_owned(), ..grants(rules) }
}

async fn with_an_open_file() -> Writer {
    let attempts = serde_json::json!({ "attempts": [{ "op": "write-on", "path": "/notes/a" }] });
    Writer::begin(examples::evil::WASI.bytes, "attempt", attempts).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_with_an_open_file_ends_when_a_rule_for_its_folder_goes() {
    let narrower = [
        // No rule for writing, one against a part of the folder, none for reading another folder.
        (r#"allow = ["workspace-read: docs/**", "workspace-read: notes/**"]"#, "workspace-write"),
        (
            r#"allow = ["workspace-read: **", "workspace-write: **"]
               deny = ["workspace-write: notes/private/**"]"#,
            "workspace-write",
        ),
        (r#"allow = ["workspace-read: notes/**", "workspace-write: notes/**"]"#, "workspace-read"),
    ];
    for (now, lost) in narrower {
        let writer = with_an_open_file().await;
        writer.switch(now);
        let (end, decisions) = writer.end().await;
        assert_eq!(end.unwrap_err(), CallAbort::Stopped { cause: StopCause::Denied }, "{now}");
        let [(capability, _, rule)] = &decisions[..] else { panic!("{now}: {decisions:?}") };
        assert_eq!(capability, lost, "{now}");
        assert!(rule.contains("agent tester") && rule.contains("taskrun.toml:"), "{now}: {rule}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_goes_on_under_rules_that_leave_it_its_folders() {
    let writer = with_an_open_file().await;
    for now in [ALL, r#"allow = ["workspace-read: **", "workspace-write: **"]"#, ALL] {
        writer.switch(now);
        writer.goes_on().await;
    }
    writer.stop.force(StopCause::Canceled);
    let (end, decisions) = writer.end().await;
    assert_eq!(end.unwrap_err(), CallAbort::Stopped { cause: StopCause::Canceled });
    assert_eq!(decisions, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_is_refused_its_next_write_when_the_rule_for_it_goes() {
    let fill = serde_json::json!({
        "how": "replace", "folder": "notes", "files": 1_000_000, "bytes": 8,
    });
    let writer = Writer::begin(examples::evil::TOOL.bytes, "fill", fill).await;
    writer.switch(r#"allow = ["workspace-read: **"]"#);
    let (end, decisions) =
        tokio::time::timeout(Duration::from_secs(60), writer.end()).await.unwrap();
    let told = format!("{end:?}");
    assert!(told.contains("denied"), "{told}");
    let (capability, _, rule) = &decisions[0];
    assert_eq!(capability, "workspace-write");
    assert!(rule.contains("agent tester") && rule.contains("taskrun.toml:"), "{rule}");
}
