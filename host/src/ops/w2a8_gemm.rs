//! Host side of [`contract::w2a8_gemm`].

use contract::w2a8::{CHUNK, CHUNK_GROUP, MAX_ROWS};
use contract::w2a8_gemm::{LET_IN_BYTES, PAIR_BYTES, VARIANTS, Variant};

use super::attention_paged::PagedCache;
use super::error::{at_least, dimension};
use super::tensor::RowWords;
use super::{Backend, OpError, PackedLinear, QuantActs, Tensor, WeightLayout};

const OP: &str = "w2a8_gemm";

/// `y[m, n] = (sum_k q[m, k] t[n, k] / s[m]) * g[n]`.
pub struct W2a8Gemm<'a, B: Backend> {
    /// Ternary weights.
    pub w: &'a PackedLinear<B>,
    /// Quantised activations of `m` rows.
    pub acts: &'a QuantActs<B>,
    /// Output `[m, n]`.
    pub y: &'a mut B::Buf<f32>,
    /// Rows of activations.
    pub m: usize,
    /// Which of [`VARIANTS`] runs on a GPU; `None`: what was measured
    /// ([`super::choices`]), else [`choose_index`]. All give the same bits.
    pub variant: Option<usize>,
    /// Whether other kernels of a layer stand before and behind it: with programmatic dependent launch another variant may
    /// be the best one then. Counts where none was chosen nor measured.
    pub chained: bool,
    /// What is done for the operations behind.
    pub behind: Behind<'a, B>,
}

/// What a product may do for the operations behind it; it changes no result.
#[derive(Default)]
pub enum Behind<'a, B: Backend> {
    /// Nothing: with programmatic dependent launch the next one begins when the last codes are asked for.
    #[default]
    Nothing,
    /// The next one has much to read before it waits, and places enough: with programmatic dependent launch it may begin at once.
    LetsIn,
    /// Keys that a later one reads: a kernel on `wgmma` brings them into the second-level cache.
    Keys(KeysAhead<'a, B>),
}

/// Of each row of a product the keys of page `block` of its table, if its position lies behind them.
pub struct KeysAhead<'a, B: Backend> {
    /// The pages.
    pub cache: &'a PagedCache<B>,
    /// Position of each row.
    pub positions: RowWords<'a, B>,
    /// Pages of each row's sequence.
    pub tables: RowWords<'a, B>,
    /// Which of them.
    pub block: usize,
}

impl<B: Backend> W2a8Gemm<'_, B> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor, dimension or variant that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        if let Some(found) = self.variant.filter(|&v| v >= VARIANTS.len()) {
            let allowed = "an index into contract::w2a8_gemm::VARIANTS is allowed";
            return Err(OpError::Dimension { op: OP, what: "variant", found, allowed });
        }
        dimension(OP, "m", self.m, MAX_ROWS, "1 to 2^24 rows are allowed")?;
        self.w.check_layout(OP, WeightLayout::Bits2)?;
        self.acts.check(OP, self.m, self.w.k())?;
        if let Behind::Keys(keys) = &self.behind {
            keys.positions.check(OP, "positions", self.m, 1)?;
            let allowed = "1 to 2^24 pages of a table are allowed";
            dimension(OP, "block", keys.block.saturating_add(1), MAX_ROWS, allowed)?;
            keys.tables.check(OP, "tables", self.m, keys.block + 1)?;
        }
        at_least(OP, "y", self.y.len(), self.m * self.w.n())
    }
}

#[cfg(feature = "cuda")]
impl KeysAhead<'_, super::CudaBackend> {
    /// What the kernels take; nothing where a page is not made of pieces of 16 bytes.
    fn of_rows(&self, cuda: &super::CudaBackend, rows: u32) -> contract::w2a8_gemm::Ahead {
        use super::cuda::at;
        let (stream, pages) = (cuda.stream(), self.cache.pages);
        let page_bytes = self.cache.k.len() / pages.max(1);
        let taken = page_bytes.is_multiple_of(16) && page_bytes <= i32::MAX as usize;
        contract::w2a8_gemm::Ahead {
            keys: self.cache.k.dev_ptr(stream),
            positions: at(self.positions.words.dev_ptr(stream), self.positions.at),
            tables: at(self.tables.words.dev_ptr(stream), self.tables.at),
            rows: if taken { rows } else { 0 },
            position_stride: self.positions.stride as u32,
            table_stride: self.tables.stride as u32,
            pages: pages as u32,
            page_bytes: page_bytes as u32,
            block: self.block as u32,
        }
    }
}

/// The expected time of variant `index` for an `m` by `n` by `k` product on `sms` multiprocessors, in
/// nanoseconds; `None` where its grid is too large, or it is not for such products. `chained`: launches overlap (programmatic
/// dependent launch), and others stand around this one; `lets_in`: [`Behind::LetsIn`].
///
/// A launch; each round of tiles over the multiprocessors; each group of k of a tile; and each of these
/// in each round, which is all of it where a tile has a multiprocessor to itself. The four numbers of a
/// variant (`COSTS`) were fitted to what an H200 takes, cold, half of it with programmatic dependent
/// launch, for M from 2 to 2,048 at eight shapes of models. A product of few tokens that runs among other kernels has
/// numbers of its own (`CHAINED`), and so has one alone (`ALONE_FEW`).
pub fn cost(
    index: usize,
    [m, n, k]: [u32; 3],
    sms: u32,
    [chained, lets_in]: [bool; 2],
) -> Option<u64> {
    let costs = match (m <= FEW_TOKENS, chained) {
        (false, _) => COSTS,
        (true, false) => ALONE_FEW,
        (true, true) => CHAINED,
    };
    let (variant, cost) = (VARIANTS.get(index)?, costs.get(index)?);
    let grid = variant.grid(m, n, sms)?;
    if *cost == NEVER {
        return None;
    }
    let split = u64::from(variant.split);
    let tiles = u64::from(m.div_ceil(variant.tokens)) * u64::from(n.div_ceil(variant.rows));
    let groups = u64::from(k).div_ceil((CHUNK * CHUNK_GROUP) as u64).div_ceil(split);
    // A cluster lies in one group of multiprocessors, of which Hopper has 18 each at most: four clusters of
    // four there. 32 such tiles take twice the time of 30 on an H200 of 132 multiprocessors.
    let at_once = u64::from(sms) * (GROUP / split) / GROUP;
    let rounds = tiles.div_ceil(at_once.max(1));
    let cost = cost[0] + cost[1] * rounds + cost[2] * groups + cost[3] * rounds * groups;
    let early = chained && lets_in && m <= FEW_TOKENS && room(variant, grid, sms, true) > 0;
    let early = early && [variant.rows, variant.tokens] == [64, 16];
    Some(cost.saturating_sub(if early { LET_IN } else { 0 }))
}

/// [`contract::w2a8_gemm::Args::room`] of a product in a layer: blocks that start while the kernel in front still runs take the places that
/// are left, three on some multiprocessors, where two on each would do, and a kernel lasts as long as the fullest of them. Where it lets the next
/// kernel in, tiles of 64 features leave no place for that one's blocks beside two of their own; smaller ones do.
fn room(variant: &Variant, grid: [u32; 3], sms: u32, lets_in: bool) -> u32 {
    let blocks = grid.into_iter().map(u64::from).product::<u64>();
    match lets_in {
        _ if blocks > 2 * u64::from(sms) || !variant.takes_room() => 0,
        false => PAIR_BYTES,
        true if variant.rows >= 64 => LET_IN_BYTES,
        true => 0,
    }
}

/// The variant for an `m` by `n` by `k` product on `sms` multiprocessors when nobody chose one: the one of
/// least [`cost`] among those of which `has` says that the device has them. `around`: whether it is chained, and lets the next one in.
pub fn choose_index(
    shape: [u32; 3],
    sms: u32,
    around: [bool; 2],
    has: impl Fn(usize) -> bool,
) -> usize {
    let here = (0..VARIANTS.len()).filter(|&index| has(index));
    // The first one runs everywhere and takes everything.
    here.min_by_key(|&index| cost(index, shape, sms, around).unwrap_or(u64::MAX)).unwrap_or(0)
}

/// Multiprocessors that can share a cluster (a graphics processing cluster of GH100).
const GROUP: u64 = 18;

/// Nanoseconds of a launch, of a round of tiles, of 512 terms of k, and of these in a round: one row for
/// each of [`VARIANTS`].
const COSTS: &[[u64; 4]] = &[
    [5802, 0, 0, 453],    // w2a8_gemm
    [1468, 90, 110, 106], // t8a
    [1490, 252, 77, 96],  // t8b
    // Fitted on 2026-11-23, less half a microsecond: as much and more were the times of `t8a` above its row that day.
    [1500, 117, 0, 514],   // t8c
    [1242, 347, 151, 227], // t16a
    [1462, 392, 71, 125],  // t16b
    [1231, 433, 135, 468], // t16c
    [1198, 617, 190, 331], // t32a
    [0, 2007, 12, 847],    // t32b
    NEVER,                 // t8x3: for few tokens; 96 of 1,536 x 4,096 take twice the time of t16b
    [1553, 977, 105, 393], // t32x2
    [865, 1841, 32, 546],  // h32
    [0, 3383, 60, 568],    // h32x2
    [1848, 1864, 0, 693],  // h64
    [169, 4212, 41, 714],  // h64x2
    [1900, 1900, 0, 755],  // h64s, a guess
    [3500, 2000, 0, 812],  // h64sx4, a guess
    [1489, 3099, 0, 1135], // h128
    [0, 5536, 15, 1223],   // h128x2
    [0, 5100, 0, 1429],    // h128x4
];

/// The same numbers for a product of at most [`FEW_TOKENS`] alone: fitted on 2026-11-28 to what each variant takes cold, with
/// programmatic dependent launch, in 564 products of M from 8 to 64: 63 shapes from 1,024x1,024 to 57,344x8,192 on an H200, 31 of them on an H100 too.
/// The choice is 0.8 % from the best variant on average (4.4 % before), more than 5 % at 36, 18 % at most (2,560x2,048, M = 64). Fitted to two thirds of the
/// shapes the rule was 1.3 % from the best at the other third. `t8c` was not timed but at 13,824x2,560 and keeps its numbers; so do `t32b` and `h128*`,
/// which are for others.
const ALONE_FEW: &[[u64; 4]] = &[
    [5802, 0, 0, 453],     // w2a8_gemm
    [960, 174, 150, 104],  // t8a
    [967, 363, 109, 86],   // t8b
    [562, 415, 353, 342],  // t8c
    [1373, 93, 134, 252],  // t16a
    [1005, 368, 85, 127],  // t16b
    [888, 79, 200, 498],   // t16c
    [1554, 165, 243, 366], // t32a
    [0, 5095, 2424, 1],    // t32b
    [1982, 391, 97, 196],  // t8x3
    [1580, 827, 190, 322], // t32x2
    [437, 1501, 42, 573],  // h32
    [37, 3548, 0, 563],    // h32x2
    [333, 1675, 101, 691], // h64
    [9, 3336, 0, 781],     // h64x2
    [416, 1531, 159, 805], // h64s
    [0, 4363, 49, 688],    // h64sx4
    [4693, 109, 10, 1203], // h128
    [21, 4021, 372, 1203], // h128x2
    [0, 5100, 0, 1429],    // h128x4
];

/// Of a variant that is not for such products.
const NEVER: [u64; 4] = [u64::MAX; 4];

/// Most tokens of a product for which [`ALONE_FEW`] and [`CHAINED`] count.
pub(crate) const FEW_TOKENS: u32 = 64;

/// The same numbers for a product of at most [`FEW_TOKENS`] among the other kernels of a layer, with programmatic dependent
/// launch: fitted to what a layer of 2B-4T takes with each variant in each place, for M from 8 to 64, and to launches alone of
/// layers of other models; those of `h128` are as above. On the layers that were measured the choice is 0.05 us from the best, on average. What
/// `h32` and `h64*` take less since 2026-11-27, alone, is taken off their last numbers, here and above.
const CHAINED: &[[u64; 4]] = &[
    [5802, 0, 0, 453],     // w2a8_gemm
    [1984, 76, 118, 128],  // t8a
    [0, 459, 84, 190],     // t8b
    NEVER,                 // t8c: a step of 8 sequences takes 5 % more with it
    [2156, 0, 348, 223],   // t16a
    [0, 1043, 145, 101],   // t16b
    [2555, 579, 237, 374], // t16c
    [2791, 0, 297, 336],   // t32a
    [2576, 716, 260, 678], // t32b
    [2367, 570, 0, 213],   // t8x3
    [2445, 2103, 0, 367],  // t32x2
    [2132, 2404, 61, 571], // h32
    [499, 3605, 4, 450],   // h32x2
    [3022, 2386, 39, 775], // h64
    [203, 4227, 0, 560],   // h64x2
    [2355, 2089, 69, 925], // h64s
    // What a round costs besides its k: three rounds take 17.5 us at 9,600 x 3,200 and 64 tokens (h64 8.7).
    [0, 4300, 0, 745],     // h64sx4
    [1489, 3099, 0, 1161], // h128
    [0, 5536, 15, 1223],   // h128x2
    [0, 5100, 0, 1429],    // h128x4
];

/// Nanoseconds that `t16a` takes less than in [`CHAINED`] where it lets attention in and has its [`room`]: on an H100 it is then the fastest of 33 to 64
/// tokens at 3,840 x 2,560, by 0.4 to 2.4 us of a layer.
const LET_IN: u64 = 800;

const _: () = assert!(
    COSTS.len() == VARIANTS.len()
        && ALONE_FEW.len() == VARIANTS.len()
        && CHAINED.len() == VARIANTS.len()
);

#[cfg(feature = "cuda")]
type Launch = unsafe fn(
    &super::CudaBackend,
    [u32; 3],
    contract::w2a8_gemm::Args,
    contract::w2a8_gemm::Ahead,
) -> Result<(), OpError>;
#[cfg(feature = "cuda")]
type Has = fn(&super::CudaBackend) -> bool;

#[cfg(feature = "cuda")]
macro_rules! kernels {
    ({ $($name:ident;)* } { $($bulk:ident $split:literal;)* }) => {
        /// In the order of [`VARIANTS`].
        const KERNELS: &[(Launch, Has)] = &[
            $((
                launch_plain::<contract::w2a8_gemm::$name>,
                super::CudaBackend::has::<contract::w2a8_gemm::$name>,
            ),)*
            $((
                launch_bulk::<contract::w2a8_gemm::$bulk, $split>,
                super::CudaBackend::has::<contract::w2a8_gemm::$bulk>,
            ),)*
        ];
    };
}
#[cfg(feature = "cuda")]
contract::for_each_w2a8_gemm!(kernels);

/// Launches a kernel that brings nothing for others.
///
/// # Safety
/// As for the kernel.
#[cfg(feature = "cuda")]
unsafe fn launch_plain<K: contract::launch::Kernel<Args = contract::w2a8_gemm::Args>>(
    cuda: &super::CudaBackend,
    grid: [u32; 3],
    args: contract::w2a8_gemm::Args,
    _: contract::w2a8_gemm::Ahead,
) -> Result<(), OpError> {
    // SAFETY: the caller's promise.
    unsafe { cuda.launch::<K>(grid, args) }
}

/// Launches a kernel whose operands the copy engine brings.
///
/// # Safety
/// As for the kernel, but for the maps.
#[cfg(feature = "cuda")]
unsafe fn launch_bulk<K: contract::w2a8_gemm::Bulk, const SPLIT: u32>(
    cuda: &super::CudaBackend,
    grid: [u32; 3],
    args: contract::w2a8_gemm::Args,
    ahead: contract::w2a8_gemm::Ahead,
) -> Result<(), OpError> {
    use contract::w2a8_gemm::{BulkArgs, GROUP_BYTES};

    use crate::driver::{MapElement, Mapped};
    let map = |address, [lines, bytes, tile]: [u32; 3]| {
        let sizes = [bytes.into(), lines.into(), 1, 1];
        let mapped = Mapped { element: MapElement::U8, address, sizes, strides: [sizes[0]; 3] };
        mapped.tiles([GROUP_BYTES, tile, 1, 1])
    };
    let codes = map(args.w.addr(), [args.n, 16 * args.chunks, K::CUT.rows()]);
    let acts = map(args.acts.addr(), [args.m, 16 * args.act_pieces, K::CUT.tokens]);
    let Some((codes, acts)) = codes.zip(acts) else {
        let allowed = "this driver makes no map of such tensors; use another variant";
        return Err(OpError::Dimension { op: OP, what: "m", found: args.m as usize, allowed });
    };
    let args = BulkArgs { codes, acts, base: args, split: SPLIT, zero: 0, ahead };
    // SAFETY: the caller's promise; the maps are those of its tensors.
    unsafe { cuda.launch::<K>(grid, args) }
}

/// Whether the device and the loaded PTX have variant `index`.
#[cfg(feature = "cuda")]
pub(super) fn has_variant(cuda: &super::CudaBackend, index: usize) -> bool {
    KERNELS.get(index).is_some_and(|kernel| (kernel.1)(cuda))
}

/// A product whose tensors have been compared with the contract.
#[cfg(feature = "cuda")]
pub(super) struct Product<'a> {
    /// Packed words `[n, row_words(k)]`.
    pub(super) words: contract::launch::DevPtr<u32>,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) segments: &'a contract::w2a8::Segments,
    /// Of `m` rows.
    pub(super) acts: &'a QuantActs<super::CudaBackend>,
    pub(super) m: usize,
    /// Output `[m, n]`.
    pub(super) y: contract::launch::DevPtr<f32>,
}

#[cfg(feature = "cuda")]
impl Product<'_> {
    /// Runs `variant`, or the one to choose.
    ///
    /// # Safety
    ///
    /// The tensors have the lengths that they say, when the launch runs, and nothing else uses `y` then.
    pub(super) unsafe fn launch(
        self,
        cuda: &super::CudaBackend,
        variant: Option<usize>,
        chained: bool,
        behind: Behind<'_, super::CudaBackend>,
    ) -> Result<(), OpError> {
        use contract::w2a8::act_bytes;
        let Self { words, n, k, segments, acts, m, y } = self;
        let stream = cuda.stream();
        let (chained, lets_in) = (chained && stream.pdl(), matches!(behind, Behind::LetsIn));
        let mut args = contract::w2a8_gemm::Args {
            w: words,
            acts: acts.acts.dev_ptr(stream),
            stats: acts.stats.dev_ptr(stream).cast(),
            y,
            n: n as u32,
            chunks: k.div_ceil(CHUNK) as u32,
            m: m as u32,
            act_pieces: (act_bytes(k) / 16) as u32,
            segments: *segments,
            lets_in: u32::from(lets_in),
            room: 0,
        };
        let (shape, sms) = ([args.m, args.n, k as u32], cuda.cuda().device().sm_count());
        // Records are of products alone. What lets the next operation in is chosen for that: with the fastest alone, which lets nobody
        // in early, a step of 64 sequences takes 2 to 6 % longer (one H100).
        let for_next = chained && lets_in && args.m <= FEW_TOKENS;
        let chosen = || {
            let choices = cuda.choices();
            if for_next { None } else { choices.get(super::choices::Family::W2a8Gemm, m, n, k) }
        };
        let index = variant.or_else(chosen).unwrap_or_else(|| {
            choose_index(shape, sms, [chained, lets_in], |i| has_variant(cuda, i))
        });
        let Some(grid) = VARIANTS[index].grid(args.m, args.n, sms) else {
            let allowed = "this one cannot have so many tiles; use None";
            return Err(OpError::Dimension { op: OP, what: "variant", found: index, allowed });
        };
        args.room = if chained { room(&VARIANTS[index], grid, sms, lets_in) } else { 0 };
        let ahead = match behind {
            Behind::Keys(keys) => keys.of_rows(cuda, args.m),
            _ => contract::w2a8_gemm::Ahead::NOTHING,
        };
        // SAFETY: the caller's.
        unsafe { (KERNELS[index].0)(cuda, grid, args, ahead) }
    }
}

#[cfg(feature = "cuda")]
impl W2a8Gemm<'_, super::CudaBackend> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        self.check()?;
        let Self { w, acts, y, m, variant, chained, behind } = self;
        let stream = cuda.stream();
        let product = Product {
            words: w.words().dev_ptr(stream),
            n: w.n(),
            k: w.k(),
            segments: w.segments(),
            acts,
            m,
            y: y.dev_ptr(stream),
        };
        // SAFETY: `PackedLinear` holds `n` rows of `k` by construction; `check` compared the
        // activations with `m` rows of `k` and `y` with `m * n`; `y` is borrowed exclusively.
        unsafe { product.launch(cuda, variant, chained, behind) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: u32 = 132;

    fn chosen(m: u32, n: u32, k: u32, takes: impl Fn(&Variant) -> bool) -> &'static Variant {
        &VARIANTS[choose_index([m, n, k], H200, [false; 2], |i| takes(&VARIANTS[i]))]
    }

    #[test]
    fn few_tokens_get_small_tiles_and_many_get_large_ones() {
        for (n, k) in [(13_824, 2560), (8192, 28_672), (2560, 6912)] {
            let tokens = [2, 16, 64, 2048].map(|m| chosen(m, n, k, |_| true).tokens);
            assert!(tokens.is_sorted() && tokens[0] == 8 && tokens[3] >= 128, "{n} {k} {tokens:?}");
        }
    }

    #[test]
    fn a_device_without_tensor_cores_has_a_kernel_for_everything() {
        for m in [1, 2, 300, MAX_ROWS as u32] {
            for n in [1, 5000, MAX_ROWS as u32] {
                let variant = chosen(m, n, 1000, |v| v.spec.min_sm < 80);
                assert_eq!(variant.spec.symbol, "w2a8_gemm");
                assert!(variant.grid(m, n, H200).is_some());
            }
        }
    }

    /// On an H200 32 clusters of four took 27 us at m = 64, k = 14,336, 64 of two 17.
    #[test]
    fn clusters_that_do_not_fit_at_once_count_as_rounds() {
        for (m, k) in [(48, 14_336), (64, 14_336), (128, 14_336), (96, 4096), (128, 4096)] {
            let variant = chosen(m, 4096, k, |_| true);
            assert!(variant.split < 4, "{} at m={m} k={k}", variant.name);
        }
        assert_eq!(chosen(128, 2560, 6912, |v| v.name.contains("_h128x")).split, 4);
    }

    #[test]
    fn what_took_twice_the_time_is_not_chosen() {
        assert_ne!(chosen(96, 1536, 4096, |_| true).name, "w2a8_gemm_t8x3");
        let few = choose_index([64, 9600, 3200], H200, [true, false], |_| true);
        assert_ne!(VARIANTS[few].name, "w2a8_gemm_h64sx4");
    }

    /// At 13,824 x 2,560 `t16c` took 4.8 us alone where `h32` took 5.7 (H200, 16 tokens); from 17 tokens on it is the other way round.
    #[test]
    fn sixteen_tokens_of_large_matrices_stay_on_mma() {
        for m in [9, 16] {
            assert_eq!(chosen(m, 13_824, 2560, |_| true).name, "w2a8_gemm_t16c", "m={m}");
            assert_eq!(chosen(m, 14_336, 4096, |_| true).name, "w2a8_gemm_t16c", "m={m}");
        }
        for m in [24, 32] {
            assert_eq!(chosen(m, 13_824, 2560, |_| true).name, "w2a8_gemm_h32", "m={m}");
            assert_eq!(chosen(m, 28_672, 8192, |_| true).name, "w2a8_gemm_h32", "m={m}");
        }
    }

    /// Of a layer of 2B-4T in a batch, on an H100: 64 sequences 71.3 us with `h32x2` in front of attention, 68.9 with `t16a` that lets it in with its room.
    #[test]
    fn what_lets_attention_in_has_room_for_two_blocks() {
        for (m, name) in [(16, "t16b"), (32, "t16b"), (33, "t16a"), (48, "t16a"), (64, "t16a")] {
            let index = choose_index([m, 3840, 2560], H200, [true, true], |_| true);
            let variant = &VARIANTS[index];
            assert_eq!(variant.name, format!("w2a8_gemm_{name}"), "m={m}");
            let grid = variant.grid(m, 3840, H200).expect("a small grid");
            let expected = if m > 32 { LET_IN_BYTES } else { 0 };
            assert_eq!(room(variant, grid, H200, true), expected, "m={m}");
        }
        let waits = choose_index([64, 3840, 2560], H200, [true, false], |_| true);
        assert_eq!(VARIANTS[waits].name, "w2a8_gemm_h32x2");
    }

    #[test]
    fn more_work_never_costs_less() {
        for (index, variant) in VARIANTS.iter().enumerate() {
            for (chained, rows) in [(false, [1, 8, 64, 1000, 70_000]), (true, [1, 8, 16, 32, 64])] {
                let mut last = 0;
                for m in rows {
                    let Some(cost) = cost(index, [m, 5000, 3000], H200, [chained, false]) else {
                        let never = if chained { CHAINED[index] } else { COSTS[index] } == NEVER;
                        assert!(never, "{}: no grid", variant.name);
                        continue;
                    };
                    assert!(cost >= last, "{} at m={m}, chained: {chained}", variant.name);
                    last = cost;
                }
            }
        }
    }
}
