//! `clock`: the time as the call's scope sees it.

use std::time::Duration;

use crate::bindings::interfaces::clock::{Host, WaitError};
use crate::state::CallState;

impl Host for CallState {
    fn now(&mut self) -> wasmtime::Result<u64> {
        self.enter_capability("clock")?;
        Ok(self.scope.now().0)
    }

    async fn sleep(&mut self, duration: u64) -> wasmtime::Result<Result<(), WaitError>> {
        self.enter_capability("clock")?;
        let slept = self.scope.sleep(Duration::from_millis(duration)).await;
        Ok(if slept { Ok(()) } else { Err(WaitError::Canceled) })
    }
}
