//! ptxas, from NVIDIA's Python wheels: assembles PTX for real GPUs and says what each kernel uses.
//!
//! Two releases are needed: CUDA 13 knows sm_75 and up, CUDA 12.9 is the last that knows older
//! ones. They are put into the target folder when first asked for. Answers are kept there too, by
//! hash of the PTX.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::manifest::sha256;
use crate::wheel::Wheel;
use crate::{process, workspace};

/// Both, and what they said, are here in the target folder.
const FOLDER: &str = "ptxas";

const CUDA_13: Wheel =
    Wheel { package: "nvidia-cuda-nvcc", version: "13.0.88", path: "nvidia/cu13/bin/ptxas" };
const CUDA_12: Wheel = Wheel {
    package: "nvidia-cuda-nvcc-cu12",
    version: "12.9.86",
    path: "nvidia/cuda_nvcc/bin/ptxas",
};

/// Both assemblers, installed.
pub(crate) struct Ptxas {
    cuda_12: PathBuf,
    cuda_13: PathBuf,
}

/// How well ptxas optimises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// As the driver does.
    Full,
    /// Not at all.
    Least,
}

/// What ptxas says about one kernel on one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Registers of a thread.
    pub(crate) registers: u32,
    /// Bytes of local memory of a thread.
    pub(crate) stack_bytes: u32,
    /// Bytes written and read to spill registers.
    pub(crate) spill_bytes: u32,
    /// Bytes of static shared memory of a block.
    pub(crate) smem_bytes: u32,
}

/// The answer for one file and one GPU.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Assembled {
    /// By symbol.
    pub(crate) usage: BTreeMap<String, Usage>,
    /// Warnings, and notices of serialised wgmma.
    pub(crate) complaints: Vec<String>,
}

impl Ptxas {
    /// Finds both assemblers in the target folder, or puts them there with pip.
    pub(crate) fn install() -> Result<Self> {
        Ok(Self { cuda_12: CUDA_12.install(FOLDER)?, cuda_13: CUDA_13.install(FOLDER)? })
    }

    /// Where the assemblers are when they are installed, without installing any.
    pub(crate) fn installed() -> Option<Self> {
        let [cuda_12, cuda_13] = [CUDA_12, CUDA_13].map(|wheel| wheel.place(FOLDER));
        (cuda_12.exists() && cuda_13.exists()).then_some(Self { cuda_12, cuda_13 })
    }

    /// Assembles the file at `ptx` for `gpu` and throws the code away. With [`Effort::Least`] the code is none that would
    /// be run, and quickly there: what it says of the text counts.
    pub(crate) fn assemble(&self, ptx: &Path, gpu: &str, effort: Effort) -> Result<Assembled> {
        let old = sm(gpu)? < 75;
        let (ptxas, wheel) =
            if old { (&self.cuda_12, &CUDA_12) } else { (&self.cuda_13, &CUDA_13) };
        let text = std::fs::read(ptx).with_context(|| format!("reading {}", ptx.display()))?;
        let level = match effort {
            Effort::Full => "-O3",
            Effort::Least => "-O0",
        };
        let of = [gpu, wheel.version, level].map(str::as_bytes);
        let key = sha256(&[&text[..], &of.concat()].concat());
        let kept = workspace::target().join(FOLDER).join("answers").join(&key[..32]);
        let said = match std::fs::read_to_string(&kept) {
            Ok(said) => said,
            Err(_) => {
                let mut command = patient(ptxas);
                command
                    .args([level, "--verbose", "--gpu-name", gpu, "--output-file"])
                    .arg(null())
                    .arg(ptx);
                let out = process::capture(&mut command)?;
                let said = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
                std::fs::create_dir_all(kept.parent().unwrap_or(Path::new(".")))?;
                std::fs::write(&kept, &said)?;
                said
            }
        };
        Ok(parse(&said))
    }
}

/// A command that takes the time that others leave: `cargo xtask test` has it run beside tests that have a time limit.
fn patient(program: &Path) -> Command {
    if cfg!(unix) {
        let mut command = process::foreign("nice");
        command.args(["-n", "19"]).arg(program);
        command
    } else {
        process::foreign(program)
    }
}

fn null() -> &'static str {
    if cfg!(windows) { "NUL" } else { "/dev/null" }
}

/// The number of `sm_90a` is 90.
fn sm(gpu: &str) -> Result<u32> {
    let digits = gpu.trim_start_matches("sm_").trim_end_matches(|c: char| c.is_alphabetic());
    digits.parse().with_context(|| format!("`{gpu}` is not a GPU name like sm_80"))
}

/// Reads what `ptxas --verbose` says.
fn parse(said: &str) -> Assembled {
    let mut found = Assembled::default();
    let mut symbol = String::new();
    for line in said.lines() {
        if let Some(rest) = line.split_once("Compiling entry function '") {
            symbol = rest.1.split('\'').next().unwrap_or_default().to_owned();
            found.usage.entry(symbol.clone()).or_default();
        } else if line.contains("warning") || line.contains("serialized") {
            found.complaints.push(line.trim().to_owned());
        } else if let Some(usage) = found.usage.get_mut(&symbol) {
            let before = |what: &str| number_before(line, what).unwrap_or(0);
            if line.contains("stack frame") {
                usage.stack_bytes = before(" bytes stack frame");
                usage.spill_bytes = before(" bytes spill stores") + before(" bytes spill loads");
            } else if line.contains("Used ") {
                usage.registers = before(" registers");
                usage.smem_bytes = before(" bytes smem");
            }
        }
    }
    found
}

fn number_before(line: &str, what: &str) -> Option<u32> {
    let before = &line[..line.find(what)?];
    before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'rmsnorm' for 'sm_80'
ptxas info    : Function properties for rmsnorm
    64 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 1024 bytes smem, 384 bytes cmem[0]
ptxas info    : Compiling entry function 'rope' for 'sm_80'
ptxas info    : Function properties for rope
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, 376 bytes cmem[0]
ptxas warning : something odd
";

    #[test]
    fn reads_what_each_kernel_uses() {
        let found = parse(SAID);
        let rmsnorm = Usage { registers: 40, stack_bytes: 64, spill_bytes: 20, smem_bytes: 1024 };
        assert_eq!(found.usage["rmsnorm"], rmsnorm);
        assert_eq!(found.usage["rope"], Usage { registers: 10, ..Usage::default() });
        assert_eq!(found.complaints, ["ptxas warning : something odd"]);
    }

    #[test]
    fn gpu_names_have_numbers() {
        assert_eq!(
            (sm("sm_53").unwrap(), sm("sm_90a").unwrap(), sm("sm_120").unwrap()),
            (53, 90, 120)
        );
        assert!(sm("ampere").is_err());
    }
}
