//! `cargo xtask new-kernel NAME`: a new family in six rooms, as a renamed copy of a small one that
//! works. A copy cannot fall behind the code as a template would; what it computes is then changed
//! room by room.
//!
//! Lines that only name the model family (`pub mod`, `mod`, a row of `families!`, a `[[bench]]`) are
//! repeated for the new one. Every other place that names the model is listed: it needs a decision.

use std::path::Path;

use anyhow::{Result, bail};

use crate::tidy::ROOMS;
use crate::workspace;

/// `cargo xtask new-kernel`
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Family name, like `layer_norm`: module, file and PTX symbol
    name: String,
    /// Family to start from
    #[arg(long, value_name = "FAMILY", default_value = "relu2_mul")]
    from: String,
}

/// Makes the rooms and says what is left to do.
pub(crate) fn run(options: &Options) -> Result<()> {
    let Options { name, from } = options;
    check_name(name)?;
    if !contract::FAMILIES.contains(&from.as_str()) {
        bail!("no kernel family `{from}`; there are {}", contract::FAMILIES.join(", "));
    }
    let root = workspace::root();
    let room = |room: &str, family: &str| root.join(room).join(format!("{family}.rs"));
    for place in ROOMS {
        if room(place, name).exists() {
            bail!("{place}/{name}.rs is there already");
        }
        if !room(place, from).exists() {
            bail!("{place}/{from}.rs is not one file; start from another family");
        }
    }
    for place in ROOMS {
        let text = std::fs::read_to_string(room(place, from))?;
        std::fs::write(room(place, name), renamed(&text, from, name))?;
        println!("new      {place}/{name}.rs");
    }
    let mut open = Vec::new();
    for file in workspace::files(&root, &[".rs", "Cargo.toml"])? {
        let shown = workspace::relative(&file);
        let is_room =
            ROOMS.iter().any(|place| file == room(place, from) || file == room(place, name));
        if is_room || shown.starts_with("xtask/") {
            continue;
        }
        let text = std::fs::read_to_string(&file)?;
        let listed = list(&text, from, name);
        if listed != text {
            std::fs::write(&file, &listed)?;
            println!("listed   {shown}");
        }
        open.extend(mentions(&shown, &listed, from));
    }
    println!(
        "\nNow say what `{name}` computes: formula, tensors and Args in the contract first.\n\
         Then: cargo xtask build-ptx --record, cargo xtask test.\n\
         `{from}` is also named here; `{name}` may belong there too:"
    );
    for place in open {
        println!("  {place}");
    }
    Ok(())
}

fn check_name(name: &str) -> Result<()> {
    let mut chars = name.chars();
    let good = chars.next().is_some_and(|c| c.is_ascii_lowercase())
        && chars.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if !good {
        bail!("`{name}` cannot be a module and a PTX symbol: a-z, 0-9 and _, a letter first");
    }
    if contract::FAMILIES.contains(&name) {
        bail!("`{name}` is a kernel family already");
    }
    Ok(())
}

/// `rms_norm` as a type: `RmsNorm`.
fn type_name(name: &str) -> String {
    name.split('_')
        .map(|part| {
            let mut chars = part.chars();
            chars
                .next()
                .map_or(String::new(), |c| c.to_ascii_uppercase().to_string() + chars.as_str())
        })
        .collect()
}

fn renamed(text: &str, from: &str, name: &str) -> String {
    text.replace(from, name).replace(&type_name(from), &type_name(name))
}

/// Repeats lines and `[[bench]]` sections that do nothing but name the model family.
fn list(text: &str, from: &str, name: &str) -> String {
    let mut out = String::with_capacity(text.len() + 64);
    for section in text.split_inclusive("\n\n") {
        let bench = section.starts_with("[[bench]]") && section.contains(&format!("\"{from}\""));
        for line in section.split_inclusive('\n') {
            out.push_str(line);
            let bare = line.trim();
            let names = [format!("pub mod {from};"), format!("mod {from};")].contains(&bare.into())
                || bare == format!("{from}: {};", type_name(from));
            if names {
                out.push_str(&renamed(line, from, name));
            }
        }
        if bench {
            if !out.ends_with("\n\n") {
                out.push('\n');
            }
            out.push_str(&renamed(section, from, name));
        }
    }
    out
}

/// Places of a file that still name the model family alone.
fn mentions(file: &str, text: &str, from: &str) -> Vec<String> {
    let bare = |line: &str| {
        let line = line.trim();
        line.ends_with(&format!("mod {from};")) || line.starts_with(&format!("{from}: "))
    };
    let names = [from.to_owned(), type_name(from)];
    text.lines()
        .enumerate()
        .filter(|(_, line)| names.iter().any(|n| line.contains(n.as_str())) && !bare(line))
        .filter(|_| Path::new(file).extension().is_some_and(|end| end == "rs"))
        .map(|(i, line)| format!("{file}:{}: {}", i + 1, line.trim()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert!(check_name("layer_norm2").is_ok());
        for bad in ["", "2d", "Layer", "layer-norm", "a/b", "_x", contract::FAMILIES[0]] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_copy_is_renamed_throughout() {
        let text = "//! [`contract::relu2_mul`].\nstruct Relu2Mul;\nfn relu2_mul() {}\n";
        let copy = renamed(text, "relu2_mul", "layer_norm");
        assert_eq!(copy, "//! [`contract::layer_norm`].\nstruct LayerNorm;\nfn layer_norm() {}\n");
    }

    #[test]
    fn lists_grow_by_one_line() {
        let rust = "pub mod a;\npub mod relu2_mul;\n    relu2_mul: Relu2Mul;\nfn relu2_mul() {}\n";
        let grown = list(rust, "relu2_mul", "x");
        let wanted = "pub mod a;\npub mod relu2_mul;\npub mod x;\n    relu2_mul: Relu2Mul;\n    x: X;\n\
                      fn relu2_mul() {}\n";
        assert_eq!(grown, wanted);
        assert_eq!(mentions("a.rs", &grown, "relu2_mul"), ["a.rs:6: fn relu2_mul() {}"]);
        let toml =
            "[[bench]]\nname = \"relu2_mul\"\nharness = false\n\n[lints]\nworkspace = true\n";
        let grown = list(toml, "relu2_mul", "x");
        assert_eq!(grown.matches("[[bench]]").count(), 2);
        assert!(grown.contains("name = \"x\"\nharness = false\n\n[lints]"));
        assert_eq!(list("nothing\n\nhere", "relu2_mul", "x"), "nothing\n\nhere");
    }
}
