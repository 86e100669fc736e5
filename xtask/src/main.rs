//! `cargo xtask`: builds, checks, tests and packs.
fn main() {}
