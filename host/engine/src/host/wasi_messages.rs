//! Requests and answers of `wasi:http` that a guest has the host keep: parts of them that could not
//! be sent are refused, and all of one call are bounded.
//!
//! The bindings keep whatever a guest sets until the handle is dropped: by a thousand handles that
//! is far more than a guest's own memory. The parts of a request are refused by functions of ours
//! in the place of those of the bindings. Headers come in by many functions and go with several
//! kinds of handles, so they are looked at where they are kept, every few calls.

use std::any::Any;

use http::HeaderMap;
use wasmtime::StoreContextMut;
use wasmtime::component::{ComponentNamedList, Lift, Linker, Resource, ResourceTable};
use wasmtime_wasi_http::p2::bindings::http::types::{HostOutgoingRequest as _, Method, Scheme};
use wasmtime_wasi_http::p2::types::{
    HostIncomingResponse, HostOutgoingRequest, HostOutgoingResponse,
};
use wasmtime_wasi_http::{FieldMap, WasiHttpCtxView, WasiHttpView};

use crate::egress::{METHOD_BYTES_MAX, URL_BYTES_MAX};
use crate::failure::Violation;
use crate::state::CallState;
use crate::wasi::{CHUNK_BYTES_MAX, FIELD_BYTES_MAX};

/// Most bytes that the host keeps of the messages of one call: some hundred usual ones, of which
/// eight may be under way.
const KEPT_BYTES_MAX: usize = 4 << 20;
/// Calls from one look at what is kept to the next. Each keeps 64 KiB at most: so much has the
/// longest answer of headers.
const CALLS_EACH: u32 = 16;
/// Bytes of a header beside its letters, and of a place for one.
const HEADER_BYTES: usize = 128;
/// Bytes of a message beside its headers, path and authority.
const MESSAGE_BYTES: usize = 256;
/// Most bytes of a body that a guest began to write and nobody reads: two pieces, and trailers as long
/// as headers may be.
const BODY_BYTES: usize = 2 * CHUNK_BYTES_MAX + FIELD_BYTES_MAX;

/// Longest authority of a request: a name has 253 bytes at most, a port five.
const AUTHORITY_BYTES_MAX: usize = 512;
/// Longest scheme of a request: none but `http` and `https` are sent.
const SCHEME_BYTES_MAX: usize = 32;

/// The instance as wasmtime's bindings name it.
const TYPES: &str = "wasi:http/types@0.2.12";

impl WasiHttpView for CallState {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        let (wasi, table) = self.wasi();
        wasi.http_calls = wasi.http_calls.wrapping_add(1);
        if wasi.http_calls.is_multiple_of(CALLS_EACH) && kept_bytes(table) > KEPT_BYTES_MAX {
            let limit = KEPT_BYTES_MAX as u64;
            self.violate(Violation::Limit { what: "bytes of HTTP messages", limit });
        }
        // Code without a loop may go on for long until the epoch is looked at.
        let must_end = self.violation().is_some();
        let Self { wasi, table, .. } = self;
        let wasi = wasi.as_mut().expect("made a moment ago");
        let table = if must_end { &mut wasi.no_resources } else { table };
        WasiHttpCtxView { hooks: &mut wasi.hooks, table, ctx: &mut wasi.http }
    }
}

/// The bytes that are kept of messages, about: maps that several handles share count for each.
fn kept_bytes(table: &mut ResourceTable) -> usize {
    table.iter_mut().map(|entry| entry_bytes(entry)).sum()
}

fn entry_bytes(entry: &(dyn Any + Send)) -> usize {
    if let Some(fields) = entry.downcast_ref::<FieldMap>() {
        headers_bytes(fields)
    } else if let Some(request) = entry.downcast_ref::<HostOutgoingRequest>() {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::capacity);
        let line = text(&request.path_with_query) + text(&request.authority);
        message_bytes(&request.headers, request.body.is_some()) + line
    } else if let Some(response) = entry.downcast_ref::<HostOutgoingResponse>() {
        message_bytes(&response.headers, response.body.is_some())
    } else if let Some(answer) = entry.downcast_ref::<HostIncomingResponse>() {
        // Its body counts among the exchanges of a call and the bodies of a tenant.
        message_bytes(&answer.headers, false)
    } else {
        0
    }
}

fn message_bytes(headers: &HeaderMap, has_body: bool) -> usize {
    MESSAGE_BYTES + headers_bytes(headers) + if has_body { BODY_BYTES } else { 0 }
}

fn headers_bytes(headers: &HeaderMap) -> usize {
    let letters = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        HEADER_BYTES + name.as_str().len() + value.len()
    };
    headers.capacity() * HEADER_BYTES + headers.iter().map(letters).sum::<usize>()
}

type Store<'a> = StoreContextMut<'a, CallState>;
type Request = Resource<HostOutgoingRequest>;
/// The result of a function that sets something, as WASI has it.
type IsSet = Result<(), ()>;

/// Puts our functions of `wasi:http/types` in place of those that were added before.
pub(super) fn add_types(linker: &mut Linker<CallState>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    add_setter(
        linker,
        "method",
        |method: &Method| match method {
            Method::Other(text) => text.len() <= METHOD_BYTES_MAX,
            Method::Get
            | Method::Head
            | Method::Post
            | Method::Put
            | Method::Delete
            | Method::Connect
            | Method::Options
            | Method::Trace
            | Method::Patch => true,
        },
        |mut http, request, method| http.set_method(request, method),
    )?;
    add_setter(
        linker,
        "scheme",
        |scheme: &Option<Scheme>| match scheme {
            Some(Scheme::Other(text)) => text.len() <= SCHEME_BYTES_MAX,
            Some(Scheme::Http | Scheme::Https) | None => true,
        },
        |mut http, request, scheme| http.set_scheme(request, scheme),
    )?;
    add_setter(
        linker,
        "authority",
        |text: &Option<String>| text.as_ref().is_none_or(|text| text.len() <= AUTHORITY_BYTES_MAX),
        |mut http, request, authority| http.set_authority(request, authority),
    )?;
    add_setter(
        linker,
        "path-with-query",
        |text: &Option<String>| text.as_ref().is_none_or(|text| text.len() <= URL_BYTES_MAX),
        |mut http, request, path| http.set_path_with_query(request, path),
    )?;
    linker.allow_shadowing(false);
    Ok(())
}

/// Adds a function that sets a part of a request where it fits.
fn add_setter<P>(
    linker: &mut Linker<CallState>,
    part: &str,
    fits: impl Fn(&P) -> bool + Send + Sync + 'static,
    set: impl Fn(WasiHttpCtxView<'_>, Request, P) -> wasmtime::Result<IsSet> + Send + Sync + 'static,
) -> wasmtime::Result<()>
where
    (Request, P): ComponentNamedList + Lift + 'static,
{
    linker.instance(TYPES)?.func_wrap(
        &format!("[method]outgoing-request.set-{part}"),
        move |mut store: Store<'_>, (request, value): (Request, P)| {
            let http = store.data_mut().http();
            Ok((if fits(&value) { set(http, request, value)? } else { Err(()) },))
        },
    )
}
