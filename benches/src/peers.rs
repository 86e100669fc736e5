//! Figures of other libraries, measured by their own Python on the same GPU in the same run.
//!
//! The script is part of the program and goes to `python3` through a pipe, so that it is at hand
//! wherever the program is.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde::Deserialize;

/// `tools/peer_gemv.py`.
const GEMV: &str = include_str!("../../tools/peer_gemv.py");

/// What a peer script prints.
#[derive(Clone, Debug, Deserialize)]
pub struct Peers {
    /// Library, versions and method, for people.
    pub about: String,
    /// The cases.
    pub rows: Vec<PeerRow>,
}

/// One case of a peer, in microseconds for one call.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct PeerRow {
    /// Output features.
    pub n: usize,
    /// Input features.
    pub k: usize,
    /// Median, distinct weights in rotation.
    pub cold_us: f64,
    /// Median, one weight.
    pub warm_us: f64,
}

/// PyTorch's bf16 GEMV at `shapes` (n, k), rotating over `cold_mb` megabytes.
///
/// # Errors
/// No python3, no PyTorch with CUDA in it, or a script that failed; its own words are shown.
pub fn gemv(shapes: &[(usize, usize)], cold_mb: u64, device: u32) -> anyhow::Result<Peers> {
    let shapes: Vec<_> = shapes.iter().map(|(n, k)| format!("{n}x{k}")).collect();
    let mut python = Command::new("python3")
        .args(["-", "--cold-mb", &cold_mb.to_string(), "--device", &device.to_string()])
        .args(&shapes)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("--peers needs python3 with PyTorch")?;
    if let Some(mut stdin) = python.stdin.take() {
        stdin.write_all(GEMV.as_bytes())?;
    }
    let output = python.wait_with_output()?;
    if !output.status.success() {
        bail!("the peer script ended with {}; --peers needs PyTorch with CUDA", output.status);
    }
    serde_json::from_slice(&output.stdout).context("the peer script printed something else")
}
