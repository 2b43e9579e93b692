//! Builds the guests of `guest-examples/`, which are a workspace of their own with other targets
//! and another profile, and lays their components into `OUT_DIR` as `<crate>.wasm`.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

/// Where a guest's import list is exactly what it uses.
const PLAIN: &str = "wasm32-unknown-unknown";
/// Where `std::fs` works.
const WASI: &str = "wasm32-wasip2";
/// The guests for [`WASI`]; all others are for [`PLAIN`].
const WASI_GUESTS: [&str; 3] = ["dice", "wasi-files", "evil-wasi"];
/// Folders of `guest-examples/` with a crate in each subfolder.
const FAMILIES: [&str; 4] = ["agents", "tools", "policies", "evil"];

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            println!("cargo::error={message}");
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), String> {
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")?).join("../..");
    let guests = root.join("guest-examples");
    // Not the folder itself: an author's own builds in it put a `target` there. The bindings in
    // the SDK stand for `wit/`.
    let watched = ["Cargo.toml", "Cargo.lock", ".cargo"].into_iter().chain(FAMILIES);
    for path in watched.map(|name| guests.join(name)) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    for name in ["sdk/rust/src", "sdk/rust/Cargo.toml"] {
        println!("cargo::rerun-if-changed={}", root.join(name).display());
    }

    install_targets(&guests)?;
    let out = PathBuf::from(variable("OUT_DIR")?);
    let target_dir = target_dir(&out);
    let plain = WASI_GUESTS.iter().flat_map(|name| ["--exclude", name]);
    cargo(&guests, &target_dir, PLAIN, ["--workspace"].into_iter().chain(plain))?;
    cargo(&guests, &target_dir, WASI, WASI_GUESTS.iter().flat_map(|name| ["--package", name]))?;

    for name in crates(&guests)? {
        let target = if WASI_GUESTS.contains(&name.as_str()) { WASI } else { PLAIN };
        let file = format!("{}.wasm", name.replace('-', "_"));
        let made = target_dir.join(target).join("release").join(file);
        copy(&made, &out.join(format!("{name}.wasm")))?;
    }
    Ok(())
}

/// Sees to it that the compiler has the guests' targets, and installs them where rustup can.
fn install_targets(guests: &Path) -> Result<(), String> {
    let sysroot = Command::new(variable("RUSTC")?)
        .args(["--print", "sysroot"])
        .output()
        .map_err(|error| format!("cannot run rustc: {error}"))?;
    let sysroot = String::from_utf8_lossy(&sysroot.stdout).trim().to_owned();
    let is_missing =
        |target: &&str| !Path::new(&sysroot).join("lib/rustlib").join(target).join("lib").is_dir();
    let missing: Vec<&str> = [PLAIN, WASI].into_iter().filter(is_missing).collect();
    if missing.is_empty() {
        return Ok(());
    }
    // In the guests' folder, so that rustup means the toolchain of this repository.
    let installed = Command::new("rustup")
        .args(["target", "add"])
        .args(&missing)
        .current_dir(guests)
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if installed && !missing.iter().any(is_missing) {
        return Ok(());
    }
    let targets = missing.join(" ");
    Err(format!(
        "the guests need compiler targets that are not installed and could not be added; \
         run `rustup target add {targets}` in the repository, or install the standard library of \
         {targets} beside {sysroot} as your system does it"
    ))
}

fn cargo<'a>(
    guests: &Path,
    target_dir: &Path,
    target: &str,
    packages: impl Iterator<Item = &'a str>,
) -> Result<(), String> {
    let mut command = Command::new(variable("CARGO")?);
    command
        .args(["build", "--release", "--locked", "--target", target])
        .arg("--target-dir")
        .arg(target_dir)
        .args(packages)
        .current_dir(guests)
        .stdout(Stdio::null());
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_about_this_build) {
            command.env_remove(name);
        }
    }
    let status = command.status().map_err(|error| format!("cannot run cargo: {error}"))?;
    if status.success() {
        return Ok(());
    }
    Err(format!(
        "the guests for {target} do not build (cargo's output is below); see for yourself with \
         `cargo build --release --locked --target {target}` in guest-examples/"
    ))
}

/// True if a variable describes the build of the host, and would turn the guests' into another
/// one: flags, wrappers (such as clippy's), profiles, target folders.
fn is_about_this_build(name: &str) -> bool {
    const GUESTS_TOO: [&str; 4] =
        ["CARGO_HOME", "CARGO_MAKEFLAGS", "CARGO_TERM_COLOR", "CARGO_INCREMENTAL"];
    const GUESTS_TOO_BEGINNINGS: [&str; 4] =
        ["CARGO_NET_", "CARGO_HTTP_", "CARGO_REGISTR", "CARGO_SOURCE_"];
    const HOST_ONLY: [&str; 5] =
        ["RUSTFLAGS", "RUSTDOCFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "RUSTC_LINKER"];
    HOST_ONLY.contains(&name)
        || (name.starts_with("CARGO")
            && !GUESTS_TOO.contains(&name)
            && !GUESTS_TOO_BEGINNINGS.iter().any(|beginning| name.starts_with(beginning)))
}

/// One target folder for the guests of all profiles of the host: beside them, as
/// `target/guests`.
fn target_dir(out: &Path) -> PathBuf {
    // target/<profile>/build/<crate>/out
    let profile = out.ancestors().find(|path| path.ends_with("build")).and_then(Path::parent);
    profile.and_then(Path::parent).unwrap_or(out).join("guests")
}

/// The names of the guests: their folders.
fn crates(guests: &Path) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for family in FAMILIES.map(|family| guests.join(family)) {
        let folders = fs::read_dir(&family).map_err(|error| failed("list", &family, &error))?;
        for folder in folders {
            let folder = folder.map_err(|error| failed("list", &family, &error))?;
            if folder.path().join("Cargo.toml").is_file() {
                names.push(folder.file_name().to_string_lossy().into_owned());
            }
        }
    }
    Ok(names)
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let made = fs::read(from).map_err(|error| failed("read", from, &error))?;
    fs::write(to, made).map_err(|error| failed("write", to, &error))
}

fn failed(what: &str, path: &Path, error: &std::io::Error) -> String {
    format!("cannot {what} {}: {error}", path.display())
}

#[expect(clippy::disallowed_methods, reason = "this is how cargo speaks to build scripts")]
fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|_| format!("{name} is not set; run this by cargo"))
}
