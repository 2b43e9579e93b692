//! Kept policies, read again.

use super::*;

const POLICY: &str = "[agent.worker]\ncomponent = \"worker.wasm\"\n";

#[test]
fn a_component_that_was_cut_is_whole_once_it_is_kept_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let component = dir.path().join("worker.wasm");
    std::fs::write(&component, vec![7; 10_000]).expect("written");
    let policy = Policy::parse(POLICY, &dir.path().join("taskrun.toml")).expect("a policy");
    let agent = &policy.agents["worker"];
    let digest = blake3::hash(&[7; 10_000]);
    let digests: Digests =
        policy.files_of(agent).into_iter().map(|path| (path.to_owned(), digest)).collect();
    let blobs = Blobs::open(dir.path()).expect("opens");
    let pin = format!("worker@blake3:{}", digest.to_hex());
    keep(&blobs, &policy, (agent, &pin), &digests).expect("kept");
    std::fs::write(blobs.path(&digest), [7; 5_000]).expect("cut");
    keep(&blobs, &policy, (agent, &pin), &digests).expect("kept again");
    assert!(blobs.check(&digest).expect("whole"));
}

#[test]
fn a_kept_policy_is_read_whatever_its_models_tables_say() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("taskrun.toml");
    let agent = "[agent.worker]\ncomponent = \"worker.wasm\"\nmodel = \"m\"\n\
                 allow = [\"model: n\"]\n";
    let other = "[model.n]\nprovider = \"echo\"\n";
    let with = |table: &str| format!("[model.m]\n{table}\n{other}{agent}");
    let now = Policy::parse(&with("provider = \"echo\""), &path).expect("a policy");
    let worker = &now.agents["worker"];
    let digest = blake3::hash(b"component");
    let files = now.files_of(worker).into_iter();
    let digests: Digests = files.map(|path| (path.to_owned(), digest)).collect();
    let blobs = Blobs::open(dir.path()).expect("opens");
    let pin = pin_of(&now, worker, &digests).expect("a pin");
    // Programs have taken each of these at some time, or may.
    let tables = [
        "provider = \"openai\"\nserver = \"azure\"\nmodel = \"x\"",
        "provider = \"another\"\nfurther = { key = [1] }",
        "provider = \"faulty\"\nof = \"m\"\nfaults = []",
        "",
    ];
    for table in tables {
        let snapshot = Snapshot {
            form: FORM,
            policy: path.clone(),
            text: with(table),
            prompts: BTreeMap::new(),
            components: digests
                .iter()
                .map(|(path, digest)| (path.clone(), digest.to_hex().to_string()))
                .collect(),
            defaults: Some(Arc::default()),
        };
        let text = serde_json::to_string(&snapshot).expect("written");
        blobs.put_snapshot(digest_of(&pin), &text).expect("kept");
        let (then, _) = open_beside(&blobs, &pin, &now).unwrap_or_else(|e| panic!("{table}: {e}"));
        assert_eq!(then.models, now.models, "{table}");
        assert_eq!(then.agents["worker"].model.as_deref(), Some("m"), "{table}");
    }
    // A name that is declared nowhere is still no policy.
    let snapshot = Snapshot {
        form: FORM,
        policy: path,
        text: agent.to_owned(),
        prompts: BTreeMap::new(),
        components: BTreeMap::new(),
        defaults: Some(Arc::default()),
    };
    let text = serde_json::to_string(&snapshot).expect("written");
    blobs.put_snapshot(digest_of(&pin), &text).expect("kept");
    let refused = open_beside(&blobs, &pin, &now);
    assert!(matches!(refused, Err(PinError::Unusable(_))), "{refused:?}");
}
