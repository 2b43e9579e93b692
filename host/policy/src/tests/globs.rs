//! Patterns over paths: what they match, what may lie below a folder, which covers which.

use globset::GlobBuilder;

use super::super::names::NameForms;
use super::super::path_glob::{PathGlob, split_path};

fn glob(text: &str) -> PathGlob {
    PathGlob::parse(text).unwrap_or_else(|bad| panic!("{text}: {}", bad.reason))
}

const PATTERNS: [&str; 22] = [
    "**",
    "*",
    "a",
    "a/b",
    "a/*",
    "a/**",
    "**/b",
    "**/*",
    "*/b",
    "a/**/c",
    "**/b/**",
    "*/**",
    "a/*/c",
    "a*",
    "*.md",
    "**/*.md",
    "{a,b}/**",
    "[ab]/c",
    "a/b/**",
    "**/a/**/b",
    "é/**",
    "*/*/**",
];

/// Every path of at most three segments over a few names, the empty one included.
fn paths() -> Vec<String> {
    let names = ["a", "b", "c", "a.md", "é"];
    let mut paths = vec![String::new()];
    let mut last = paths.clone();
    for _ in 0..3 {
        last = last
            .iter()
            .flat_map(|path| {
                names.map(|name| format!("{path}/{name}").trim_start_matches('/').to_owned())
            })
            .collect();
        paths.extend(last.clone());
    }
    paths
}

#[test]
fn what_is_dear_to_build_is_no_pattern() {
    let braces = |levels: usize| format!("{}a{}", "{".repeat(levels), "}".repeat(levels));
    assert!(glob(&braces(64)).matches(&["a"]));
    for text in [braces(65), braces(300), format!("*{}", "a".repeat(1024))] {
        let bad = PathGlob::parse(&text).expect_err("too much");
        assert!(bad.reason.contains("a segment has more than"), "{}", bad.reason);
    }
    assert!(glob(&format!("*{}", "a".repeat(1023))).matches(&[&"a".repeat(1023)]));
}

#[test]
fn patterns_match_segment_by_segment() {
    let cases = [
        ("**", "", true),
        ("**", "a/b/c", true),
        ("docs/**", "docs", true),
        ("docs/**", "docs/a/b", true),
        ("docs/**", "docs2/a", false),
        ("docs/**", "Docs/a", false),
        ("docs/*", "docs", false),
        ("docs/*", "docs/a", true),
        ("docs/*", "docs/.hidden", true),
        ("docs/*", "docs/a/b", false),
        ("docs/*.md", "docs/é.md", true),
        ("docs/*.md", "docs/a.txt", false),
        ("**/secret/**", "a/b/secret/c", true),
        ("**/secret/**", "secret", true),
        ("**/secret/**", "a/secrets/c", false),
        ("a/**/b", "a/b", true),
        ("a/**/b", "a/x/y/b", true),
        ("a/**/b", "a/x/y/b/c", false),
        ("{one,two}.md", "two.md", true),
        ("{one,two}.md", "three.md", false),
        ("[ab]/[*]", "a/*", true),
        ("[ab]/[*]", "a/x", false),
        ("a b", "a b", true),
    ];
    for (pattern, path, matches) in cases {
        let segments = split_path(path).unwrap();
        assert_eq!(glob(pattern).matches(&segments), matches, "{pattern} and {path}");
    }
}

fn asked(path: &str) -> Vec<NameForms<'_>> {
    NameForms::path(&split_path(path).unwrap())
}

#[test]
fn case_34_a_rule_that_denies_means_every_name_that_may_lead_to_the_file() {
    let cases = [
        ("docs/secret.md", "Docs/SECRET.md", true),
        ("docs/secret.md", "docs/secret.md.", true),
        ("docs/secret.md", "docs/secret.md::$DATA", true),
        ("docs/secret.md", "docs/SECRET~1.MD", true),
        ("docs/secret.md", "docs/secrets.md", false),
        ("docs/\u{e9}t\u{e9}/**", "docs/E\u{301}TE\u{301}/a", true),
        ("docs/stra\u{df}e", "docs/STRASSE", true),
        ("\u{212a}eys/**", "keys", true),
        ("**/.git/**", "a/.GIT/config", true),
        ("**/.git/**", "a/GIT~1/config", true),
        ("**/.git/**", "a/.g\u{200d}it/config", true),
        ("**/.git/**", "a/git/config", false),
        ("docs/*.Key", "docs/mine.KEY", true),
        ("docs/*.Key", "docs/mine.key. ", true),
        ("docs/*.key", "docs/mine.\u{212a}ey", true),
        ("docs/*.key", "docs/mine.keys", false),
        ("docs/{Secret,Private}*", "docs/PRIVATE-1", true),
        ("docs/{Secret,Private}*", "docs/public-1", false),
        ("docs/[x-z][0-9]", "docs/Y1", true),
        ("docs/[x-z][0-9]", "docs/YA", false),
        ("docs/[Z-a]", "docs/b", false),
        ("docs/[Z-a]", "docs/A", true),
        // Endings that other file systems cut off.
        ("docs/*. ", "docs/A. ", true),
        ("docs/*./secret", "docs/a./SECRET", true),
        // Marks come in an order of their own.
        ("docs/e\u{301}*", "docs/e\u{323}\u{301}", true),
        ("docs/*.\u{434}\u{430}", "docs/\u{430}.\u{414}\u{410}", true),
        ("docs/*.\u{434}\u{430}", "docs/\u{430}.\u{43d}\u{435}\u{442}", false),
    ];
    for (pattern, path, denies) in cases {
        let (glob, segments) = (glob(pattern), split_path(path).unwrap());
        assert_eq!(glob.denies(&asked(path)), denies, "{pattern} and {path}");
        assert!(denies || !glob.matches(&segments), "{pattern} and {path}");
    }
}

#[test]
fn what_a_pattern_matches_it_denies() {
    for pattern in PATTERNS {
        let glob = glob(pattern);
        for path in paths() {
            let (segments, path) = (split_path(&path).unwrap(), asked(&path));
            let denies = glob.denies(&path);
            assert!(denies || !glob.matches(&segments), "{pattern} and {segments:?}");
            assert!(!denies || glob.denies_part(&path), "{pattern} and {segments:?}");
        }
    }
}

#[test]
fn patterns_match_what_the_library_says_and_the_folder_before_a_final_star() {
    for pattern in PATTERNS {
        let library =
            GlobBuilder::new(pattern).literal_separator(true).build().unwrap().compile_matcher();
        let folder = pattern.strip_suffix("/**");
        let folder = folder.map(|folder| {
            GlobBuilder::new(folder).literal_separator(true).build().unwrap().compile_matcher()
        });
        for path in paths().iter().filter(|path| !path.is_empty()) {
            let expected = library.is_match(path)
                || folder.as_ref().is_some_and(|folder| folder.is_match(path));
            assert_eq!(
                glob(pattern).matches(&split_path(path).unwrap()),
                expected,
                "{pattern} and {path}"
            );
        }
    }
}

#[test]
fn a_pattern_may_match_below_exactly_the_folders_that_have_a_match_below() {
    // Two levels of folders; the third level of the paths is what lies below.
    let paths = paths();
    let folders = paths.iter().filter(|path| path.matches('/').count() < 2);
    for folder in folders.clone().filter(|folder| !folder.contains('/')) {
        for pattern in PATTERNS {
            let glob = glob(pattern);
            let below = |path: &&String| {
                folder.is_empty() && !path.is_empty() || path.starts_with(&format!("{folder}/"))
            };
            let found =
                paths.iter().filter(below).any(|path| glob.matches(&split_path(path).unwrap()));
            let may = glob.may_match_below(&split_path(folder).unwrap());
            assert_eq!(may, found, "{pattern} below {folder:?}");
        }
    }
    for folder in folders {
        for pattern in PATTERNS {
            let glob = glob(pattern);
            if glob.denies_all_below(&asked(folder)) {
                let inside =
                    |path: &&String| *path == folder || path.starts_with(&format!("{folder}/"));
                assert!(paths.iter().filter(inside).all(|path| glob.denies(&asked(path))));
            }
        }
    }
}

#[test]
fn a_pattern_that_covers_another_matches_all_that_it_matches() {
    let paths = paths();
    for ours in PATTERNS {
        for theirs in PATTERNS {
            let (our, their) = (glob(ours), glob(theirs));
            if our.covers(&their) {
                for path in &paths {
                    let segments = split_path(path).unwrap();
                    assert!(
                        our.matches(&segments) || !their.matches(&segments),
                        "{ours} {theirs} {path}"
                    );
                }
            }
        }
        assert!(glob("**").covers(&glob(ours)), "{ours}");
        assert!(glob(ours).covers(&glob(ours)), "{ours}");
    }
    for (ours, theirs) in
        [("a/**", "a"), ("a/**", "a/*/c"), ("*/**", "a/b"), ("**/b", "a/**/b"), ("*.md", "x.md")]
    {
        assert!(glob(ours).covers(&glob(theirs)), "{ours} {theirs}");
    }
    for (ours, theirs) in
        [("a/*", "a/**"), ("a", "a/**"), ("*", "**"), ("**/b", "b/**"), ("a/b", "a/*")]
    {
        assert!(!glob(ours).covers(&glob(theirs)), "{ours} {theirs}");
    }
}

#[test]
fn a_denial_that_leaves_nothing_of_a_pattern_means_all_that_it_matches() {
    let paths = paths();
    for ours in PATTERNS {
        for theirs in PATTERNS {
            let (our, their) = (glob(ours), glob(theirs));
            if our.denies_all_of(&their) {
                for path in &paths {
                    let matches = their.matches(&split_path(path).expect("a path"));
                    assert!(our.denies(&asked(path)) || !matches, "{ours} {theirs} {path}");
                }
            }
        }
    }
    for (ours, theirs) in [
        ("Docs/**", "docs/**"),
        ("DOCS/*.md", "docs/a.MD"),
        ("\u{c9}t\u{e9}", "e\u{301}T\u{c9}"),
        ("docs", "docs."),
    ] {
        assert!(glob(ours).denies_all_of(&glob(theirs)), "{ours} {theirs}");
        assert!(!glob(ours).covers(&glob(theirs)), "{ours} {theirs}");
    }
    for (ours, theirs) in [("Docs/*", "docs/**"), ("Docs", "doc"), ("*", "**"), ("a", "*")] {
        assert!(!glob(ours).denies_all_of(&glob(theirs)), "{ours} {theirs}");
    }
}

#[test]
fn only_plain_folders_are_directories() {
    let cases = [
        ("**", Some("")),
        ("a/**", Some("a")),
        ("a/b/**", Some("a/b")),
        ("a/**/**", Some("a")),
        ("a", None),
        ("a/*", None),
        ("*/**", None),
        ("**/a/**", None),
        ("a/**/b", None),
    ];
    for (pattern, directory) in cases {
        assert_eq!(glob(pattern).directory().as_deref(), directory, "{pattern}");
    }
}

#[test]
fn a_pattern_of_many_stars_is_decided_at_once() {
    let pattern = glob(&["**/a"; 16].join("/"));
    let path = vec!["a"; 2_000];
    assert!(pattern.matches(&path));
    assert!(!pattern.matches(&[path.as_slice(), &["b"]].concat()));
    assert!(pattern.covers(&glob(&["**/a"; 16].join("/"))));
}
