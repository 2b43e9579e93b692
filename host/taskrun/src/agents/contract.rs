//! The contract of tools: the demands on every result of a call, whoever makes it.

use taskrun_journal::json;
use taskrun_journal::media::{MEDIA_MAX, Media};
use taskrun_journal::message::{Bounds, RetryHint, RetryReason, ToolError};
use taskrun_journal::tool::{ToolFailure, ToolHints};

use crate::ports::tool::ToolResult;

/// The failure of a call whose tool did not do what its contract says.
pub(crate) fn broken_promise(name: &str, detail: &str) -> ToolFailure {
    let error = ToolError::coded("contract", format!("{name} broke its contract: {detail}"));
    let mut hint = RetryHint::new(RetryReason::MalformedResponse, name);
    hint.message = Some(format!("{name} answered, but {detail}"));
    ToolFailure { error, retry_hint: Some(Box::new(hint)) }
}

/// Checks that a part of a result says how the rest is had.
pub(crate) fn check_bounds(bounds: &Bounds) -> Result<(), String> {
    match bounds.says_how_to_go_on() {
        true => Ok(()),
        false => Err("its result is truncated and does not say how to go on".to_owned()),
    }
}

/// Holds a result to all that is asked of it but the schema that its function may state.
pub(super) fn check_result(hints: ToolHints, result: &ToolResult) -> Result<(), String> {
    json::check(&result.value).map_err(|problem| format!("its result is not JSON: {problem}"))?;
    match &result.bounds {
        Some(bounds) => check_bounds(bounds)?,
        None if hints.bounded => {
            return Err("its results carry bounds, and this one has none".to_owned());
        }
        None => {}
    }
    if result.media.len() > MEDIA_MAX {
        return Err(format!("its result has more than {MEDIA_MAX} images"));
    }
    result.media.iter().try_for_each(|image| {
        let refused = |error| format!("an image of its result cannot be shown: {error}");
        Media::check(image).map(|_| ()).map_err(refused)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIF: &[u8] = b"GIF89a";

    fn result(bounds: Option<Bounds>, media: Vec<Vec<u8>>) -> ToolResult {
        ToolResult { value: "[]".to_owned(), server_data: None, bounds, telemetry: None, media }
    }

    fn part(refinement: Option<&str>) -> Option<Bounds> {
        let refinement = refinement.map(str::to_owned);
        Some(Bounds { returned: 1, total: None, truncated: true, continuation: None, refinement })
    }

    #[test]
    fn a_result_is_held_to_its_form_its_bounds_and_its_images() {
        let bounded = ToolHints { bounded: true, ..ToolHints::default() };
        let free = ToolHints::default();
        let images = |image: &[u8], count: usize| result(None, vec![image.to_vec(); count]);
        let text = ToolResult { value: "text".to_owned(), ..result(None, Vec::new()) };
        let table = [
            (free, result(None, Vec::new()), None),
            (free, text, Some("its result is not JSON")),
            (bounded, result(None, Vec::new()), Some("carry bounds, and this one has none")),
            (bounded, result(part(Some("ask for less")), Vec::new()), None),
            (free, result(part(None), Vec::new()), Some("does not say how to go on")),
            (free, images(GIF, MEDIA_MAX), None),
            (free, images(GIF, MEDIA_MAX + 1), Some("has more than 16 images")),
            (free, images(b"text", 1), Some("cannot be shown: it is neither PNG")),
        ];
        for (hints, result, fault) in table {
            let checked = check_result(hints, &result);
            let says = |fault| checked.as_ref().is_err_and(|detail| detail.contains(fault));
            assert!(fault.map_or(checked.is_ok(), says), "{fault:?}: {checked:?}");
        }
    }
}
