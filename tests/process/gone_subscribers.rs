//! Subscribers that an edit of the policy renamed while something was to be told to them.

use rustix::process::Signal;
use serde_json::json;
use taskrun_tests::receiver::Receiver;

use crate::error_lines::ErrorLines;
use crate::project::Project;
use crate::webhooks::{says, told_by};

/// Gives the webhook of a policy file another name.
fn rename(project: &Project, policy: &str) {
    let text = std::fs::read_to_string(project.path().join(policy)).expect("there is one");
    let renamed = text.replace("webhook.ci]", "webhook.new]").replace("webhook/ci", "webhook/new");
    project.write(policy, renamed.as_bytes());
}

/// The number of background hosts that began.
fn begun(project: &Project) -> usize {
    let log = std::fs::read_to_string(project.path().join(".taskrun/host.log"));
    log.unwrap_or_default().matches("host begins").count()
}

#[test]
fn no_host_is_started_for_a_subscriber_that_is_gone_and_it_is_named() {
    let (project, receiver) = (Project::new(), Receiver::start(|_| 500));
    told_by(&project, &receiver, "");
    let later = json!({ "call": { "id": "c", "name": "host/schedule_next_turn",
                                  "args": { "wake_in_sec": 86_400 } } });
    let task = json!({ "steps": [[later], [{ "reply": "waiting" }]] }).to_string();
    let id = project.run(&["run", "told", &task, "--autonomous", "-d"]).id();
    project.reach(&id, "blocked");
    project.until("the webhook refuses it", || {
        project.run(&["outbox", "show", &id]).stdout.contains("it answered 500")
    });
    project.kill_hosts_and_wait();
    rename(&project, "taskrun.toml");
    let before = begun(&project);
    let waited = project.run(&["wait", &id, "--timeout", "2s"]);
    assert_eq!(waited.code, 124, "{waited:?}");
    assert_eq!((begun(&project), project.hosts()), (before, Vec::new()), "nothing is started");
    let drop = format!("taskrun outbox drop {id} --subscriber webhook/ci");
    let gone = format!("webhook/ci is in no policy here, and is to be told of run {id}: ");
    for words in [&["outbox", "ls"][..], &["outbox", "show", &id], &["doctor"]] {
        let told = project.run(words).said();
        assert!(told.contains(&gone) && told.contains(&format!("`{drop}`")), "{words:?}: {told}");
    }
    let dropped = project.run(&["outbox", "drop", &id, "--subscriber", "webhook/ci"]);
    assert_eq!(dropped.code, 0, "{dropped:?}");
    for words in [&["outbox", "ls"][..], &["doctor"]] {
        let told = project.run(words).said();
        assert!(!told.contains("is in no policy here"), "{words:?}: {told}");
    }
    assert_eq!(project.run(&["cancel", &id]).code, 0);
}

#[test]
fn a_subscriber_of_another_policy_file_is_not_said_to_be_gone() {
    let (project, receiver) = (Project::new(), Receiver::start(|_| 500));
    let [here, there] = ["taskrun.toml", "other.toml"].map(|name| project.path().join(name));
    let own = std::fs::read(&here).expect("there is one");
    told_by(&project, &receiver, "");
    std::fs::rename(&here, &there).expect("moved");
    project.write("taskrun.toml", &own);
    let other = ["--config", "other.toml"];
    let far = |words: &[&str]| project.run(&[&other[..], words].concat());
    let id = far(&["run", "told", &says("done"), "-d"]).id();
    project.ends_by_itself(&id);
    project.until("the webhook refuses it", || {
        project.run(&["outbox", "show", &id]).stdout.contains("it answered 500")
    });
    project.kill_hosts_and_wait();
    let said = format!("webhook/ci is in no policy here, and is to be told of run {id}: ");
    let looks: [&[&str]; 3] = [&["outbox", "ls"], &["outbox", "show", &id], &["doctor"]];
    for words in looks {
        for told in [project.run(words).said(), far(words).said()] {
            assert!(!told.contains("is in no policy here"), "{words:?}: {told}");
        }
    }
    // Where that file has it no more, it is said to those who look under it.
    rename(&project, "other.toml");
    for words in looks {
        let (told, told_there) = (project.run(words).said(), far(words).said());
        assert!(!told.contains("is in no policy here"), "{words:?}: {told}");
        assert!(told_there.contains(&said), "{words:?}: {told_there}");
    }
    // The file of before is there no more in a project that was moved, whose runs these are.
    std::fs::remove_file(&there).expect("it was there");
    for words in looks {
        let told = project.run(words).said();
        assert!(told.contains(&said), "{words:?}: {told}");
    }
}

#[test]
fn a_host_says_which_subscribers_an_edit_took_away() {
    let (project, receiver) = (Project::new(), Receiver::start(|_| 204));
    told_by(&project, &receiver, "");
    let mut host = project.start(&["host", "--service"]);
    let lines = ErrorLines::of(&mut host);
    lines.until("executing runs of");
    let id = project.run(&["run", "told", &says("done"), "-d"]).id();
    project.ends_by_itself(&id);
    rename(&project, "taskrun.toml");
    lines.until("subscribers_gone=\"webhook/ci\"");
    assert_eq!(project.signal_hosts(Signal::TERM), 1);
    assert_eq!(project.ends(host).code, 0);
}
