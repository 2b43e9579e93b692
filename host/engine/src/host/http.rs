//! `http`: requests that rules allow, through the one way out.

use std::time::Duration;

use taskrun_policy::Capability;

use crate::bindings::interfaces::http::{Host, HttpError, Request, Response};
use crate::egress::{Answer, OutboundRequest, Refusal, parse_headers};
use crate::state::CallState;

impl Host for CallState {
    async fn send(&mut self, request: Request) -> wasmtime::Result<Result<Response, HttpError>> {
        self.enter_capability("http")?;
        let outgoing = match outgoing(request) {
            Ok(outgoing) => outgoing,
            Err(refusal) => return Ok(Err(self.no_response(refusal))),
        };
        let tenant = &self.scope.context().tenant;
        let rules = self.rules();
        if rules.allows(&outgoing.line().used()) {
            self.reach_out("sends a request over HTTP")?;
        }
        let exchange = self.guest.engine.egress().send(tenant, &rules, outgoing);
        let answer = tokio::select! {
            biased;
            () = self.scope.stop().asked() => return Ok(Err(HttpError::Canceled)),
            answer = exchange => answer,
        };
        Ok(answer.map(response).map_err(|refusal| self.no_response(refusal)))
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
            Refusal::Timeout => HttpError::Timeout,
            Refusal::Limit(bound) => HttpError::Limit(bound),
            Refusal::Other(reason) => HttpError::Other(reason),
        }
    }
}

fn outgoing(request: Request) -> Result<OutboundRequest, Refusal> {
    let headers = parse_headers(request.headers)?;
    let timeout = request.timeout.map(Duration::from_millis);
    OutboundRequest::new(&request.method, &request.url, headers, request.body.into(), timeout)
}

fn response(answer: Answer) -> Response {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers = answer.headers.iter().map(|(name, value)| (name.to_string(), text(value)));
    Response { status: answer.status.as_u16(), headers: headers.collect(), body: answer.body }
}
