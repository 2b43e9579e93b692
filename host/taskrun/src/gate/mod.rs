//! The gate: everything that decides which tools a run has, and which of its calls may begin.
//!
//! A call passes these layers in this order; the first that refuses it counts, and none can let
//! pass what another one refuses.
//!
//! 1. The agent's tools, as the policy, the runs above and the request leave them (`narrowing`).
//! 2. The policy engines, before the plan step and for its calls (`engines`).
//! 3. The hooks of the host, which are asked about calls that layers 1, 2 and 5 let pass.
//! 4. The calls that are left to the turn, and to the run.
//! 5. The arguments, held to the schema.
//! 6. The consent of a person, where rules want it (`consent`): to the call, to those of its run,
//!    or to those of further runs, which was looked up beforehand. A call that a person was asked
//!    about has passed the others, and does not again, whichever host asks, as long as the policy
//!    is the same. Under another one it passes them once more before it begins.
//!
//! Nothing here knows the driver, the journal's port or the controller: what a layer has to wait
//! for is asked beforehand, and handed in.

pub(crate) mod consent;
pub(crate) mod engines;
pub(crate) mod layer;
pub(crate) mod narrowing;
pub mod rights;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use taskrun_journal::event::Event;
use taskrun_journal::plan::ToolRequest;
use taskrun_journal::question::Item;
use taskrun_journal::ruling::ToolRuling;

use self::consent::{Consent, ConsentRules, PriorConsent};
pub use self::engines::Guard;
use self::layer::{ArgumentFailures, CallRefusal, Layer};
use crate::agents::{AgentTool, AgentTools};
use crate::ports::hook::Veto;

/// The gate for the calls of one turn.
pub(crate) struct Gate<'a> {
    tools: &'a AgentTools,
    /// Behind the tools, in their order.
    layers: [Layer; 4],
    /// True if calls that a person was asked about pass them, too.
    passes_again: bool,
}

/// The ruling of the gate on a call.
pub(crate) enum Admission<'a> {
    /// It begins.
    Begin {
        /// The function that is called.
        tool: &'a AgentTool,
        /// The consent to it, where that is not on record.
        consent: Option<Event>,
    },
    /// A person is to be asked first.
    Ask(Box<Item>),
    /// A person was asked and has not answered.
    Wait,
    /// It does not begin.
    Refuse(Box<CallRefusal>),
}

impl<'a> Gate<'a> {
    /// The gate for the calls of a turn about which the policy engines decided so. `run` and `turn`
    /// are the calls that are left, `None` if they are not bounded.
    pub(crate) fn new(
        tools: &'a AgentTools,
        (run, turn): (Option<u32>, Option<u32>),
        decided: Vec<ToolRuling>,
        misfits: ArgumentFailures,
    ) -> Self {
        let caps = decided.iter().filter_map(|one| one.tool_calls);
        let turn = caps.chain(turn).min().unwrap_or(u32::MAX);
        let layers = [
            Layer::Engines(decided),
            Layer::Hooks(BTreeMap::new()),
            Layer::Counts { turn, run: run.unwrap_or(u32::MAX) },
            Layer::Arguments(misfits),
        ];
        Self { tools, layers, passes_again: false }
    }

    /// The same, where the policy is another one than when the calls were decided on.
    pub(crate) fn again(self, passes_again: bool) -> Self {
        Self { passes_again, ..self }
    }

    /// Adds the vetoes of the host's hooks, by the ids of the calls.
    pub(crate) fn veto(&mut self, more: impl IntoIterator<Item = (String, Veto)>) {
        for layer in &mut self.layers {
            match layer {
                Layer::Hooks(vetoes) => return vetoes.extend(more),
                Layer::Engines(_) | Layer::Counts { .. } | Layer::Arguments(_) => {}
            }
        }
    }

    /// Tells if a call would pass as long as calls are left.
    pub(crate) fn fits(&self, request: &ToolRequest) -> bool {
        let passes = |layer: &Layer| match layer {
            Layer::Counts { .. } => true,
            Layer::Engines(_) | Layer::Hooks(_) | Layer::Arguments(_) => {
                layer.pass(request).is_ok()
            }
        };
        layer::tool(self.tools, &self.layers, request).is_ok() && self.layers.iter().all(passes)
    }

    /// Rules on a call. One that passes all layers before consent is counted, unless it was when a
    /// person was asked about it.
    pub(crate) fn admit(
        &mut self,
        request: &ToolRequest,
        consent: (&ConsentRules<'_>, &PriorConsent),
    ) -> Admission<'a> {
        self.pass(request, consent).unwrap_or_else(Admission::Refuse)
    }

    fn pass(
        &mut self,
        request: &ToolRequest,
        (rules, prior): (&ConsentRules<'_>, &PriorConsent),
    ) -> Result<Admission<'a>, Box<CallRefusal>> {
        let tool = layer::tool(self.tools, &self.layers, request)?;
        if tool.is_own {
            // Whatever is taken from a run, it may say that it is done.
            let vetoes = self.layers.iter().filter(|layer| matches!(layer, Layer::Hooks(_)));
            vetoes.into_iter().try_for_each(|layer| layer.pass(request))?;
            return Ok(Admission::Begin { tool, consent: None });
        }
        if prior.passes_layers(self.passes_again) {
            self.layers.iter().try_for_each(|layer| layer.pass(request))?;
            self.layers.iter_mut().for_each(Layer::count);
        }
        Ok(match rules.of(request, tool, prior)? {
            Consent::Given(consent) => Admission::Begin { tool, consent },
            Consent::Ask(item) => Admission::Ask(item),
            Consent::Wait => Admission::Wait,
        })
    }
}
