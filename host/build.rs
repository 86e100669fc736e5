//! Embeds the built PTX, and satisfies the linker.
//!
//! Every level in `kernels-gpu/ptx/manifest.json` becomes one entry of a table that
//! `src/driver/ptx.rs` includes. Without the folder the table is empty: the crate always builds.
//!
//! `cust_raw` tells the linker `-lcuda`. The symbols are defined in `src/driver/loader.rs`, so an
//! empty library of that name is enough; it is made here, for every program that depends on this
//! crate.

use std::path::PathBuf;
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
    let (mut files, mut table) = (Vec::new(), String::from("&[\n"));
    if let Ok(manifest) = fs::read_to_string(folder.join("manifest.json")) {
        let named = manifest.split("\"rustc\": \"").nth(1).and_then(|rest| rest.split('"').next());
        kernels = named.map_or(kernels, str::to_owned);
        // One object for each level; its first fields are the target, the file and the ISA version.
        let (mut target, mut name) = ("", "");
        for line in manifest.lines() {
            let Some((field, value)) = line.trim().split_once(": ") else { continue };
            let value = value.trim_matches([',', '"']);
            match field.trim_matches('"') {
                "arch" => target = value,
                "file" => name = value,
                "isa" => {
                    let file = match folder.join(name).canonicalize() {
                        Ok(file) => file,
                        Err(error) => {
                            println!("cargo::warning=no PTX of {target}: {error}");
                            continue;
                        }
                    };
                    // Levels of a generation share a file.
                    let at = files.iter().position(|known| *known == file).unwrap_or_else(|| {
                        println!("cargo::rerun-if-changed={}", folder.join(name).display());
                        files.push(file);
                        files.len() - 1
                    });
                    table += &format!("    Image::packed({target:?}, {value:?}, FILE_{at}),\n");
                }
                _ => {}
            }
        }
    }
    println!("cargo::rustc-env=BITNET_KERNELS_BUILT_WITH={kernels}");
    let mut embedded = String::from("{\n");
    for (at, file) in files.iter().enumerate() {
        let path = file.display();
        embedded += &format!("    static FILE_{at}: &[u8] = include_bytes!({path:?});\n");
    }
    embedded += &table;
    embedded += "]\n}\n";
    if let Err(error) = fs::write(out.join("ptx_table.rs"), embedded) {
        println!("cargo::error=cannot write the PTX table: {error}");
    }
}
