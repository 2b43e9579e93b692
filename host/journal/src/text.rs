//! Beginnings of texts.

/// The longest prefix of `text` of at most `max` bytes that ends between characters.
#[must_use]
pub fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

/// The first `max` characters of a text.
#[must_use]
pub fn first_chars(text: &str, max: usize) -> &str {
    match text.char_indices().nth(max) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}
