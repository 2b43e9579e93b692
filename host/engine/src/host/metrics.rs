//! `metrics`: counters and measurements of the guest, through the call's scope.

use taskrun_journal::metrics::{METRIC_LABELS_MAX, METRIC_NAME_BYTES_MAX, Measure};
use taskrun_journal::text::cut;
use taskrun_policy::{Capability, Use};

use crate::bindings::interfaces::metrics::Host;
use crate::state::CallState;

impl CallState {
    fn measure(
        &mut self,
        name: &str,
        measure: Option<Measure>,
        labels: Vec<(String, String)>,
    ) -> wasmtime::Result<()> {
        self.enter_capability("metrics")?;
        if let Err(denied) = self.rules().decide(&Use::Metric(name)) {
            // There is no answer that could say so. The journal says it once: guests count often.
            if !std::mem::replace(&mut self.metrics_denied, true) {
                let subject = cut(name, METRIC_NAME_BYTES_MAX).to_owned();
                self.record_denial(Capability::Metrics, &subject, &denied);
            }
            return Ok(());
        }
        // One more than allowed is enough to be refused.
        let labels = labels.into_iter().take(METRIC_LABELS_MAX + 1).collect();
        self.scope.record_metric(&self.guest.source, name, labels, measure);
        Ok(())
    }
}

impl Host for CallState {
    fn add(
        &mut self,
        name: String,
        delta: u64,
        labels: Vec<(String, String)>,
    ) -> wasmtime::Result<()> {
        self.measure(&name, Some(Measure::Counter { sum: delta }), labels)
    }

    fn record_value(
        &mut self,
        name: String,
        value: f64,
        labels: Vec<(String, String)>,
    ) -> wasmtime::Result<()> {
        self.measure(&name, Measure::value(value), labels)
    }
}
