//! The Rust side of `wit/`, one world each for agents, their finalizers, tools, and policies.
//!
//! All imported interfaces are bound once, in [`agent`], but for the one that only tools have and the
//! one that has a world of its own; the other worlds use the same types and the same host functions.
//! Functions that can wait, or that keep as many bytes as a guest gives, are `async`; all others are
//! called directly. Each host function has a span of level `TRACE`, with its interface and its name,
//! but not what it is given.

/// Version of our package in `wit/` that this host speaks.
pub(crate) const HOST_VERSION: &str = "0.1.0";

/// The world of agents.
pub(crate) mod agent {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "agent",
        imports: {
            "taskrun:plugin/model.complete": async | tracing | trappable,
            "taskrun:plugin/model.stream": async | tracing | trappable,
            "taskrun:plugin/model.[method]completion-stream.next": async | tracing | trappable,
            "taskrun:plugin/clock.sleep": async | tracing | trappable,
            "taskrun:plugin/events.assistant-chunk": async | tracing | trappable,
            "taskrun:plugin/events.assistant-message": async | tracing | trappable,
            "taskrun:plugin/events.tool-call-args-delta": async | tracing | trappable,
            "taskrun:plugin/events.planner-thinking-block": async | tracing | trappable,
            "taskrun:plugin/events.planner-thought": async | tracing | trappable,
            "taskrun:plugin/run.budget": async | tracing | trappable,
            "taskrun:plugin/run.read-result": async | tracing | trappable,
            "taskrun:plugin/prompts.render": async | tracing | trappable,
            "taskrun:plugin/workspace-read.list": async | tracing | trappable,
            "taskrun:plugin/workspace-read.stat": async | tracing | trappable,
            "taskrun:plugin/workspace-read.read": async | tracing | trappable,
            "taskrun:plugin/workspace-write.write": async | tracing | trappable,
            "taskrun:plugin/workspace-write.create-directory": async | tracing | trappable,
            "taskrun:plugin/workspace-write.remove": async | tracing | trappable,
            "taskrun:plugin/http.send": async | tracing | trappable,
            "taskrun:plugin/memory.get": async | tracing | trappable,
            "taskrun:plugin/memory.search": async | tracing | trappable,
            "taskrun:plugin/controller.spawn": async | tracing | trappable,
            "taskrun:plugin/controller.list": async | tracing | trappable,
            "taskrun:plugin/controller.get": async | tracing | trappable,
            "taskrun:plugin/controller.cancel": async | tracing | trappable,
            "taskrun:plugin/controller.cancel-tree": async | tracing | trappable,
            "taskrun:plugin/controller.pause": async | tracing | trappable,
            "taskrun:plugin/controller.resume": async | tracing | trappable,
            "taskrun:plugin/controller.wait": async | tracing | trappable,
            "taskrun:plugin/controller.provide": async | tracing | trappable,
            "taskrun:plugin/controller.subscribe": async | tracing | trappable,
            default: tracing | trappable,
        },
        exports: { default: async },
        with: {
            "taskrun:plugin/model.completion-stream": crate::completion_stream::CompletionStream,
        },
        require_store_data_send: true,
    });
}

/// The export of agents with a finalizer.
pub(crate) mod finalizer {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "agent-finalizer",
        exports: { default: async },
        with: {
            "taskrun:plugin/types": crate::bindings::agent::taskrun::plugin::types,
        },
        require_store_data_send: true,
    });
}

/// The import of agents that ask about the conversation which the host has.
pub(crate) mod agent_conversation {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "agent-conversation",
        imports: {
            "taskrun:plugin/conversation.complete": async | tracing | trappable,
            "taskrun:plugin/conversation.stream": async | tracing | trappable,
            "taskrun:plugin/conversation.read": async | tracing | trappable,
            default: tracing | trappable,
        },
        with: {
            "taskrun:plugin/types": crate::bindings::agent::taskrun::plugin::types,
            "taskrun:plugin/model": crate::bindings::agent::taskrun::plugin::model,
        },
        require_store_data_send: true,
    });
}

/// The world of tools.
pub(crate) mod tool {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "tool",
        imports: {
            "taskrun:plugin/memory-write.put": async | tracing | trappable,
            "taskrun:plugin/memory-write.delete": async | tracing | trappable,
            default: tracing | trappable,
        },
        exports: { default: async },
        with: {
            "taskrun:plugin/types": crate::bindings::agent::taskrun::plugin::types,
            "taskrun:plugin/run": crate::bindings::agent::taskrun::plugin::run,
            "taskrun:plugin/cancellation": crate::bindings::agent::taskrun::plugin::cancellation,
            "taskrun:plugin/log": crate::bindings::agent::taskrun::plugin::log,
            "taskrun:plugin/memory": crate::bindings::agent::taskrun::plugin::memory,
            "taskrun:plugin/metrics": crate::bindings::agent::taskrun::plugin::metrics,
            "taskrun:plugin/clock": crate::bindings::agent::taskrun::plugin::clock,
            "taskrun:plugin/random": crate::bindings::agent::taskrun::plugin::random,
            "taskrun:plugin/workspace-read":
                crate::bindings::agent::taskrun::plugin::workspace_read,
            "taskrun:plugin/workspace-write":
                crate::bindings::agent::taskrun::plugin::workspace_write,
            "taskrun:plugin/http": crate::bindings::agent::taskrun::plugin::http,
            "taskrun:plugin/controller": crate::bindings::agent::taskrun::plugin::controller,
        },
        require_store_data_send: true,
    });
}

/// The world of policies.
pub(crate) mod policy {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "policy-engine",
        imports: { default: tracing | trappable },
        exports: { default: async },
        with: {
            "taskrun:plugin/types": crate::bindings::agent::taskrun::plugin::types,
            "taskrun:plugin/log": crate::bindings::agent::taskrun::plugin::log,
        },
        require_store_data_send: true,
    });
}

pub(crate) use agent::taskrun::plugin as interfaces;
pub(crate) use agent_conversation::taskrun::plugin::conversation;
pub(crate) use tool::taskrun::plugin::memory_write;
