//! Figures of other libraries, measured by their own Python on the same GPU in the same run.
//!
//! The script is part of the program and goes to `python3` through a pipe, so that it is at hand
//! wherever the program is.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde::Deserialize;

const SCRIPT: &str = include_str!("../../tools/peers.py");

/// What the script prints.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Peers {
    /// Library, versions and method, for people.
    pub(crate) about: String,
    /// The cases.
    pub(crate) rows: Vec<PeerRow>,
}

/// One case of one peer, in microseconds for one call.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct PeerRow {
    /// The case, as the benchmark names it.
    pub(crate) case: String,
    /// The library and its element type.
    pub(crate) peer: String,
    /// Median, distinct tensors in rotation; absent for cases that do not rotate.
    pub(crate) cold_us: Option<f64>,
    /// Median, one copy of the tensors.
    pub(crate) warm_us: f64,
}

/// The peers of `bench` at `cases`, rotating over `cold_mb` megabytes.
///
/// # Errors
/// No python3, no PyTorch with CUDA in it, or a script that failed; its own words are shown.
pub(crate) fn measure(
    bench: &str,
    cases: &[String],
    cold_mb: u64,
    device: u32,
) -> anyhow::Result<Peers> {
    let mut python = Command::new("python3")
        .args(["-", "--cold-mb", &cold_mb.to_string(), "--device", &device.to_string(), bench])
        .args(cases)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("--peers needs python3 with PyTorch")?;
    if let Some(mut stdin) = python.stdin.take() {
        stdin.write_all(SCRIPT.as_bytes())?;
    }
    let output = python.wait_with_output()?;
    if !output.status.success() {
        bail!("the peer script ended with {}; --peers needs PyTorch with CUDA", output.status);
    }
    serde_json::from_slice(&output.stdout).context("the peer script printed something else")
}
