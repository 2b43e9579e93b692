//! One HTTP request, brought into the form that rules are compared with.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::error::{is_hostile, shown};

/// The address of a request, as the host's own URL parser took it apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpTarget<'a> {
    /// `http` or `https`.
    pub scheme: &'a str,
    /// A name in ASCII (`xn--…` where need be) or an address; IPv6 with or without brackets.
    pub host: &'a str,
    /// The port of the connection, never left out.
    pub port: u16,
    /// Path with its leading slash, still percent-encoded, without query and fragment.
    pub path: &'a str,
}

/// A request that was checked and brought into the form that selectors are compared with.
#[derive(Debug)]
pub(super) struct HttpRequest<'a> {
    pub(super) method: &'a str,
    pub(super) scheme: Scheme,
    pub(super) host: String,
    pub(super) port: u16,
    /// Decoded segments. `None`: the path can be read in more than one way (an encoded slash, a
    /// dot segment, an empty one), so allow rules for a part of the paths do not match it, and
    /// deny rules do.
    pub(super) path: Option<Vec<String>>,
    raw_path: &'a str,
}

impl<'a> HttpRequest<'a> {
    /// Checks the target; gives the mistake if it is not of the form that [`HttpTarget`] promises.
    /// Method and path come from a guest.
    pub(super) fn new(method: &'a str, target: &HttpTarget<'a>) -> Result<Self, &'static str> {
        let scheme = match target.scheme.to_ascii_lowercase().as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return Err("the scheme is not http or https"),
        };
        if method.is_empty()
            || !method.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        {
            return Err("the method is not a word");
        }
        let host = normal_host(target.host).ok_or("the host is not a name or an address")?;
        let path = segments_of(target.path);
        Ok(Self { method, scheme, host, port: target.port, path, raw_path: target.path })
    }

    /// The selector of a rule that would allow this request and its like.
    pub(super) fn suggestion(&self) -> String {
        let host =
            if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let port = match self.port {
            port if port == self.scheme.default_port() => String::new(),
            port => format!(":{port}"),
        };
        let folder = self.raw_path.split('/').nth(1).filter(|_| self.path.is_some());
        let path = match folder {
            Some(name)
                if self.raw_path.matches('/').count() > 1
                    && !name.contains(['%', '*', '[', '{', '\\']) =>
            {
                format!("/{name}/**")
            }
            Some(_) | None => "/**".to_owned(),
        };
        let method = self.method.to_ascii_uppercase();
        shown(&format!("{method} {}://{host}{port}{path}", self.scheme))
    }
}

/// A host in the form that hosts are compared in: lower case, no final dot, IPv6 without
/// brackets. `None` if it is neither a name in ASCII nor an address in its usual spelling.
pub(super) fn normal_host(host: &str) -> Option<String> {
    let unbracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if unbracketed.is_some() || host.contains(':') {
        return unbracketed
            .unwrap_or(host)
            .parse::<Ipv6Addr>()
            .ok()
            .map(|address| address.to_string());
    }
    let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let label_is_good = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    if name.len() > 253 || !name.split('.').all(label_is_good) {
        return None;
    }
    // A name that ends in a number would be read as an address somewhere (`127.1`, `0x7f.1`).
    let last = name.rsplit('.').next().unwrap_or_default();
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x");
    (!is_number || name.parse::<Ipv4Addr>().is_ok()).then_some(name)
}

pub(super) fn is_address(host: &str) -> bool {
    host.contains(':') || host.parse::<Ipv4Addr>().is_ok()
}

/// The decoded segments of a URL's path; `None` if it can be read in more than one way. A final
/// slash does not count.
fn segments_of(path: &str) -> Option<Vec<String>> {
    let path = path.strip_prefix('/').unwrap_or(path);
    let path = path.strip_suffix('/').unwrap_or(path);
    if path.is_empty() {
        return Some(Vec::new());
    }
    path.split('/').map(decoded_segment).collect()
}

fn decoded_segment(segment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        let value = digit(rest.next())? * 16 + digit(rest.next())?;
        bytes.push(u8::try_from(value).ok()?);
    }
    let text = String::from_utf8(bytes).ok()?;
    // A `%` left after decoding may be decoded once more by whoever answers; `;` begins
    // parameters that some servers drop.
    let ambiguous = matches!(text.as_str(), "" | "." | "..")
        || text.contains(['/', '\\', '%', ';', '?', '#'])
        || text.chars().any(is_hostile);
    (!ambiguous).then_some(text)
}

/// A scheme that can be granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// `http`, port 80 unless given.
    Http,
    /// `https`, port 443 unless given.
    Https,
}

impl Scheme {
    pub(super) fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// Prints `http` or `https`.
impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http => "http",
            Self::Https => "https",
        })
    }
}
