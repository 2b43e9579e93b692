//! The floor: raw wasmtime, and nothing else.

use taskrun_examples::{SCRIPTED, SCRIPTED_TOOL};
use wasmtime::component::{Component, InstancePre, Linker};
use wasmtime::{Engine, Store};

use crate::cpu_us;

mod agent {
    wasmtime::component::bindgen!({
        path: "../wit",
        world: "agent",
        exports: { default: async },
    });
}

mod tool {
    wasmtime::component::bindgen!({
        path: "../wit",
        world: "tool",
        exports: { default: async },
    });
}

use agent::exports::taskrun::plugin::planner::{Decision, PlanInput};
use agent::taskrun::plugin::types::{Message, Part, Role, RunContext};
use tool::exports::taskrun::plugin::tools::ToolCall;

/// Components linked by hand.
pub(crate) struct Floor {
    engine: Engine,
    agent: agent::AgentPre<()>,
    tool: tool::ToolPre<()>,
}

fn link(engine: &Engine, bytes: &[u8]) -> InstancePre<()> {
    let component = Component::new(engine, bytes).expect("compiles");
    let mut linker = Linker::new(engine);
    // The measured calls use none of them.
    linker.define_unknown_imports_as_traps(&component).expect("links");
    linker.instantiate_pre(&component).expect("links")
}

impl Floor {
    pub(crate) fn new() -> Self {
        let config = taskrun_engine::wasmtime_config(64);
        let engine = Engine::new(&config).expect("an engine");
        let agent = agent::AgentPre::new(link(&engine, SCRIPTED.bytes)).expect("an agent");
        let tool = tool::ToolPre::new(link(&engine, SCRIPTED_TOOL.bytes)).expect("a tool");
        Self { engine, agent, tool }
    }

    fn store(&self) -> Store<()> {
        let mut store = Store::new(&self.engine, ());
        store.set_epoch_deadline(u64::MAX / 2);
        store
    }

    /// CPU microseconds of a tool call in a fresh instance.
    pub(crate) async fn tool_calls(&self, calls: u32) -> f64 {
        let before = cpu_us();
        for _ in 0..calls {
            let mut store = self.store();
            let tool = self.tool.instantiate_async(&mut store).await.expect("an instance");
            let call = ToolCall {
                name: "lookup".into(),
                payload: r#"{"result":{"found":true}}"#.into(),
                tool_call_id: "call-1".into(),
                parent_tool_call_id: None,
                agent_id: "worker".into(),
                run_id: "run-1".into(),
                session_id: "session-1".into(),
                turn_id: "1".into(),
                labels: Vec::new(),
            };
            let tools = tool.taskrun_plugin_tools();
            let answer = tools.call_call(&mut store, &call).await.expect("answers");
            assert!(answer.is_ok_and(|answer| answer.value.contains("found")));
        }
        (cpu_us() - before) / f64::from(calls)
    }

    /// CPU microseconds of a plan step in a fresh instance.
    pub(crate) async fn plan_steps(&self, steps: u32) -> f64 {
        let before = cpu_us();
        for _ in 0..steps {
            let mut store = self.store();
            let agent = self.agent.instantiate_async(&mut store).await.expect("an instance");
            let input = PlanInput {
                messages: vec![Message {
                    role: Role::User,
                    parts: vec![Part::Text("hello".into())],
                }],
                run: RunContext {
                    run_id: "run-1".into(),
                    parent_run_id: None,
                    root_run_id: "run-1".into(),
                    session_id: "session-1".into(),
                    parent_session_id: "parent".into(),
                    owner_user_id: "owner".into(),
                    app_name: None,
                    agent_name: "worker".into(),
                    turn: 1,
                    attempt: 1,
                    depth: 0,
                    parent_tool_call_id: None,
                    labels: Vec::new(),
                    envelope: Vec::new(),
                },
                reminders: Vec::new(),
            };
            let planner = agent.taskrun_plugin_planner();
            let plan = planner.call_plan_start(&mut store, &input).await.expect("answers");
            assert!(plan.is_ok_and(|plan| matches!(plan.decision, Decision::FinalResponse(_))));
        }
        (cpu_us() - before) / f64::from(steps)
    }
}
