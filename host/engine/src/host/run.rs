//! `run`: the run as the guest may know it.

use std::sync::Arc;

use taskrun::scope::OutsideRequest;
use taskrun_journal::time::millis;

use crate::bindings::interfaces::run::{Host, Remaining};
use crate::bindings::interfaces::types::{RunContext, ToolSpec};
use crate::outside::{Budget, ask_outside};
use crate::state::CallState;

impl Host for CallState {
    fn context(&mut self) -> wasmtime::Result<RunContext> {
        self.enter_capability("run")?;
        Ok(self.scope.context().into())
    }

    async fn budget(&mut self) -> wasmtime::Result<Remaining> {
        self.enter_capability("run")?;
        let what = "asks what is left of its budget";
        let request = OutsideRequest { what, asked: "budget", changes: false };
        let scope = Arc::clone(&self.scope);
        let live = async {
            let left = scope.remaining().await;
            Budget(Remaining {
                call_time: millis(scope.time_left()),
                turns: left.turns,
                tool_calls: left.tool_calls,
                tokens: left.tokens,
                tool_failures: left.tool_failures,
                cost_microusd: left.cost_microusd,
            })
        };
        let told = ask_outside(&scope, request, live).await?;
        Ok(told.0)
    }

    fn tools(&mut self) -> wasmtime::Result<Vec<ToolSpec>> {
        self.enter_capability("run")?;
        Ok(self.scope.tools().iter().map(ToolSpec::from).collect())
    }

    async fn read_result(
        &mut self,
        hash: String,
        offset: u64,
        max: u32,
    ) -> wasmtime::Result<Result<Vec<u8>, String>> {
        self.enter_capability("run")?;
        Ok(self.scope.result_part(&hash, offset, max).await)
    }
}
