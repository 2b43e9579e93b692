//! The part of a request that its provider may keep and find again in the next one.

use serde_json::Value;

use super::Asked;

/// The mark by which Anthropic is told how far to keep a request. Where it stands is no part of what
/// is kept.
const MARK: &str = "cache_control";

/// Everything that a provider reads of a request and may keep, in the order in which it does, each
/// piece as its bytes: up to the last mark where the protocol has marks, and otherwise up to the
/// notes of the turn, which are instructions at the end.
#[must_use]
pub fn kept(asked: &Asked) -> Vec<String> {
    let (body, list) = (&asked.body, |key: &str| asked.body[key].as_array().cloned());
    let mut pieces: Vec<Value> = list("tools").unwrap_or_default();
    match list("input") {
        Some(items) => {
            pieces.push(body["instructions"].clone());
            pieces.extend(before_notes(items));
            texts(&pieces)
        }
        None if asked.path.ends_with("/messages") => {
            pieces.extend(list("system").unwrap_or_default());
            for message in list("messages").unwrap_or_default() {
                let blocks = message["content"].as_array().cloned().unwrap_or_default();
                pieces.push(message["role"].clone());
                pieces.extend(blocks);
            }
            let last = pieces.iter().rposition(|piece| piece.get(MARK).is_some());
            pieces.truncate(last.map_or(0, |last| last + 1));
            for piece in &mut pieces {
                if let Value::Object(members) = piece {
                    members.remove(MARK);
                }
            }
            texts(&pieces)
        }
        None => {
            pieces.extend(before_notes(list("messages").unwrap_or_default()));
            texts(&pieces)
        }
    }
}

/// True if what may be kept of a request is the beginning of the next one, byte for byte.
#[must_use]
pub fn is_kept_by(asked: &Asked, next: &Asked) -> bool {
    kept(next).starts_with(&kept(asked))
}

fn before_notes(mut items: Vec<Value>) -> Vec<Value> {
    while items.last().is_some_and(|item| item["role"] == "system") {
        items.pop();
    }
    items
}

fn texts(pieces: &[Value]) -> Vec<String> {
    pieces.iter().map(Value::to_string).collect()
}
