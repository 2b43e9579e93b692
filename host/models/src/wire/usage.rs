//! Counts of tokens as the two protocols of OpenAI have them, and the servers that speak these.

use serde_json::Value;
use taskrun_journal::message::Usage;

use super::tokens;

/// The tokens that `usage` counts; `None` if it counts none. `read` and `written` begin the names
/// of the protocol's counts, such as `prompt` and `completion`.
pub(super) fn usage_of(usage: &Value, [read, written]: [&str; 2]) -> Option<Usage> {
    let group = |name: &str| usage.get(format!("{name}_tokens_details")).unwrap_or(&Value::Null);
    let of_read = group(read);
    let prompt_tokens = tokens(usage, &format!("{read}_tokens"));
    let said = tokens(usage, &format!("{written}_tokens"));
    // OpenAI and most others, DeepSeek, and Kimi.
    let cached_tokens = tokens(of_read, "cached_tokens")
        .max(tokens(usage, "prompt_cache_hit_tokens"))
        .max(tokens(usage, "cached_tokens"));
    let cache_write_tokens = tokens(of_read, "cache_write_tokens");
    let total_tokens = tokens(usage, "total_tokens");
    let beside = total_tokens.saturating_sub(prompt_tokens).saturating_sub(said);
    let named = group(written).get("reasoning_tokens").and_then(Value::as_u64);
    let reasoning_tokens = named.unwrap_or_else(|| {
        // Google's endpoint counts reasoning in the total and names it nowhere. A gateway may have
        // there what was read from a cache or written to it, and that was not said by the model.
        let cache =
            [cached_tokens, cache_write_tokens, cached_tokens.saturating_add(cache_write_tokens)];
        if prompt_tokens > 0 && !cache.contains(&beside) { beside } else { 0 }
    });
    // Some servers, such as xAI's, name the tokens of reasoning and count them in the total alone.
    let is_beside = beside == reasoning_tokens;
    let completion_tokens = if is_beside { said.saturating_add(reasoning_tokens) } else { said };
    let total_tokens = total_tokens.max(prompt_tokens.saturating_add(completion_tokens));
    (total_tokens > 0).then_some(Usage {
        prompt_tokens,
        completion_tokens,
        total_tokens,
        cached_tokens,
        cache_write_tokens,
        reasoning_tokens,
        ..Usage::default()
    })
}
