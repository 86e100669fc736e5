//! How many convergent operations each kernel has, compared with a recorded expectation.
//!
//! A compiler that does not know convergence may copy a barrier or a shuffle under a
//! thread-dependent branch; the kernel then hangs on the GPU and looks right on paper. The counts
//! are committed (`convergence.json`), so a change shows as a diff that somebody has to mean.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::text::Entry;
use crate::workspace;

/// Convergent operations by kind; kinds that do not occur are left out.
pub(crate) type Counts = BTreeMap<String, u32>;
/// Level name -> symbol -> counts.
pub(crate) type Expected = BTreeMap<String, BTreeMap<String, Counts>>;

/// Kind and the opcodes that belong to it, by the start of the mnemonic.
const KINDS: &[(&str, &[&str])] = &[
    ("barrier", &["bar.sync", "bar.red", "bar.arrive", "bar.cta", "barrier.sync", "barrier.cta"]),
    ("cluster_barrier", &["barrier.cluster"]),
    ("warp_barrier", &["bar.warp.sync"]),
    ("shuffle", &["shfl."]),
    ("vote", &["vote.", "activemask"]),
    ("match", &["match."]),
    ("redux", &["redux."]),
    ("elect", &["elect."]),
    ("mma", &["mma.", "wmma.", "wgmma.mma_async"]),
    ("ldmatrix", &["ldmatrix.", "stmatrix."]),
    ("wgmma_sync", &["wgmma.fence", "wgmma.commit_group", "wgmma.wait_group"]),
    ("grid_dependency", &["griddepcontrol."]),
];

/// Counts over the body of one kernel.
pub(crate) fn count(entry: &Entry) -> Counts {
    let mut counts = Counts::new();
    for opcode in entry.body.iter().flat_map(|line| opcodes(line)) {
        let kind = KINDS.iter().find(|(_, starts)| starts.iter().any(|s| opcode.starts_with(s)));
        if let Some((kind, _)) = kind {
            *counts.entry((*kind).to_owned()).or_default() += 1;
        }
    }
    counts
}

/// The opcode of each instruction of a line, without guards and labels. Inline assembly may put
/// several instructions and braces on one line.
pub(crate) fn opcodes(line: &str) -> impl Iterator<Item = &str> {
    line.split(';').filter_map(|instruction| {
        let instruction = instruction.trim_start_matches(|c: char| c.is_whitespace() || c == '{');
        let mut parts = instruction.split_whitespace();
        let mut first = parts.next()?;
        while first.starts_with('@') || first.ends_with(':') || first == "{" {
            first = parts.next()?;
        }
        (!first.starts_with('.')).then_some(first)
    })
}

/// The committed expectation.
pub(crate) fn path() -> PathBuf {
    workspace::ptx().join("convergence.json")
}

/// Reads the expectation; a missing file expects nothing of anybody.
pub(crate) fn read() -> Result<Expected> {
    let path = path();
    if !path.exists() {
        return Ok(Expected::new());
    }
    let text = std::fs::read_to_string(&path)?;
    serde_json::from_str(&text).with_context(|| format!("{} is damaged", path.display()))
}

/// Puts the counts of some levels in place of the recorded ones.
pub(crate) fn record(found: Expected) -> Result<()> {
    let mut all = read()?;
    all.extend(found);
    std::fs::create_dir_all(workspace::ptx())?;
    std::fs::write(path(), serde_json::to_string_pretty(&all)? + "\n")?;
    Ok(())
}

/// Every difference between what was found in `level` and what is recorded, in words.
pub(crate) fn differences(
    level: &str,
    found: &BTreeMap<String, Counts>,
    expected: &Expected,
) -> Vec<String> {
    let none = BTreeMap::new();
    let expected = expected.get(level).unwrap_or(&none);
    let mut out = Vec::new();
    let mut unknown = Vec::new();
    for (symbol, counts) in found {
        match expected.get(symbol) {
            None => unknown.push(symbol.as_str()),
            Some(recorded) if recorded != counts => {
                out.push(format!("{symbol}: recorded {recorded:?}, found {counts:?}"));
            }
            Some(_) => {}
        }
    }
    if !unknown.is_empty() {
        out.push(format!("no recorded counts for {}", unknown.join(", ")));
    }
    for symbol in expected.keys().filter(|symbol| !found.contains_key(*symbol)) {
        out.push(format!("{symbol}: counts are recorded, but the kernel is not there"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx::text::{Module, tests::SAMPLE};

    fn counts(pairs: &[(&str, u32)]) -> Counts {
        pairs.iter().map(|&(kind, n)| (kind.to_owned(), n)).collect()
    }

    #[test]
    fn counts_what_stands_in_the_body() {
        let module = Module::parse(SAMPLE).unwrap();
        assert_eq!(count(&module.entries[0]), counts(&[("barrier", 1), ("shuffle", 1)]));
        assert_eq!(count(&module.entries[1]), Counts::new());
    }

    #[test]
    fn sees_guarded_and_inline_instructions() {
        let line = "{ .reg .pred p; @p bar.sync 0; $L1: mma.sync.aligned.m16n8k32 {%r1}, {%r2}; }";
        let found: Vec<_> = opcodes(line).collect();
        assert!(found.contains(&"bar.sync") && found.contains(&"mma.sync.aligned.m16n8k32"));
    }

    #[test]
    fn a_copied_barrier_is_a_difference() {
        let recorded = BTreeMap::from([("k".to_owned(), counts(&[("barrier", 1)]))]);
        let expected = Expected::from([("sm_80".to_owned(), recorded.clone())]);
        assert!(differences("sm_80", &recorded, &expected).is_empty());
        let copied = BTreeMap::from([("k".to_owned(), counts(&[("barrier", 2)]))]);
        assert_eq!(differences("sm_80", &copied, &expected).len(), 1);
        let renamed = BTreeMap::from([("l".to_owned(), counts(&[("barrier", 1)]))]);
        assert_eq!(differences("sm_80", &renamed, &expected).len(), 2);
        assert_eq!(differences("sm_90", &recorded, &expected).len(), 1);
    }
}
