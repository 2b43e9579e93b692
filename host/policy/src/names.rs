//! Names that file systems take for one.
//!
//! APFS, NTFS, FAT, SMB and folders of ext4 that fold case find a file by more names than its own,
//! and which of them a folder is on cannot be asked of the system. So a rule that denies holds for
//! every name that any of them may take for one that it means; a rule that allows means what it
//! says.

use icu_normalizer::DecomposingNormalizerBorrowed;
use icu_normalizer::properties::CanonicalCombiningClassMapBorrowed;
use icu_properties::CodePointSetData;
use icu_properties::props::DefaultIgnorableCodePoint;

/// A name in a path that somebody asks for, and what it has in common with others for the same
/// file.
pub(super) struct NameForms<'n> {
    pub(super) name: &'n str,
    pub(super) folded: String,
    /// With what [`folded`] cuts off: there are file systems that do not.
    pub(super) caseless: String,
    /// Set if it may be a second name of anything.
    pub(super) is_short: bool,
}

impl<'n> NameForms<'n> {
    /// The names of a path.
    pub(super) fn path(names: &[&'n str]) -> Vec<Self> {
        let asked = |name: &&'n str| Self {
            name,
            folded: folded(name),
            caseless: caseless(name),
            is_short: is_short(name),
        };
        names.iter().map(asked).collect()
    }
}

/// The part that all names have in common that some file system takes for this one: no difference
/// of case or of how a character is put together, nothing that is not seen, nothing after a colon,
/// where NTFS has streams, and no dots and spaces at the end, which FAT and NTFS drop. Never empty
/// if the name is not.
#[must_use]
pub fn folded(name: &str) -> String {
    let file = name.split_once(':').map_or(name, |(file, _)| file);
    let file = file.trim_end_matches(['.', ' ']);
    caseless(if file.is_empty() { name } else { file })
}

/// A name without what tells apart case, how a character is put together (the canonical caseless
/// matching of Unicode, section 3.13), letters with the same capital letter, and what is not seen.
/// Never empty if the name is not.
fn caseless(name: &str) -> String {
    if name.is_ascii() {
        return name.to_ascii_uppercase();
    }
    let ignorable = CodePointSetData::new::<DefaultIgnorableCodePoint>();
    let seen = name.chars().filter(|char| !ignorable.contains(*char));
    let caseless: String = same_case(seen).collect();
    if caseless.is_empty() { name.to_owned() } else { caseless }
}

fn same_case(chars: impl Iterator<Item = char>) -> impl Iterator<Item = char> {
    let decomposing = DecomposingNormalizerBorrowed::new_nfd();
    // Up, down and up again: some letters share their small letter, others their capital.
    let cased = decomposing
        .normalize_iter(chars)
        .flat_map(char::to_uppercase)
        .flat_map(char::to_lowercase)
        .flat_map(char::to_uppercase);
    decomposing.normalize_iter(cased)
}

/// A pattern that [`caseless`] names are held against piece by piece: in it a mark on the letter
/// before stands for anything, as others may come between the two.
pub(super) fn caseless_pattern(pattern: &str) -> String {
    let marks = CanonicalCombiningClassMapBorrowed::new();
    let chars = same_case(pattern.chars());
    let mut caseless: String =
        chars.map(|char| if marks.get_u8(char) == 0 { char } else { '*' }).collect();
    while caseless.contains("**") {
        caseless = caseless.replace("**", "*");
    }
    caseless
}

/// Tells if a name has the form of the short names that FAT and NTFS give files beside their own:
/// `SECRET~1.TXT`. Which file it is a second name of cannot be told by names alone.
fn is_short(name: &str) -> bool {
    let (stem, extension) = name.split_once('.').unwrap_or((name, ""));
    let (beginning, number) = stem.rsplit_once('~').unwrap_or_default();
    !beginning.is_empty()
        && stem.chars().count() <= 8
        && extension.chars().count() <= 3
        && !extension.contains('.')
        && !number.is_empty()
        && number.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_some_file_system_takes_for_one_are_the_same() {
        let same = [
            ("secrets", "SECRETS"),
            ("Secrets", "sEcReTs"),
            ("secrets", "secrets. ."),
            ("secrets", "secrets:stream:$DATA"),
            ("\u{e9}t\u{e9}", "e\u{301}te\u{301}"),
            ("\u{c9}T\u{c9}", "e\u{301}te\u{301}"),
            // Marks in another order.
            ("a\u{323}\u{301}", "a\u{301}\u{323}"),
            ("stra\u{df}e", "STRASSE"),
            ("stra\u{1e9e}e", "strasse"),
            // The signs for Kelvin, Angstrom and Ohm; the long s; the last sigma of a word.
            ("\u{212a}ey", "key"),
            ("\u{212b}", "a\u{30a}"),
            ("\u{2126}", "\u{3c9}"),
            ("\u{17f}ecret", "secret"),
            ("\u{3c3}\u{3c2}", "\u{3a3}\u{3a3}"),
            // Without a dot: its capital letter is that of `i`.
            ("f\u{131}le", "FILE"),
            ("\u{fb01}le", "file"),
            ("sec\u{200d}rets\u{fe0f}", "secrets"),
        ];
        for (one, other) in same {
            assert_eq!(folded(one), folded(other), "{one} {other}");
        }
    }

    #[test]
    fn others_are_not() {
        let different = [
            ("secrets", "secret"),
            ("a", "\u{e4}"),
            ("\u{e9}", "\u{e8}"),
            // With a dot: two letters in every other case.
            ("f\u{130}le", "file"),
            // Full width, and other letters that only look alike.
            ("\u{ff53}ecret", "secret"),
            ("\u{430}", "a"),
            ("..", "."),
            ("a.b", "a"),
        ];
        for (one, other) in different {
            assert_ne!(folded(one), folded(other), "{one} {other}");
        }
        for name in [".", "..", ":", ". .", "\u{200d}"] {
            assert_eq!(folded(name), name);
        }
    }

    #[test]
    fn every_letter_is_the_same_as_its_capital_and_its_small_letter() {
        for char in '\0'..=char::MAX {
            let (text, up, down): (String, String, String) =
                (char.into(), char.to_uppercase().collect(), char.to_lowercase().collect());
            if text == up && text == down {
                continue;
            }
            let of = |text: &str| caseless(&format!("x{text}"));
            assert_eq!(of(&text), of(&up), "{char:?}");
            assert_eq!(of(&text), of(&down), "{char:?}");
            assert_eq!(of(&text), caseless(&of(&text)), "{char:?}");
        }
    }

    #[test]
    fn short_names_have_a_form() {
        for name in ["SECRET~1", "secre~12.txt", "GIT~1", "A~1.B", "\u{e4}~1"] {
            assert!(is_short(name), "{name}");
        }
        for name in [
            "a~",
            "~1",
            "secret~12",
            "notes.md~1",
            "notes.~1~",
            "a~1.text",
            "backup~2026",
            "a~b",
            "a",
        ] {
            assert!(!is_short(name), "{name}");
        }
    }
}
