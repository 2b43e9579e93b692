//! Cargo looks at the build dependencies of packages that have a build script.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
