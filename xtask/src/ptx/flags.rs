//! Every flag of the device build, each with its reason. They are part of correctness: the manifest
//! records them, and changing one makes the committed PTX stale.

use super::levels::{LEVELS, Level};

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

    /// Flags of this profile, for the kernels and for what they depend on.
    fn rustflags(self) -> &'static [&'static str] {
        match self {
            Self::Release => &[],
            // Adds `, debug` to `.target`, so it must stay out of the release files.
            Self::Lineinfo => &["-Cdebuginfo=line-tables-only"],
            Self::Debug => &["-Cdebuginfo=full", "-Cdebug-assertions=yes", "-Coverflow-checks=yes"],
        }
    }
}

/// Arguments of the `cargo` that builds the contract and `core`, once for all levels: what a level
/// takes from them is generic or inlined, and so compiled with the kernels, for that level.
pub(crate) const CARGO: &[&str] = &[
    "build",
    "--locked",
    "--quiet",
    "--package=bitnet-contract",
    "--release",
    "--target=nvptx64-nvidia-cuda",
    // No compiler ships `core` for this target.
    "-Zbuild-std=core",
    "--message-format=json",
];

/// `RUSTFLAGS` of that build.
pub(crate) fn dependencies(profile: Profile) -> Vec<String> {
    // The lowest level: nothing in them may need more.
    let mut flags = common(&LEVELS[0], profile);
    flags.extend([
        // Bitcode alone, for the fat LTO of the kernels.
        "-Clinker-plugin-lto".into(),
        // That LTO optimises what it takes; doing it here too only costs time.
        "-Cno-prepopulate-passes".into(),
    ]);
    flags
}

/// Arguments of the `rustc` that compiles the kernels for a level, but for where the dependencies
/// are.
pub(crate) fn kernels(level: &Level, profile: Profile) -> Vec<String> {
    let mut flags: Vec<String> = [
        "--crate-name=bitnet_kernels",
        "--crate-type=cdylib",
        // As in Cargo.toml.
        "--edition=2024",
        "--target=nvptx64-nvidia-cuda",
        // Fat LTO comes before linking, so the one `.s` is the whole program.
        "--emit=asm",
        // One module with everything inlined.
        "-Clto=fat",
        "-Ccodegen-units=1",
        // Names of constants are hashes with this: the same on every machine.
        "-Cmetadata=bitnet",
    ]
    .map(String::from)
    .into();
    flags.extend(common(level, profile));
    // Which instructions the prelude may use, and which kernels exist.
    flags.extend(level.cfgs().into_iter().map(|cfg| format!("--cfg={cfg}")));
    flags
}

/// Flags that hold for `core`, the contract and the kernels alike.
fn common(level: &Level, profile: Profile) -> Vec<String> {
    let mut flags: Vec<String> = [
        // The target's default GPU differs between compilers (sm_30, sm_70): never rely on it.
        format!("-Ctarget-cpu={}", level.name),
        // Likewise the ISA; each level takes the lowest that its instructions need, so that old
        // drivers accept it.
        format!("-Ctarget-feature={}", level.isa_feature()),
        "-Copt-level=3".into(),
        // No unwinder on the device, and no panic messages: a panic is a trap.
        "-Zunstable-options".into(),
        "-Cpanic=immediate-abort".into(),
        // What is left of panics names no source files: no machine path gets into the PTX.
        "-Zlocation-detail=none".into(),
        // No bitcode linker is needed (see `--emit`), and none is installed.
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
    flags.extend(profile.rustflags().iter().map(|flag| (*flag).to_owned()));
    flags
}
