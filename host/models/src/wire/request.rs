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

    /// Adds a header that is not shown in any `Debug`.
    ///
    /// # Errors
    /// If the value cannot stand in a header.
    pub(crate) fn add_key(&mut self, name: HeaderName, value: &str) -> Result<(), ModelError> {
        let mut value = HeaderValue::from_str(value)
            .map_err(|_| ModelError::Other("the key cannot be sent".to_owned()))?;
        value.set_sensitive(true);
        self.headers.insert(name, value);
        Ok(())
    }
}
