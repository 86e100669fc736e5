//! Every flag of the device build, each with its reason. They are part of correctness: the manifest
//! records them, and changing one makes the committed PTX stale.

use super::levels::Level;

/// What the PTX is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Profile {
    /// The committed PTX.
    Release,
    /// The same code with `.loc` lines, for profilers. Goes to the target folder.
    Lineinfo,
    /// Full debug information, overflow and debug assertions (a failed one traps). Goes to the
    /// target folder.
    Debug,
}

impl Profile {
    /// Folder name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Lineinfo => "lineinfo",
            Self::Debug => "debug",
        }
    }

    /// Settings laid over `[profile.ptx]` of the workspace.
    pub(crate) fn settings(self) -> &'static [&'static str] {
        match self {
            Self::Release => &["profile.ptx.debug=false"],
            // Adds `, debug` to `.target`, so it must stay out of the release files.
            Self::Lineinfo => &["profile.ptx.debug=\"line-tables-only\""],
            Self::Debug => &[
                "profile.ptx.debug=\"full\"",
                "profile.ptx.debug-assertions=true",
                "profile.ptx.overflow-checks=true",
            ],
        }
    }
}

/// Arguments of `cargo` for every level.
pub(crate) const CARGO: &[&str] = &[
    "rustc",
    "--locked",
    "--package=bitnet-kernels-gpu",
    // Fat LTO, one codegen unit, abort: one module with everything inlined (Cargo.toml).
    "--profile=ptx",
    "--target=nvptx64-nvidia-cuda",
    // No compiler ships `core` for this target.
    "-Zbuild-std=core",
];

/// Arguments of the last `rustc` only.
pub(crate) const FINAL: &[&str] = &[
    // Fat LTO comes before linking, so the one `.s` is the whole program.
    "--emit=asm",
];

/// `RUSTFLAGS`: they hold for `core`, the contract and the kernels alike.
pub(crate) fn rustflags(level: &Level) -> Vec<String> {
    let mut flags: Vec<String> = [
        // The target's default GPU differs between compilers (sm_30, sm_70): never rely on it.
        format!("-Ctarget-cpu={}", level.name),
        // Likewise the ISA; each level takes the lowest that its instructions need, so that old
        // drivers accept it.
        format!("-Ctarget-feature={}", level.isa_feature()),
        // No unwinder on the device, and no panic messages: a panic is a trap.
        "-Zunstable-options".into(),
        "-Cpanic=immediate-abort".into(),
        // What is left of panics names no source files: no machine path gets into the PTX.
        "-Zlocation-detail=none".into(),
        // No bitcode linker is needed (see FINAL), and none is installed.
        "-Clinker=/bin/true".into(),
        // Without it LLVM keeps loops over small arrays rolled, and an array that is indexed at
        // run time lives in local memory: 64 to 128 bytes of stack a thread, 2 to 4 times slower.
        // The audit demands zero stack.
        "-Cllvm-args=-unroll-threshold=20000".into(),
        // Correctness. MIR jump threading does not know convergence: it copied a barrier that stood
        // between two tests of one uniform condition into both arms of a thread-dependent branch,
        // and the kernel hung. The audit counts barriers, so that this cannot come back unseen.
        "-Zmir-enable-passes=-JumpThreading".into(),
    ]
    .into();
    // Which instructions the prelude may use, and which kernels exist.
    flags.extend(level.cfgs().into_iter().map(|cfg| format!("--cfg={cfg}")));
    flags
}
