//! The benchmarks of taskrun are targets of this crate; it has no code of its own.
