//! Embeds the built PTX, and satisfies the linker.
//!
//! Every `.ptx` file under `kernels-gpu/ptx/` that `manifest.json` names becomes one entry of a
//! table that `src/driver/ptx.rs` includes. What an entry says (target, ISA version) is read from
//! the PTX itself. Without the folder the table is empty: the crate always builds.
//!
//! `cust_raw` tells the linker `-lcuda`. The symbols are defined in `src/driver/loader.rs`, so an
//! empty library of that name is enough; it is made here, for every program that depends on this
//! crate.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let Some(root) = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from) else { return };
    let Some(out) = env::var_os("OUT_DIR").map(PathBuf::from) else { return };
    let folder = root.join("../kernels-gpu/ptx");
    // A missing path counts as changed, so the table is made again until the PTX is there.
    println!("cargo::rerun-if-changed={}", folder.display());
    if env::var_os("CARGO_FEATURE_CUDA").is_some() {
        // An archive without members: every linker takes it for `-lcuda`.
        if let Err(error) = fs::write(out.join("libcuda.a"), "!<arch>\n") {
            println!("cargo::error=cannot write an empty libcuda.a: {error}");
        }
        println!("cargo::rustc-link-search=native={}", out.display());
    }
    let host = env::var_os("RUSTC").and_then(|rustc| {
        let output = Command::new(rustc).arg("-V").output().ok()?;
        String::from_utf8(output.stdout).ok()
    });
    let host = host.as_deref().map_or("an unknown compiler", str::trim);
    println!("cargo::rustc-env=BITNET_BUILT_WITH={host}");
    let mut kernels = "an unknown compiler".to_owned();
    let mut table = String::from("&[\n");
    if let Ok(manifest) = fs::read_to_string(folder.join("manifest.json")) {
        let named = manifest.split("\"rustc\": \"").nth(1).and_then(|rest| rest.split('"').next());
        kernels = named.map_or(kernels, str::to_owned);
        let mut files = Vec::new();
        collect(&folder, &mut files);
        files.sort();
        for file in files {
            let Ok(relative) = file.strip_prefix(&folder) else { continue };
            if !manifest.contains(&format!("\"{}\"", relative.display())) {
                continue;
            }
            println!("cargo::rerun-if-changed={}", file.display());
            let Ok(file) = file.canonicalize() else { continue };
            let Ok(ptx) = fs::read_to_string(&file) else { continue };
            let (Some(target), Some(isa)) = (word(&ptx, ".target"), word(&ptx, ".version")) else {
                println!("cargo::warning={} has no .target or .version", file.display());
                continue;
            };
            let path = file.display();
            table += &format!("    Image::new({target:?}, {isa:?}, include_str!({path:?})),\n");
        }
    }
    println!("cargo::rustc-env=BITNET_KERNELS_BUILT_WITH={kernels}");
    table += "]\n";
    if let Err(error) = fs::write(out.join("ptx_table.rs"), table) {
        println!("cargo::error=cannot write the PTX table: {error}");
    }
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|e| e == "ptx") {
            files.push(path);
        }
    }
}

/// The word after the directive `name` at the start of a line, without a trailing comma.
fn word<'a>(ptx: &'a str, name: &str) -> Option<&'a str> {
    ptx.lines()
        .find_map(|line| line.trim().strip_prefix(name))
        .and_then(|rest| rest.split_whitespace().next())
        .map(|word| word.trim_end_matches(','))
}
