//! Nothing but its dependencies: they ask for one set of features of what several crates of this
//! workspace are built on, so that every way to build, of all packages or of one, with tests or
//! without, compiles it once.
