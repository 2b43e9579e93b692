//! Policies of operators: the file `taskrun.toml`, checked, and decisions about what agents do.
//!
//! A policy names models, tools and agents, and says for each agent what its components may do.
//! Everything is checked when the file is read, and every problem is reported at once with its
//! place and what to write instead. Decisions are pure: deny beats allow, and what no rule allows
//! is denied. It takes texts: a host reads
//! the files, and those that they name ([`Files`]).
//!
//! The crate knows records and their words from `taskrun-journal`. It knows no controller, no
//! driver, no engine and no store, and nothing in it waits.
//!
//! ```toml
//! [model.fast]
//! provider = "openai-chat"                             # any server that speaks its protocol
//! base_url = "http://127.0.0.1:8080/v1"
//! model    = "smollm2"
//! key_file = "secrets/openai"
//!
//! [prompt.brief]
//! template  = "Answer in one sentence: {{ question }}"   # or: file = "prompts/brief.md"
//! overrides = [{ labels = ["tier=gold"], file = "prompts/gold.md" }]
//!
//! [tool.workspace]
//! component   = "components/workspace.wasm"
//! interrupted = "ask"                                  # a call cut off by a crash
//!
//! [agent.readonly_researcher]
//! component = "components/researcher.wasm"
//! tools     = ["workspace/list", "workspace/read"]
//! model     = "fast"                                   # also allows "model: fast"
//! allow     = ["workspace-read: docs/**", "http: GET https://api.example.com/v1/**"]
//! deny      = ["workspace-write: **"]                  # linked, always refused
//! limits    = { memory = "64MiB", call = "10s", tool_calls = 40 }
//! budget    = { turns = 20, tokens = 200_000, wall = "20m" }
//! retry     = { attempts = 3, pause = "1s" }
//! heartbeat = { interval = "60s" }                     # works on entries, in batches
//! timeouts  = { "workspace/read" = "2s", "workspace/*" = "5s" }
//! policy    = { block_tags = ["slow"] }                # decided anew in each turn
//! ask       = ["tool: workspace/read"]                 # a person has to agree
//! on_missing_fields = "await_clarification"            # a call that lacks fields
//! upgrade   = "adopt"                                  # its open runs have it as it is now
//!
//! [agent.lead]
//! component = "components/lead.wasm"
//! tools     = ["agent/readonly_researcher"]            # calls it as a tool
//! members   = ["readonly_researcher"]                  # may start runs of it
//! allow     = ["controller: spawn", "controller: wait"] # by itself, from within
//! durable   = false                                    # its own runs fail with their host
//! ```

mod ask;
mod beat_times;
mod capability;
mod chain;
mod change;
mod check;
mod closure;
mod defaults;
mod engine;
mod error;
mod explanation;
mod files;
mod grants;
mod host_tools;
mod http;
mod http_request;
mod limits;
mod load;
mod location;
mod model;
mod named_function;
mod names;
mod narrowing;
mod parse;
mod parse_agent;
mod parse_autonomy;
mod parse_callees;
mod parse_channel;
mod parse_delivery;
mod parse_guard;
mod parse_host_tools;
mod parse_limits;
mod parse_model;
mod parse_prompt;
mod parse_request;
mod parse_subscriber;
mod parse_timeouts;
mod path_glob;
mod pattern;
mod policy;
mod prompt;
mod quantity;
mod read;
mod request_settings;
mod rule;
mod selector;
mod server;
mod settings;
mod subscriber;
pub mod template;
#[cfg(test)]
mod tests;
mod timeouts;
mod toml_text;
mod tool_entry;
mod tool_filter;
mod tool_lists;
mod verdict;
mod within;
mod without_addresses;
mod without_keys;
mod workspace;
mod workspace_relation;

pub use self::ask::{ASK_TIMEOUT_DEFAULT, AskRule, AskRules};
pub use self::beat_times::{BeatTimes, CronFault, CronTimes, ZONE_DEFAULT};
pub use self::capability::{Capability, Use};
pub use self::chain::{AgentRules, CallRules, Chain, Denial};
pub use self::change::{MissingRule, RuleChange};
pub use self::closure::{Closure, MissingDigest};
pub use self::defaults::Defaults;
pub use self::engine::{EnginePolicy, POLICY_TIMEOUT};
pub use self::error::{PolicyError, PolicyErrorKind, PolicyErrors};
pub use self::explanation::{LayerExplanation, LayerOutcome, RuleLayer};
pub use self::files::{FileKind, Files};
pub use self::grants::{CapabilityAccess, Decision, Grants, Preopen, PreopenFault};
pub use self::host_tools::{
    HOST, HostFunction, HostToolSet, TREE_DEPTH_MAX, TREE_RUNS_DEFAULT, TREE_RUNS_MAX,
    TREE_SLOTS_DEFAULT, TREE_SLOTS_MAX,
};
pub use self::http_request::HttpTarget;
pub use self::limits::*;
pub use self::location::Location;
pub use self::model::*;
pub use self::named_function::NamedFunction;
pub use self::names::folded;
pub use self::narrowing::{
    NARROWING_BYTES_MAX, NARROWING_ENTRIES_MAX, NarrowingBounds, NarrowingError,
    check_narrowing_sizes,
};
pub use self::parse_subscriber::is_transport;
pub use self::path_glob::PATH_BYTES_MAX;
pub use self::pattern::{AGENTS, Pattern};
pub use self::policy::{
    AgentPolicy, COMPONENTS_KEPT_DEFAULT, COMPONENTS_KEPT_MAX, COMPONENTS_KEPT_MIN,
    DESCRIPTION_BYTES_MAX, MEMBERS_MAX, POLICY_BYTES_MAX, Policy, RULES_MAX, ToolPolicy,
};
pub use self::prompt::{PROMPT_OVERRIDES_MAX, PromptOverridePolicy, PromptPolicy, PromptTemplate};
pub use self::quantity::size;
pub use self::request_settings::{Effort, RequestSettings, Undisclosed};
pub use self::rule::{DeclaredNames, Rule, parse_accepted_denial, parse_denial};
pub use self::server::{MaxTokensField, OpenAiServer, ReasoningField, ServerKind};
pub use self::settings::{
    AutonomySettings, DelegationSettings, Heartbeat, InterruptionPolicy, MissingFields,
    REUSE_WITHIN_MAX, REUSE_WITHIN_MIN, Retry, RetryExhaustion, RetryOn, Upgrade,
};
pub use self::subscriber::*;
pub use self::timeouts::CallTimeouts;
pub use self::toml_text::toml_string;
pub use self::tool_entry::ToolEntry;
pub use self::tool_filter::ToolFilter;
pub use self::tool_lists::{POLICY_LABEL_BYTES_MAX, POLICY_LABELS_MAX, PolicyDecision, ToolLists};
pub use self::verdict::Verdict;
pub use self::without_addresses::{model_names, without_addresses};
pub use self::without_keys::without_keys;
pub use self::workspace::*;
