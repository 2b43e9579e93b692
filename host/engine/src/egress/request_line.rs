//! Method and address of a request: the part of it that rules decide about.

use http::Method;
use taskrun_policy::{HttpTarget, Use};
use url::Url;

use super::{ExchangeLimit, Refusal};

/// Longest URL, in bytes.
pub(crate) const URL_BYTES_MAX: usize = 8 << 10;
/// Longest method, in bytes: longer than any that is registered.
pub(crate) const METHOD_BYTES_MAX: usize = 32;

/// The method and the address of a request, in the form in which they are decided and sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestLine {
    method: Method,
    url: Url,
}

/// The reason that texts are no method and address of a request. The words are fit for guests.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestLineError {
    /// One of them is not of the right form.
    #[error("{0}")]
    Invalid(String),
    /// The address is too long.
    #[error("{0}")]
    Limit(String),
}

impl From<RequestLineError> for Refusal {
    fn from(error: RequestLineError) -> Self {
        match error {
            RequestLineError::Invalid(reason) => Self::Invalid(reason),
            RequestLineError::Limit(bound) => Self::Limit(ExchangeLimit::Url(bound)),
        }
    }
}

impl RequestLine {
    /// Reads the method and the address that a guest gives, or an operator who asks what would be
    /// decided about them.
    ///
    /// # Errors
    /// [`RequestLineError`]: the request would not be sent, whatever rules allow.
    pub fn parse(method: &str, url: &str) -> Result<Self, RequestLineError> {
        Ok(Self { method: parse_method(method)?, url: parse_url(url)? })
    }

    /// The use of the capability `http` that rules decide about.
    #[must_use]
    pub fn used(&self) -> Use<'_> {
        let url = &self.url;
        let target = HttpTarget {
            scheme: url.scheme(),
            host: url.host_str().unwrap_or_default(),
            port: url.port_or_known_default().unwrap_or_default(),
            path: url.path(),
        };
        Use::Http(self.method.as_str(), target)
    }

    pub(super) fn method(&self) -> &Method {
        &self.method
    }

    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    pub(super) fn into_parts(self) -> (Method, Url) {
        (self.method, self.url)
    }
}

fn parse_method(text: &str) -> Result<Method, RequestLineError> {
    let invalid = || RequestLineError::Invalid("the method is not one that can be sent".to_owned());
    let is_word = |text: &str| {
        (1..=METHOD_BYTES_MAX).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-')
    };
    match text {
        // These are said to a proxy or to the next hop.
        "CONNECT" | "TRACE" => Err(invalid()),
        _ if !is_word(text) => Err(invalid()),
        _ => Method::from_bytes(text.as_bytes()).map_err(|_| invalid()),
    }
}

fn parse_url(text: &str) -> Result<Url, RequestLineError> {
    let invalid = |reason: &str| RequestLineError::Invalid(reason.to_owned());
    if text.len() > URL_BYTES_MAX {
        return Err(RequestLineError::Limit(format!(
            "the URL is longer than {URL_BYTES_MAX} bytes"
        )));
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
    fn case_39_hosts_are_brought_into_one_form() {
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
    fn case_39_urls_of_another_form_are_refused() {
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
            assert!(matches!(parse_url(text), Err(RequestLineError::Invalid(_))), "{text:?}");
        }
        let long = format!("https://a.example/{}", "x".repeat(URL_BYTES_MAX));
        assert!(matches!(parse_url(&long), Err(RequestLineError::Limit(_))));
    }

    #[test]
    fn only_plain_methods_are_sent() {
        assert!(parse_method("GET").is_ok());
        assert!(parse_method("PROPFIND").is_ok());
        for text in ["", "get", "CONNECT", "TRACE", "GET ", "G\r\nET", &"A".repeat(33)] {
            assert!(parse_method(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn rules_are_asked_about_what_is_sent() {
        let line =
            RequestLine::parse("GET", "https://API.example.com:8443/%761/x?key=1#a").unwrap();
        assert_eq!(line.used().subject(), "GET https://api.example.com:8443/v1/x");
        assert_eq!(line.url().as_str(), "https://api.example.com:8443/v1/x?key=1");
        let line = RequestLine::parse("POST", "http://[0::1]").unwrap();
        assert_eq!(line.used().subject(), "POST http://[::1]/");
    }
}
