//! The compiler's errors. They have no types, and from a worker only their text arrives.

use super::{LoadError, NeedBound};

/// The validator's words where a proposal is not enabled; it has no one form for them.
const PROPOSAL: [&str; 9] = [
    " not enabled",
    "must be enabled",
    "to be enabled",
    " proposal",
    "require the component model",
    "requires the component model",
    "not supported without the",
    "feature required for",
    "feature is not active",
];

/// The validator's words where the version in a name is none.
const VERSION: [&str; 2] = ["invalid interface version", "not a valid semver"];

impl LoadError {
    /// The error that a compiler's text tells of. The file is known to be whole by then: where an
    /// end is met that is not expected, a length within it is wrong.
    pub(crate) fn from_compiler_text(text: &str) -> Self {
        let detail = text.to_owned();
        let words = without_names(text);
        let has = |phrase: &&str| words.contains(*phrase);
        if VERSION.iter().any(has) {
            let full = "names carry a full version, as in `wasi:cli/exit@0.2.0`";
            Self::Invalid { detail: format!("{detail}; {full}") }
        } else if has(&"component model async") || has(&"component model more async") {
            Self::Async { detail }
        } else if PROPOSAL.iter().any(has) {
            Self::Proposal { detail }
        } else if has(&"exceeds") {
            Self::TooMuch { detail, bound: NeedBound::Engine }
        } else {
            Self::Invalid { detail }
        }
    }
}

/// A compiler's text without the component's own names, which may be any words.
fn without_names(text: &str) -> String {
    // Before an error in a function stand its numbers and its name, which has no space.
    let of_function = text.split_once("failed to compile: wasm[");
    let rest =
        of_function.and_then(|(_, rest)| rest.split_once(' ')).map_or(text, |(_, rest)| rest);
    // All others are quoted.
    rest.split(['`', '"']).step_by(2).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_the_validator_count_and_not_names_of_the_component() {
        let in_function = |name: &str, words: &str| {
            let text = "WebAssembly translation error: Invalid input WebAssembly code at offset 58";
            format!("failed to compile: wasm[0]::function[3]::{name}: {text}: {words}")
        };
        for name in ["async_sum", "exceeds", "unexpected?end", "proposal"] {
            let relaxed = in_function(name, "relaxed SIMD support is not enabled");
            let error = LoadError::from_compiler_text(&relaxed);
            assert!(matches!(error, LoadError::Proposal { .. }), "{error}");
            assert!(error.to_string().contains(name), "the author is told where: {error}");
            let mismatch = in_function(name, "type mismatch: expected i32, found i64");
            let error = LoadError::from_compiler_text(&mismatch);
            assert!(matches!(error, LoadError::Invalid { .. }), "{error}");
        }
        for quoted in [
            "import name `component model async` conflicts with previous name `exceeds`",
            "type mismatch in import `a unexpected end b` (at offset 0x1)",
            r#"unknown import: "not enabled" has not been defined"#,
        ] {
            let error = LoadError::from_compiler_text(quoted);
            assert!(matches!(error, LoadError::Invalid { .. }), "{error}");
        }
    }

    #[test]
    fn each_kind_of_words_has_its_error() {
        let error = LoadError::from_compiler_text("unexpected end-of-file (at offset 0x8)");
        assert!(matches!(error, LoadError::Invalid { .. }), "{error}");
        for words in [
            "invalid interface version: unexpected end of input while parsing minor version number",
            "invalid interface version: value of major version number exceeds u64::MAX",
            "`0.2` is not a valid semver: unexpected end of input while parsing minor version number",
        ] {
            let error = LoadError::from_compiler_text(words);
            assert!(matches!(error, LoadError::Invalid { .. }), "{error}");
            assert!(error.to_string().ends_with("as in `wasi:cli/exit@0.2.0`"), "{error}");
        }
        for words in [
            "canonical option `async` requires the component model async feature (at offset 0x1)",
            "async component functions require the component model async feature",
            "synchronous `stream.read` requires the component model more async builtins feature",
        ] {
            let error = LoadError::from_compiler_text(words);
            assert!(matches!(error, LoadError::Async { .. }), "{error}");
        }
        for words in [
            "exceptions proposal not enabled (at offset 0x1b)",
            "threads must be enabled for shared memories",
            "64-bit memories require the `cm64` feature to be enabled",
            "shared globals require the shared-everything-threads proposal",
            "Maps require the component model map feature",
            "`error-context` requires the component model error-context feature",
            "struct indexed types not supported without the gc feature",
            "legacy_exceptions feature required for try instruction",
            "the `cm-implements` feature is not active",
        ] {
            let error = LoadError::from_compiler_text(words);
            assert!(matches!(error, LoadError::Proposal { .. }), "{error}");
        }
        let words = "table index 0 has a minimum element size of 2 which exceeds the limit of 1";
        let error = LoadError::from_compiler_text(words);
        let is_of_engine = matches!(error, LoadError::TooMuch { bound: NeedBound::Engine, .. });
        assert!(is_of_engine, "{error}");
    }
}
