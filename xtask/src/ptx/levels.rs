//! The architecture ladder: one PTX file for each level, and the GPUs each one serves.
//!
//! PTX runs on every later GPU, but only under a driver that knows its ISA version. So each level
//! asks for the lowest ISA its instructions need, and the loader falls down this list.

use anyhow::{Result, bail};
use contract::launch::KernelInfo;

/// One rung of the ladder.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Level {
    /// `-C target-cpu`, and the file name.
    pub(crate) name: &'static str,
    /// Compute capability, `10 * major + minor`.
    pub(crate) sm: u32,
    /// PTX ISA version asked for.
    pub(crate) isa: (u32, u32),
    /// Real GPUs whose code is assembled from this level.
    pub(crate) serves: &'static [&'static str],
}

/// All levels, lowest first.
pub(crate) const LEVELS: &[Level] = &[
    // 6.0 for `shfl.sync` and `bar.warp.sync`. No dp4a: emulated.
    Level { name: "sm_53", sm: 53, isa: (6, 0), serves: &["sm_53", "sm_60"] },
    // dp4a.
    Level { name: "sm_61", sm: 61, isa: (6, 0), serves: &["sm_61", "sm_62", "sm_70", "sm_72"] },
    // The first ISA that knows the target.
    Level { name: "sm_75", sm: 75, isa: (6, 3), serves: &["sm_75"] },
    // cp.async, int8 mma m16n8k32, redux; 7.4 for `ld.global.nc.L1::no_allocate`.
    Level {
        name: "sm_80",
        sm: 80,
        isa: (7, 4),
        // GPUs of capability 12 run it too (blocks have 99 KB of shared memory, those of sm_90's kernels 227). They
        // are not audited: `sample_pick` spills 140 bytes on them.
        serves: &["sm_80", "sm_86", "sm_87", "sm_88", "sm_89"],
    },
    // griddepcontrol, bulk copies.
    Level { name: "sm_90", sm: 90, isa: (7, 8), serves: &["sm_90", "sm_100", "sm_103", "sm_110"] },
    // wgmma; 8.1 for `st.async`. Runs on compute capability 9.0 only.
    Level { name: "sm_90a", sm: 90, isa: (8, 1), serves: &["sm_90a"] },
];

/// Cumulative cfgs: a level has every one whose architecture it includes.
const CFGS: &[&str] = &["sm_61", "sm_70", "sm_75", "sm_80", "sm_90", "sm_90a"];

/// First CUDA release and Linux driver branch of a PTX ISA.
const DRIVERS: &[((u32, u32), &str, u32)] = &[
    ((6, 0), "9.0", 384),
    ((6, 3), "10.0", 410),
    ((7, 0), "11.0", 450),
    ((7, 1), "11.1", 455),
    ((7, 4), "11.4", 470),
    ((7, 8), "11.8", 520),
    ((8, 0), "12.0", 525),
    ((8, 1), "12.1", 530),
];

impl Level {
    /// Names of the `level_*` cfgs.
    pub(crate) fn cfgs(&self) -> Vec<String> {
        CFGS.iter()
            .filter(|cfg| {
                let digits: String = cfg.chars().filter(char::is_ascii_digit).collect();
                let sm: u32 = digits.parse().unwrap_or(u32::MAX);
                sm <= self.sm && (!cfg.ends_with('a') || self.name.ends_with('a'))
            })
            .map(|cfg| format!("level_{cfg}"))
            .collect()
    }

    /// The target feature that raises the ISA.
    pub(crate) fn isa_feature(&self) -> String {
        format!("+ptx{}{}", self.isa.0, self.isa.1)
    }

    /// The `.version` the file must have.
    pub(crate) fn isa_version(&self) -> String {
        format!("{}.{}", self.isa.0, self.isa.1)
    }

    /// First CUDA release and driver branch that take this level.
    pub(crate) fn driver(&self) -> Result<(&'static str, u32)> {
        match DRIVERS.iter().find(|row| row.0 == self.isa) {
            Some(&(_, cuda, branch)) => Ok((cuda, branch)),
            None => bail!("PTX ISA {} has no row in the driver table", self.isa_version()),
        }
    }

    /// Why `kernel` is not in this level, if it is not.
    pub(crate) fn absent(&self, kernel: &KernelInfo) -> Option<String> {
        let needs = kernel.spec.min_sm;
        if kernel.spec.arch_specific {
            let only = format!("sm_{needs}a");
            return (self.name != only).then(|| format!("only in {only}"));
        }
        if kernel.spec.not_in_sm_90a && self.name == "sm_90a" {
            return Some("another takes its place".into());
        }
        (needs > self.sm).then(|| format!("needs sm_{needs}"))
    }
}

/// Levels whose texts share a file, in the order of their texts: one level's text is much like another's of its
/// generation, and packs to nearly nothing behind it. Who wants a text unpacks those in front too, so the
/// slowest hosts (a Jetson Nano has sm_53) and the levels of most use come first.
pub(crate) const FILES: [&[&str]; 3] =
    [&["sm_53", "sm_61", "sm_75"], &["sm_80"], &["sm_90a", "sm_90"]];

/// The levels named in a comma-separated list; all of them without one.
pub(crate) fn select(list: Option<&str>) -> Result<Vec<&'static Level>> {
    let Some(list) = list else { return Ok(LEVELS.iter().collect()) };
    list.split(',')
        .map(|name| match LEVELS.iter().find(|level| level.name == name.trim()) {
            Some(level) => Ok(level),
            None => {
                let known: Vec<_> = LEVELS.iter().map(|level| level.name).collect();
                bail!("no PTX level `{name}`; there are {}", known.join(", "))
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cfgs_are_cumulative() {
        let cfgs = |name| select(Some(name)).unwrap()[0].cfgs().join(" ");
        assert_eq!(cfgs("sm_53"), "");
        assert_eq!(cfgs("sm_61"), "level_sm_61");
        assert_eq!(cfgs("sm_80"), "level_sm_61 level_sm_70 level_sm_75 level_sm_80");
        let hopper = "level_sm_61 level_sm_70 level_sm_75 level_sm_80 level_sm_90";
        assert_eq!(cfgs("sm_90"), hopper);
        assert_eq!(cfgs("sm_90a"), format!("{hopper} level_sm_90a"));
    }

    #[test]
    fn every_level_has_a_driver_a_gpu_and_a_file() {
        for level in LEVELS {
            let files = FILES.concat().iter().filter(|&&name| name == level.name).count();
            assert_eq!(files, 1, "{}", level.name);
            level.driver().unwrap();
            assert!(level.serves.contains(&level.name), "{} does not serve itself", level.name);
        }
    }

    #[test]
    fn a_kernel_is_in_the_levels_that_can_have_it() {
        use contract::launch::LaunchSpec;
        let levels_of = |spec| {
            let kernel = KernelInfo { family: "k", spec, args_bytes: 0 };
            let has = |level: &&Level| level.absent(&kernel).is_none();
            LEVELS.iter().filter(has).map(|level| level.name).collect::<Vec<_>>().join(" ")
        };
        let spec = LaunchSpec::new("k", 32);
        assert_eq!(levels_of(spec).split(' ').count(), LEVELS.len());
        assert_eq!(levels_of(spec.with_min_sm(80)), "sm_80 sm_90 sm_90a");
        assert_eq!(levels_of(spec.only_on(90)), "sm_90a");
    }

    #[test]
    fn an_unknown_level_is_refused() {
        assert!(select(Some("sm_80,sm_81")).unwrap_err().to_string().contains("sm_81"));
    }
}
