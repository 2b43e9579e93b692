//! The real program as processes: two terminals, kill -9, wrong input, and what each prints.

mod demo;
mod input;
mod project;
mod two;
