//! The floor: raw wasmtime, and nothing else.

use taskrun_examples::{COUNTER, SCRIPTED, SCRIPTED_TOOL, WORDS};
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

use agent::exports::taskrun::plugin::planner::{
    Decision, PlanInput, PlanResumeInput, ToolOutcome, ToolOutput, ToolRequest,
};
use agent::taskrun::plugin::types::{Message, Part, Role, RunContext, ToolAnswer, ToolUse};
use tool::exports::taskrun::plugin::tools::ToolCall;

/// Components linked by hand.
pub(crate) struct Floor {
    engine: Engine,
    agent: agent::AgentPre<()>,
    tool: tool::ToolPre<()>,
    counter: agent::AgentPre<()>,
    words: tool::ToolPre<()>,
}

fn context() -> RunContext {
    RunContext {
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
    }
}

fn text(role: Role, text: String) -> Message {
    Message { role, parts: vec![Part::Text(text)] }
}

fn call(name: &str, payload: String) -> ToolCall {
    ToolCall {
        name: name.into(),
        payload,
        tool_call_id: "call-1".into(),
        parent_tool_call_id: None,
        agent_name: "worker".into(),
        run_id: "run-1".into(),
        session_id: "session-1".into(),
        turn: 1,
        labels: Vec::new(),
    }
}

/// The conversation after the call, and what came of it.
fn after_call(mut messages: Vec<Message>, asked: &ToolRequest, value: String) -> PlanResumeInput {
    let tool_use = ToolUse {
        tool_call_id: "call-1".into(),
        name: asked.name.clone(),
        payload: asked.payload.clone(),
    };
    let answer = ToolAnswer {
        tool_call_id: "call-1".into(),
        content: value.clone(),
        is_error: false,
        media: Vec::new(),
    };
    messages.push(Message { role: Role::Assistant, parts: vec![Part::ToolUse(tool_use)] });
    messages.push(Message { role: Role::Tool, parts: vec![Part::ToolAnswer(answer)] });
    let output = ToolOutput {
        name: asked.name.clone(),
        tool_call_id: "call-1".into(),
        payload: asked.payload.clone(),
        result_bytes: value.len() as u64,
        outcome: ToolOutcome::Value(value),
        result_omitted: None,
        server_data: None,
        bounds: None,
        telemetry: None,
        media: Vec::new(),
        children_count: 0,
        run_link: None,
    };
    PlanResumeInput {
        messages,
        run: context(),
        reminders: Vec::new(),
        tool_outputs: vec![output],
        finalize: None,
    }
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
        let counter = agent::AgentPre::new(link(&engine, COUNTER.bytes)).expect("an agent");
        let words = tool::ToolPre::new(link(&engine, WORDS.bytes)).expect("a tool");
        Self { engine, agent, tool, counter, words }
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
            let call = call("lookup", r#"{"result":{"found":true}}"#.into());
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
                messages: vec![text(Role::User, "hello".into())],
                run: context(),
                reminders: Vec::new(),
            };
            let planner = agent.taskrun_plugin_planner();
            let plan = planner.call_plan_start(&mut store, &input).await.expect("answers");
            assert!(plan.is_ok_and(|plan| matches!(plan.decision, Decision::FinalResponse(_))));
        }
        (cpu_us() - before) / f64::from(steps)
    }

    /// CPU microseconds of a plan step with so many messages of [`MESSAGE_BYTES`], where an agent
    /// has its task counted by a tool: two steps and a call, of which half is a step.
    ///
    /// [`MESSAGE_BYTES`]: crate::MESSAGE_BYTES
    pub(crate) async fn counted(&self, messages: usize, runs: u32) -> f64 {
        let before = cpu_us();
        for _ in 0..runs {
            let said = vec![text(Role::User, crate::message()); messages];
            let mut store = self.store();
            let agent = self.counter.instantiate_async(&mut store).await.expect("an instance");
            let input = PlanInput { messages: said.clone(), run: context(), reminders: Vec::new() };
            let planner = agent.taskrun_plugin_planner();
            let plan = planner.call_plan_start(&mut store, &input).await.expect("answers");
            let Decision::ToolCalls(calls) = plan.expect("a plan").decision else {
                panic!("it calls its tool")
            };
            let mut store = self.store();
            let tool = self.words.instantiate_async(&mut store).await.expect("an instance");
            let call = call("count", calls[0].payload.clone());
            let tools = tool.taskrun_plugin_tools();
            let result = tools.call_call(&mut store, &call).await.expect("answers");
            let value = result.unwrap_or_else(|failure| panic!("{failure:?}")).value;
            let mut store = self.store();
            let agent = self.counter.instantiate_async(&mut store).await.expect("an instance");
            let input = after_call(said, &calls[0], value);
            let planner = agent.taskrun_plugin_planner();
            let plan = planner.call_plan_resume(&mut store, &input).await.expect("answers");
            assert!(plan.is_ok_and(|plan| matches!(plan.decision, Decision::FinalResponse(_))));
        }
        (cpu_us() - before) / f64::from(2 * runs)
    }
}
