//! Compiling in a process of its own: this program is the host, the worker, and a host to be killed.

#![expect(clippy::unwrap_used, reason = "a test that finds nothing to unwrap has failed")]

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, Mode};
use rustix::process::{Pid, PidfdFlags, Signal};
use taskrun_engine::{
    Cache, CompileWorker, ENGINE_VERSION, Engine, EngineOptions, LoadError, compile_worker_main,
    guest_memory_default,
};

/// Longest wait for something that happens at once; far shorter than [`slow`] takes to compile.
const DEADLINE_SECONDS: i64 = 30;

fn main() -> ExitCode {
    let mut args = std::env::args();
    let program = PathBuf::from(args.next().unwrap());
    match args.next().as_deref() {
        Some("worker") => return compile_worker_main(),
        Some("noted-worker") => {
            note_self(Path::new(&args.next().unwrap()));
            return compile_worker_main();
        }
        Some("silent") => return ExitCode::FAILURE,
        Some("killed") => return killed(),
        Some("says") => return says(&args.next().unwrap(), &args.next().unwrap()),
        Some("unshared-worker") => {
            without_shared_threads();
            return compile_worker_main();
        }
        Some("unshared") => {
            without_shared_threads();
            return compiles_here();
        }
        Some("host") => return host(program, args.next().unwrap()),
        Some("--list") => return ExitCode::SUCCESS,
        Some(_) | None => {}
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(compiles_elsewhere(program.clone()));
    runtime.block_on(a_worker_that_fails_fails_the_load(program.clone()));
    runtime.block_on(a_program_that_is_no_worker_says_nothing_of_a_component(program.clone()));
    runtime.block_on(a_worker_of_another_version_says_nothing_of_a_component(program.clone()));
    runtime.block_on(a_failure_is_told_again_at_once(program.clone()));
    runtime.block_on(what_the_pool_has_no_room_for_is_compiled_once(program.clone()));
    runtime.block_on(compiling_needs_no_threads_that_a_process_shares(program.clone()));
    runtime.block_on(what_costs_too_much_starts_no_worker());
    runtime.block_on(a_worker_sees_what_is_seen_without_one(program.clone()));
    runtime.block_on(what_takes_too_much_to_look_at_takes_nothing_of_the_host(program.clone()));
    a_worker_takes_no_more_than_a_part_of_the_memory(&program);
    a_worker_ends_with_its_host(&program);
    println!("test result: ok");
    ExitCode::SUCCESS
}

fn engine(program: PathBuf, args: &[&str], cache: Option<Cache>) -> Arc<Engine> {
    let args = args.iter().map(OsString::from).collect();
    let compile_worker = Some(CompileWorker { program, args });
    let options = EngineOptions { compile_worker, cache, instances: Some(2), ..Default::default() };
    Engine::new(options).unwrap()
}

/// An engine whose worker cannot be started.
fn engine_without_worker(cache: Option<Cache>) -> Arc<Engine> {
    engine("/does/not/exist".into(), &[], cache)
}

fn component() -> Vec<u8> {
    wat::parse_str("(component (core module $m (memory 1)) (core instance (instantiate $m)))")
        .unwrap()
}

/// A component that is read well and does not compile.
fn ill_typed() -> Vec<u8> {
    wat::parse_str("(component (core module (func (result i32) i64.const 0)))").unwrap()
}

/// As much as is compiled at all; longer than anybody here waits.
fn slow() -> Vec<u8> {
    let locals = "i32 ".repeat(3_000);
    let mut body = String::new();
    for at in 0..1_000 {
        body.push_str("loop ");
        for step in 0..3 {
            let local = (at * 31 + step) % 3_000;
            body.push_str(&format!("local.get {local} i32.const 1 i32.add local.set {local} "));
        }
        body.push_str("local.get 0 br_if 0 end ");
    }
    let function = format!("(func (local {locals}) {body})");
    wat::parse_str(format!("(component (core module {}))", function.repeat(12))).unwrap()
}

async fn compiles_elsewhere(program: PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let native = dir.path().join("native");
    let cache = || Some(Cache::open(&native).unwrap());
    let here = engine(program, &["worker"], cache());
    here.load(component()).await.unwrap();
    // What the worker made is kept, and taken without one.
    engine_without_worker(cache()).load(component()).await.unwrap();

    let error = here.load(b"\0asm\x0d\0\x01\0\xff\xff".to_vec()).await.unwrap_err();
    assert!(matches!(error, LoadError::Invalid { .. } | LoadError::Truncated { .. }), "{error}");
    let text = r#"(component
        (core module $m (func (export "f")))
        (core instance $i (instantiate $m))
        (func (export "f") async (canon lift (core func $i "f") async)))"#;
    let error = here.load(wat::parse_str(text).unwrap()).await.unwrap_err();
    assert!(matches!(error, LoadError::Async { .. }), "{error}");
}

async fn a_worker_that_fails_fails_the_load(program: PathBuf) {
    let error = engine(program.clone(), &["silent"], None).load(component()).await.unwrap_err();
    assert!(matches!(error, LoadError::Worker { .. }), "{error}");
    assert!(!error.is_of_component(), "it may be otherwise the next time");
    let error = engine(program.clone(), &["killed"], None).load(component()).await.unwrap_err();
    assert!(matches!(error, LoadError::NoAnswer { .. }), "{error}");
    assert!(error.to_string().contains("SIGKILL"), "{error}");
    let hello = hello(&program);
    let error = engine(program, &["says", &hello, "on"], None).load(component()).await.unwrap_err();
    assert!(matches!(error, LoadError::CompileLimit), "{error}");
    assert!(error.is_of_component(), "it would be so each time");
    let error = engine_without_worker(None).load(component()).await.unwrap_err();
    assert!(matches!(error, LoadError::Worker { .. }), "{error}");
}

async fn a_program_that_is_no_worker_says_nothing_of_a_component(program: PathBuf) {
    let dir = tempfile::tempdir().expect("a folder");
    let native = dir.path().join("native");
    let cache = || Some(Cache::open(&native).expect("a folder"));
    let programs: [(&str, &[&str], &str); 5] = [
        ("true", &[], "exit status: 0"),
        ("false", &[], "exit status: 1"),
        ("sh", &["-c", "echo usage >&2; exit 2"], "exit status: 2"),
        ("sh", &["-c", "kill -ABRT $$"], "SIGABRT"),
        ("cat", &[], "it says something else"),
    ];
    for (other, args, how) in programs {
        let refused = engine(other.into(), args, cache()).load(component()).await;
        let Err(LoadError::Worker { source }) = refused else { panic!("{other}: {refused:?}") };
        let text = source.to_string();
        assert!(text.starts_with(other) && text.contains(how), "{text}");
        assert!(text.ends_with("its main must call compile_worker_main"), "{text}");
    }
    // Nothing of that is remembered.
    let mended = engine(program, &["worker"], cache()).load(component()).await;
    assert!(mended.is_ok(), "{mended:?}");
}

async fn a_worker_of_another_version_says_nothing_of_a_component(program: PathBuf) {
    let dir = tempfile::tempdir().expect("a folder");
    let native = dir.path().join("native");
    let cache = || Some(Cache::open(&native).expect("a folder"));
    let hello = hello(&program);
    let other_engine = hello.replace(ENGINE_VERSION, "wasmtime 48.0.9");
    assert_ne!(other_engine, hello);
    // Another engine, other code of ours, and a version that said less.
    let (of_ours, _) = hello.rsplit_once(' ').expect("words");
    let others = [
        other_engine,
        format!("{of_ours} 0123456789abcdef"),
        "taskrun compile worker, 1".to_owned(),
    ];
    for other in &others {
        for answer in ["panics", "aborts", "on"] {
            let worker = engine(program.clone(), &["says", other, answer], cache());
            let refused = worker.load(component()).await.expect_err("it is another version");
            assert!(!refused.is_of_component(), "{refused}");
            let LoadError::Worker { source } = refused else { panic!("{other}: {refused}") };
            assert!(source.to_string().contains("of another version"), "{source}");
        }
    }
    // Nothing of that is remembered.
    let mended = engine(program, &["worker"], cache()).load(component()).await;
    assert!(mended.is_ok(), "{mended:?}");
}

async fn a_failure_is_told_again_at_once(program: PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let native = dir.path().join("native");
    let cache = || Some(Cache::open(&native).unwrap());
    let first = engine(program.clone(), &["worker"], cache()).load(ill_typed()).await;
    let first = first.unwrap_err();
    assert!(matches!(first, LoadError::Invalid { .. }), "{first}");
    let again = engine_without_worker(cache()).load(ill_typed()).await.unwrap_err();
    assert_eq!(again.to_string(), first.to_string());

    let hello = hello(&program);
    let starved = engine(program.clone(), &["says", &hello, "aborts"], cache());
    let starved = starved.load(component()).await;
    assert!(matches!(starved, Err(LoadError::CompileLimit)), "{starved:?}");
    let again = engine_without_worker(cache()).load(component()).await;
    assert!(matches!(again, Err(LoadError::CompileRefused { .. })), "{again:?}");
    let path = dir.path().join("other.wasm");
    std::fs::write(&path, wat::parse_str("(component (core module (memory 3)))").expect("text"))
        .expect("written");
    engine(program.clone(), &["worker"], cache()).examine_file(&path).await.unwrap();
    let panics = engine(program.clone(), &["says", &hello, "panics"], cache());
    for worker in [panics, engine_without_worker(cache())] {
        let panicked = worker.load_file(&path).await;
        assert!(matches!(panicked, Err(LoadError::CompilerPanicked { .. })), "{panicked:?}");
    }
    // One that somebody else ended is tried again.
    let other = wat::parse_str("(component (core module (memory 2)))").unwrap();
    engine(program.clone(), &["silent"], cache()).load(other.clone()).await.unwrap_err();
    engine(program, &["worker"], cache()).load(other).await.unwrap();
}

/// It is found out when the native code is taken, after the compiler has accepted the component.
async fn what_the_pool_has_no_room_for_is_compiled_once(program: PathBuf) {
    let tables = "(table 1 funcref)".repeat(9);
    let text = format!("(component (core module $m {tables}) (core instance (instantiate $m)))");
    let bytes = wat::parse_str(text).expect("the text is right");
    let dir = tempfile::tempdir().expect("a folder");
    let here = EngineOptions { instances: Some(2), ..EngineOptions::default() };
    for (name, worker) in [("elsewhere", Some(program)), ("here", None)] {
        let cache = || Some(Cache::open(&dir.path().join(name)).expect("a folder"));
        let first = match worker {
            Some(program) => engine(program, &["worker"], cache()),
            None => Engine::new(EngineOptions { cache: cache(), ..here.clone() }).expect("options"),
        };
        let first = first.load(bytes.clone()).await.expect_err("a component has eight");
        assert!(matches!(first, LoadError::TooMuch { .. }), "{name}: {first}");
        // One that compiled it again would start its worker.
        let again = engine_without_worker(cache()).load(bytes.clone()).await;
        let again = again.expect_err("a component has eight");
        assert!(matches!(again, LoadError::TooMuch { .. }), "{name}: {again}");
        assert_eq!(again.to_string(), first.to_string());
    }
}

async fn compiling_needs_no_threads_that_a_process_shares(program: PathBuf) {
    let compiled = engine(program.clone(), &["unshared-worker"], None).load(component()).await;
    assert!(compiled.is_ok(), "{compiled:?}");
    let here = Command::new(program).arg("unshared").status().expect("it starts");
    assert!(here.success(), "{here}");
}

/// Has the threads that all of this process would share fail to start, as where a limit is met for a
/// moment. They are not started again.
fn without_shared_threads() {
    let none =
        |_: rayon::ThreadBuilder| Err::<(), std::io::Error>(std::io::ErrorKind::WouldBlock.into());
    let shared = rayon::ThreadPoolBuilder::new().spawn_handler(none).build_global();
    assert!(shared.is_err(), "nobody started them before");
}

/// A host without a worker.
fn compiles_here() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let options = EngineOptions { instances: Some(1), ..Default::default() };
    let engine = Engine::new(options).expect("an engine");
    match runtime.expect("a runtime").block_on(engine.load(component())) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn what_costs_too_much_starts_no_worker() {
    let functions = format!("(component (core module {}))", "(func)".repeat(900_000));
    let locals = "i32 ".repeat(10_000);
    let locals = format!("(component (core module (func (local {locals}))))");
    for (text, word) in [(functions, "functions"), (locals, "locals of a function")] {
        let bytes = wat::parse_str(text).unwrap();
        let error = engine_without_worker(None).load(bytes).await.unwrap_err();
        assert!(matches!(error, LoadError::Shape { what, .. } if what == word), "{error}");
    }
}

async fn a_worker_sees_what_is_seen_without_one(program: PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("chat.wasm");
    std::fs::write(&path, taskrun_examples::CHAT.bytes).unwrap();
    let here = Engine::new(EngineOptions { instances: Some(1), ..Default::default() }).unwrap();
    let seen = here.examine_file(&path).await.unwrap();
    let elsewhere = engine(program, &["worker"], None).examine_file(&path).await.unwrap();
    assert!(!seen.inspect().imports.is_empty());
    assert_eq!(elsewhere.inspect(), seen.inspect());
}

/// 130 KB of which each of 3,000 instances has a copy of 12,000 exports.
fn many_copies() -> Vec<u8> {
    let exports: String = (0..12_000).map(|at| format!("(export \"a{at}\" (type $t))")).collect();
    let instances = "(instance (instantiate $d))".repeat(998);
    let sibling = format!("(component (alias outer 1 $c (component $d)) {instances})");
    let siblings = sibling.repeat(3);
    wat::parse_str(format!("(component (component $c (type $t u8) {exports}) {siblings})")).unwrap()
}

async fn what_takes_too_much_to_look_at_takes_nothing_of_the_host(program: PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let native = dir.path().join("native");
    let cache = || Some(Cache::open(&native).unwrap());
    let (bytes, before) = (many_copies(), most_memory_kb());
    let refused = engine(program, &["worker"], cache()).load(bytes.clone()).await;
    assert!(matches!(refused, Err(LoadError::CompileLimit)), "{refused:?}");
    let taken = most_memory_kb() - before;
    assert!(taken < 100 << 10, "{taken} KiB");
    // Nor is it looked at again by a host that starts meanwhile.
    let again = engine_without_worker(cache()).load(bytes).await;
    assert!(matches!(again, Err(LoadError::CompileRefused { .. })), "{again:?}");
}

/// The most memory that this process had at any time.
fn most_memory_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    most.trim().strip_suffix("kB").unwrap().trim().parse().unwrap()
}

/// Writes this process's number into a pipe with a name.
fn note_self(pipe: &Path) {
    std::fs::write(pipe, format!("{}\n", std::process::id())).unwrap();
}

/// A worker that the system kills, as where memory is short.
fn killed() -> ExitCode {
    rustix::process::kill_process(rustix::process::getpid(), Signal::KILL).expect("killed");
    ExitCode::FAILURE
}

/// A worker that says this first, and then answers as it is told: it aborts, as one does that gets no
/// more memory, its compiler panics, or its answer goes on until its reader ends it.
fn says(hello: &str, then: &str) -> ExitCode {
    let mut answer = std::io::stdout();
    writeln!(answer, "{hello}").and_then(|()| answer.flush()).expect("its host reads it");
    match then {
        "aborts" => std::process::abort(),
        "panics" => {
            // A host that does not wait for it has closed the pipe.
            answer.write_all(b"\x02not expected").and_then(|()| answer.flush()).ok();
        }
        _ => {
            let piece = [0; 1 << 16];
            while answer.write_all(&piece).is_ok() {}
        }
    }
    ExitCode::SUCCESS
}

/// The first line that a worker of this program says, without its end.
fn hello(program: &Path) -> String {
    let (mut worker, stdin, stdout) = started_worker(program);
    let mut said = String::new();
    BufReader::new(stdout).read_line(&mut said).expect("it says what it is");
    drop(stdin);
    worker.wait().expect("it ends");
    said.strip_suffix('\n').expect("a line").to_owned()
}

/// A worker that waits for a component of eight bytes, which does not come.
fn started_worker(program: &Path) -> (Child, ChildStdin, ChildStdout) {
    let mut worker = Command::new(program);
    worker.arg("worker").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut worker = worker.spawn().expect("it starts");
    let (stdin, stdout) = (worker.stdin.take(), worker.stdout.take());
    let (mut stdin, stdout) = (stdin.expect("a pipe"), stdout.expect("a pipe"));
    stdin.write_all(&8_u64.to_le_bytes()).and_then(|()| stdin.flush()).expect("it reads");
    (worker, stdin, stdout)
}

/// A host that compiles something slow; its worker notes itself in `pipe`.
fn host(program: PathBuf, pipe: String) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slow.wasm");
    std::fs::write(&path, slow()).unwrap();
    let cache = || Some(Cache::open(&folder.path().join("native")).unwrap());
    // By a worker that is at its end before the one that is noted begins.
    let looks = engine(program.clone(), &["worker"], cache());
    runtime.block_on(looks.examine_file(&path)).unwrap();
    let engine = engine(program, &["noted-worker", &pipe], cache());
    let loaded = runtime.block_on(engine.load_file(&path));
    println!("{loaded:?}");
    ExitCode::FAILURE
}

/// One that the system killed would say nothing of the component, and be tried again.
fn a_worker_takes_no_more_than_a_part_of_the_memory(program: &Path) {
    let (mut worker, stdin, stdout) = started_worker(program);
    BufReader::new(stdout).read_line(&mut String::new()).expect("it says what it is");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", worker.id()));
    drop(stdin);
    worker.wait().expect("it ends");
    let limits = limits.expect("it was there");
    let data = limits.lines().find_map(|line| line.strip_prefix("Max data size"));
    let data = data.and_then(|line| line.split_whitespace().next()).map(str::parse::<u64>);
    assert_eq!(data, Some(Ok((3_u64 << 30).min(guest_memory_default()))), "{limits}");
}

fn a_worker_ends_with_its_host(program: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("worker");
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, mode, 0).unwrap();
    // Open at both ends, so that it has no end while nobody writes.
    let mut noted = File::options().read(true).write(true).open(&pipe).unwrap();
    let mut host = Command::new(program).arg("host").arg(&pipe).spawn().unwrap();
    assert!(comes(&noted), "no worker was started");
    let mut line = [0; 16];
    let length = noted.read(&mut line).unwrap();
    let worker = std::str::from_utf8(&line[..length]).unwrap().trim().parse().unwrap();
    let worker = Pid::from_raw(worker).unwrap();
    let watched = rustix::process::pidfd_open(worker, PidfdFlags::empty()).unwrap();
    host.kill().unwrap();
    host.wait().unwrap();
    let ended = comes(&watched);
    if !ended {
        rustix::process::kill_process(worker, Signal::KILL).ok();
    }
    assert!(ended, "the worker went on without its host");
}

/// True if something comes of it within the deadline: bytes of a pipe, the end of a process.
fn comes(from: &impl AsFd) -> bool {
    let timeout = Timespec { tv_sec: DEADLINE_SECONDS, tv_nsec: 0 };
    rustix::event::poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&timeout)).unwrap() == 1
}
