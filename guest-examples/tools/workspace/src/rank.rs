//! The ranking of passages for a query.
//!
//! A passage is a paragraph with the headings above it. Its score adds up, for each word of the
//! query, how rare the word is (BM25's inverse document frequency) times how often it stands in
//! the passage (saturating, as in BM25), where a heading or the file's name counts too; and is
//! scaled by the share of the query's words that it has. Equal scores are ordered by path and
//! line, so that the same files give the same answer.

use crate::text::{cut, query_words, words};
use serde::Serialize;
use std::collections::BTreeMap;

/// Occurrences after which more of them hardly count.
const SATURATION: f64 = 1.2;
/// The weight of a heading: an occurrence there counts as so many.
const HEADING_WEIGHT: f64 = 2.0;
/// The weight of the path: an occurrence there counts as so many.
const PATH_WEIGHT: f64 = 1.0;
/// Bytes of an excerpt.
const EXCERPT_BYTES_MAX: usize = 240;
/// Passages of one file among the hits, so that one long file does not hide the others.
const HITS_PER_FILE_MAX: usize = 3;
/// Passages kept for ranking: 20,000 take some 8 MiB.
const PASSAGES_MAX: usize = 20_000;

/// A passage that was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Hit {
    pub(crate) path: String,
    /// Of the passage's best line, from 1.
    pub(crate) line: u64,
    pub(crate) heading: String,
    pub(crate) excerpt: String,
    pub(crate) score: f64,
}

/// A search under way: files are added one after the other, and need not stay in memory.
pub(crate) struct Search {
    words: Vec<String>,
    passages: u64,
    /// Passages that have the word, for each word of the query.
    with_word: Vec<u64>,
    found: Vec<Passage>,
}

struct Passage {
    hit: Hit,
    /// Weighted occurrences, for each word of the query.
    weights: Vec<f64>,
}

impl Search {
    pub(crate) fn new(query: &str) -> Self {
        let words = query_words(query);
        let with_word = vec![0; words.len()];
        Self { words, passages: 0, with_word, found: Vec::new() }
    }

    pub(crate) fn has_words(&self) -> bool {
        !self.words.is_empty()
    }

    /// Takes the passages of a file.
    pub(crate) fn add(&mut self, path: &str, contents: &str) {
        let of_path = self.occurrences(path);
        let mut heading = "";
        let mut paragraph: Vec<(u64, &str)> = Vec::new();
        // An empty line more ends the last paragraph.
        for (index, line) in contents.lines().chain([""]).enumerate() {
            let line = line.trim();
            let title = line.trim_start_matches('#');
            let is_heading = title.len() < line.len() && title.starts_with(' ');
            if line.is_empty() || is_heading {
                self.passage(path, heading, &of_path, &paragraph);
                paragraph.clear();
            }
            if is_heading {
                heading = title.trim();
            }
            // A heading is part of the passage too, or one without text could not be found.
            if !line.is_empty() {
                paragraph.push((index as u64 + 1, line));
            }
        }
    }

    fn passage(&mut self, path: &str, heading: &str, of_path: &[f64], lines: &[(u64, &str)]) {
        if lines.is_empty() {
            return;
        }
        self.passages += 1;
        let of_heading = self.occurrences(heading);
        let mut weights = vec![0.0; self.words.len()];
        let mut best = (0.0, lines[0]);
        for &(number, line) in lines {
            let of_line = self.occurrences(line);
            let distinct = of_line.iter().filter(|count| **count > 0.0).count() as f64;
            let is_text = !line.starts_with('#');
            // Of a heading and its text with the same words the text is shown.
            let worth = distinct + if is_text && distinct > 0.0 { 0.5 } else { 0.0 };
            if worth > best.0 {
                best = (worth, (number, line));
            }
            for (weight, count) in weights.iter_mut().zip(&of_line) {
                *weight += count;
            }
        }
        if weights.iter().all(|weight| *weight == 0.0) && of_heading.iter().all(|n| *n == 0.0) {
            return;
        }
        for (index, weight) in weights.iter_mut().enumerate() {
            *weight += HEADING_WEIGHT * of_heading[index];
            if *weight > 0.0 {
                self.with_word[index] += 1;
            }
            *weight += PATH_WEIGHT * of_path[index];
        }
        if self.found.len() < PASSAGES_MAX {
            let (line, text) = best.1;
            let mut excerpt = cut(text, EXCERPT_BYTES_MAX).to_owned();
            if excerpt.len() < text.len() {
                excerpt.push('…');
            }
            let hit = Hit {
                path: path.to_owned(),
                line,
                heading: cut(heading, EXCERPT_BYTES_MAX).to_owned(),
                excerpt,
                score: 0.0,
            };
            self.found.push(Passage { hit, weights });
        }
    }

    /// The number of occurrences in `text` of each word of the query.
    fn occurrences(&self, text: &str) -> Vec<f64> {
        let mut counts = vec![0.0; self.words.len()];
        for word in words(text) {
            if let Some(index) = self.words.iter().position(|wanted| *wanted == word) {
                counts[index] += 1.0;
            }
        }
        counts
    }

    /// The best `limit` passages, best first, and how many there are in all.
    pub(crate) fn best(self, limit: usize) -> (Vec<Hit>, u64) {
        let total = self.found.len() as u64;
        let rarity: Vec<f64> = self
            .with_word
            .iter()
            .map(|&with| {
                let (all, with) = (self.passages as f64, with as f64);
                (1.0 + (all - with + 0.5) / (with + 0.5)).ln()
            })
            .collect();
        let mut hits: Vec<Hit> = self
            .found
            .into_iter()
            .map(|passage| {
                let matched = passage.weights.iter().filter(|weight| **weight > 0.0).count();
                let sum: f64 = passage
                    .weights
                    .iter()
                    .zip(&rarity)
                    .map(|(weight, rarity)| rarity * weight / (weight + SATURATION))
                    .sum();
                let score = sum * matched as f64 / rarity.len() as f64;
                Hit { score: (score * 1_000.0).round() / 1_000.0, ..passage.hit }
            })
            .collect();
        hits.sort_by(|a, b| {
            b.score
                .total_cmp(&a.score)
                .then_with(|| a.path.cmp(&b.path))
                .then_with(|| a.line.cmp(&b.line))
        });
        let mut per_file: BTreeMap<String, usize> = BTreeMap::new();
        hits.retain(|hit| {
            let count = per_file.entry(hit.path.clone()).or_default();
            *count += 1;
            *count <= HITS_PER_FILE_MAX
        });
        hits.truncate(limit);
        (hits, total)
    }
}
