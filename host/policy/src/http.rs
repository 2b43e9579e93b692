//! Patterns over the addresses of HTTP requests.

use super::error::shown;
use super::http_request::{HttpRequest, is_address, normal_host};
use super::path_glob::PathGlob;
use crate::http_request::Scheme;
use crate::verdict::Verdict;

/// Which hosts a rule is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HostPattern {
    /// Every host; only deny rules can say so.
    Any,
    /// One name or address, in lower case, IPv6 without brackets.
    Exact(String),
    /// Every name below this one, at any depth, but not this one itself: `*.example.com`.
    Below(String),
}

/// Which requests a rule is about, written `GET,POST https://api.example.com:8443/v1/**`.
///
/// No methods are all methods. No path is every path. No port is the scheme's own port in an
/// allow rule and every port in a deny rule, so that both err towards refusing. `*` in place of
/// the address is every address; only deny rules can say so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HttpSelector {
    /// In upper case; `None` is every method.
    pub methods: Option<Vec<String>>,
    /// `None` is both.
    pub scheme: Option<Scheme>,
    /// The hosts.
    pub host: HostPattern,
    /// `None` is every port.
    pub port: Option<u16>,
    /// The paths, without their leading slash.
    pub path: PathGlob,
}

/// Why a text is not a selector, and what to write instead.
pub(super) struct SelectorError {
    pub(super) reason: String,
    pub(super) help: String,
}

const FORM: &str = "write it as in \"http: GET https://api.example.com/v1/**\"";

impl HttpSelector {
    pub(super) fn parse(text: &str, verdict: Verdict) -> Result<Self, SelectorError> {
        let bad = |reason: &str, help: &str| {
            Err(SelectorError { reason: reason.to_owned(), help: help.to_owned() })
        };
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let (methods, address) = match words.as_slice() {
            [address] => (None, *address),
            [methods, address] => (Some(parse_methods(methods)?), *address),
            _ => return bad("it is not of the form `METHODS ADDRESS`", FORM),
        };
        if matches!(address, "*" | "**") {
            return match verdict {
                Verdict::Deny if address == "*" => Ok(Self::everywhere(methods)?),
                Verdict::Deny => bad("it is not an address", "write `*` for every address"),
                Verdict::Allow => bad("an allow rule must name the host", FORM),
            };
        }
        let Some((scheme, rest)) = address.split_once("://") else {
            return bad("it has no scheme", FORM);
        };
        let scheme = match scheme {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return bad("its scheme is not `https` or `http`", FORM),
        };
        let (authority, path) = match rest.split_once('/') {
            Some((authority, path)) => (authority, Some(path)),
            None => (rest, None),
        };
        if authority.contains('@') {
            return bad("it names a user", "remove everything up to the `@`");
        }
        if rest.contains(['?', '#']) {
            return bad(
                "it has a query or a fragment",
                "end it with the path; a query is not part of a rule",
            );
        }
        let (host, port) = parse_authority(authority)?;
        let port = match (port, verdict) {
            (Some(port), _) => Some(port),
            (None, Verdict::Allow) => Some(scheme.default_port()),
            (None, Verdict::Deny) => None,
        };
        let path = parse_path(path)?;
        Ok(Self { methods, scheme: Some(scheme), host, port, path })
    }

    fn everywhere(methods: Option<Vec<String>>) -> Result<Self, SelectorError> {
        Ok(Self {
            methods,
            scheme: None,
            host: HostPattern::Any,
            port: None,
            path: parse_path(None)?,
        })
    }

    /// Tells if it is about every request.
    pub(crate) fn is_everything(&self) -> bool {
        self.methods.is_none()
            && self.scheme.is_none()
            && self.host == HostPattern::Any
            && self.port.is_none()
            && self.path.is_everything()
    }

    pub(super) fn matches(&self, request: &HttpRequest<'_>, verdict: Verdict) -> bool {
        let method = self.methods.as_ref().is_none_or(|methods| {
            methods.iter().any(|method| method.eq_ignore_ascii_case(request.method))
        });
        let path = match (&request.path, verdict) {
            (Some(segments), _) => {
                self.path.matches(&segments.iter().map(String::as_str).collect::<Vec<_>>())
            }
            (None, Verdict::Deny) => true,
            (None, Verdict::Allow) => self.path.is_everything(),
        };
        method
            && path
            && self.scheme.is_none_or(|scheme| scheme == request.scheme)
            && self.host.matches(&request.host)
            && self.port.is_none_or(|port| port == request.port)
    }

    pub(super) fn covers(&self, other: &Self) -> bool {
        let methods = match (&self.methods, &other.methods) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(ours), Some(theirs)) => theirs.iter().all(|method| ours.contains(method)),
        };
        methods
            && (self.scheme.is_none() || self.scheme == other.scheme)
            && (self.port.is_none() || self.port == other.port)
            && self.host.covers(&other.host)
            && self.path.covers(&other.path)
    }
}

impl HostPattern {
    fn matches(&self, host: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(name) => name == host,
            Self::Below(parent) => is_below(host, parent),
        }
    }

    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (Self::Exact(ours), Self::Exact(theirs)) => ours == theirs,
            (Self::Below(parent), Self::Exact(name)) => is_below(name, parent),
            (Self::Below(ours), Self::Below(theirs)) => ours == theirs || is_below(theirs, ours),
            (Self::Exact(_), Self::Any | Self::Below(_)) | (Self::Below(_), Self::Any) => false,
        }
    }
}

fn is_below(host: &str, parent: &str) -> bool {
    host.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.'))
}

fn parse_methods(text: &str) -> Result<Vec<String>, SelectorError> {
    let mut methods = Vec::new();
    for method in text.split(',') {
        let is_method = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
        if !is_method || methods.iter().any(|known| known == method) {
            return Err(SelectorError {
                reason: format!("`{}` is not a list of different methods", shown(text)),
                help: "write them in upper case with commas between, as in `GET,HEAD`".to_owned(),
            });
        }
        methods.push(method.to_owned());
    }
    methods.sort();
    Ok(methods)
}

pub(super) fn parse_authority(
    authority: &str,
) -> Result<(HostPattern, Option<u16>), SelectorError> {
    let after_bracket = authority.rfind(']').map_or(0, |bracket| bracket + 1);
    let (host, port) = match authority[after_bracket..].find(':') {
        Some(colon) => {
            let (host, port) = authority.split_at(after_bracket + colon);
            (host, Some(&port[1..]))
        }
        None => (authority, None),
    };
    let port = match port {
        None => None,
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            digits.parse::<u16>().ok().filter(|port| *port > 0).map(Some).ok_or_else(bad_port)?
        }
        Some(_) => return Err(bad_port()),
    };
    let name = host.strip_prefix("*.");
    let normal = normal_host(name.unwrap_or(host)).ok_or_else(|| SelectorError {
        reason: format!("`{}` is not a host", shown(host)),
        help: "write a name, `*.` and a name, or an address; other scripts as `xn--…`".to_owned(),
    })?;
    match name {
        None => Ok((HostPattern::Exact(normal), port)),
        Some(_) if is_address(&normal) => Err(SelectorError {
            reason: "`*.` stands before an address".to_owned(),
            help: "write the address alone".to_owned(),
        }),
        Some(_) => Ok((HostPattern::Below(normal), port)),
    }
}

fn bad_port() -> SelectorError {
    SelectorError {
        reason: "its port is not a number from 1 to 65535".to_owned(),
        help: "write the port, or leave it out for the scheme's own".to_owned(),
    }
}

fn parse_path(path: Option<&str>) -> Result<PathGlob, SelectorError> {
    let everything = || PathGlob::parse("**");
    let glob = match path {
        None => everything(),
        Some("") => {
            return Err(SelectorError {
                reason: "it ends with `/`".to_owned(),
                help: "remove the `/` or write `/**` for every path of the host".to_owned(),
            });
        }
        Some(path) if path.contains('%') => {
            return Err(SelectorError {
                reason: "its path is percent-encoded".to_owned(),
                help: "write the characters themselves; paths are decoded before they are compared"
                    .to_owned(),
            });
        }
        Some(path) => PathGlob::parse(path),
    };
    glob.map_err(|bad| SelectorError { reason: bad.reason, help: bad.help })
}
