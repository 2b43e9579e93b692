//! `cancellation`: whether the run is being stopped.

use crate::bindings::interfaces::cancellation::Host;
use crate::state::CallState;

impl Host for CallState {
    fn requested(&mut self) -> wasmtime::Result<bool> {
        self.enter_capability("cancellation")?;
        Ok(self.scope.stop().is_asked())
    }
}
