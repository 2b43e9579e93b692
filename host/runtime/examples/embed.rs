//! Starts a run, follows its events and prints its result:
//! `cargo run -p taskrun-runtime --example embed -- POLICY DATA_DIRECTORY AGENT TASK`
use std::error::Error;
use std::process::ExitCode;

use taskrun::controller::succeeded;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::list::Scope;
use taskrun_runtime::{
    CompileWorker, Options, Runtime, compile_worker_main, survive_file_size_limit,
};

/// The argument with which this program looks at a component and compiles it, in a process of its
/// own that has bounds on time and memory: one that is hostile takes nothing of the host.
const WORKER: &str = "compile-worker";

fn main() -> Result<ExitCode, Box<dyn Error>> {
    // A guest that writes a file larger than this process may make does not end it.
    survive_file_size_limit()?;
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args == [WORKER] {
        return Ok(compile_worker_main());
    }
    let [policy, data, agent, task] = args.as_slice() else {
        return Err("give a policy, a data directory, an agent and a task".into());
    };
    let worker = CompileWorker { program: std::env::current_exe()?, args: vec![WORKER.into()] };
    let options = Options { compile_worker: Some(worker), ..Options::new(policy, data) };
    let runtime = tokio::runtime::Runtime::new()?;
    println!("{}", runtime.block_on(answer(options, agent, task))?);
    Ok(ExitCode::SUCCESS)
}

/// Gives the whole result of a run of `agent` whose task is `task`, or the error with which the run
/// ended.
pub async fn answer(options: Options, agent: &str, task: &str) -> Result<String, Box<dyn Error>> {
    let runtime = Runtime::open(options).await?;
    let client = runtime.controller().at(&Scope::tenant("default"));
    let request = SpawnRequest {
        agent_name: agent.to_owned(),
        task: task.to_owned(),
        owner_user_id: "local".to_owned(),
        parent_session_id: "embed".to_owned(),
        ..SpawnRequest::default()
    };
    let run = client.spawn(&request).await?;
    let mut stream = client.follow(run.id().as_str(), 0).await?;
    loop {
        let events = stream.next(100).await?;
        // The run has ended, and these were all.
        if events.is_empty() {
            break;
        }
        events.iter().for_each(|event| eprintln!("{} {}", event.seq, event.event.kind()));
    }
    let run = client.get(run.id().as_str()).await?;
    let result = client.result(run.id().as_str()).await?;
    runtime.shutdown().await;
    // Something said before a failure is no answer.
    if let Some(ending) = run.ending().filter(|_| !succeeded(&run)) {
        let why = ending.error.clone().unwrap_or_else(|| ending.stop_reason.to_string());
        return Err(format!("the run is {}: {why}", run.status()).into());
    }
    result.ok_or_else(|| "the run completed without a text".into())
}
