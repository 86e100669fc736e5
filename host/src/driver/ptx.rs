//! The embedded PTX levels and the rule that orders them. No driver call.
//!
//! A level `sm_NN` runs on every device of capability NN or higher; `sm_NNa` runs on NN exactly.
//! The loader tries the levels that fit from high to low, an `a` level before the plain one.
//!
//! A level is compiled by the driver in parts (`part`): what a model needs when a device is
//! opened, any other family when it is first used.

use std::borrow::Cow;
use std::io::Read as _;

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
    Gzip(&'static [u8]),
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
    const fn packed(level: &'static str, isa: &'static str, gzip: &'static [u8]) -> Self {
        Self { level, isa, text: Text::Gzip(gzip) }
    }

    /// The text; for an embedded level, unpacked by this call.
    ///
    /// # Errors
    /// Embedded bytes that are not a packed text.
    pub fn ptx(&self) -> Result<Cow<'static, str>, ModuleError> {
        let gzip = match self.text {
            Text::Plain(text) => return Ok(text.into()),
            Text::Gzip(gzip) => gzip,
        };
        let mut text = String::new();
        match flate2::read::GzDecoder::new(gzip).read_to_string(&mut text) {
            Ok(_) => Ok(text.into()),
            Err(error) => {
                Err(ModuleError::Damaged { level: self.level.into(), why: error.to_string() })
            }
        }
    }

    /// `(capability, architecture-specific)`; `None` for a target of another form.
    pub fn target(&self) -> Option<(u32, bool)> {
        parse(self.level)
    }

    /// Whether a device of capability `sm` can run it.
    pub fn fits(&self, sm: u32) -> bool {
        match self.target() {
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

/// The PTX of `ptx` with only the entries that `keep` names; `None` where none is left. A text with
/// debug sections, which speak of all entries, is one part: kept whole.
pub(super) fn part(ptx: &str, keep: impl Fn(&str) -> bool) -> Option<String> {
    const ENTRY: &str = "\n.visible .entry ";
    let mut pieces = ptx.split(ENTRY);
    let mut text = pieces.next().unwrap_or_default().to_owned();
    let mut kept = false;
    let whole = ptx.contains(".section") || ptx.contains("\n.file");
    for piece in pieces {
        let name = piece.split(['(', '\n']).next().unwrap_or_default();
        let wanted = keep(name.trim());
        kept |= wanted;
        if wanted || whole {
            text += ENTRY;
            text += piece;
        }
    }
    kept.then_some(text)
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
    for piece in ptx.split("\n.visible .entry ").skip(1) {
        if !keep(piece.split(['(', '\n']).next().unwrap_or_default().trim()) {
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
    fn a_part_has_the_head_and_the_entries_asked_for() {
        const PTX: &str = ".version 7.8\n.target sm_90\n\n.visible .entry a(\n)\n{ ret; }\n\n\
                           .visible .entry ab(\n)\n{ exit; }\n";
        let a = part(PTX, |name| name == "a").unwrap();
        assert!(a.starts_with(".version 7.8") && a.contains("ret;") && !a.contains("exit;"));
        assert_eq!(part(PTX, |_| true).unwrap(), PTX);
        assert_eq!(part(PTX, |name| name == "b"), None);
        let debug = PTX.to_owned() + "\t.section .debug_line { }\n";
        assert_eq!(part(&debug, |name| name == "a").unwrap(), debug);
    }

    #[test]
    fn the_parts_of_each_embedded_level_are_all_of_it() {
        for image in IMAGES {
            let ptx = image.ptx().unwrap();
            let entries = |text: &str| text.matches(".visible .entry").count();
            let families = contract::FAMILIES
                .iter()
                .filter_map(|family| part(&ptx, |name| contract::family_of(name) == Some(family)));
            let sum: usize = families.map(|text| entries(&text)).sum();
            assert!(sum > 0);
            assert_eq!(sum, entries(&ptx), "{}", image.level);
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
        assert_eq!(order(120)[0], "sm_90");
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
