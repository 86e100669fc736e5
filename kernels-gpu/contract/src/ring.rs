//! How rows of norms go through shared memory, one after the other: a block has groups of warps, each of which has some rows there, and works on one
//! while others come.

/// Threads of a block.
pub const THREADS: u32 = 512;

/// Most shared memory of a block.
pub const ROOM: u32 = 227 * 1024;

/// Bytes that are to be on their way to a block: more make nothing faster.
const COMING: u32 = 32 * 1024;

/// Elements that are taken together: as many as a sum has partials.
pub const GROUP: u32 = 256;

/// Fewest elements of a row that is worth a warp.
pub const LEAST: u32 = 257;

/// Most pieces of the gain that a thread keeps in registers.
pub const HELD: u32 = 14;

/// Where gain and offset of a block's rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Near {
    /// Beside the rows, in shared memory.
    Shared,
    /// In registers, up to [`HELD`] pieces of a thread: a gain of 16 bits, where all warps have a row.
    Registers,
}

/// How rows go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Warps of a group: a power of two up to 16.
    pub warps: u32,
    /// Rows of a group that wait or come.
    pub stages: u32,
    /// Whether a residual's rows come too; else they are loaded.
    pub comes: bool,
    /// Where gain and offset are.
    pub near: Near,
    /// Bytes of a row that waits: as [`stage_bytes`] has it, or fewer where all 16 warps have a row.
    pub stage: u32,
    /// Shared memory of a block.
    pub smem_bytes: u32,
}

/// Bytes of a row that waits, wherever it starts.
#[inline(always)]
pub const fn stage_bytes(k: u32, bytes: u32) -> u32 {
    (stage_bytes_least(k, bytes) / bytes).next_multiple_of(GROUP) * bytes
}

/// Those of its elements, and of what is in front of them.
const fn stage_bytes_least(k: u32, bytes: u32) -> u32 {
    let odd = if (k * bytes).is_multiple_of(16) { 0 } else { 16 / bytes - 1 };
    (k + odd) * bytes
}

/// Bytes of partials: of two sums of each group of several warps.
#[inline(always)]
pub const fn scratch_bytes(warps: u32) -> u32 {
    if warps == 1 { 0 } else { THREADS / (32 * warps) * 2 * GROUP * 4 }
}

/// Rows that begin in all places that rows of `k` elements do, one after the other.
#[inline(always)]
pub const fn places(k: u32, bytes: u32) -> u32 {
    let mut places = 1;
    while !(places * (k % 16) * bytes).is_multiple_of(16) {
        places *= 2;
    }
    places
}

/// Blocks of a launch over `m` rows, on so many multiprocessors: the rows of each begin in the same place of 16 bytes.
pub const fn grid(m: u32, k: u32, bytes: u32, sms: u32) -> u32 {
    let places = places(k, bytes);
    let most = if sms < places { places } else { sms - sms % places };
    if m < most { m.next_multiple_of(places) } else { most }
}

/// How rows of `k` elements of `bytes` each go, `beside` of whose tensors have one row; none where they do not fit. As few warps have a row
/// as have room; all of them where only part of it fits, and the gain is kept in registers or the row lies without what is behind its last piece.
#[inline(always)]
pub const fn plan(k: u32, bytes: u32, beside: u32, adds: bool) -> Option<Plan> {
    if k > ROOM {
        return None;
    }
    let stage = stage_bytes(k, bytes);
    let mut tensors = if adds { 2 } else { 1 };
    while tensors > 0 {
        let mut warps = 1;
        while warps <= THREADS / 32 {
            let rows = THREADS / (32 * warps) * tensors;
            let mut stages = 2;
            while stages < 4 && (stages - 1) * rows * stage < COMING {
                stages += 1;
            }
            let smem_bytes = scratch_bytes(warps) + stage * (beside + rows * stages);
            if smem_bytes <= ROOM {
                let (comes, near) = (tensors == 2, Near::Shared);
                return Some(Plan { warps, stages, comes, near, stage, smem_bytes });
            }
            warps *= 2;
        }
        tensors -= 1;
    }
    let (warps, stages, comes) = (THREADS / 32, 2, false);
    let smem_bytes = scratch_bytes(warps) + stage * stages;
    if beside == 1 && bytes == 2 && stage <= 16 * THREADS * HELD && smem_bytes <= ROOM {
        let near = Near::Registers;
        return Some(Plan { warps, stages, comes, near, stage, smem_bytes });
    }
    // Without what is behind the last piece, of which nothing is taken but which is read with the last group.
    let stage = stage_bytes_least(k, bytes).next_multiple_of(16);
    let smem_bytes = scratch_bytes(warps) + stage * (beside + stages) + GROUP * bytes;
    if smem_bytes <= ROOM {
        return Some(Plan { warps, stages, comes, near: Near::Shared, stage, smem_bytes });
    }
    None
}

/// Whether `m` rows of `k` elements of `bytes` each go through rings, on so many multiprocessors: `beside` and `adds` as for [`plan`]. Rows that are
/// in no pieces of 16 bytes do, others where it is faster and they are many.
pub const fn goes([m, k]: [u32; 2], bytes: u32, (beside, adds): (u32, bool), sms: u32) -> bool {
    let Some(Plan { warps, near, .. }) = plan(k, bytes, beside, adds) else { return false };
    if !(k * bytes).is_multiple_of(16) {
        // What is kept in registers is worth its loads where a block has some rows.
        return k >= LEAST && (matches!(near, Near::Shared) || m / 2 >= sms);
    }
    // Of shorter ones a block has 16 beside each other, and they are faster in lanes where these have some each.
    if k <= 1024 && (k < 1024 || beside == 1) {
        let least = if beside == 2 && !adds { 640 } else { 512 };
        return bytes == 2 && k >= least && m / 64 >= sms;
    }
    // Registers of two warps are full of a row of 2,048.
    beside == 2 && bytes == 2 && k >= 1024 && k != 2048 && warps < 16 && m / 4 >= sms
}

/// The kernels of the rings of a norm, one for each element.
macro_rules! kernels {
    ($beside:literal; $($name:ident $symbol:literal $bytes:literal $doc:literal;)*) => {$(
        #[doc = concat!("Rows of ", $doc, " that come to shared memory one after the other.")]
        pub enum $name {}

        impl Kernel for $name {
            type Args = Args;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, crate::ring::THREADS)
                .with_smem(crate::ring::ROOM)
                .with_min_sm(90)
                .with_min_blocks(1);

            fn smem_bytes(args: &Args) -> u32 {
                match crate::ring::plan(args.k, $bytes, $beside, !args.delta.is_null()) {
                    Some(plan) => plan.smem_bytes,
                    // Nothing fits: the launch is refused.
                    None => u32::MAX,
                }
            }
        }
    )*};
}
pub(crate) use kernels;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_fit() {
        for (bytes, beside, most) in
            [(2, 2, 28_672), (4, 2, 14_000), (2, 1, 37_000), (4, 1, 18_000)]
        {
            for k in [LEAST, 768, 1023, 1025, 4096, 4097, 8191, most] {
                for adds in [false, true] {
                    let plan = plan(k, bytes, beside, adds).expect("room");
                    assert!(plan.smem_bytes <= ROOM && plan.warps * 32 <= THREADS);
                    assert!(adds || !plan.comes);
                }
            }
        }
        assert_eq!(plan(1 << 17, 2, 1, false), None);
        assert_eq!([places(1024, 2), places(1023, 2), places(1026, 2), places(1, 4)], [1, 8, 4, 4]);
        assert_eq!([grid(5, 1023, 2, 132), grid(5000, 1023, 2, 132)], [8, 128]);
        assert_eq!([grid(5, 1024, 2, 132), grid(5000, 1026, 2, 132)], [5, 132]);
        let rings = |m, k, bytes| goes([m, k], bytes, (2, false), 132);
        assert!(
            rings(1, 1023, 2) && rings(1, 257, 4) && rings(528, 1024, 2) && rings(1, 28_663, 2)
        );
        // Wherever rows with sums of all of it begin, and where the gain is kept.
        assert!(rings(1, 28_671, 2) && plan(28_671, 2, 2, true).is_some_and(|p| !p.comes));
        let kept = |m, k| goes([m, k], 2, (1, true), 132);
        assert!(kept(264, 50_257) && !kept(263, 50_257) && !kept(264, 60_001));
        for k in [38_401, 50_257, 57_337] {
            let Some(Plan { near, stage, warps, .. }) = plan(k, 2, 1, false) else { panic!("{k}") };
            assert!(near == Near::Registers && warps == 16 && stage <= 16 * THREADS * HELD);
            assert!(plan(k, 4, 1, false).is_none() && plan(k, 2, 2, false).is_none());
        }
        assert!(!rings(1, 255, 2) && !rings(527, 1024, 2) && !rings(528, 1024, 4));
        let (least, many) = (64 * 132, 64 * 132 - 1);
        assert!(rings(least, 640, 2) && !rings(many, 640, 2) && !rings(least, 632, 2));
        assert!(kept(least, 512) && kept(least, 1024) && !kept(many, 1024));
        assert!(!kept(least, 504) && !kept(least, 1032) && !rings(least, 768, 4));
        assert!(!rings(528, 2048, 2) && !rings(528, 28_672, 2) && !rings(1, 28_671, 4));
    }
}
