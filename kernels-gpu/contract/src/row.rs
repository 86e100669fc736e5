//! How the families that reduce rows spread them over threads: softmax, layernorm, rmsnorm.
//!
//! Short rows belong to 8, 16 or 32 lanes of a warp and wait in their registers, longer ones of up to 8,192 elements in those of
//! a block. Others belong to a block, or to the blocks of a cluster, and wait in shared memory, as `f32` or, in families that change nothing
//! before the first sum, as they are stored; below sm_90 those that do not fit there pass through it in chunks, and
//! are read again in every pass. Of a cluster each block has the same number of partials, side by side, and their elements.
//! The longest rows have sums of segments, and are spread over all blocks: [`crate::parts`].
//! Rows are read and written in pieces of 16 bytes where each starts on such a boundary. Others lie in pieces wherever they start (`turned`), as far as their
//! tensors start on boundaries; where these do not, and in some short ones, they go element by element.
//!
//! Partial `p` of the 256-partial sum ([`crate::num`]) takes its elements in order, wherever they wait. None of this shows in a
//! bit, and neither does the batch.

use crate::launch::Kernel;
use crate::parts::PartArgs;

/// Threads of a block that has short rows.
pub const THREADS: u32 = 256;

/// Threads of a block that has one row of up to [`MIDDLE`] elements: few, so that what a row costs beside its elements
/// is not done by many.
pub const MIDDLE_THREADS: u32 = 128;

/// Threads of a block that has one longer row, or its part of one.
pub const LONG_THREADS: u32 = 256;

/// Most elements of a row of a block of [`MIDDLE_THREADS`] where there is another choice: what its registers hold.
pub const FEW: u32 = 4096;

/// Rows of `k` elements of `bytes` each that a block of [`MIDDLE_THREADS`] has beside each other.
#[inline(always)]
pub const fn beside(k: u32, bytes: u32) -> u32 {
    if bytes == 2 && k <= FEW / 2 { 2 } else { 1 }
}

/// Most elements of a short row.
pub const SHORT: u32 = 1024;

/// Most elements of a row in the shared memory of a block of [`MIDDLE_THREADS`].
pub const MIDDLE: u32 = 8192;

/// Most words of elements in the shared memory of a block of [`LONG_THREADS`], from sm_90: so many that several rows fit on a multiprocessor,
/// since a row that is loaded and one that is written then overlap.
pub const LONG: u32 = 16 * 1024;

/// Most elements of the pieces of 16 bytes that a row of `k` elements lies in wherever it starts.
#[inline(always)]
pub const fn lies(k: u32) -> u32 {
    (k + 7).next_multiple_of(8)
}

/// Whether such rows of elements that wait in `held` bytes each have room in long blocks.
pub const fn lies_in_room(k: u32, held: u32) -> bool {
    lies(k).div_ceil(256) * (256 / split(lies(k), held)) <= LONG * 4 / held
}

/// Blocks of [`LONG_THREADS`] that share a row of `k` elements that wait in `held` bytes each.
#[inline(always)]
pub const fn split(k: u32, held: u32) -> u32 {
    let words = if held == 2 { k.div_ceil(2) } else { k };
    match words.div_ceil(LONG) {
        0..=1 => 1,
        2 => 2,
        _ => 4,
    }
}

/// Most elements of a row.
pub const MAX_LEN: usize = 1 << 30;

/// Most rows.
pub const MAX_ROWS: usize = (1 << 31) - 1;

/// Bytes of shared memory beside a row: two times 256 partials, a word of each warp of a cluster, and a barrier of each.
pub const SCRATCH_BYTES: u32 = 4 * (2 * 256 + 64 + 8);

/// Shared memory of a block that holds `elements`, in bytes.
pub const fn smem_bytes(elements: u32) -> u32 {
    4 * elements + SCRATCH_BYTES
}

/// Who has a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// So many lanes of a warp.
    Lanes(u32),
    /// A block of [`MIDDLE_THREADS`].
    Block,
    /// A block of [`LONG_THREADS`], or several.
    LongBlock,
}

/// Who has a row of `k` elements of `bytes` each. Of rows of up to 64 a lane of the family has `most` elements: its `LANE`.
#[inline(always)]
pub const fn owner(k: u32, bytes: u32, most: u32) -> Owner {
    // Short rows may lie in one piece more than they have elements for.
    let piece = 16 / bytes;
    if k <= SHORT && !k.is_multiple_of(piece) && k + piece - 1 > SHORT {
        return Owner::Block;
    }
    // 32 elements a lane, but no fewer lanes than bytes: they read side by side.
    let (lanes, least) = (k.next_power_of_two() / if k <= 64 { most } else { 32 }, bytes);
    match k {
        0..=SHORT if lanes < least => Owner::Lanes(least),
        0..=SHORT => Owner::Lanes(lanes),
        _ if k <= FEW => Owner::Block,
        _ => Owner::LongBlock,
    }
}

/// Most elements of a lane of a row that comes with its neighbours.
pub const SMALL_MOST: u32 = 20;

/// Most words of a lane of such a row of 16 bits that is in words.
pub const SMALL_WORDS: u32 = 17;

/// Threads of a block of such rows.
pub const SMALL_THREADS: u32 = 128;

/// Bytes of such rows that a warp has at a time, or one row.
const SMALL_BYTES: u32 = 2048;

/// The same of rows in words, where nothing comes with them.
pub const SMALL_WORD_BYTES: u32 = 4096;

/// Most shared memory of a block.
pub(crate) const SMALL_SMEM: u32 = SMALL_THREADS / 32 * 2 * (SMALL_WORD_BYTES / 4 * 5 + 64);

/// How short rows of a family come together: from sm_80, those that follow each other, as they lie.
#[derive(Clone, Copy, Debug)]
pub struct Small {
    /// Most elements of a row.
    pub most: u32,
    /// Most elements of a lane, up to [`SMALL_MOST`].
    pub lane: u32,
    /// Most elements of a row of 16 bits that is in words.
    pub most_in_words: u32,
    /// Fewest words of a lane of such rows, where it has so many.
    pub least_words: u32,
    /// Most words of a lane of such rows, up to [`SMALL_WORDS`].
    pub words: u32,
    /// Bytes of such rows that a warp has at a time, and up to a quarter more.
    pub bytes_in_words: u32,
}

impl Small {
    /// That of a norm, whose lanes have at least so many words. With a residual fewer rows come at a time, and in words only short ones of which lanes have enough.
    #[inline(always)]
    pub(crate) const fn of_norm(least_words: u32, adds: bool) -> Self {
        let (most_in_words, least_words, bytes_in_words) =
            if adds { (72, 8, SMALL_WORD_BYTES / 2) } else { (288, least_words, SMALL_WORD_BYTES) };
        Self { most: 512, lane: 16, most_in_words, least_words, words: 9, bytes_in_words }
    }

    /// Lanes of a row that goes in words.
    #[inline(always)]
    const fn lanes_of_words(&self, k: u32) -> u32 {
        k.div_ceil(2).div_ceil(self.words).next_power_of_two()
    }

    /// Whether such a row of elements of so many bytes goes in words of two elements: not the shortest, and none of those that lie in the same banks.
    #[inline(always)]
    pub const fn paired(&self, k: u32, bytes: u32) -> bool {
        let words = k.div_ceil(2).div_ceil(self.lanes_of_words(k));
        let long = k > 16 && k <= self.most_in_words && words >= self.least_words;
        bytes == 2 && long && !k.is_multiple_of(8)
    }

    /// Lanes of such a row.
    #[inline(always)]
    pub const fn lanes(&self, k: u32, bytes: u32) -> u32 {
        if self.paired(k, bytes) {
            return self.lanes_of_words(k);
        }
        // Rounded up without a look at the remainder, for which the compiler may take a rotation.
        (k.saturating_sub(1) / self.lane + 1).next_power_of_two()
    }

    /// Rows that a warp has at a time.
    #[inline(always)]
    pub const fn rows(&self, k: u32, bytes: u32) -> u32 {
        let least = self.least(k, bytes);
        let most = if self.paired(k, bytes) { self.bytes_in_words } else { SMALL_BYTES };
        let turns = most / (least * k * bytes);
        least * if turns < 1 { 1 } else { turns }
    }

    /// The fewest rows that it has then; as many times those as it has.
    #[inline(always)]
    pub const fn least(&self, k: u32, bytes: u32) -> u32 {
        let beside = 32 / self.lanes(k, bytes);
        // Rows in words that come in eights begin on boundaries of 16 bytes.
        let eights = self.paired(k, bytes) && 8 * k * bytes <= self.bytes_in_words / 4 * 5;
        if eights && beside < 8 { 8 } else { beside }
    }

    /// Bytes of the pieces that they lie in, in two parts where they are of a mask.
    #[inline(always)]
    pub const fn stage_bytes(&self, k: u32, bytes: u32) -> u32 {
        (self.rows(k, bytes) * k * bytes + 31).next_multiple_of(16)
    }

    /// Blocks of a launch over `m` such rows, so many of which run `at_once`.
    pub const fn grid(&self, m: u32, k: u32, bytes: u32, at_once: u32) -> u32 {
        let blocks = m.div_ceil(self.rows(k, bytes)).div_ceil(SMALL_THREADS / 32);
        if blocks < at_once { blocks } else { at_once }
    }

    /// Shared memory of a block: a warp has rows that wait and rows that come, both with what is added to them where something is.
    pub const fn smem_bytes(&self, k: u32, bytes: u32, adds: bool) -> u32 {
        SMALL_THREADS / 32 * self.stage_bytes(k, bytes) * if adds { 4 } else { 2 }
    }
}

/// Rows that lanes of `m` rows of `k` elements of `bytes` each have one after the other: more than one where rows are many,
/// so that a block lives long enough to be worth its start, and one is loaded while another is worked on.
#[inline(always)]
pub const fn turns(m: u32, k: u32, lanes: u32, bytes: u32) -> u32 {
    let k = if k < 128 { 128 } else { k };
    // 16-bit elements leave registers for a row on its way.
    let (most, blocks) = if bytes == 2 {
        (4 * SHORT / k, 1024)
    } else if k > SHORT / 2 {
        (1, 2048)
    } else {
        (SHORT / k, 2048)
    };
    let many = m / (THREADS / lanes) / blocks;
    if many < 1 {
        1
    } else if many < most {
        many
    } else {
        most
    }
}

/// Blocks of a launch over `m` short rows of `k` elements of `bytes` each, which so many `lanes` have.
pub const fn grid_of_lanes(m: u32, k: u32, bytes: u32, lanes: u32) -> u32 {
    m.div_ceil(THREADS / lanes * turns(m, k, lanes, bytes))
}

/// Blocks, or clusters, of a launch over `m` longer rows of `k` elements of `bytes` each, `at_once` of which run beside each other. In families
/// whose rows go `in_turn`, blocks whose registers hold a row have several one after the other: one comes while another is worked on.
pub const fn grid_of_blocks(m: u32, k: u32, bytes: u32, in_turn: bool, at_once: u32) -> u32 {
    let blocks = m.div_ceil(beside(k, bytes));
    if !in_turn || bytes != 2 || k > MIDDLE || blocks <= at_once {
        return blocks;
    }
    // All rows of a block then start in the same place of 32 bytes.
    if !k.is_multiple_of(16) && at_once >= 16 { at_once - at_once % 16 } else { at_once }
}

/// Shared memory of a launch over rows of `k` elements that wait in `held` bytes each, in blocks with room for `room` words, `blocks` of a row.
pub const fn smem_of(k: u32, room: u32, blocks: u32, held: u32) -> u32 {
    let own = if blocks == 1 { k.next_multiple_of(8) } else { k.div_ceil(256) * (256 / blocks) };
    let words = own.div_ceil(4 / held);
    smem_bytes(if words < room { words } else { room })
}

impl<A, B, W, S, M, L, T, N, P> Kernels<A> for (B, W, S, M, L, T, N, P)
where
    B: Kernel<Args = A>,
    W: Kernel<Args = A>,
    S: Kernel<Args = A>,
    M: Kernel<Args = A>,
    L: Kernel<Args = A>,
    T: Kernel<Args = A>,
    N: Kernel<Args = A>,
    P: Kernel<Args = PartArgs<A>>,
{
    type Small = B;
    type Words = W;
    type Short = S;
    type Middle = M;
    type Long = L;
    type Turned = T;
    type LongTurned = N;
    type Parts = P;
}

/// A family of rows: how they go, and its kernels.
pub trait Family {
    /// The parameter of its kernels, but those of parts.
    type Args: Copy;
    /// Kernels of `f32`.
    type F32: Kernels<Self::Args>;
    /// Kernels of f16.
    type F16: Kernels<Self::Args>;
    /// Kernels of bf16.
    type Bf16: Kernels<Self::Args>;
    /// Whether rows of several warps go one after the other.
    const IN_TURN: bool;
    /// Most elements of a lane of rows of up to 64.
    const LANE: u32;
    /// Most elements of a row that is in no parts.
    const WHOLE: u32;
    /// Whether blocks may have the same part of every row ([`crate::norm::same_parts`]), instead of being as many as go.
    const SAME_PARTS: bool;
    /// Bytes that elements of two and of four wait in.
    const HELD: [u32; 2];
    /// Tensors beside the rows of a family some of whose rows go through rings ([`crate::ring`]); 0 of others.
    const BESIDE: u32;

    /// Addresses that have to be multiples of 16 where rows start anywhere: of all rows.
    fn rows(args: &Self::Args) -> u64;

    /// Whether a residual is added in front, in a family with tensors `BESIDE`.
    fn adds(args: &Self::Args) -> bool;

    /// How short rows come together.
    fn small(args: &Self::Args) -> Small;

    /// Whether rows of elements of so many bytes come together, as [`Family::small`] has it: where that is faster.
    fn together(args: &Self::Args, bytes: u32) -> bool;
}

/// The kernels of a family for an element.
pub trait Kernels<A> {
    /// Of short rows that come together, where a level has it.
    type Small: Kernel<Args = A>;
    /// Of those that go in words, where they have a kernel of their own.
    type Words: Kernel<Args = A>;
    /// Of short rows.
    type Short: Kernel<Args = A>;
    /// Of rows of a block.
    type Middle: Kernel<Args = A>;
    /// Of longer ones, where a level has it.
    type Long: Kernel<Args = A>;
    /// Of rows of a block that start anywhere, where a level has it; of norms, of all that go through rings.
    type Turned: Kernel<Args = A>;
    /// Of longer ones, where a level has it.
    type LongTurned: Kernel<Args = A>;
    /// Of parts, where a level has it.
    type Parts: Kernel<Args = PartArgs<A>>;
}

/// The kernels of a family, one for each owner of a row and each element, and its [`Family`]. In brackets, blocks of a multiprocessor: of a row a block
/// before sm_75, of long rows.
macro_rules! kernels {
    ($family:ident, $same:literal, $of_held:expr, $beside:literal,
        [$words16:ident $words_b16:ident], [$turned32:ident $turned16:ident $turned_b16:ident], [$long32:ident $long16:ident $long_b16:ident]; $($of:tt)*) => {
        crate::row::kernels! { @ $($of)* }

        impl crate::row::Family for $family {
            type Args = Args;
            type F32 = (SmallF32, SmallF32, ShortF32, MiddleF32, LongF32, $turned32, $long32, PartsF32);
            type F16 = (SmallF16, $words16, ShortF16, MiddleF16, LongF16, $turned16, $long16, PartsF16);
            type Bf16 = (SmallBf16, $words_b16, ShortBf16, MiddleBf16, LongBf16, $turned_b16, $long_b16, PartsBf16);
            const IN_TURN: bool = IN_TURN;
            const LANE: u32 = LANE;
            const WHOLE: u32 = WHOLE;
            const SAME_PARTS: bool = $same;
            const HELD: [u32; 2] = $of_held;
            const BESIDE: u32 = $beside;

            fn rows(args: &Args) -> u64 {
                rows(args)
            }

            fn adds(args: &Args) -> bool {
                adds(args)
            }

            fn small(args: &Args) -> crate::row::Small {
                small(args)
            }

            fn together(args: &Args, bytes: u32) -> bool {
                args.k <= SMALL.most && together(args, bytes)
            }
        }
    };
    (@ $($short:ident $middle:ident $long:ident $symbols:expr, $held:literal, [$early:literal, $blocks:literal], $doc:literal;)*) => {$(
        #[doc = concat!("Short rows of ", $doc, ".")]
        pub enum $short {}

        impl Kernel for $short {
            type Args = Args;
            const SPEC: LaunchSpec = LaunchSpec::new($symbols[0], crate::row::THREADS)
                .with_smem(4 * crate::row::SHORT * (crate::row::THREADS / 32))
                .with_min_blocks(3);
        }

        #[doc = concat!("Rows of ", $doc, ", a block each.")]
        pub enum $middle {}

        impl Kernel for $middle {
            type Args = Args;
            const SPEC: LaunchSpec = LaunchSpec::new($symbols[1], crate::row::MIDDLE_THREADS)
                .with_smem(crate::row::smem_bytes(crate::row::MIDDLE))
                // Before sm_70 a thread takes more registers.
                .with_min_blocks($early)
                .with_min_blocks_from(750, 6);

            fn smem_bytes(args: &Args) -> u32 {
                crate::row::smem_of(args.k, crate::row::MIDDLE, 1, 4)
            }
        }

        #[doc = concat!("Long rows of ", $doc, ", a block or several each.")]
        pub enum $long {}

        impl Kernel for $long {
            type Args = Args;
            const SPEC: LaunchSpec = LaunchSpec::new($symbols[2], crate::row::LONG_THREADS)
                .with_smem(crate::row::smem_bytes(crate::row::LONG))
                .with_min_sm(90)
                .with_min_blocks($blocks);

            fn smem_bytes(args: &Args) -> u32 {
                crate::row::smem_of(args.k, crate::row::LONG, Self::cluster(args), $held)
            }

            fn cluster(args: &Args) -> u32 {
                crate::row::split(args.k, $held)
            }
        }
    )*};
}
pub(crate) use kernels;

/// The kernels of rows that come together: symbol, bytes of an element, blocks of a multiprocessor before sm_90.
macro_rules! small {
    ($($small:ident $symbol:literal $bytes:literal $early:literal $doc:literal;)*) => {$(
        #[doc = concat!("Short rows of ", $doc, " that come together, in tensors that start on boundaries of 16 bytes.")]
        pub enum $small {}

        impl Kernel for $small {
            type Args = Args;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, crate::row::SMALL_THREADS)
                .with_smem(crate::row::SMALL_SMEM)
                .with_min_sm(80)
                .with_min_blocks($early)
                .with_min_blocks_from(900, 5);

            fn smem_bytes(args: &Args) -> u32 {
                small(args).smem_bytes(args.k, $bytes, more(args))
            }
        }
    )*};
}
pub(crate) use small;

/// The kernels of rows of a block that start anywhere.
macro_rules! turned {
    ($($turned:ident $symbol:literal, $turned_blocks:literal, $doc:literal;)*) => {$(
        #[doc = concat!("Rows of ", $doc, " that start anywhere, in tensors that start on boundaries of 16 bytes; a block each.")]
        pub enum $turned {}

        impl Kernel for $turned {
            type Args = Args;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, crate::row::MIDDLE_THREADS)
                .with_smem(crate::row::smem_bytes(crate::row::MIDDLE))
                .with_min_sm(90)
                .with_min_blocks($turned_blocks);

            fn smem_bytes(args: &Args) -> u32 {
                let k = crate::row::lies(args.k);
                crate::row::smem_of(k, crate::row::MIDDLE, 1, 4)
            }
        }
    )*};
}
pub(crate) use turned;

/// The kernels of longer ones.
macro_rules! long_turned {
    ($($long_turned:ident $symbol:literal, $held:literal, $blocks:literal, $doc:literal;)*) => {$(
        #[doc = concat!("Long rows of ", $doc, " that start anywhere, in tensors that start on boundaries of 16 bytes; a block or several each.")]
        pub enum $long_turned {}

        impl Kernel for $long_turned {
            type Args = Args;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, crate::row::LONG_THREADS)
                .with_smem(crate::row::smem_bytes(crate::row::LONG))
                .with_min_sm(90)
                .with_min_blocks($blocks);

            fn smem_bytes(args: &Args) -> u32 {
                let k = crate::row::lies(args.k);
                crate::row::smem_of(k, crate::row::LONG, Self::cluster(args), $held)
            }

            fn cluster(args: &Args) -> u32 {
                crate::row::split(crate::row::lies(args.k), $held)
            }
        }
    )*};
}
pub(crate) use long_turned;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_rows_come_together() {
        use crate::{layernorm, rmsnorm, softmax};
        for small in [softmax::SMALL, layernorm::SMALL, rmsnorm::SMALL] {
            let beside = Small { bytes_in_words: SMALL_WORD_BYTES / 2, ..small };
            for bytes in [2, 4] {
                for k in 1..=small.most {
                    let (rows, lanes) = (small.rows(k, bytes), small.lanes(k, bytes));
                    assert!(lanes <= 32 && small.lane <= SMALL_MOST && small.words <= SMALL_WORDS);
                    if small.paired(k, bytes) {
                        let words = k.div_ceil(2).div_ceil(lanes);
                        assert!(words <= small.words && words > small.words / 2);
                        assert!(beside.smem_bytes(k, bytes, true) <= SMALL_SMEM);
                    } else {
                        assert!(lanes * small.lane >= k);
                        assert!(small.smem_bytes(k, bytes, true) <= SMALL_SMEM);
                    }
                    assert!(rows * lanes % 32 == 0 && small.stage_bytes(k, bytes) % 16 == 0);
                    assert!(rows % small.least(k, bytes) == 0);
                    assert!(small.stage_bytes(k, bytes) >= rows * k * bytes + 16);
                    assert!(small.smem_bytes(k, bytes, false) <= SMALL_SMEM);
                    const { assert!(SMALL_SMEM <= 99 * 1024) };
                }
            }
        }
        assert_eq!(softmax::SMALL.grid(1 << 20, 83, 2, 660), 660);
        assert_eq!(softmax::SMALL.grid(5, 83, 2, 660), 1);
    }

    #[test]
    fn rows_have_their_owners() {
        let lanes = |k| [4, 2].map(|bytes| owner(k, bytes, 32));
        assert_eq!([32, 64, 65].map(|k| owner(k, 2, 16)), [2, 4, 4].map(Owner::Lanes));
        assert_eq!(lanes(1), [Owner::Lanes(4), Owner::Lanes(2)]);
        assert_eq!(lanes(65), [Owner::Lanes(4), Owner::Lanes(4)]);
        assert_eq!(lanes(512), [Owner::Lanes(16), Owner::Lanes(16)]);
        assert_eq!(lanes(513), [Owner::Lanes(32), Owner::Lanes(32)]);
        assert_eq!(lanes(1024), [Owner::Lanes(32), Owner::Lanes(32)]);
        assert_eq!(lanes(1023), [Owner::Block, Owner::Block]);
        assert_eq!(lanes(1020), [Owner::Lanes(32), Owner::Block]);
        assert_eq!(lanes(1025), [Owner::Block, Owner::Block]);
        assert_eq!(lanes(4097), [Owner::LongBlock, Owner::LongBlock]);
        assert_eq!(grid_of_lanes(100, 64, 2, 2), 1);
        assert_eq!(grid_of_lanes(1 << 20, 64, 4, 4), 2048);
        assert_eq!(grid_of_blocks(101, 2000, 2, true, 660), 51);
        assert_eq!(grid_of_blocks(101, 2000, 4, true, 660), 101);
        assert_eq!(grid_of_blocks(8192, 4096, 2, true, 660), 660);
        assert_eq!(grid_of_blocks(8192, 4095, 2, true, 660), 656);
        assert_eq!(grid_of_blocks(8192, 4096, 2, false, 660), 8192);
        assert_eq!(grid_of_blocks(8192, 8192, 4, true, 528), 8192);
        assert_eq!(grid_of_blocks(8192, 40_000, 2, true, 528), 8192);
        for (held, room) in [(4, LONG), (2, 2 * LONG)] {
            for k in [4097, 8192, 8193, 16_385, 20_001, 28_672, crate::rmsnorm::WHOLE] {
                let blocks = split(k, held);
                let own = k.div_ceil(256) * (256 / blocks);
                let least = SCRATCH_BYTES + held * k.div_ceil(blocks);
                assert!(own <= room && smem_of(k, LONG, blocks, held) >= least);
                assert!(lies(k) >= k + 7 && (k == 1 << 16 && held == 4 || lies_in_room(k, held)));
            }
        }
    }
}
