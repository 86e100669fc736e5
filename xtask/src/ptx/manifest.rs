//! `manifest.json`: what each PTX file is, what it needs, what is in it, and what it was built from.
//!
//! The loader, the documents and the tests read the same file. A level is fresh when the hash over
//! its sources and flags is that of the working copy, and the PTX itself is the one recorded.

use std::collections::BTreeMap;
use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use contract::launch::KernelInfo;
use lzma_rust2::{XzOptions, XzReader, XzWriter};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::compiler::Compiler;
use super::flags::{self, Profile};
use super::levels::{FILES, Level};
use crate::{kernels, workspace};

/// The whole file.
#[derive(Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// Raised when the meaning of a field changes.
    pub(crate) format: u32,
    /// Lowest architecture first.
    pub(crate) levels: Vec<Built>,
}

/// The PTX of one level.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct Built {
    /// `.target` of the text.
    pub(crate) arch: String,
    /// File name beside the manifest; levels of a generation share one, with a zero byte between their texts.
    pub(crate) file: String,
    /// PTX ISA version.
    pub(crate) isa: String,
    /// Lowest compute capability, `10 * major + minor`; exact when `arch` ends in `a`.
    pub(crate) min_sm: u32,
    /// First CUDA release whose driver takes this ISA.
    pub(crate) min_cuda: String,
    /// The Linux driver branch of that release.
    pub(crate) min_driver: u32,
    /// GPUs whose machine code is assembled from it when it is audited.
    pub(crate) serves: Vec<String>,
    /// Hash of the text, unpacked.
    pub(crate) sha256: String,
    /// Hash over sources and flags.
    pub(crate) source_sha256: String,
    /// `rustc --version` of the compiler that built it.
    pub(crate) rustc: String,
    /// Its LLVM.
    pub(crate) llvm: String,
    /// Flags it was built with.
    pub(crate) flags: Vec<String>,
    /// Kernels in the text.
    pub(crate) kernels: Vec<Present>,
    /// Kernels of the contract that this level cannot have: symbol and reason.
    pub(crate) absent: BTreeMap<String, String>,
}

/// A kernel in a text.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct Present {
    /// Entry name.
    pub(crate) symbol: String,
    /// Bytes of the one parameter.
    pub(crate) args_bytes: usize,
    /// Exact block.
    pub(crate) block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub(crate) smem_bytes: u32,
}

const FORMAT: u32 = 2;

impl Manifest {
    /// The committed one; empty when there is none.
    pub(crate) fn read() -> Result<Self> {
        let path = workspace::ptx().join("manifest.json");
        if !path.exists() {
            return Ok(Self { format: FORMAT, levels: Vec::new() });
        }
        let text = std::fs::read_to_string(&path)?;
        serde_json::from_str(&text).with_context(|| format!("{} is damaged", path.display()))
    }

    /// Puts `built` in place of the level of the same name, and writes the file to `dir`.
    pub(crate) fn update(mut self, built: Vec<Built>, dir: &Path) -> Result<()> {
        self.format = FORMAT;
        self.levels.retain(|old| !built.iter().any(|new| new.arch == old.arch));
        self.levels.extend(built);
        let rank = |arch: &str| super::levels::LEVELS.iter().position(|level| level.name == arch);
        self.levels.retain(|level| rank(&level.arch).is_some());
        self.levels.sort_by_key(|level| rank(&level.arch));
        std::fs::write(dir.join("manifest.json"), serde_json::to_string_pretty(&self)? + "\n")?;
        Ok(())
    }

    /// The texts of the committed levels, unpacked into a folder of the target folder.
    pub(crate) fn unpack(levels: &[&'static Level]) -> Result<PathBuf> {
        let dir = workspace::target().join("ptx/committed");
        std::fs::create_dir_all(&dir)?;
        for level in levels {
            std::fs::write(dir.join(format!("{}.ptx", level.name)), committed(level)?)?;
        }
        Ok(dir)
    }

    /// The level of that name.
    pub(crate) fn level(&self, name: &str) -> Option<&Built> {
        self.levels.iter().find(|level| level.arch == name)
    }
}

impl Built {
    /// Describes `ptx` of `level`. Kernels of the contract that are not in `written` have no source.
    pub(crate) fn new(
        level: &Level,
        written: &[KernelInfo],
        compiler: &Compiler,
        source_sha256: &str,
        ptx: &str,
    ) -> Result<Self> {
        let (cuda, driver) = level.driver()?;
        let why = |kernel: &KernelInfo| match level.absent(kernel) {
            None if !written.contains(kernel) => Some("not written yet".to_owned()),
            why => why,
        };
        let absent = kernels::kernels()
            .iter()
            .filter_map(|kernel| Some((kernel.spec.symbol.to_owned(), why(kernel)?)))
            .collect();
        let mut present: Vec<_> = written
            .iter()
            .filter(|kernel| level.absent(kernel).is_none())
            .map(|kernel| Present {
                symbol: kernel.spec.symbol.to_owned(),
                args_bytes: kernel.args_bytes,
                block: kernel.spec.block,
                smem_bytes: kernel.spec.smem_bytes,
            })
            .collect();
        present.sort_by(|a, b| a.symbol.cmp(&b.symbol));
        Ok(Self {
            arch: level.name.into(),
            file: file_name(level.name),
            isa: level.isa_version(),
            min_sm: level.sm,
            min_cuda: cuda.into(),
            min_driver: driver,
            serves: level.serves.iter().map(|&gpu| gpu.into()).collect(),
            sha256: sha256(ptx.as_bytes()),
            source_sha256: source_sha256.into(),
            rustc: compiler.version.clone(),
            llvm: compiler.llvm.clone(),
            flags: flags::kernels(level, Profile::Release),
            kernels: present,
            absent,
        })
    }
}

/// The levels that share a file with `level`, itself among them.
fn companions(level: &str) -> &'static [&'static str] {
    FILES.into_iter().find(|names| names.contains(&level)).unwrap_or_default()
}

/// Name of a level's file beside the manifest.
fn file_name(level: &str) -> String {
    let first = companions(level).first().copied().unwrap_or(level);
    format!("{first}.ptx.xz")
}

/// Writes the texts of some levels to `dir`; those that share their files stay as they are. The same texts give
/// the same bytes.
pub(crate) fn pack(texts: &BTreeMap<&str, &str>, dir: &Path) -> Result<()> {
    std::thread::scope(|scope| {
        let files = FILES.into_iter().filter(|names| names.iter().any(|n| texts.contains_key(n)));
        let packing: Vec<_> = files
            .map(|names| {
                scope.spawn(move || -> Result<()> {
                    let old = dir.join(file_name(names[0]));
                    let mut together = Vec::new();
                    for &name in names {
                        match texts.get(name) {
                            Some(&text) => together.push(text.to_owned()),
                            None if old.exists() => together.push(unpack(&old, name)?),
                            // The first time, with some levels only.
                            None => {}
                        }
                    }
                    pack_file(&together, &old)
                })
            })
            .collect();
        packing
            .into_iter()
            .try_for_each(|file| file.join().unwrap_or_else(|_| bail!("packing ended early")))
    })
}

/// Texts with a zero byte between one and the next.
fn pack_file(texts: &[String], path: &Path) -> Result<()> {
    let mut options = XzOptions::with_preset(6);
    // Text has no words of four bytes that begin at multiples of four; what goes before a byte says
    // more. A fiftieth smaller than the preset. A kernel is found again one text back.
    let back = texts.iter().map(String::len).max().unwrap_or_default().next_power_of_two();
    options.lzma_options.dict_size = u32::try_from(back.clamp(8 << 20, 64 << 20))?;
    options.lzma_options.pb = 0;
    options.lzma_options.lc = 4;
    options.lzma_options.nice_len = 273;
    options.lzma_options.depth_limit = 512;
    // A build that is stopped leaves the old file whole.
    let part = path.with_extension("part");
    let file = std::fs::File::create(&part)?;
    let mut xz = XzWriter::new(std::io::BufWriter::new(file), options)?;
    xz.write_all(texts.join("\0").as_bytes())?;
    xz.finish()?.flush()?;
    std::fs::rename(part, path)?;
    Ok(())
}

/// The text of a level in a file.
fn unpack(path: &Path, level: &str) -> Result<String> {
    let file = std::io::BufReader::new(std::fs::File::open(path)?);
    let target = format!("\n.target {level}\n");
    for text in std::io::BufReader::new(XzReader::new(file, false)).split(0) {
        let text = String::from_utf8(text?)?;
        if text.contains(&target) {
            return Ok(text);
        }
    }
    bail!("no text of {level}")
}

/// The committed text of a level.
pub(crate) fn committed(level: &Level) -> Result<String> {
    let path = workspace::ptx().join(file_name(level.name));
    unpack(&path, level.name)
        .with_context(|| format!("no PTX at {}; try: cargo xtask build-ptx", path.display()))
}

/// Hash over everything that decides the PTX of `level` but the compiler: kernel and contract
/// sources, their manifests, the locked dependencies, the flags.
pub(crate) fn source_sha256(level: &Level) -> Result<String> {
    let root = workspace::root();
    let mut hash = Sha256::new();
    let mut add = |name: &str, text: &str| {
        // A checkout with CRLF line ends has the same sources.
        let text = text.replace("\r\n", "\n");
        hash.update(format!("{name}\0{}\0{text}", text.len()));
    };
    for path in workspace::files(&root.join("kernels-gpu"), &[".rs", "Cargo.toml"])? {
        add(&workspace::relative(&path), &std::fs::read_to_string(&path)?);
    }
    let lock = std::fs::read_to_string(root.join("Cargo.lock"))?;
    for package in device_packages(&lock) {
        add("locked", package);
    }
    add("cargo", &flags::CARGO.join("\n"));
    add("dependencies", &flags::dependencies(Profile::Release).join("\n"));
    add("kernels", &flags::kernels(level, Profile::Release).join("\n"));
    Ok(hex(&hash.finalize()))
}

/// Lock entries of registry packages that the contract depends on, directly or not.
fn device_packages(lock: &str) -> Vec<&str> {
    let blocks: BTreeMap<&str, &str> = lock
        .split("[[package]]\n")
        .skip(1)
        .filter_map(|block| Some((quoted(block.lines().next()?)?, block.trim_end())))
        .collect();
    let mut open = vec!["bitnet-contract"];
    let mut seen: Vec<&str> = Vec::new();
    while let Some(name) = open.pop() {
        if seen.contains(&name) {
            continue;
        }
        seen.push(name);
        let Some(block) = blocks.get(name) else { continue };
        let dependencies = block.split_once("dependencies = [").map_or("", |(_, list)| list);
        open.extend(
            dependencies
                .lines()
                .filter_map(quoted)
                .map(|dependency| dependency.split(' ').next().unwrap_or(dependency)),
        );
    }
    seen.sort_unstable();
    seen.iter()
        .filter_map(|name| blocks.get(name).copied())
        .filter(|block| block.contains("checksum = "))
        .collect()
}

fn quoted(line: &str) -> Option<&str> {
    line.split('"').nth(1)
}

/// SHA-256 in hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_packages_are_followed() {
        let lock = "version = 4\n\n\
            [[package]]\nname = \"bitnet-contract\"\nversion = \"0.1.0\"\ndependencies = [\n \"half\",\n]\n\n\
            [[package]]\nname = \"half\"\nversion = \"2.7.1\"\nchecksum = \"aa\"\ndependencies = [\n \"cfg-if\",\n]\n\n\
            [[package]]\nname = \"cfg-if\"\nversion = \"1.0.5\"\nchecksum = \"bb\"\n\n\
            [[package]]\nname = \"clap\"\nversion = \"4.6.0\"\nchecksum = \"cc\"\n";
        let found = device_packages(lock);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("cfg-if") && found[1].contains("half"));
    }

    /// One level built alone leaves the others of its file as they are, and says so when it cannot.
    #[test]
    fn levels_that_share_a_file_are_packed_apart_and_together() {
        let dir = std::env::temp_dir().join(format!("pack-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let text = |level: &str, what: &str| format!(".version 8.1\n.target {level}\n// {what}\n");
        let (old, wide) = (text("sm_90", "old"), text("sm_90a", "old"));
        pack(&BTreeMap::from([("sm_90", &old[..]), ("sm_90a", &wide)]), &dir).unwrap();
        let new = text("sm_90", "new");
        pack(&BTreeMap::from([("sm_90", &new[..])]), &dir).unwrap();
        let path = dir.join(file_name("sm_90"));
        assert_eq!(path, dir.join("sm_90a.ptx.xz"));
        assert_eq!(unpack(&path, "sm_90").unwrap(), new);
        assert_eq!(unpack(&path, "sm_90a").unwrap(), wide);
        assert!(unpack(&path, "sm_80").is_err());
        std::fs::write(&path, "damaged").unwrap();
        assert!(pack(&BTreeMap::from([("sm_90", &new[..])]), &dir).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"damaged");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn levels_have_different_source_hashes() {
        let [a, b] = [&super::super::levels::LEVELS[0], &super::super::levels::LEVELS[1]];
        assert_ne!(source_sha256(a).unwrap(), source_sha256(b).unwrap());
        assert_eq!(source_sha256(a).unwrap(), source_sha256(a).unwrap());
    }
}
