//! A guest's request, checked and brought into one form.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use url::Url;

use super::{BODY_BYTES_MAX, Refusal};

/// Longest URL, in bytes.
const URL_BYTES_MAX: usize = 8 << 10;
/// Most headers, and most bytes of them: what servers take.
const HEADERS_MAX: usize = 100;
const HEADER_BYTES_MAX: usize = 64 << 10;

/// A request of the right form.
#[derive(Debug)]
pub(crate) struct OutboundRequest {
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Bytes,
    timeout: Option<Duration>,
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
            return Err(Refusal::Limit(format!("the body is longer than {BODY_BYTES_MAX} bytes")));
        }
        check_headers(&headers)?;
        Ok(Self { method: parse_method(method)?, url: parse_url(url)?, headers, body, timeout })
    }

    pub(super) fn method(&self) -> &Method {
        &self.method
    }

    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    pub(super) fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    pub(super) fn host(&self) -> String {
        self.url.host_str().unwrap_or_default().to_owned()
    }

    /// The request as a decision about it names it, without the query, where people put secrets.
    pub(super) fn subject(&self) -> String {
        let mut url = self.url.clone();
        url.set_query(None);
        format!("{} {url}", self.method)
    }

    pub(super) fn into_parts(self) -> (Method, Url, HeaderMap, Bytes) {
        (self.method, self.url, self.headers, self.body)
    }
}

/// Puts headers together.
///
/// # Errors
/// [`Refusal::Invalid`] if a name or a value cannot be one.
pub(crate) fn parse_headers(headers: Vec<(String, String)>) -> Result<HeaderMap, Refusal> {
    if headers.len() > HEADERS_MAX {
        return Err(too_many_headers());
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

fn too_many_headers() -> Refusal {
    Refusal::Limit(format!(
        "more than {HEADERS_MAX} headers, or more than {HEADER_BYTES_MAX} bytes of them"
    ))
}

fn check_headers(headers: &HeaderMap) -> Result<(), Refusal> {
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if headers.len() > HEADERS_MAX || bytes > HEADER_BYTES_MAX {
        return Err(too_many_headers());
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

fn parse_method(text: &str) -> Result<Method, Refusal> {
    let invalid = || Refusal::Invalid("the method is not one that can be sent".to_owned());
    let is_word = |text: &str| {
        (1..=32).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-')
    };
    match text {
        // These are said to a proxy or to the next hop.
        "CONNECT" | "TRACE" => Err(invalid()),
        _ if !is_word(text) => Err(invalid()),
        _ => Method::from_bytes(text.as_bytes()).map_err(|_| invalid()),
    }
}

fn parse_url(text: &str) -> Result<Url, Refusal> {
    let invalid = |reason: &str| Refusal::Invalid(reason.to_owned());
    if text.len() > URL_BYTES_MAX {
        return Err(Refusal::Limit(format!("the URL is longer than {URL_BYTES_MAX} bytes")));
    }
    // The parser drops tabs and line breaks wherever they stand, and spaces at the ends.
    if text.chars().any(|c| c.is_control() || c.is_whitespace() || c == '\\') {
        return Err(invalid("the URL contains a space, a backslash or a control character"));
    }
    // It also takes `http:a` and `http:///a` for `http://a`.
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(invalid("the URL is not an absolute one"));
    };
    if !["http", "https"].iter().any(|known| known.eq_ignore_ascii_case(scheme)) {
        return Err(invalid("the URL's scheme is not https or http"));
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.is_empty() {
        return Err(invalid("the URL names no host"));
    }
    if authority.contains('@') {
        return Err(invalid("the URL names a user"));
    }
    let mut url = Url::parse(text).map_err(|_| invalid("the URL is not a valid one"))?;
    // The parser has brought the host into lower case and its ASCII form, and any spelling of an
    // IPv4 address into the usual one.
    if let Some(name) = url.domain().map(str::to_owned) {
        let bare = name.strip_suffix('.').unwrap_or(&name);
        if bare.is_empty() || bare.ends_with('.') {
            return Err(invalid("the URL's host is not a name"));
        }
        if bare.len() != name.len() {
            url.set_host(Some(bare)).map_err(|_| invalid("the URL's host is not a name"))?;
        }
    }
    url.set_fragment(None);
    let path = normal_path(url.path());
    url.set_path(&path);
    Ok(url)
}

/// The path with escapes only where they are needed (RFC 3986, 6.2.2): what is decided and what is
/// sent must not differ in a spelling that servers read alike.
fn normal_path(path: &str) -> String {
    let mut normal = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        normal.push_str(&rest[..at]);
        let escape =
            rest.get(at + 1..at + 3).filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
        match escape.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
                normal.push(char::from(byte));
                rest = &rest[at + 3..];
            }
            Some(byte) => {
                normal.push_str(&format!("%{byte:02X}"));
                rest = &rest[at + 3..];
            }
            None => {
                normal.push('%');
                rest = &rest[at + 1..];
            }
        }
    }
    normal.push_str(rest);
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> String {
        parse_url(text).unwrap().to_string()
    }

    #[test]
    fn hosts_are_brought_into_one_form() {
        assert_eq!(parsed("https://API.Example.COM./a"), "https://api.example.com/a");
        assert_eq!(parsed("https://b\u{fc}cher.example/"), "https://xn--bcher-kva.example/");
        for text in [
            "http://2130706433/",
            "http://0x7f.1/",
            "http://0177.0.0.1/",
            "http://127.1/",
            "http://\u{ff11}27.0.0.1/",
        ] {
            assert_eq!(parsed(text), "http://127.0.0.1/", "{text}");
        }
        assert_eq!(parsed("http://[0:0::1]:80/"), "http://[::1]/");
        assert_eq!(parsed("https://a.example/x#y"), "https://a.example/x");
    }

    #[test]
    fn a_path_has_escapes_only_where_they_are_needed() {
        for (text, normal) in [
            ("https://a.example/%76%31/x", "https://a.example/v1/x"),
            ("https://a.example/%7euser/a%2fb%c3%A4", "https://a.example/~user/a%2Fb%C3%A4"),
            ("https://a.example/a%2Eb", "https://a.example/a.b"),
            ("https://a.example/%2e%2E/%252e/a%", "https://a.example/%252e/a%"),
            ("https://a.example/%zz%4", "https://a.example/%zz%4"),
            ("https://a.example/a?%76=%31", "https://a.example/a?%76=%31"),
        ] {
            assert_eq!(parsed(text), normal);
            assert_eq!(parsed(normal), normal);
        }
    }

    #[test]
    fn urls_of_another_form_are_refused() {
        let texts = [
            "",
            "/a",
            "a.example",
            "ftp://a.example/",
            "file:///etc/passwd",
            "https://",
            "http:///a",
            "http:a.example",
            "https:/a.example",
            "javascript:http://a/",
            "https://u:p@a.example/",
            "https://@a.example/",
            "https://a@b.example/",
            "https://a.example\\@b.example/",
            "https://a\n.example/",
            " https://a.example/",
            "https://a.example/\r\nX: y",
            "https://a.example../",
            "https://./",
            "https://a.example:99999/",
        ];
        for text in texts {
            assert!(matches!(parse_url(text), Err(Refusal::Invalid(_))), "{text:?}");
        }
        let long = format!("https://a.example/{}", "x".repeat(URL_BYTES_MAX));
        assert!(matches!(parse_url(&long), Err(Refusal::Limit(_))));
    }

    #[test]
    fn the_hosts_own_headers_are_refused() {
        let with = |name: &str, value: &str| {
            parse_headers(vec![(name.to_owned(), value.to_owned())])
                .and_then(|headers| check_headers(&headers))
        };
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
        assert!(matches!(with("x-key", &"v".repeat(HEADER_BYTES_MAX)), Err(Refusal::Limit(_))));
        let many = (0..=HEADERS_MAX).map(|n| (format!("x-{n}"), String::new())).collect();
        assert!(matches!(parse_headers(many), Err(Refusal::Limit(_))));
    }

    #[test]
    fn only_plain_methods_are_sent() {
        assert!(parse_method("GET").is_ok());
        assert!(parse_method("PROPFIND").is_ok());
        for text in ["", "get", "CONNECT", "TRACE", "GET ", "G\r\nET", &"A".repeat(33)] {
            assert!(parse_method(text).is_err(), "{text:?}");
        }
    }
}
