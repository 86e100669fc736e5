//! Figures of other libraries, measured by their own Python on the same GPU in the same run.
//!
//! The scripts are part of the program, so that they are at hand wherever it is; `python3` reads them
//! from a folder that lives as long as it runs.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde::Deserialize;

const SCRIPTS: [(&str, &str); 2] = [
    ("peers.py", include_str!("../../tools/peers.py")),
    ("triton_w2a8.py", include_str!("../../tools/triton_w2a8.py")),
];

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

/// The peers of `bench` at `cases`, rotating over `cold_mb` megabytes; `ms_kernel` is a build of the
/// published `bitlinear_int8xint2`.
///
/// # Errors
/// No python3, no PyTorch with CUDA in it, or a script that failed; its own words are shown.
pub(crate) fn measure(
    bench: &str,
    cases: &[String],
    cold_mb: u64,
    device: u32,
    ms_kernel: Option<&Path>,
) -> anyhow::Result<Peers> {
    let folder = tempfile::tempdir()?;
    for (name, text) in SCRIPTS {
        std::fs::write(folder.path().join(name), text)?;
    }
    let mut python = Command::new("python3");
    python.arg(folder.path().join(SCRIPTS[0].0));
    python.args(["--cold-mb", &cold_mb.to_string(), "--device", &device.to_string()]);
    if let Some(library) = ms_kernel {
        python.arg("--ms-kernel").arg(library.canonicalize().context("--ms-kernel")?);
    }
    let output = python
        .arg(bench)
        .args(cases)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("--peers needs python3 with PyTorch")?;
    if !output.status.success() {
        bail!("the peer script ended with {}; --peers needs PyTorch with CUDA", output.status);
    }
    serde_json::from_slice(&output.stdout).context("the peer script printed something else")
}
