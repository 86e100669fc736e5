//! `bitnet`: runs BitNet models.
fn main() {}
