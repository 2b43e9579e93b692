//! A request as it is sent, whatever its protocol.

use bytes::Bytes;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use taskrun_journal::completion::ModelError;

/// A request to be sent.
#[derive(Debug)]
pub(crate) struct HttpRequest {
    pub(crate) url: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl HttpRequest {
    pub(crate) fn new(url: String, body: Vec<u8>) -> Self {
        let headers =
            HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        Self { url, headers, body: body.into() }
    }

    /// Adds parameters to the address.
    pub(crate) fn add_query<'q>(&mut self, all: impl Iterator<Item = (&'q str, &'q str)>) {
        for (name, value) in all {
            self.url.push(if self.url.contains('?') { '&' } else { '?' });
            self.url.push_str(name);
            self.url.push('=');
            for byte in value.bytes() {
                match byte {
                    b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                        self.url.push(char::from(byte));
                    }
                    _ => self.url.push_str(&format!("%{byte:02X}")),
                }
            }
        }
    }

    /// Adds a header that is not shown in any `Debug`.
    ///
    /// # Errors
    /// If the value cannot stand in a header.
    pub(crate) fn add_key(&mut self, name: HeaderName, value: &str) -> Result<(), ModelError> {
        let mut value = HeaderValue::from_str(value).map_err(|_| {
            ModelError::Other("a key or a header of the policy cannot be sent".to_owned())
        })?;
        value.set_sensitive(true);
        self.headers.insert(name, value);
        Ok(())
    }
}
