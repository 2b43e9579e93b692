//! Making an answer of passages.

/// Sentences taken from one passage.
const SENTENCES_MAX: usize = 2;
/// Bytes of a word that tells something; shorter ones are mostly glue.
const WORD_BYTES_MIN: usize = 4;

/// A passage that answers the question, or part of it.
pub(crate) struct Passage {
    pub(crate) path: String,
    pub(crate) line: u64,
    pub(crate) text: String,
}

/// The paragraph that has line `line`, from lines given as `12: text`. `None` if the line is not
/// among them, or empty, or a heading with nothing below it.
pub(crate) fn paragraph(numbered: &str, line: u64) -> Option<String> {
    let lines: Vec<(u64, &str)> = numbered
        .lines()
        .filter_map(|line| {
            let (number, text) = line.split_once(':')?;
            Some((number.parse().ok()?, plain(text)))
        })
        .collect();
    let mut at = lines.iter().position(|(number, _)| *number == line)?;
    // Below a heading stands what it announces.
    while lines.get(at).is_some_and(|(_, text)| text.starts_with('#') || text.is_empty()) {
        at += 1;
    }
    let ends =
        |text: &str| text.is_empty() || text.starts_with(['#', '|']) || text.starts_with("```");
    let first = lines[..at].iter().rposition(|(_, text)| ends(text)).map_or(0, |index| index + 1);
    let text: Vec<&str> =
        lines.get(first..)?.iter().map(|(_, text)| *text).take_while(|text| !ends(text)).collect();
    (!text.is_empty()).then(|| text.join(" "))
}

/// A line without the marks of a comment.
fn plain(line: &str) -> &str {
    let line = line.trim();
    ["///", "//!", "//"].iter().find_map(|mark| line.strip_prefix(mark)).unwrap_or(line).trim()
}

/// The best sentences of each passage with its place, and all places at the end.
pub(crate) fn answer(question: &str, passages: &[Passage]) -> String {
    let words: Vec<String> = words(question).filter(|word| word.len() >= WORD_BYTES_MIN).collect();
    let mut said: Vec<String> = Vec::new();
    let mut places: Vec<String> = Vec::new();
    for passage in passages {
        let place = format!("{}:{}", passage.path, passage.line);
        let text = best_sentences(&words, &passage.text);
        if places.contains(&place) || said.iter().any(|other| other.starts_with(&text)) {
            continue;
        }
        said.push(format!("{text} ({place})"));
        places.push(place);
    }
    format!("{}\n\nSources: {}", said.join("\n\n"), places.join(", "))
}

fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(|word| word.to_lowercase().trim_end_matches('s').to_owned())
}

/// The sentences with the most words of the question, in the order of the text.
fn best_sentences(question: &[String], text: &str) -> String {
    let mut sentences: Vec<(usize, usize, &str)> = sentences(text)
        .enumerate()
        .map(|(index, sentence)| {
            let mut matched: Vec<String> =
                words(sentence).filter(|word| question.contains(word)).collect();
            matched.sort();
            matched.dedup();
            (matched.len(), index, sentence)
        })
        .collect();
    sentences.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    sentences.truncate(SENTENCES_MAX);
    sentences.sort_by_key(|(_, index, _)| *index);
    sentences.iter().map(|(_, _, sentence)| *sentence).collect::<Vec<_>>().join(" ")
}

/// Sentences: up to a full stop, question or exclamation mark before a space.
fn sentences(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text.trim();
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = rest
            .match_indices(['.', '?', '!'])
            .map(|(at, _)| at + 1)
            .find(|&end| rest[end..].starts_with(' '))
            .unwrap_or(rest.len());
        let (sentence, after) = rest.split_at(end);
        rest = after.trim_start();
        Some(sentence)
    })
}
