//! `state`: small values that a run keeps between its plan steps.

use crate::bindings::interfaces::state::{Host, StateError};
use crate::state::CallState;

impl Host for CallState {
    fn get(&mut self, key: String) -> wasmtime::Result<Option<String>> {
        self.enter_capability("state")?;
        Ok(self.scope.state(&key))
    }

    fn set(
        &mut self,
        key: String,
        value: Option<String>,
    ) -> wasmtime::Result<Result<(), StateError>> {
        self.enter_capability("state")?;
        Ok(self.scope.set_state(key, value).map_err(StateError::Limit))
    }

    fn keys(&mut self) -> wasmtime::Result<Vec<String>> {
        self.enter_capability("state")?;
        Ok(self.scope.state_keys())
    }
}
