//! Lines and words.

/// Lines with their numbers.
#[derive(Debug, PartialEq)]
pub(crate) struct Numbered {
    pub(crate) text: String,
    pub(crate) returned: u64,
    /// Lines of the whole file.
    pub(crate) total: u64,
}

/// Up to `count` lines from line `start` (from 1), each as `12: text`, as long as they fit into
/// `bytes_max`. A single line over it is cut.
pub(crate) fn numbered(contents: &str, start: u64, count: u64, bytes_max: usize) -> Numbered {
    let mut found = Numbered { text: String::new(), returned: 0, total: 0 };
    let mut full = false;
    for line in contents.lines() {
        found.total += 1;
        if found.total < start || found.returned == count || full {
            continue;
        }
        let line = format!("{}: {}\n", found.total, line.trim_end());
        if found.text.len() + line.len() <= bytes_max {
            found.text.push_str(&line);
        } else if found.returned == 0 {
            found.text = format!("{}…\n", cut(&line, bytes_max));
            full = true;
        } else {
            full = true;
            continue;
        }
        found.returned += 1;
    }
    found
}

/// The start of `text`: at most `bytes` of it, and whole characters.
pub(crate) fn cut(text: &str, bytes: usize) -> &str {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The words of a text in the form in which they are compared: lower case, without the `s` of a
/// plural.
pub(crate) fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(|word| {
        let mut word = word.to_lowercase();
        if word.len() > 3 && word.ends_with('s') && !word.ends_with("ss") {
            word.pop();
        }
        word
    })
}

/// Words that say nothing about what is looked for, in the form that [`words`] gives.
const STOP_WORDS: [&str; 50] = [
    "a", "about", "all", "an", "and", "any", "are", "as", "at", "be", "been", "but", "by", "can",
    "could", "did", "do", "doe", "for", "from", "ha", "have", "how", "i", "if", "in", "into", "is",
    "it", "its", "me", "my", "of", "on", "or", "that", "the", "there", "thi", "to", "was", "what",
    "when", "where", "which", "who", "why", "will", "with", "you",
];

/// The distinct words of a query that matter; all of them if none does.
pub(crate) fn query_words(query: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for word in words(query) {
        if !all.contains(&word) {
            all.push(word);
        }
    }
    let telling: Vec<String> =
        all.iter().filter(|word| !STOP_WORDS.contains(&word.as_str())).cloned().collect();
    if telling.is_empty() { all } else { telling }
}
