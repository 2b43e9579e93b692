//! Measures `taskrun run -d` while a host of the policy runs and the agent's components are known,
//! as a terminal or a timer uses it, and as four terminals at once do. Prints one JSON object.
//!
//! `cargo bench -p taskrun-cli --bench run -- [--rounds N] [--runs N] [--program FILE]...`. Several
//! programs, such as those of two commits, take turns round by round, each with a data directory and
//! a host of its own; without any it is the one that cargo built. Each figure is the median over the
//! rounds. CPU is that of the process alone, without its host, and holds on a loaded machine; wall
//! times do not. Beside it stands the start of the same program that does nothing, `--version`.

mod process;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use taskrun_benches::{Args, percentile, refused};

/// The rounds unless another number is asked for.
const ROUNDS: usize = 5;
/// The runs of each program in a round.
const RUNS: usize = 20;
/// Most wall milliseconds of one, on two idle cores.
const GOAL_MS: f64 = 4.0;
/// Terminals that accept runs at once, each one after the other, and the runs a second that are wanted.
const TERMINALS: usize = 4;
const GOAL_RUNS_PER_SECOND: f64 = 300.0;
/// Longest that a program may take until its components are known.
const KNOWN_WITHIN: Duration = Duration::from_secs(60);
/// Age of what is kept of the agent: an hour.
const KEPT_FOR: Duration = Duration::from_secs(60 * 60);
/// The words of an engine that was started, in the log of a terminal that is asked for more.
const ENGINE: &str = "engine ready";
const TASK: &str = r#"{"steps":[[{"reply":"done"}]]}"#;
const POLICY: &str = r#"[tool.scripted]
component = "scripted-tool.wasm"

[agent.worker]
component = "scripted.wasm"
tools = ["scripted/*"]
"#;

/// The request of the command line.
struct Options {
    rounds: usize,
    runs: usize,
    programs: Vec<PathBuf>,
}

fn main() -> ExitCode {
    let asked = Args::of_process().and_then(|args| Ok((Options::parse(&args.words)?, args)));
    let (options, args) = match asked {
        Ok(asked) => asked,
        Err(wrong) => return refused(&wrong),
    };
    let mut all: Vec<Measured> =
        options.programs.iter().map(|program| Measured::new(program)).collect();
    for _ in 0..options.rounds {
        for measured in &mut all {
            measured.round(options.runs);
        }
    }
    let programs: Vec<Value> = all.iter().map(|measured| measured.report(&all[0])).collect();
    args.print(json!({
        "v": 1,
        "rounds": options.rounds,
        "runs": options.runs,
        "programs": programs,
    }));
    ExitCode::SUCCESS
}

impl Options {
    /// # Errors
    /// A sentence if a word is none of those that are known.
    fn parse(words: &[String]) -> Result<Self, String> {
        let mut options = Self { rounds: ROUNDS, runs: RUNS, programs: Vec::new() };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut number = || {
                let number = words.next().and_then(|word| word.parse().ok());
                number.filter(|number| *number > 0).ok_or_else(|| format!("{word} needs a number"))
            };
            match word.as_str() {
                "--rounds" => options.rounds = number()?,
                "--runs" => options.runs = number()?,
                "--program" => {
                    let file = words.next().ok_or("--program needs a file")?;
                    let found = std::fs::canonicalize(file);
                    options.programs.push(found.map_err(|error| format!("{file}: {error}"))?);
                }
                other => {
                    let known = "known are --rounds N, --runs N, --program FILE, --compare FILE";
                    return Err(format!("unknown argument {other:?}; {known}"));
                }
            }
        }
        if options.programs.is_empty() {
            options.programs.push(env!("CARGO_BIN_EXE_taskrun").into());
        }
        Ok(options)
    }
}

/// The time that a process took, in milliseconds.
#[derive(Clone, Copy)]
struct Took {
    wall: f64,
    cpu: f64,
}

/// A program with its figures, round by round.
struct Measured {
    project: Project,
    runs: Vec<Took>,
    starts: Vec<Took>,
    /// Runs a second of several terminals at once.
    at_once: Vec<f64>,
}

impl Measured {
    fn new(program: &Path) -> Self {
        let project = Project::new(program);
        Self { project, runs: Vec::new(), starts: Vec::new(), at_once: Vec::new() }
    }

    fn round(&mut self, runs: usize) {
        let (mut took, mut starts) = (Vec::with_capacity(runs), Vec::with_capacity(runs));
        for _ in 0..runs {
            starts.push(self.project.timed(&["--version"]).0);
            let (one, id) = self.project.timed(&["run", "worker", TASK, "-d"]);
            // So that the host is idle when the next one is accepted.
            self.project.timed(&["wait", &id]);
            took.push(one);
        }
        self.at_once.push(self.project.at_once(runs));
        self.project.assert_one_host();
        self.runs.push(medians(&took));
        self.starts.push(medians(&starts));
    }

    fn report(&self, first: &Self) -> Value {
        let (run, start) = (medians(&self.runs), medians(&self.starts));
        let before = medians(&first.runs);
        json!({
            "program": self.project.program.display().to_string(),
            "run_detached": {
                "unit": "ms, start to end of the process",
                "wall": rounded(run.wall),
                "cpu": rounded(run.cpu),
                "wall_of_each_round": self.runs.iter().map(|one| rounded(one.wall)).collect::<Vec<_>>(),
                "goal_wall": GOAL_MS,
            },
            "four_terminals_at_once": {
                "unit": "runs accepted a second",
                "rate": rounded(median(&self.at_once)),
                "goal": GOAL_RUNS_PER_SECOND,
            },
            "start_alone": { "wall": rounded(start.wall), "cpu": rounded(start.cpu) },
            "ratio_to_the_first_program": {
                "wall": rounded(run.wall / before.wall),
                "cpu": rounded(run.cpu / before.cpu),
                "rate": rounded(median(&self.at_once) / median(&first.at_once)),
            },
        })
    }
}

fn median(figures: &[f64]) -> f64 {
    percentile(figures, 50)
}

fn medians(took: &[Took]) -> Took {
    let of = |pick: fn(&Took) -> f64| {
        let mut figures: Vec<f64> = took.iter().map(pick).collect();
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    };
    Took { wall: of(|one| one.wall), cpu: of(|one| one.cpu) }
}

fn rounded(figure: f64) -> f64 {
    (figure * 100.0).round() / 100.0
}

/// A folder with a policy, and a program whose host executes the runs of it.
struct Project {
    program: PathBuf,
    folder: tempfile::TempDir,
    host: Child,
}

impl Project {
    /// Returns when a run is accepted without an engine.
    fn new(program: &Path) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, bytes) in [
            ("scripted.wasm", taskrun_examples::SCRIPTED.bytes),
            ("scripted-tool.wasm", taskrun_examples::SCRIPTED_TOOL.bytes),
            ("taskrun.toml", POLICY.as_bytes()),
        ] {
            std::fs::write(folder.path().join(name), bytes).expect("written");
        }
        let host = process::host(program, folder.path());
        let project = Self { program: program.to_owned(), folder, host };
        project.until_known();
        project
    }

    #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    fn until_known(&self) {
        let began = Instant::now();
        loop {
            let mut run = self.command(&["-v", "run", "worker", TASK, "-d"]);
            let output = run.stderr(Stdio::piped()).output().expect("it starts");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{said}");
            self.timed(&["wait", String::from_utf8_lossy(&output.stdout).trim()]);
            if !said.contains(ENGINE) {
                break;
            }
            assert!(began.elapsed() < KNOWN_WITHIN, "its components stay unknown: {said}");
            // A file that was written just now is not yet known by its time.
            std::thread::sleep(Duration::from_millis(500));
        }
        self.age();
    }

    /// Makes what is kept of the agent as old as it is on most days.
    #[expect(clippy::disallowed_methods, reason = "files get their times by the system's clock")]
    fn age(&self) {
        let at = SystemTime::now() - KEPT_FOR;
        let mut folders = vec![self.folder.path().join(".taskrun/blobs")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).expect("a folder") {
                let path = entry.expect("readable").path();
                match path.is_dir() {
                    true => folders.push(path),
                    false => set_modified(&path, at),
                }
            }
            set_modified(&folder, at);
        }
    }

    /// Accepts so many runs from each of several terminals at once; the runs accepted a second. Returns
    /// when they have ended.
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    fn at_once(&self, runs: usize) -> f64 {
        let began = Instant::now();
        let ids: Vec<String> = std::thread::scope(|scope| {
            let terminal = || {
                let one = |_| self.timed(&["run", "worker", TASK, "-d"]).1;
                (0..runs).map(one).collect::<Vec<_>>()
            };
            let terminals: Vec<_> = (0..TERMINALS).map(|_| scope.spawn(terminal)).collect();
            terminals.into_iter().flat_map(|one| one.join().expect("no panic")).collect()
        });
        let rate = ids.len() as f64 / began.elapsed().as_secs_f64();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        self.timed(&[&["wait"], &ids[..]].concat());
        rate
    }

    /// No other host was started beside the one that is ended with this.
    fn assert_one_host(&self) {
        let hosts = self.folder.path().join(".taskrun/hosts");
        let locks = std::fs::read_dir(hosts).expect("a folder").count();
        assert_eq!(locks, 1, "hosts of {}", self.program.display());
    }

    fn command(&self, args: &[&str]) -> Command {
        process::command(&self.program, self.folder.path(), args)
    }

    /// The time that a command took, and the first line of its output.
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    fn timed(&self, args: &[&str]) -> (Took, String) {
        let mut command = self.command(args);
        let (cpu, began) = (cpu_of_children(), Instant::now());
        let output = command.stderr(Stdio::piped()).output().expect("it starts");
        let wall = began.elapsed();
        let cpu = cpu_of_children().saturating_sub(cpu);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {}: {said}", output.status);
        let text = String::from_utf8_lossy(&output.stdout);
        let took = Took { wall: wall.as_secs_f64() * 1e3, cpu: cpu.as_secs_f64() * 1e3 };
        (took, text.lines().next().unwrap_or_default().to_owned())
    }
}

impl Drop for Project {
    fn drop(&mut self) {
        // It may have ended by itself; its folder goes with it.
        self.host.kill().ok();
        self.host.wait().ok();
    }
}

fn set_modified(path: &Path, at: SystemTime) {
    File::open(path).and_then(|file| file.set_modified(at)).expect("it is ours");
}

/// The CPU time of all processes that were started here and have ended.
#[expect(unsafe_code, reason = "it is had from the C library only")]
fn cpu_of_children() -> Duration {
    // SAFETY: the structure is made of integers, of which zeros are some.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: it points to a structure of this kind.
    let read = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    assert_eq!(read, 0, "the system tells");
    let of = |time: libc::timeval| {
        let (seconds, micros) = (time.tv_sec.cast_unsigned(), time.tv_usec.cast_unsigned());
        Duration::from_secs(seconds) + Duration::from_micros(micros)
    };
    of(usage.ru_utime) + of(usage.ru_stime)
}
