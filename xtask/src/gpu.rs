//! Whether this machine has an NVIDIA GPU: asked of the driver's own tool, then of the device
//! files, because a Jetson has no nvidia-smi.

use std::path::Path;
use std::process::Command;

/// Names of the GPUs, or why none is expected to work.
pub(crate) fn present() -> Result<String, String> {
    if let Ok(out) = Command::new("nvidia-smi").arg("-L").output() {
        let list = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        if out.status.success() && list.contains("GPU ") {
            return Ok(list);
        }
        return Err(format!("nvidia-smi lists no GPU: {list}").trim_end_matches([':', ' ']).into());
    }
    for file in ["/dev/nvidia0", "/dev/nvhost-gpu", "/dev/nvgpu/igpu0"] {
        if Path::new(file).exists() {
            return Ok(file.to_owned());
        }
    }
    Err("no NVIDIA GPU here: no nvidia-smi and no device file".into())
}
