//! A tool that never says what it can do: loading it must end all the same.

use std::hint::black_box;
use taskrun_guest::tool::{Failure, Tool, ToolCall, ToolResult, ToolSpec};

struct Silent;

taskrun_guest::export_tool!(Silent);

impl Tool for Silent {
    fn describe() -> Vec<ToolSpec> {
        let mut turns = 0_u64;
        while black_box(true) {
            turns = black_box(turns.wrapping_add(1));
        }
        Vec::new()
    }

    fn call(call: ToolCall) -> Result<ToolResult, Failure> {
        Err(Failure::unknown_function(&call.name))
    }
}
