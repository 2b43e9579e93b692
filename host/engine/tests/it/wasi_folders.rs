//! Folders that a guest of WASI reads at the same time.

use taskrun_engine::AgentGrants;
use wit_component::StringEncoding;

use crate::support::*;

/// The part of the interfaces that is tried; names and forms are WASI's.
const FILES: &str = "package wasi:filesystem@0.2.0;
    interface types {
        enum error-code {
            access, would-block, already, bad-descriptor, busy, deadlock, quota, exist,
            file-too-large, illegal-byte-sequence, in-progress, interrupted, invalid, io,
            is-directory, loop, too-many-links, message-size, name-too-long, no-device, no-entry,
            no-lock, insufficient-memory, insufficient-space, not-directory, not-empty,
            not-recoverable, unsupported, no-tty, no-such-device, overflow, not-permitted, pipe,
            read-only, invalid-seek, text-file-busy, cross-device,
        }
        resource directory-entry-stream {}
        resource descriptor {
            read-directory: func() -> result<directory-entry-stream, error-code>;
        }
    }
    interface preopens {
        use types.{descriptor};
        get-directories: func() -> list<tuple<descriptor, string>>;
    }";
const WORLD: &str = "package test:lists;
    world lists {
        include taskrun:plugin/tool@0.1.0;
        import wasi:filesystem/types@0.2.0;
        import wasi:filesystem/preopens@0.2.0;
    }";

const IMPORTS: &str = r#"
    (import "wasi:filesystem/preopens@0.2.0" "get-directories" (func $folders (param i32)))
    (import "wasi:filesystem/types@0.2.0" "[method]descriptor.read-directory"
        (func $list (param i32 i32)))
    (import "wasi:filesystem/types@0.2.0" "[resource-drop]directory-entry-stream"
        (func $drop-entries (param i32)))
"#;

/// Traps unless the folder in `$h` is being read after this.
const READS: &str = "(call $list (local.get $h) (i32.const 5200))
    (if (i32.load8_u (i32.const 5200)) (then unreachable))";
/// Traps unless one more is refused with `quota`.
const IS_REFUSED: &str = "(call $list (local.get $h) (i32.const 5200))
    (if (i32.ne (i32.load8_u (i32.const 5200)) (i32.const 1)) (then unreachable))
    (if (i32.ne (i32.load8_u (i32.const 5204)) (i32.const 6)) (then unreachable))";

#[tokio::test]
async fn one_folder_more_than_may_be_read_at_once_is_refused_and_the_call_goes_on() {
    let workspace = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(workspace.path().join("docs")).expect("a folder in it");
    let code = format!(
        "(local $n i32) (local $h i32) (local $one i32)
        (call $folders (i32.const 5120))
        (local.set $h (i32.load (i32.load (i32.const 5120))))
        (loop $more {READS}
            (local.set $one (i32.load (i32.const 5204)))
            (local.set $n (i32.add (local.get $n) (i32.const 1)))
            (br_if $more (i32.lt_u (local.get $n) (i32.const 64))))
        {IS_REFUSED}
        (call $drop-entries (local.get $one))
        {READS} {IS_REFUSED} {OK}"
    );
    let module = tool_module(IMPORTS, DESCRIBE, &code);
    let bytes = component_of(&[FILES, WORLD], "lists", &module, StringEncoding::UTF8);
    let docs = grants(r#"allow = ["workspace-read: docs/**"]"#);
    let with = AgentGrants { workspace: workspace.path().to_owned(), ..docs };
    let answer = run(bytes, with).await;
    assert!(matches!(&answer, Ok(Ok(_))), "{answer:?}");
}
