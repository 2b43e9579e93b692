//! The request of a benchmark's command line, and its report.

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Map, Value, json};

/// Members that are no figures of the program: what was asked for, and how often it was measured.
const SETTINGS: [&str; 7] = ["v", "n", "rounds", "machine", "runs", "hosts", "turns_each"];

/// The words of a command line, without those that every benchmark knows: `--compare FILE` has ratios
/// to an earlier report printed beside this one.
#[derive(Debug)]
pub struct Args {
    /// The words that are left.
    pub words: Vec<String>,
    earlier: Option<Value>,
    machine: Value,
}

impl Args {
    /// The command line of this process.
    ///
    /// # Errors
    /// A sentence if `--compare` names no file, or one that is no report.
    pub fn of_process() -> Result<Self, String> {
        Self::parse(std::env::args().skip(1))
    }

    fn parse(mut given: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut args = Self { words: Vec::new(), earlier: None, machine: machine() };
        while let Some(word) = given.next() {
            match word.as_str() {
                // Cargo's own.
                "--bench" => {}
                "--compare" => {
                    let file = given.next().ok_or("--compare needs a file")?;
                    args.earlier = Some(read(Path::new(&file))?);
                }
                _ => args.words.push(word),
            }
        }
        Ok(args)
    }

    /// Prints a report as JSON, with the machine as it was when it began, and the ratios of its figures
    /// to those of the earlier one. A ratio above 1 is a figure that has grown.
    pub fn print(&self, mut report: Value) {
        if let Some(earlier) = &self.earlier {
            report["ratios_to_earlier"] = ratios(&report, earlier).unwrap_or(Value::Null);
        }
        report["machine"] = self.machine.clone();
        println!("{report:#}");
    }
}

/// Says what is wrong with a command line, and gives the code of that.
pub fn refused(why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::from(2)
}

fn read(file: &Path) -> Result<Value, String> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).map_err(|error| format!("{shown}: {error}"))?;
    serde_json::from_str(&text).map_err(|error| format!("{shown} is no report: {error}"))
}

/// The processors, and how many processes wanted one in the last minute.
fn machine() -> Value {
    let load = std::fs::read_to_string("/proc/loadavg").expect("Linux tells");
    json!({
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "load_of_a_minute": load.split(' ').next().and_then(|load| load.parse::<f64>().ok()),
    })
}

/// The ratios of all figures that both have at the same place; `None` where there are none.
fn ratios(now: &Value, earlier: &Value) -> Option<Value> {
    match (now, earlier) {
        (Value::Object(now), Value::Object(earlier)) => {
            let is_figure = |name: &str| !SETTINGS.contains(&name) && !name.starts_with("goal");
            let both = now.iter().filter(|(name, _)| is_figure(name));
            let both = both
                .filter_map(|(name, now)| Some((name.clone(), ratios(now, earlier.get(name)?)?)));
            let both: Map<String, Value> = both.collect();
            (!both.is_empty()).then_some(both.into())
        }
        (Value::Array(now), Value::Array(earlier)) if now.len() == earlier.len() => {
            let all: Option<Vec<Value>> =
                now.iter().zip(earlier).map(|(now, earlier)| ratios(now, earlier)).collect();
            all.filter(|all| !all.is_empty()).map(Value::Array)
        }
        (Value::Number(now), Value::Number(earlier)) => {
            let ratio = now.as_f64()? / earlier.as_f64().filter(|earlier| *earlier != 0.0)?;
            Some(json!((ratio * 100.0).round() / 100.0))
        }
        _ => None,
    }
}
