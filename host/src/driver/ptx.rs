//! The embedded PTX levels and the rule that orders them. No driver call.
//!
//! A level `sm_NN` runs on every device of capability NN or higher; `sm_NNa` runs on NN exactly.
//! The loader tries the levels that fit from high to low, an `a` level before the plain one.
//!
//! The driver compiles each kernel of a level by itself (`Kernels`), when it is first asked for or
//! beside others.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::ops::Range;

use super::error::ModuleError;

/// One built PTX file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Image {
    /// Its target, such as `sm_90a`.
    pub level: &'static str,
    /// The PTX ISA version it is written in, such as `8.0`.
    pub isa: &'static str,
    text: Text,
}

/// A PTX text, as it is embedded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Text {
    Plain(&'static str),
    /// Texts of levels with a zero byte between one and the next, packed together.
    Xz(&'static [u8]),
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Image({}, ISA {})", self.level, self.isa)
    }
}

/// All levels of this build, in no particular order.
pub static IMAGES: &[Image] = include!(concat!(env!("OUT_DIR"), "/ptx_table.rs"));

impl Image {
    /// A text of the caller's own.
    pub const fn new(level: &'static str, isa: &'static str, ptx: &'static str) -> Self {
        Self { level, isa, text: Text::Plain(ptx) }
    }

    #[allow(dead_code, reason = "the built table may be empty")]
    const fn packed(level: &'static str, isa: &'static str, xz: &'static [u8]) -> Self {
        Self { level, isa, text: Text::Xz(xz) }
    }

    /// The text; for an embedded level, unpacked by this call.
    ///
    /// # Errors
    /// Embedded bytes that are not a packed text.
    pub fn ptx(&self) -> Result<Cow<'static, str>, ModuleError> {
        let packed = match self.text {
            Text::Plain(text) => return Ok(text.into()),
            Text::Xz(packed) => packed,
        };
        let damaged = |why: String| ModuleError::Damaged { level: self.level.into(), why };
        let target = format!("\n.target {}\n", self.level);
        for text in BufReader::new(lzma_rust2::XzReader::new(packed, false)).split(0) {
            let text = text.map_err(|error| damaged(error.to_string()))?;
            let text = String::from_utf8(text).map_err(|error| damaged(error.to_string()))?;
            if text.contains(&target) {
                return Ok(text.into());
            }
        }
        Err(damaged("it is not in its file".into()))
    }

    /// `(capability, architecture-specific)`; `None` for a target of another form.
    pub fn target(&self) -> Option<(u32, bool)> {
        parse(self.level)
    }

    /// Whether a device of capability `sm` can run it. From sm_90 on, kernels of long rows count on blocks of 227 KB of
    /// shared memory; on capability 12 blocks have 99.
    pub fn fits(&self, sm: u32) -> bool {
        match self.target() {
            Some((90.., _)) if sm / 10 == 12 => false,
            Some((level, true)) => level == sm,
            Some((level, false)) => level <= sm,
            None => false,
        }
    }
}

fn parse(level: &str) -> Option<(u32, bool)> {
    let number = level.strip_prefix("sm_")?;
    match number.strip_suffix('a') {
        Some(number) => Some((number.parse().ok()?, true)),
        None => Some((number.parse().ok()?, false)),
    }
}

/// The levels to try on a device of capability `sm`, best first. `forced` allows only that one.
///
/// # Errors
/// No PTX, none that fits, or a forced level that is not embedded or does not fit.
pub fn candidates(
    images: &[Image],
    sm: u32,
    forced: Option<&str>,
) -> Result<Vec<Image>, ModuleError> {
    if images.is_empty() {
        return Err(ModuleError::NoPtx);
    }
    let mut fit: Vec<Image> = images.iter().copied().filter(|image| image.fits(sm)).collect();
    fit.sort_by_key(|image| std::cmp::Reverse(image.target()));
    if let Some(asked) = forced {
        let have = fit.iter().map(|image| image.level).collect::<Vec<_>>().join(", ");
        fit.retain(|image| image.level == asked);
        if fit.is_empty() {
            return Err(ModuleError::UnknownLevel { asked: asked.into(), device_sm: sm, have });
        }
    }
    if fit.is_empty() {
        let lowest = images.iter().min_by_key(|image| image.target()).map_or("", |i| i.level);
        return Err(ModuleError::NoLevelFits { device_sm: sm, lowest: lowest.into() });
    }
    Ok(fit)
}

/// Starts an entry of a text.
const ENTRY: &str = "\n.visible .entry ";

/// A text taken apart: each kernel of the contract can be compiled without the others.
pub(super) struct Kernels {
    text: Cow<'static, str>,
    /// What stands before the first entry; every part needs it.
    head: Range<usize>,
    entries: HashMap<&'static str, Range<usize>>,
}

impl Kernels {
    /// Takes `text` apart, or gives it back: it has an entry that is not of the contract, or debug
    /// sections, which speak of all entries.
    pub(super) fn of(text: Cow<'static, str>) -> Result<Self, Cow<'static, str>> {
        if text.contains(".section") || text.contains("\n.file") {
            return Err(text);
        }
        let mut entries = HashMap::new();
        let mut starts = text.match_indices(ENTRY).map(|(at, _)| at).peekable();
        let head = 0..starts.peek().copied().unwrap_or_default();
        while let Some(start) = starts.next() {
            let end = starts.peek().copied().unwrap_or(text.len());
            let name = entry_name(&text[start + ENTRY.len()..end]);
            match contract::KERNELS.iter().find(|kernel| kernel.spec.symbol == name) {
                Some(kernel) => entries.insert(kernel.spec.symbol, start..end),
                None => return Err(text),
            };
        }
        if entries.is_empty() { Err(text) } else { Ok(Self { text, head, entries }) }
    }

    /// The symbols whose family `wanted` takes, the longest entry first.
    pub(super) fn symbols(&self, wanted: impl Fn(&str) -> bool) -> Vec<&'static str> {
        let of = |symbol: &&&str| contract::family_of(symbol).is_some_and(&wanted);
        let mut symbols: Vec<_> = self.entries.keys().filter(of).copied().collect();
        symbols.sort_by_key(|symbol| (std::cmp::Reverse(self.entries[symbol].len()), *symbol));
        symbols
    }

    /// Whether this level has the kernel.
    pub(super) fn has(&self, symbol: &str) -> bool {
        self.entries.contains_key(symbol)
    }

    /// A text with this one entry; `None` where this level lacks it.
    pub(super) fn text(&self, symbol: &str) -> Option<String> {
        let entry = self.entries.get(symbol)?.clone();
        Some([&self.text[self.head.clone()], &self.text[entry]].concat())
    }

    /// All of it.
    pub(super) fn whole(&self) -> &str {
        &self.text
    }
}

/// The name at the start of an entry.
fn entry_name(entry: &str) -> &str {
    entry.split(['(', '\n']).next().unwrap_or_default().trim()
}

/// SHA-256 of the entries of `ptx` whose name `keep` takes, in hexadecimal; `None` when there are none.
///
/// The compiler counts labels over all entries of a text (`$L__BB12_3`); that count is left out, so that the
/// hash changes with the entries asked for and not with their neighbours.
pub(crate) fn part_sha256(ptx: &str, keep: impl Fn(&str) -> bool) -> Option<String> {
    use sha2::{Digest, Sha256};
    const LABEL: &str = "$L__BB";
    let mut hash = Sha256::new();
    let mut any = false;
    for piece in ptx.split(ENTRY).skip(1) {
        if !keep(entry_name(piece)) {
            continue;
        }
        any = true;
        let mut parts = piece.split(LABEL);
        hash.update(parts.next().unwrap_or_default().trim_end());
        for part in parts {
            hash.update(LABEL);
            hash.update(part.trim_start_matches(|c: char| c.is_ascii_digit()).trim_end());
        }
    }
    any.then(|| hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_a_part_is_its_own() {
        let entry = |name: &str, count: usize, body: &str| {
            format!("\n.visible .entry {name}(\n)\n{{ bra $L__BB{count}_7; {body} }}\n")
        };
        let text = |entries: &[String]| format!(".version 7.8\n{}", entries.concat());
        let hash = |ptx: &str| part_sha256(ptx, |name| name.starts_with('a'));
        let alone = hash(&text(&[entry("a", 0, "ret;")])).unwrap();
        assert_eq!(alone.len(), 64);
        let beside = text(&[entry("b", 0, "exit;"), entry("a", 1, "ret;"), entry("c", 2, "ret;")]);
        assert_eq!(hash(&beside), Some(alone.clone()));
        assert_ne!(hash(&text(&[entry("a", 0, "exit;")])), Some(alone.clone()));
        assert_ne!(hash(&text(&[entry("ab", 0, "ret;")])), Some(alone));
        assert_eq!(hash(&text(&[entry("b", 0, "ret;")])), None);
    }

    #[test]
    fn a_text_that_is_not_of_the_contract_stays_whole() {
        let [a, b] = [contract::KERNELS[0].spec.symbol, contract::KERNELS[1].spec.symbol];
        let entry = |name: &str| format!("\n.visible .entry {name}(\n)\n{{ ret; }}\n");
        let of = |text: &str| Kernels::of(text.to_owned().into());
        let head = ".version 7.8\n.target sm_90\n";
        let both = [head, &entry(a), &entry(b)].concat();
        let kernels = of(&both).unwrap_or_else(|_| panic!("two kernels"));
        assert_eq!(kernels.whole(), both);
        assert_eq!(kernels.text(b).unwrap(), [head, &entry(b)].concat());
        assert_eq!(kernels.text("other"), None);
        for whole in [
            head.to_owned(),
            [&both, "\t.section .debug_line { }\n"].concat(),
            [&both, &*entry("other")].concat(),
        ] {
            assert!(of(&whole).is_err_and(|text| text == whole));
        }
    }

    #[test]
    fn the_entries_of_each_embedded_level_are_all_of_it() {
        for image in IMAGES {
            let ptx = image.ptx().unwrap();
            let kernels = Kernels::of(ptx.clone()).unwrap_or_else(|_| panic!("{}", image.level));
            let symbols = kernels.symbols(|_| true);
            assert_eq!(symbols.len(), ptx.matches(".visible .entry").count(), "{}", image.level);
            let texts = symbols.iter().map(|symbol| kernels.text(symbol).unwrap());
            let bytes: usize = texts.map(|text| text.len() - kernels.head.len()).sum();
            assert_eq!(bytes + kernels.head.len(), ptx.len(), "{}", image.level);
            let lens: Vec<_> = symbols.iter().map(|s| kernels.entries[s].len()).collect();
            assert!(lens.is_sorted_by(|a, b| a >= b));
            assert!(kernels.symbols(|family| family == "rope").len() < symbols.len());
        }
    }

    const LADDER: &[Image] = &[
        Image::new("sm_53", "6.0", ""),
        Image::new("sm_61", "6.0", ""),
        Image::new("sm_75", "6.3", ""),
        Image::new("sm_80", "7.0", ""),
        Image::new("sm_90", "7.8", ""),
        Image::new("sm_90a", "8.0", ""),
    ];

    fn order(sm: u32) -> Vec<&'static str> {
        candidates(LADDER, sm, None).unwrap().iter().map(|image| image.level).collect()
    }

    #[test]
    fn the_highest_level_that_fits_comes_first() {
        assert_eq!(order(90), ["sm_90a", "sm_90", "sm_80", "sm_75", "sm_61", "sm_53"]);
        assert_eq!(order(100)[0], "sm_90", "an `a` level runs on its own capability only");
        assert_eq!(
            order(120)[0],
            "sm_80",
            "blocks have less shared memory than sm_90's kernels take"
        );
        assert_eq!(order(121)[0], "sm_80");
        assert_eq!(order(89)[0], "sm_80");
        assert_eq!(order(62), ["sm_61", "sm_53"]);
        assert_eq!(order(53), ["sm_53"]);
    }

    #[test]
    fn what_cannot_be_loaded_is_refused_by_name() {
        assert_eq!(candidates(&[], 90, None), Err(ModuleError::NoPtx));
        assert_eq!(
            candidates(LADDER, 52, None),
            Err(ModuleError::NoLevelFits { device_sm: 52, lowest: "sm_53".into() })
        );
        assert_eq!(
            candidates(LADDER, 61, Some("sm_80")),
            Err(ModuleError::UnknownLevel {
                asked: "sm_80".into(),
                device_sm: 61,
                have: "sm_61, sm_53".into()
            })
        );
    }

    #[test]
    fn a_forced_level_is_the_only_one_tried() {
        let forced = candidates(LADDER, 90, Some("sm_75")).unwrap();
        assert_eq!(forced.iter().map(|image| image.level).collect::<Vec<_>>(), ["sm_75"]);
    }

    #[test]
    fn embedded_levels_are_well_formed_and_distinct() {
        let mut levels: Vec<_> = IMAGES.iter().map(|image| image.target()).collect();
        assert!(levels.iter().all(Option::is_some));
        levels.sort();
        levels.dedup();
        assert_eq!(levels.len(), IMAGES.len());
    }
}
