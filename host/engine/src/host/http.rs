//! `http`: requests that rules allow, through the one way out.

use std::time::Duration;

use serde::Serialize;
use taskrun::byte_pool::PooledBytes;
use taskrun::scope::OutsideRequest;
use taskrun_policy::Capability;

use crate::bindings::interfaces::http::{Host, HttpError, Request, Response};
use crate::egress::{
    Answer, BODY_BYTES_MAX, ExchangeLimit, OutboundRequest, Refusal, holding, parse_headers,
};
use crate::measure;
use crate::outside::{Exchanged, ask_outside};
use crate::state::CallState;

impl Host for CallState {
    async fn send(&mut self, request: Request) -> wasmtime::Result<Result<Response, HttpError>> {
        self.enter_capability("http")?;
        let is_recorded = self.scope.is_journalled();
        if is_recorded {
            let named = request.method.len() + request.url.len();
            let bytes = named + measure::labels(&request.headers) + request.body.len();
            self.before_work(bytes).await;
        }
        let asked = is_recorded.then(|| Asked::of(&request));
        let tenant = &self.scope.context().tenant;
        let mut held = self.guest.engine.egress().body(tenant);
        // Longer ones are refused whatever room there is.
        let has_room = held.grow(request.body.len().min(BODY_BYTES_MAX) as u64);
        let outgoing = match outgoing(request, held) {
            Ok(outgoing) => outgoing,
            Err(refusal) => return Ok(Err(self.no_response(refusal))),
        };
        let allowed = match outgoing.decided(|used| self.allow(used)) {
            Ok(allowed) => allowed,
            Err(denied) => return Ok(Err(HttpError::Denied(denied))),
        };
        let (egress, stop) = (self.guest.engine.egress(), self.scope.stop());
        let exchange = async {
            // It depends on others, so a step that runs again is given it again.
            if let Err(full) = has_room {
                return Exchanged::Refused(Refusal::Limit(ExchangeLimit::Bodies(full)));
            }
            tokio::select! {
                biased;
                () = stop.asked() => Exchanged::Canceled,
                answer = egress.exchange(tenant, &self.course, allowed) => match answer {
                    Ok(answer) => Exchanged::Answer(response(answer)),
                    Err(refusal) => Exchanged::Refused(refusal),
                },
            }
        };
        let what = "sends a request over HTTP";
        let request = OutsideRequest { what, asked, changes: true };
        Ok(match ask_outside(&self.scope, request, exchange).await? {
            Exchanged::Answer(response) => Ok(response),
            Exchanged::Refused(refusal) => Err(self.no_response(refusal)),
            Exchanged::Canceled => Err(HttpError::Canceled),
        })
    }
}

/// A request as its digest is made of it, with its body by its digest.
#[derive(Serialize)]
struct Asked {
    method: String,
    url: String,
    headers: Vec<(String, String)>,
    body: String,
    timeout_ms: Option<u64>,
}

impl Asked {
    fn of(request: &Request) -> Self {
        Self {
            method: request.method.clone(),
            url: request.url.clone(),
            headers: request.headers.clone(),
            body: blake3::hash(&request.body).to_hex().to_string(),
            timeout_ms: request.timeout,
        }
    }
}

impl CallState {
    fn no_response(&self, refusal: Refusal) -> HttpError {
        match refusal {
            Refusal::Denied { subject, reason, operator } => {
                self.record_refusal(Capability::Http, &subject, operator);
                HttpError::Denied(reason)
            }
            Refusal::Invalid(reason) => HttpError::InvalidRequest(reason),
            Refusal::Unreachable(reason) => HttpError::Unreachable(reason),
            Refusal::Timeout | Refusal::PartTimeout(_) => HttpError::Timeout,
            Refusal::Limit(bound) => HttpError::Limit(bound.to_string()),
            Refusal::Other(reason) => HttpError::Other(reason),
        }
    }
}

/// Checks a request whose body has this memory.
fn outgoing(request: Request, held: PooledBytes) -> Result<OutboundRequest, Refusal> {
    let headers = parse_headers(request.headers)?;
    let timeout = request.timeout.map(Duration::from_millis);
    let body = holding(request.body, held);
    OutboundRequest::new(&request.method, &request.url, headers, body, timeout)
}

fn response(answer: Answer) -> Response {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers = answer.headers.iter().map(|(name, value)| (name.to_string(), text(value)));
    Response { status: answer.status.as_u16(), headers: headers.collect(), body: answer.body }
}
