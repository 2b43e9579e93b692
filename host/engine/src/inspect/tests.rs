//! Names of interfaces and their classes.

use super::*;

#[test]
fn every_interface_of_ours_has_its_class() {
    let class = |name: &str| classify(&format!("taskrun:plugin/{name}@0.1.0"));
    for name in ["log", "clock", "random", "run", "cancellation"] {
        assert_eq!(class(name), ImportClass::Always, "{name}");
    }
    for name in ["events", "state", "reminders"] {
        assert_eq!(class(name), ImportClass::Agents, "{name}");
    }
    for capability in Capability::ALL {
        assert_eq!(class(capability.as_str()), ImportClass::Capability(capability));
    }
    assert_eq!(class("teleport"), ImportClass::Unknown);
}

#[test]
fn wasi_is_inert_but_for_http_and_sockets() {
    assert_eq!(classify("wasi:cli/environment@0.2.6"), ImportClass::WasiInert);
    assert_eq!(classify("wasi:filesystem/types@0.2.0"), ImportClass::WasiInert);
    assert_eq!(
        classify("wasi:http/outgoing-handler@0.2.3"),
        ImportClass::Capability(Capability::Http)
    );
    assert_eq!(classify("wasi:http/incoming-handler@0.2.3"), ImportClass::Unknown);
    assert_eq!(classify("wasi:sockets/tcp@0.2.0"), ImportClass::Sockets);
    for name in
        ["wasi:cli/environment@0.3.0", "wasi:nn/graph@0.2.0", "wasi:cli", "other:a/b@0.2.0", "run"]
    {
        assert_eq!(classify(name), ImportClass::Unknown, "{name}");
    }
}

#[test]
fn names_are_those_that_wit_can_say() {
    for name in [
        "wasi:cli/environment@0.2.6",
        "a-b",
        "[method]output-stream.blocking-write-and-flush",
        "[resource-drop]error",
        "a:b/c@1.0.0-rc.1+build",
    ] {
        assert!(is_plain(name), "{name}");
    }
    let long = "a".repeat(NAME_BYTES_MAX + 1);
    for name in [
        "",
        "url=<https://x>",
        "a b",
        "a\nb",
        "a\u{1b}[8m",
        "\u{202e}a",
        "unlocked-dep=<a:b>",
        &long,
    ] {
        assert!(!is_plain(name), "{name}");
    }
}

#[test]
fn versions_are_compatible_as_semver_says() {
    for (version, fits) in
        [("0.1.0", true), ("0.1.7", true), ("0.2.0", false), ("1.1.0", false), ("0.10.0", false)]
    {
        assert_eq!(is_compatible(Some(version)), fits, "{version}");
    }
    assert!(!is_compatible(None));
}
