//! A guest's request, checked and brought into one form.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use taskrun_policy::Use;
use url::Url;

use super::request_line::RequestLine;
use super::times::ExchangeTimes;
use super::{BODY_BYTES_MAX, ExchangeLimit, Refusal};

/// Most headers, and most bytes of them: what servers take.
pub(super) const HEADERS_MAX: usize = 100;
pub(super) const HEADER_BYTES_MAX: usize = 64 << 10;

/// A request of the right form.
#[derive(Debug)]
pub(crate) struct OutboundRequest {
    line: RequestLine,
    headers: HeaderMap,
    body: Bytes,
    timeout: Option<Duration>,
    times: ExchangeTimes,
}

/// A request that may be sent. There is no other way to one than a decision about it.
#[derive(Debug)]
pub(crate) struct AllowedRequest(OutboundRequest);

impl AllowedRequest {
    pub(super) fn into_request(self) -> OutboundRequest {
        self.0
    }
}

impl OutboundRequest {
    /// Checks a request. All of it comes from a guest.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] or [`Refusal::Limit`].
    pub(crate) fn new(
        method: &str,
        url: &str,
        headers: HeaderMap,
        body: Bytes,
        timeout: Option<Duration>,
    ) -> Result<Self, Refusal> {
        if body.len() > BODY_BYTES_MAX {
            return Err(Refusal::Limit(ExchangeLimit::RequestBody));
        }
        check_headers(&headers)?;
        let (line, times) = (RequestLine::parse(method, url)?, ExchangeTimes::default());
        Ok(Self { line, headers, body, timeout, times })
    }

    /// The same with these times for the parts of the exchange.
    pub(crate) fn with_times(self, times: ExchangeTimes) -> Self {
        Self { times, ..self }
    }

    /// Has it decided about. An allow rule names a host, and a literal address or `localhost` only
    /// as itself: where one of those is allowed, the operator wrote it down.
    ///
    /// # Errors
    /// The reason of a refusal.
    pub(crate) fn decided<D>(
        self,
        decide: impl FnOnce(&Use<'_>) -> Result<(), D>,
    ) -> Result<AllowedRequest, D> {
        decide(&self.line.used())?;
        Ok(AllowedRequest(self))
    }

    pub(super) fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    pub(super) fn times(&self) -> ExchangeTimes {
        self.times
    }

    /// True if it goes to an address of plain `http`.
    pub(super) fn is_plain(&self) -> bool {
        self.line.url().scheme() == "http"
    }

    pub(super) fn host(&self) -> String {
        self.line.url().host_str().unwrap_or_default().to_owned()
    }

    /// The request as a decision about it names it, without the query, where people put secrets.
    pub(super) fn subject(&self) -> String {
        let mut url = self.line.url().clone();
        url.set_query(None);
        format!("{} {url}", self.line.method())
    }

    pub(super) fn into_parts(self) -> (Method, Url, HeaderMap, Bytes) {
        let (method, url) = self.line.into_parts();
        (method, url, self.headers, self.body)
    }
}

/// Puts headers together.
///
/// # Errors
/// [`Refusal::Invalid`] if a name or a value cannot be one.
pub(crate) fn parse_headers(headers: Vec<(String, String)>) -> Result<HeaderMap, Refusal> {
    if headers.len() > HEADERS_MAX {
        return Err(Refusal::Limit(ExchangeLimit::RequestHeaders));
    }
    let mut map = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| Refusal::Invalid("a header's name is not one".to_owned()))?;
        // Refuses line breaks and other control characters.
        let value = HeaderValue::from_str(&value)
            .map_err(|_| Refusal::Invalid(format!("the value of the header {name} is not one")))?;
        map.append(name, value);
    }
    Ok(map)
}

fn check_headers(headers: &HeaderMap) -> Result<(), Refusal> {
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if headers.len() > HEADERS_MAX || bytes > HEADER_BYTES_MAX {
        return Err(Refusal::Limit(ExchangeLimit::RequestHeaders));
    }
    match headers.keys().find(|name| is_reserved(name)) {
        Some(name) => Err(Refusal::Invalid(format!("the header {name} is the host's own"))),
        None => Ok(()),
    }
}

/// Headers that say where a request goes, how long it is, or something to the next hop only; or
/// that have another method or path than the decided one taken for the request's. Servers that hand
/// headers on as variables take `_` for `-`.
pub(crate) fn is_reserved(name: &HeaderName) -> bool {
    let name = name.as_str().replace('_', "-");
    name.starts_with("proxy-")
        || matches!(
            name.as_str(),
            "host"
                | "content-length"
                | "connection"
                | "keep-alive"
                | "te"
                | "trailer"
                | "transfer-encoding"
                | "upgrade"
                | "http2-settings"
                | "expect"
                | "x-http-method"
                | "x-http-method-override"
                | "x-method-override"
                | "x-original-method"
                | "x-original-uri"
                | "x-original-url"
                | "x-rewrite-uri"
                | "x-rewrite-url"
                | "x-forwarded-host"
                | "x-forwarded-method"
                | "x-forwarded-prefix"
                | "x-forwarded-uri"
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, value: &str) -> Result<(), Refusal> {
        parse_headers(vec![(name.to_owned(), value.to_owned())])
            .and_then(|headers| check_headers(&headers))
    }

    #[test]
    fn case_28_headers_are_bounded() {
        assert!(matches!(with("x-key", &"v".repeat(HEADER_BYTES_MAX)), Err(Refusal::Limit(_))));
        let many = (0..=HEADERS_MAX).map(|n| (format!("x-{n}"), String::new())).collect();
        assert!(matches!(parse_headers(many), Err(Refusal::Limit(_))));
    }

    #[test]
    fn case_40_the_hosts_own_headers_are_refused() {
        assert_eq!(with("X-Key", "v"), Ok(()));
        for name in [
            "Host",
            "content-length",
            "TE",
            "Transfer-Encoding",
            "Proxy-Authorization",
            "Upgrade",
            "transfer_encoding",
            "X-HTTP-Method-Override",
            "x_http_method_override",
            "X-Original-URL",
            "x_rewrite_url",
            "proxy_authorization",
        ] {
            assert!(matches!(with(name, "v"), Err(Refusal::Invalid(_))), "{name}");
        }
        for value in ["a\r\nb: c", "a\nb", "a\0b"] {
            assert!(matches!(with("x-key", value), Err(Refusal::Invalid(_))), "{value:?}");
        }
        assert!(matches!(with("x key", "v"), Err(Refusal::Invalid(_))));
    }
}
