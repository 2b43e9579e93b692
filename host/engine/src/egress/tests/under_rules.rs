//! Requests that are sent where rules allow them.

use taskrun_policy::Use;

use super::*;

impl Egress {
    /// Has rules decide about a request, as the functions of the host have the call's, and sends it
    /// if they allow it.
    pub(super) async fn send(
        &self,
        tenant: &str,
        rules: &CallRules,
        course: &Course,
        out: OutboundRequest,
    ) -> Result<Answer, Refusal> {
        let decide = |used: &Use<'_>| {
            rules.decide(used).map_err(|denied| Refusal::Denied {
                subject: used.subject().into_owned(),
                reason: denied.for_guest,
                operator: denied.rule,
            })
        };
        self.exchange(tenant, course, out.decided(decide)?).await
    }
}
