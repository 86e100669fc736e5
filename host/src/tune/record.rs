//! What was measured, as a file: the form, and what is refused.
//!
//! A record is one JSON document of at most [`MAX_BYTES`]. Nothing in it is trusted: sizes, shapes, names and
//! times are checked when it is read, and a record that passes can still name a kernel that this build does
//! not have; [`Record::choices`] leaves such entries out and says so.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::search::LEAST_GAIN;
use crate::ops::choices::{Choices, Family, Problem};

/// The form of the file; another number is refused.
pub const FORMAT: u32 = 1;
/// Longest file that is read.
pub const MAX_BYTES: u64 = 8 << 20;
/// Most entries of a record.
pub const MAX_ENTRIES: usize = 1 << 14;
/// Most variants of an entry.
const MAX_TRIED: usize = 64;
/// Longest name and longest reason.
const MAX_TEXT: usize = 400;
/// Longest time, in microseconds: an hour.
const MAX_US: f64 = 3.6e9;

/// Why a file is no record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Too long.
    #[error("{found} bytes; a tuning record has at most {MAX_BYTES}")]
    TooLong {
        /// Its length.
        found: u64,
    },
    /// No JSON, or fields that are missing, unknown or of another type.
    #[error("not a tuning record: {0}")]
    Json(#[from] serde_json::Error),
    /// A form of another version.
    #[error("form {found} of a tuning record; this version reads form {FORMAT}")]
    Format {
        /// Its number.
        found: u32,
    },
    /// A value that cannot be.
    #[error("{place}: {what}")]
    Value {
        /// Where.
        place: String,
        /// What is wrong with it.
        what: String,
    },
}

/// Why a record says nothing about the device at hand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it was measured with {what} {found}, and here it is {expected}")]
pub struct Stale {
    /// What differs.
    pub what: &'static str,
    /// What the record says.
    pub found: String,
    /// What is here.
    pub expected: String,
}

/// What was measured on one device with one set of kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// [`FORMAT`].
    pub format: u32,
    /// The device.
    pub device: DeviceKey,
    /// Version of this library.
    pub library: String,
    /// PTX level, such as `sm_90a`.
    pub ptx_level: String,
    /// SHA-256 of the PTX of each family.
    pub ptx_sha256: BTreeMap<String, String>,
    /// Whether kernels could start before their predecessor had ended, as they do in a session.
    pub pdl: bool,
    /// What was measured, in order of problems.
    pub entries: Vec<Entry>,
}

/// A device and its driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceKey {
    /// Marketing name.
    pub name: String,
    /// Compute capability, `10 * major + minor`.
    pub sm: u32,
    /// Multiprocessors.
    pub sm_count: u32,
    /// CUDA version of the driver, such as `13.0`.
    pub driver: String,
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The family.
    pub family: Family,
    /// Most rows of activations of its class.
    pub m: usize,
    /// Rows of weights.
    pub n: usize,
    /// Elements of a row.
    pub k: usize,
    /// Day of the measurement, `YYYY-MM-DD`.
    pub date: String,
    /// What the family's own rule takes.
    pub default: String,
    /// What runs from now on; absent when no variant passed its check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<String>,
    /// Every variant that the device could have run.
    pub tried: Vec<Tried>,
}

/// One variant: its time, or why it can never be chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tried {
    /// Its kernel.
    pub variant: String,
    /// Median microseconds of a launch. Clear losers are timed with fewer samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub us: Option<f64>,
    /// What its check or its launch said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

impl Entry {
    /// What it is about; `None` for what its family does not take.
    pub fn problem(&self) -> Option<Problem> {
        Problem::of(self.family, self.m, self.n, self.k).filter(|problem| problem.m() == self.m)
    }

    /// Microseconds of variant `name`.
    pub fn us_of(&self, name: &str) -> Option<f64> {
        self.tried.iter().find(|tried| tried.variant == name).and_then(|tried| tried.us)
    }

    /// Microseconds of the default.
    pub fn default_us(&self) -> Option<f64> {
        self.us_of(&self.default)
    }

    /// Microseconds of what was chosen.
    pub fn chosen_us(&self) -> Option<f64> {
        self.chosen.as_deref().and_then(|name| self.us_of(name))
    }

    fn check(&self) -> Result<(), String> {
        if self.problem().is_none() {
            return Err(format!(
                "{} takes no {}x{} matrix with a class of {} rows",
                self.family, self.n, self.k, self.m
            ));
        }
        if self.tried.is_empty() || self.tried.len() > MAX_TRIED {
            return Err(format!("{} variants; 1 to {MAX_TRIED} are allowed", self.tried.len()));
        }
        text(&self.date, "date")?;
        let mut seen = BTreeSet::new();
        for tried in &self.tried {
            text(&tried.variant, "variant")?;
            if !seen.insert(&tried.variant) {
                return Err(format!("variant {:?} stands there twice", tried.variant));
            }
            match (tried.us, &tried.failed) {
                (Some(us), None) if us > 0.0 && us <= MAX_US => {}
                (None, Some(reason)) => text(reason, "reason")?,
                _ => return Err(format!("{:?} needs one time or one reason", tried.variant)),
            }
        }
        if !seen.contains(&self.default) {
            return Err(format!("the default {:?} was not tried", self.default));
        }
        match &self.chosen {
            Some(_) if self.chosen_us().is_none() => {
                Err("what was chosen was not timed, or failed its check".into())
            }
            _ => Ok(()),
        }
    }
}

/// Refuses empty and long texts, and control characters.
fn text(text: &str, what: &str) -> Result<(), String> {
    match text {
        "" => Err(format!("an empty {what}")),
        _ if text.len() > MAX_TEXT => Err(format!("a {what} of {} bytes", text.len())),
        _ if text.chars().any(char::is_control) => Err(format!("control characters in a {what}")),
        _ => Ok(()),
    }
}

/// `text`, made to pass the check of a reason.
#[cfg(any(feature = "cuda", test))]
pub(super) fn reason(text: &str) -> String {
    let line: String = text.chars().filter(|c| !c.is_control()).collect();
    let end = (0..=MAX_TEXT.min(line.len())).rev().find(|&at| line.is_char_boundary(at));
    match &line[..end.unwrap_or(0)] {
        "" => "no reason was given".into(),
        line => line.into(),
    }
}

impl Record {
    /// An empty record.
    pub fn new(device: DeviceKey, ptx_level: impl Into<String>, pdl: bool) -> Self {
        Self {
            format: FORMAT,
            device,
            library: env!("CARGO_PKG_VERSION").into(),
            ptx_level: ptx_level.into(),
            ptx_sha256: BTreeMap::new(),
            pdl,
            entries: Vec::new(),
        }
    }

    /// Reads a record.
    ///
    /// # Errors
    /// Anything but a record whose values can be.
    pub fn parse(bytes: &[u8]) -> Result<Self, RecordError> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        if bytes.len() as u64 > MAX_BYTES {
            return Err(RecordError::TooLong { found: bytes.len() as u64 });
        }
        let Head { format } = serde_json::from_slice(bytes)?;
        if format != FORMAT {
            return Err(RecordError::Format { found: format });
        }
        let record: Self = serde_json::from_slice(bytes)?;
        record.check()?;
        Ok(record)
    }

    fn check(&self) -> Result<(), RecordError> {
        let value = |place: &str, what| RecordError::Value { place: place.into(), what };
        let texts = [
            (&self.device.name, "device"),
            (&self.device.driver, "driver"),
            (&self.library, "library"),
            (&self.ptx_level, "ptx_level"),
        ];
        for (content, place) in texts {
            text(content, "text").map_err(|what| value(place, what))?;
        }
        for (family, hash) in &self.ptx_sha256 {
            let known = Family::ALL.iter().any(|known| known.name() == family);
            if !known || hash.len() != 64 || !hash.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(value("ptx_sha256", format!("{family:?} is no family with a hash")));
            }
        }
        if self.entries.len() > MAX_ENTRIES {
            let what = format!("{} of them; at most {MAX_ENTRIES} are allowed", self.entries.len());
            return Err(value("entries", what));
        }
        let mut seen = BTreeSet::new();
        for (index, entry) in self.entries.iter().enumerate() {
            let refuse = |what| RecordError::Value { place: format!("entry {index}"), what };
            entry.check().map_err(refuse)?;
            if !seen.insert(entry.problem()) {
                return Err(refuse("its problem has an entry already".into()));
            }
            if !self.ptx_sha256.contains_key(entry.family.name()) {
                return Err(refuse(format!("no PTX hash of {}", entry.family)));
            }
        }
        Ok(())
    }

    /// The text of the file: one line for each entry.
    pub fn to_json(&self) -> String {
        let entries: Vec<_> = self.entries.iter().map(json).collect();
        format!(
            "{{\n\"format\": {},\n\"device\": {},\n\"library\": {},\n\"ptx_level\": {},\n\
             \"ptx_sha256\": {},\n\"pdl\": {},\n\"entries\": [\n{}\n]\n}}\n",
            self.format,
            json(&self.device),
            json(&self.library),
            json(&self.ptx_level),
            json(&self.ptx_sha256),
            self.pdl,
            entries.join(",\n"),
        )
    }

    /// Whether it was measured on such a device; with `driver` also by such a driver.
    ///
    /// # Errors
    /// What differs.
    pub fn is_of(&self, here: &DeviceKey, driver: bool) -> Result<(), Stale> {
        let of = &self.device;
        let stale = |what, found: &dyn ToString, expected: &dyn ToString| {
            Err(Stale { what, found: found.to_string(), expected: expected.to_string() })
        };
        if of.name != here.name {
            return stale("device", &of.name, &here.name);
        }
        if of.sm != here.sm {
            return stale("compute capability", &of.sm, &here.sm);
        }
        if of.sm_count != here.sm_count {
            return stale("a number of multiprocessors of", &of.sm_count, &here.sm_count);
        }
        if driver && of.driver != here.driver {
            return stale("a driver of CUDA", &of.driver, &here.driver);
        }
        Ok(())
    }

    /// Whether the entries of `family` were measured with the PTX of this hash.
    ///
    /// # Errors
    /// The other hash.
    pub fn is_with(&self, family: Family, sha256: Option<&str>) -> Result<(), Stale> {
        let found = self.ptx_sha256.get(family.name()).map(String::as_str);
        if found.is_some() && found == sha256 {
            return Ok(());
        }
        let short = |hash: Option<&str>| {
            hash.map_or("none", |hash| hash.get(..12).unwrap_or(hash)).to_owned()
        };
        Err(Stale { what: "PTX", found: short(found), expected: short(sha256) })
    }

    /// Its choices, for a device where PTX of the families has the hashes that `sha256` gives and that can run
    /// the variants of which `runs` says so; and a remark on everything that was left out.
    pub fn choices(
        &self,
        sha256: impl Fn(Family) -> Option<String>,
        runs: impl Fn(&Problem, usize) -> bool,
    ) -> (Choices, Vec<String>) {
        let (mut choices, mut notes) = (Choices::default(), Vec::new());
        let fresh = |family| self.is_with(family, sha256(family).as_deref()).is_ok();
        if [Family::W2a8Gemv, Family::BitLinear, Family::W2a8Trits].into_iter().all(fresh) {
            for [n, k, faster] in self.layouts() {
                choices.prefer_trits(n, k, faster == 1);
            }
        }
        for family in Family::ALL {
            let mut entries = self.entries.iter().filter(|e| e.family == family).peekable();
            if entries.peek().is_none() {
                continue;
            }
            if let Err(stale) = self.is_with(family, sha256(family).as_deref()) {
                notes.push(format!("choices of {family} are left out: {stale}"));
                continue;
            }
            for entry in entries {
                let (Some(problem), Some(name)) = (entry.problem(), &entry.chosen) else {
                    continue;
                };
                let index = family.find(name).filter(|&index| runs(&problem, index));
                match index.map(|index| choices.insert(problem, index)) {
                    Some(Ok(())) => {}
                    _ => notes.push(format!("{problem}: {name:?} is no variant for it here")),
                }
            }
        }
        (choices, notes)
    }

    /// For each matrix that was measured with weights of 1.6 bits and of 2: `n`, `k`, and 1 where the former are faster
    /// by a tenth at least than whatever runs a row on the latter.
    fn layouts(&self) -> Vec<[usize; 3]> {
        let best = |family, n, k| {
            let of = |e: &&Entry| (e.family, e.m, e.n, e.k) == (family, 1, n, k);
            let tried = self.entries.iter().filter(of).flat_map(|e| &e.tried);
            tried.filter_map(|tried| tried.us).min_by(f64::total_cmp)
        };
        let trits = self.entries.iter().filter(|e| e.family == Family::W2a8Trits);
        let of = |e: &Entry| {
            let trits = best(Family::W2a8Trits, e.n, e.k)?;
            let gemv = best(Family::W2a8Gemv, e.n, e.k)?;
            let fused = best(Family::BitLinear, e.n, e.k).unwrap_or(f64::INFINITY);
            Some([e.n, e.k, usize::from(LEAST_GAIN * trits <= gemv.min(fused))])
        };
        trits.filter_map(of).collect()
    }

    /// Takes the entries of `other` for problems that have none here, where they were measured with the same PTX. Gives a
    /// remark for each family of which there are some that were not.
    pub fn take_from(&mut self, other: &Self) -> Vec<String> {
        let mut notes = Vec::new();
        for family in Family::ALL {
            let mut entries = other.entries.iter().filter(|e| e.family == family).peekable();
            match other.is_with(family, self.ptx_sha256.get(family.name()).map(String::as_str)) {
                Ok(()) => {
                    for entry in entries {
                        if self.entries.iter().all(|own| own.problem() != entry.problem()) {
                            self.put(entry.clone());
                        }
                    }
                }
                Err(stale) if entries.peek().is_some() => {
                    notes.push(format!("entries of {family} are measured again: {stale}"));
                }
                Err(_) => {}
            }
        }
        notes
    }

    /// Puts `entry` in its place; an earlier one of the same problem goes.
    pub fn put(&mut self, entry: Entry) {
        self.entries.retain(|old| old.problem() != entry.problem());
        self.entries.push(entry);
        self.entries.sort_by_key(Entry::problem);
    }
}

fn json(value: &impl Serialize) -> String {
    // Strings, finite numbers and maps with text keys: nothing here can fail.
    serde_json::to_string(value).unwrap_or_default()
}
