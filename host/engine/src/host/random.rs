//! `random`: numbers as the call's scope draws them.

use crate::bindings::interfaces::random::Host;
use crate::state::CallState;

impl Host for CallState {
    fn bytes(&mut self, len: u32) -> wasmtime::Result<Vec<u8>> {
        self.enter_capability("random")?;
        Ok(self.scope.random(len))
    }
}
