//! `cargo xtask new-kernel NAME`: a new family in six rooms, as a renamed copy of a small one that
//! works. A copy cannot fall behind the code as a template would; what it computes is then changed
//! room by room.
//!
//! Lines that only name the model family (`mod`, rows of lists, a `[[bench]]`) and the methods of the
//! backends are repeated for the new one. Every other place that names the model is listed: it needs
//! a decision.

use anyhow::{Result, bail};

use crate::tidy::ROOMS;
use crate::{process, workspace};

/// `cargo xtask new-kernel`
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Family name, like `layer_norm`: module, file and PTX symbol
    name: String,
    /// Family to start from
    #[arg(long, value_name = "FAMILY", default_value = "rope")]
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
    let mut open = Vec::new();
    for file in workspace::files(&root, &[".rs", "Cargo.toml"])? {
        let shown = workspace::relative(&file);
        if shown.starts_with("xtask/") {
            continue;
        }
        let text = std::fs::read_to_string(&file)?;
        // The rooms, and what else has a file of that name (the CPU backend).
        if file.file_stem().is_some_and(|stem| stem == from.as_str()) {
            let copy = file.with_file_name(format!("{name}.rs"));
            std::fs::write(&copy, renamed(&text, from, name))?;
            println!("new      {}", workspace::relative(&copy));
            continue;
        }
        let backends = shown.starts_with("host/src/ops/") || shown.starts_with("host/src/cpu/");
        let listed = list(&text, from, name, backends);
        if listed != text {
            std::fs::write(&file, &listed)?;
            println!("listed   {shown}");
        }
        open.extend(mentions(&shown, &list(&text, from, "", backends), from));
    }
    process::run(process::cargo().args(["fmt", "--all"]))?;
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

/// Repeats what does nothing but name the model family: lines, `[[bench]]` sections, and with `items`
/// functions of that name. An empty `name` takes them out instead.
fn list(text: &str, from: &str, name: &str, items: bool) -> String {
    let mut out = String::with_capacity(text.len() + 64);
    // Attributes and documentation of the line that comes next.
    let mut above = String::new();
    let mut lines = text.split_inclusive('\n').peekable();
    while let Some(line) = lines.next() {
        let bare = line.trim();
        let mut piece = line.to_owned();
        let found = if bare == "[[bench]]" {
            while let Some(line) = lines.next_if(|line| !line.trim().is_empty()) {
                piece.push_str(line);
            }
            piece.push_str(lines.next().unwrap_or("\n"));
            piece.contains(&format!("name = \"{from}\""))
        } else if items && bare.starts_with(&format!("fn {from}(")) {
            while !whole(&piece) {
                let Some(line) = lines.next() else { break };
                piece.push_str(line);
            }
            true
        } else {
            is_bare(bare, from)
        };
        let attribute = bare.starts_with("#[") || bare.starts_with("///");
        if attribute {
            above.push_str(line);
            continue;
        }
        let piece = std::mem::take(&mut above) + &piece;
        if found && !name.is_empty() {
            out.push_str(&piece);
            out.push_str(&renamed(&piece, from, name));
        } else if is_list(bare, from) {
            let with = if name.is_empty() { String::new() } else { format!("{from}, {name},") };
            out.push_str(&piece.replace(&format!("{from},"), &with));
        } else if !found {
            out.push_str(&piece);
        }
    }
    out + &above
}

/// Whether a function that starts this text ends in it.
fn whole(text: &str) -> bool {
    let (open, close) = (text.matches('{').count(), text.matches('}').count());
    open == close && (open > 0 || text.trim_end().ends_with(';'))
}

/// A declaration or a row of a list: `mod x;`, `x: X;`, `x: x::X,`.
fn is_bare(line: &str, from: &str) -> bool {
    let kernel = type_name(from);
    let row = line.trim_end_matches([';', ',']);
    [format!("mod {from}"), format!("pub mod {from}")].contains(&row.to_owned())
        || [format!("{from}: {kernel}"), format!("{from}: {from}::{kernel}")]
            .contains(&row.to_owned())
}

/// A line of names and commas, the model family among them.
fn is_list(line: &str, from: &str) -> bool {
    let names = line.chars().all(|c| c.is_ascii_alphanumeric() || "_, ".contains(c));
    names && line.split([',', ' ']).any(|word| word == from) && line.contains(&format!("{from},"))
}

/// Places of a source file that still name the model family.
fn mentions(file: &str, text: &str, from: &str) -> Vec<String> {
    if !file.ends_with(".rs") {
        return Vec::new();
    }
    let count = [from.to_owned(), type_name(from)]
        .iter()
        .map(|word| text.lines().filter(|line| line.contains(word.as_str())).count())
        .max()
        .unwrap_or(0);
    let first = text.lines().find(|line| line.contains(from) || line.contains(&type_name(from)));
    first.map(|line| format!("{file} ({count} lines): {}", line.trim())).into_iter().collect()
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
    fn rows_and_modules_are_repeated() {
        let grown = |text: &str| list(text, "relu2_mul", "x", false);
        assert_eq!(
            grown("pub mod a;\npub mod relu2_mul;\n"),
            "pub mod a;\npub mod relu2_mul;\npub mod x;\n"
        );
        assert_eq!(grown("    relu2_mul: Relu2Mul;\n"), "    relu2_mul: Relu2Mul;\n    x: X;\n");
        assert_eq!(grown("relu2_mul: relu2_mul::Relu2Mul,\n").lines().nth(1), Some("x: x::X,"));
        assert_eq!(
            grown("#[path = \"gpu/relu2_mul.rs\"]\nmod relu2_mul;\n").lines().nth(2),
            Some("#[path = \"gpu/x.rs\"]")
        );
        assert_eq!(grown("    rope, relu2_mul, sample,\n"), "    rope, relu2_mul, x, sample,\n");
        let other = "fn relu2_mul() {}\n/// relu2_mul\nlet a = relu2_mul;\n";
        assert_eq!(grown(other), other);
    }

    #[test]
    fn methods_of_the_backends_are_repeated() {
        let text = "/// See [`relu2_mul`].\nfn relu2_mul(a: u8);\n\nfn relu2_mul(a: u8) {\n    f({ a });\n}\n";
        let grown = list(text, "relu2_mul", "x", true);
        assert_eq!(grown.matches("/// See [`x`].\nfn x(a: u8);\n").count(), 1);
        assert_eq!(grown.matches("fn x(a: u8) {\n    f({ a });\n}\n").count(), 1);
        assert_eq!(list(text, "relu2_mul", "x", false), text);
    }

    #[test]
    fn benches_are_repeated() {
        let toml = "[[bench]]\nname = \"relu2_mul\"\nharness = false\n\n[[bench]]\nname = \"a\"\n\n[lints]\n";
        let grown = list(toml, "relu2_mul", "x", false);
        assert_eq!(grown.matches("[[bench]]").count(), 3);
        assert!(
            grown.contains("[[bench]]\nname = \"x\"\nharness = false\n\n[[bench]]\nname = \"a\"")
        );
    }

    #[test]
    fn what_is_left_is_mentioned() {
        let text = "mod relu2_mul;\nmatch relu2_mul {}\n";
        assert_eq!(mentions("a.rs", &list(text, "relu2_mul", "", false), "relu2_mul").len(), 1);
        let text = "mod relu2_mul;\n";
        assert!(mentions("a.rs", &list(text, "relu2_mul", "", false), "relu2_mul").is_empty());
    }
}
