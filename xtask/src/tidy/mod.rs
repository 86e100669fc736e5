//! `cargo xtask tidy`: house rules that neither rustc nor clippy knows.
//!
//! Families come from the contract's list, so a new one cannot be forgotten here. Each rule is a
//! function over text, tested on small texts that break it; see [`rules`].

mod code;
mod rules;

pub(crate) use rules::ROOMS;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, bail};

use crate::{process, workspace};

/// Ends of files whose names a page may use.
const SOURCES: &[&str] = &[".rs", ".py", ".c", ".h", ".cu", ".sh", ".toml"];

/// Runs every rule over the files that git knows or would add.
pub(crate) fn run() -> Result<()> {
    let root = workspace::root();
    let files = listed(&root)?;
    let mut problems = rules::rooms(contract::FAMILIES, &files);
    let machine = machine_paths(&root);
    let (mut words, mut pages) = (BTreeSet::new(), Vec::new());
    for file in &files {
        let Ok(text) = std::fs::read_to_string(root.join(file)) else {
            continue; // not text, or deleted and not yet committed
        };
        if file != "Cargo.lock" {
            problems.extend(rules::machine_path(file, &text, &machine));
        }
        if file.ends_with(".rs") {
            problems.extend(rules::source(file, &text));
        }
        if SOURCES.iter().any(|end| file.ends_with(end)) {
            words.extend(rules::names(&text).map(str::to_owned));
        }
        if file.starts_with("docs/kernels/") {
            pages.push((file, text));
        }
    }
    for (file, text) in &pages {
        problems.extend(rules::unknown(file, text, &words));
    }
    if !problems.is_empty() {
        bail!("tidy failed:\n  {}", problems.join("\n  "));
    }
    println!("tidy: {} files, {} kernel families", files.len(), contract::FAMILIES.len());
    Ok(())
}

/// Paths relative to the root with forward slashes, as git lists them.
fn listed(root: &Path) -> Result<BTreeSet<String>> {
    let mut git = process::foreign("git");
    git.current_dir(root).args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    if let Ok(list) = process::stdout(&mut git) {
        return Ok(list.lines().filter(|f| root.join(f).exists()).map(str::to_owned).collect());
    }
    // An unpacked archive has no git.
    let ends = [".rs", ".toml", ".md", ".json", ".sh", ".py"];
    let files = workspace::files(root, &ends)?;
    Ok(files.iter().map(|path| workspace::relative(path)).collect())
}

/// Beginnings of paths that exist on somebody's machine only.
fn machine_paths(root: &Path) -> Vec<String> {
    let mut paths: Vec<String> =
        ["home", "root", "Users"].iter().map(|d| format!("/{d}/")).collect();
    let own =
        root.components().nth(1).map(|first| first.as_os_str().to_string_lossy().into_owned());
    if let Some(own) = own
        && !["tmp", "usr", "opt", "var", "mnt", "src"].contains(&own.as_str())
    {
        paths.push(format!("/{own}/"));
    }
    paths
}
