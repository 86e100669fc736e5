//! What a kernel takes for a product, about: measured on an H200 and an H100, and good enough to choose by.

use super::bulk::whole_sectors;
use super::{
    Args, Fed, Group, INT8_DEPTH, K_CHUNK, Memory, THIN_32, THIN_ROWS, Tiling, Variant, thin_rows,
};
use crate::num::RowType;

/// What a launch takes in [`Variant::cost`].
const LAUNCH_NS: u64 = 1500;

/// What blocks that share out a sum in whatever order take beside, in picoseconds.
const SHARED_PS: u64 = 900_000;

/// What an element of such a result takes beside, where no other block of the multiprocessor goes on meanwhile, and where
/// one does: see [`Variant::cost`].
const SLOW_RESULT_FS: [u64; 2] = [270_000, 120_000];

/// What adding up spread sums takes: its launch, a part more, and how many it reads in a nanosecond.
const ADD_NS: u64 = 1200;
/// See [`ADD_NS`].
const ADD_PART_NS: u64 = 20;
/// See [`ADD_NS`].
const ADDED_PER_NS: u64 = 400;
/// Matrices that share a block of few threads take that, at least.
const PACK_NS: u64 = 9000;
/// What a block of i8 by wgmma takes beside where others wait for its place, and where it reads `C`, in steps of k.
const BEGUN_K: u64 = 100;
/// See [`BEGUN_K`].
const READ_K: u64 = 250;
/// What a tile of i8 by `mma.sync` takes that reads `C` only when it writes, in steps of k.
const LATE_K: u64 = 1500;

impl Variant {
    /// Terms that each chain of a block takes of a sum, and all of its chains side by side.
    fn terms(&self, args: &Args) -> [u64; 2] {
        let chunk = K_CHUNK as u32;
        let (k, ways) = (args.k, self.part / chunk);
        if self.memory == Memory::Alone {
            // A part of a step takes as long, alone.
            let whole = u64::from(k.next_multiple_of(INT8_DEPTH));
            return [whole, (whole + u64::from(k)) / 2];
        }
        if self.is_thin() && self.part == 0 && self.tiling.columns == THIN_32.columns {
            // Four warps, which share the bandwidth of one multiprocessor; a single chunk is one warp's.
            let all = if k > chunk { k.into() } else { 2 * u64::from(k) };
            return [k.min(k.div_ceil(4 * chunk) * chunk).into(), all];
        }
        if ways == 0 {
            return [u64::from(k.div_ceil(1 << args.split)); 2];
        }
        let chunks = k.div_ceil(chunk);
        let rounds = chunks.div_ceil(ways << args.split);
        // The last chunk may be a short one.
        let short = rounds > 0 && (rounds - 1) * (ways << args.split) + 1 == chunks;
        let short = if short { chunks * chunk - k } else { 0 };
        let terms = k.min(rounds * chunk - short);
        // Where there is less than a chunk for each, the others wait.
        let all = (u64::from(terms) * u64::from(ways)).min(u64::from(k) * 3 / 2);
        [u64::from(terms), all.max(u64::from(terms))]
    }

    /// How often a block starts with a part of a sum anew.
    fn rounds(&self, args: &Args) -> u64 {
        let ways = self.part / K_CHUNK as u32;
        let chunks = args.k.div_ceil(K_CHUNK as u32);
        if ways == 0 { 1 } else { chunks.div_ceil(ways << args.split).max(1).into() }
    }

    /// Nanoseconds that it takes on a GPU of `sms` multiprocessors, about: on one H200 the estimate
    /// is good enough to choose by. The fullest multiprocessor decides, and a single block does not
    /// get faster than its chain of slices.
    pub fn cost(&self, args: &Args, sms: u32, clusters: bool) -> u64 {
        let together = self.cost_together(args, sms, clusters);
        let spread = self.cost_spread(args, sms).filter(|_| clusters);
        together.min(spread.unwrap_or(u64::MAX))
    }

    /// The same where sums are not spread.
    pub(super) fn cost_together(&self, args: &Args, sms: u32, clusters: bool) -> u64 {
        if matches!(self.memory, Memory::Pack) {
            return self.cost_packed(args);
        }
        let args = &self.args(args, sms, clusters);
        let blocks = self.blocks(args);
        // A part's sums are then read by another block.
        let blocks = blocks << args.split;
        let shared = if self.part < K_CHUNK as u32 { SHARED_PS / self.ps_per_k } else { 160 };
        let more = self.overhead_k + if args.split > 0 { shared } else { 0 };
        let more = more * self.rounds(args) + self.written_k(args);
        let turned = self.turned_halves(args);
        let [chain, all] = self.terms(args).map(|terms| terms * turned / 2 + more);
        // What blocks that begin and end one after the other cannot share.
        let begun = if self.is_bytes() && self.units[0] == 16 { BEGUN_K } else { 0 };
        self.cost_of(args, sms, blocks, [chain, all + begun])
    }

    /// The same where they are, if they can be: parts, and what adds them up.
    pub(super) fn cost_spread(&self, args: &Args, sms: u32) -> Option<u64> {
        let parts = u64::from(self.parts(args));
        if parts == 0 {
            return None;
        }
        let args = &self.turned(args);
        let terms = match self.memory {
            Memory::Long => u64::from(args.k).div_ceil(parts),
            _ => K_CHUNK as u64,
        };
        let blocks = self.blocks(args) * parts;
        let outputs = u64::from(args.batch) * u64::from(args.m) * u64::from(args.n);
        let adding = ADD_NS + parts * ADD_PART_NS + outputs.saturating_mul(parts) / ADDED_PER_NS;
        // So many blocks come and go unevenly.
        Some(adding + self.cost_of(args, sms, blocks, [terms + self.overhead_k; 2]) * 9 / 8)
    }

    /// Of blocks of 64 threads with 8 by 8 outputs: all elements, in lines that meet in few banks or in many.
    fn cost_packed(&self, args: &Args) -> u64 {
        let [m, n, k, batch] = [args.m, args.n, args.k, args.batch].map(u64::from);
        let results = if f32::from_bits(args.beta) == 0.0 { 1 } else { 2 };
        let elements = batch * (m * k + k * n + m * n * results);
        let pieces = args.a.transposed == 0 && args.a.unit >= 16 && k % 8 == 0;
        let tenths_of_ps = match (args.b.transposed != 0, pieces) {
            (false, false) => 19,
            _ => 25,
        };
        PACK_NS.max(LAUNCH_NS + elements.saturating_mul(tenths_of_ps) / 10_000)
    }

    /// Of so many blocks, with so many terms in a chain, and in all chains side by side.
    fn cost_of(&self, args: &Args, sms: u32, blocks: u64, [chain, all]: [u64; 2]) -> u64 {
        let Tiling { rows, columns, tiles } = self.tiling;
        // A result that is not in pieces of 16 bytes goes by way of shared memory.
        let slow = self.tensor && self.units[0] == 16 && args.c.unit < 16;
        let per_element = all * self.fs_per_term
            + if slow { SLOW_RESULT_FS[usize::from(self.resident == 0)] } else { 0 };
        let work = u64::from(rows * columns * tiles) * per_element / 1_000_000;
        // Clusters do not fit everywhere: some multiprocessors get a block more.
        let fed = matches!(self.memory, Memory::Fed(_));
        let uneven = args.split > 0 && self.part == K_CHUNK as u32;
        let uneven = uneven && blocks * 8 > u64::from(sms) * 7 && !(fed && blocks > u64::from(sms));
        // Larger ones leave some without, so that the last of them run afterwards.
        let after = fed && args.split > 1 && blocks * 8 > u64::from(sms) * 15;
        let busy =
            blocks.div_ceil(u64::from(sms.max(1))) + u64::from(uneven) + 2 * u64::from(after);
        // All that a multiprocessor has at a time begin and end together.
        let alone = self.memory == Memory::Alone && busy > 4;
        let busy = if alone { busy.next_multiple_of(4) } else { busy };
        let busy = busy.saturating_mul(work);
        let [share, alone] = self.shares(args);
        let (busy, chain) = (busy.saturating_mul(share), chain * self.ps_per_k / 1000 * alone);
        let time = busy.max(chain) / 32;
        LAUNCH_NS + time
    }

    /// What terms cost, in halves: bytes for wgmma are turned on the way where neighbours in memory are not neighbours in k.
    fn turned_halves(&self, args: &Args) -> u64 {
        let turned = args.a.transposed + (1 - args.b.transposed);
        if self.is_bytes() && self.units[0] == 16 { 2 + 3 * u64::from(turned) } else { 2 }
    }

    /// What writing a large tile of i32 takes, in steps of k: behind wgmma by how much of it is there, and in what words.
    fn written_k(&self, args: &Args) -> u64 {
        if !self.is_bytes() || self.tiling.rows < 128 {
            return 0;
        }
        if self.units[0] < 16 {
            return if args.beta == 0 { 0 } else { LATE_K };
        }
        let Tiling { rows, columns, .. } = self.tiling;
        let outputs = u64::from(args.m) * u64::from(args.n);
        let tiles = self.tiling.per_matrix(args.m, args.n).max(1);
        let each = match (args.c.unit, args.beta != 0) {
            (16, false) => 500,
            (8, false) => 1200,
            (8 | 16, true) => 3600,
            (_, false) => 3600,
            (_, true) => 6000,
        };
        let read = if args.beta != 0 { READ_K } else { 0 };
        read + each * outputs.div_ceil(tiles) / u64::from(rows * columns)
    }

    /// Whether it makes large tiles of 16-bit floats from pieces of 16 bytes.
    const fn is_large_half(&self) -> bool {
        self.tensor && self.units[0] == 16 && self.tiling.rows >= 128
    }

    /// What of its costs a product takes, in 32nds, on a full multiprocessor and where a block is alone: fewer rows are less
    /// work, and single elements are more.
    fn shares(&self, args: &Args) -> [u64; 2] {
        let single = self.units[0] == 1 && (args.a.unit < 16 || args.b.unit < 16);
        match self.memory {
            Memory::Thin { .. } => {
                let rows = thin_rows(args.m);
                let alone = (THIN_ROWS + rows) as u64;
                let full = if rows == 8 { 20 } else { alone };
                // Columns whose terms are neighbours come element by element.
                match (args.b.transposed, args.b.unit) {
                    (0, 16) => [full, alone],
                    (0, _) => [full * 3 / 2, alone * 3 / 2],
                    _ => [full * 7 / 5, alone * 3 / 2],
                }
            }
            // Lines of terms on both sides meet in fewer banks.
            Memory::Quick if args.b.transposed != 0 => [36, 34],
            // Results are read one by one; a matrix alone in its block has nothing beside it.
            Memory::Group { pitch } => {
                let full = if args.beta == 0 { 32 } else { 64 };
                [full, if Group::of(args, pitch).group == 1 { full * 8 / 5 } else { full }]
            }
            // Rows that start in the middle of 32 bytes cost a piece more, which small tiles wait for, and copies by threads.
            Memory::Bulk | Memory::All if self.is_large_half() => {
                let narrow = [&args.a, &args.b].map(|matrix| usize::from(!whole_sectors(matrix)));
                let bulk = self.memory == Memory::Bulk;
                let [one, both] = match (self.tiling.rows, self.tiling.columns) {
                    (192, _) => [33, 36],
                    (_, 256) if bulk => [35, 39],
                    (_, 256) => [37, 44],
                    _ if bulk => [37, 44],
                    _ => [40, 49],
                };
                [[32, one, both][narrow[0] + narrow[1]]; 2]
            }
            Memory::Fed(Fed { rows: 0, .. }) => match thin_rows(args.m) {
                1 => [32, 28],
                4 => [32; 2],
                8 => [30, 33],
                _ => [28, 32],
            },
            Memory::Fed(Fed { rows: 16, .. }) if single => [44, 34],
            Memory::Fed(_) if single => [40, 34],
            Memory::Fed(_) => [32; 2],
            Memory::Stream { .. } => {
                let alone = if single { 36 } else { 32 };
                // Lines of terms of both factors come slowly where tiles are many.
                let along = args.b.transposed != 0 && args.k > 256;
                [if along { alone * 4 / 3 } else { alone }, alone]
            }
            Memory::Rings { side: 64, .. } if single => [45, 34],
            // Pieces of 16 bytes are read as they are wanted.
            Memory::Parts if !single => [26; 2],
            _ if !single && self.tensor && self.most_k > 0 => [13, 16],
            Memory::Long if self.is_bytes() => [32; 2],
            // Few rows are less work; a `C` that is read, and what is cut, is more.
            Memory::Alone => {
                let few = if args.m.min(args.n) <= 8 { 20 } else { 32 };
                let full = if args.beta == 0 { few } else { few * 4 / 3 };
                [full, if single { 34 } else { 32 } + if args.beta == 0 { 0 } else { 12 }]
            }
            // Of 16-bit floats four are read at once, or one by one.
            Memory::All if self.kinds.len() > 1 && args.element != RowType::F32 as u32 => {
                let fours = args.a.unit.min(args.b.unit) >= 8;
                let sides = args.m.min(64) + args.n.min(64);
                if fours { [32; 2] } else { [50, 24 + u64::from(sides) * 54 / 128] }
            }
            Memory::All if single && self.is_bytes() && self.tiling.rows == 16 => [44, 36],
            Memory::All if !single && self.is_bytes() && self.units[0] == 1 && args.beta != 0 => {
                match self.tiling.rows {
                    16 => [48; 2],
                    64 => [90; 2],
                    _ => [32; 2],
                }
            }
            // Bytes are cut from words, and turned where they lie across.
            _ if single && self.is_bytes() => {
                let across = args.a.transposed != 0 || args.b.transposed == 0;
                // A `C` that is read is read late.
                [if across { 90 } else { 48 } * if args.beta == 0 { 2 } else { 5 } / 2; 2]
            }
            _ if single && !self.tensor => [44; 2],
            _ => [32; 2],
        }
    }
}
