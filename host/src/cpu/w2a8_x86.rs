//! Tiles of [`super::w2a8`] for x86-64.
//!
//! Codes are 0, 1, 2 and unsigned, activations signed: what `maddubs` and `dpbusd` multiply.
//! Tiles of several tokens decode each plane once. A row with one token is bound by decoding, so
//! it leaves the codes where they stand in the byte (`code << 2 i`) and shifts the sums instead.
//! The bounds on the lanes are argued where they are used; K is at most 2^20.
#![allow(clippy::needless_range_loop, reason = "tiles are indexed by row and token")]

use std::arch::x86_64::*;

use super::w2a8::{GROUP, Job, TOKENS, Tiles, tail_of};

/// Makes the table of a level: full tiles, tiles of one row, rows with one token.
macro_rules! tiles {
    ($(#[$doc:meta])* $name:ident, $rows:literal, $full:path, $one_row:path, $one_token:path) => {
        $(#[$doc])*
        pub(super) static $name: Tiles = {
            fn full(job: &Job<'_>, row: usize, token: usize, sums: &mut [[i32; TOKENS]; 4]) {
                // SAFETY: the table is reached only through a `Simd` of this level, which exists
                // only where the machine has the level's features.
                unsafe { $full(job, row, token, sums) }
            }
            fn one_row(job: &Job<'_>, row: usize, token: usize, sums: &mut [[i32; TOKENS]; 4]) {
                // SAFETY: as above.
                unsafe { $one_row(job, row, token, sums) }
            }
            fn one_token(job: &Job<'_>, row: usize, token: usize, sums: &mut [i32]) {
                // SAFETY: as above.
                unsafe { $one_token(job, row, token, sums) }
            }
            Tiles { rows: $rows, full, one_row, one_token }
        };
    };
}

tiles! { /// AVX2.
AVX2, 2, avx2::<2>, avx2::<1>, avx2_rows }
tiles! { /// AVX2 with VNNI.
AVX_VNNI, 2, avx_vnni::tile::<2>, avx_vnni::tile::<1>, avx_vnni::rows }
tiles! { /// AVX-512 with VNNI. One token is bound by memory, where 256 bits measured steadier.
AVX512_VNNI, 4, avx512_vnni::<4>, avx512_vl::tile::<1>, avx512_vl::rows }

/// Groups whose sums a 16-bit lane of a tile holds: two products are at most 512 in magnitude, a
/// group gives a lane eight such pairs.
const WIDEN: usize = 7;
/// The same for a row, where the pairs of the upper plane are at most 2,048 and a group gives four:
/// 4 * 4 * 2,048 = 2^15, reached only on the negative side, which holds it.
const WIDEN_ROW: usize = 4;
/// Bytes from the weights in use to those that are fetched. A row is one stream, but short: the
/// machine's own prefetching stops at pages and misses the start of the next row.
const AHEAD: usize = 2048;
/// One row's weights of a group.
type Codes = [u8; GROUP];
/// One token's four planes of a group.
type Planes = [i8; 4 * GROUP];

/// The operands of a tile: whole groups, then the rest of each weight row filled up.
struct Operands<'a, const R: usize> {
    codes: [&'a [Codes]; R],
    planes: [&'a [Planes]; TOKENS],
    groups: usize,
    tails: [Option<Codes>; R],
}

impl<'a, const R: usize> Operands<'a, R> {
    #[inline(always)]
    fn new(job: &'a Job<'_>, row: usize, token: usize) -> Self {
        let groups = job.row_bytes / GROUP;
        let mut codes = [&[][..]; R];
        let mut tails = [None; R];
        for r in 0..R {
            codes[r] = &job.weight_row(row + r).as_chunks().0[..groups];
            tails[r] = tail_of(job.weight_row(row + r));
        }
        let mut planes = [&[][..]; TOKENS];
        for t in 0..TOKENS {
            planes[t] = job.plane_row(token + t).as_chunks().0;
        }
        Self { codes, planes, groups, tails }
    }

    /// Group `g`, which is below `groups`.
    #[inline(always)]
    fn group(&self, g: usize) -> ([&Codes; R], [&Planes; TOKENS]) {
        let mut codes = [&[0; GROUP]; R];
        for r in 0..R {
            codes[r] = &self.codes[r][g];
        }
        (codes, self.planes_of(g))
    }

    #[inline(always)]
    fn planes_of(&self, g: usize) -> [&Planes; TOKENS] {
        let mut planes = [&[0; 4 * GROUP]; TOKENS];
        for t in 0..TOKENS {
            planes[t] = &self.planes[t][g];
        }
        planes
    }

    /// The filled-up group behind the whole ones.
    #[inline(always)]
    fn tail(&self) -> Option<([&Codes; R], [&Planes; TOKENS])> {
        let mut codes = [&[0; GROUP]; R];
        for r in 0..R {
            codes[r] = self.tails[r].as_ref()?;
        }
        Some((codes, self.planes_of(self.groups)))
    }
}

#[target_feature(enable = "avx2")]
#[inline]
fn codes256(codes: &Codes, half: usize) -> __m256i {
    debug_assert!(half < 2);
    // SAFETY: 32 bytes from 0 or 32 on lie inside the 64.
    unsafe { _mm256_loadu_si256(codes.as_ptr().add(32 * half).cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn plane256(planes: &Planes, plane: usize, half: usize) -> __m256i {
    debug_assert!(plane < 4 && half < 2);
    // SAFETY: 32 bytes from 64 plane + 32 half on lie inside the 256.
    unsafe { _mm256_loadu_si256(planes.as_ptr().add(64 * plane + 32 * half).cast()) }
}

/// Asks for the weights that a later row takes; rows follow each other in memory.
#[inline(always)]
fn fetch_behind(codes: &Codes) {
    // SAFETY: a prefetch has no effect but on caches and takes any address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(codes.as_ptr().wrapping_add(AHEAD).cast()) };
}

#[target_feature(enable = "avx2")]
#[inline]
fn sum256(v: __m256i) -> i32 {
    let v = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
    let v = _mm_add_epi32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
    _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32::<0b10_11_00_01>(v)))
}

/// The sum of each of four vectors.
#[target_feature(enable = "avx2")]
#[inline]
fn sums256(v: [__m256i; TOKENS]) -> [i32; TOKENS] {
    let (low, high) = (_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    let halves = _mm256_hadd_epi32(low, high);
    let sums = _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves));
    let mut four = [0; TOKENS];
    // SAFETY: four 32-bit numbers into four.
    unsafe { _mm_storeu_si128(four.as_mut_ptr().cast(), sums) };
    four
}

/// Adds one group to 16-bit lanes.
#[target_feature(enable = "avx2")]
#[inline]
fn group16<const R: usize>(
    (codes, planes): ([&Codes; R], [&Planes; TOKENS]),
    lanes: &mut [[__m256i; TOKENS]; R],
) {
    let three = _mm256_set1_epi8(3);
    for half in 0..2 {
        let mut v = [_mm256_setzero_si256(); R];
        for r in 0..R {
            v[r] = codes256(codes[r], half);
        }
        for plane in 0..4 {
            for t in 0..TOKENS {
                let a = plane256(planes[t], plane, half);
                for r in 0..R {
                    let products = _mm256_maddubs_epi16(_mm256_and_si256(v[r], three), a);
                    lanes[r][t] = _mm256_add_epi16(lanes[r][t], products);
                }
            }
            for v in &mut v {
                *v = _mm256_srli_epi16::<2>(*v);
            }
        }
    }
}

#[target_feature(enable = "avx2")]
fn avx2<const R: usize>(job: &Job<'_>, row: usize, token: usize, sums: &mut [[i32; TOKENS]; 4]) {
    let operands = Operands::<R>::new(job, row, token);
    let ones = _mm256_set1_epi16(1);
    let mut totals = [[_mm256_setzero_si256(); TOKENS]; R];
    let mut g = 0;
    loop {
        let mut lanes = [[_mm256_setzero_si256(); TOKENS]; R];
        // One group less: the tail may join the last batch.
        let end = operands.groups.min(g + WIDEN - 1);
        while g < end {
            group16(operands.group(g), &mut lanes);
            g += 1;
        }
        let last = g == operands.groups;
        if last && let Some(tail) = operands.tail() {
            group16(tail, &mut lanes);
        }
        for r in 0..R {
            for t in 0..TOKENS {
                let wide = _mm256_madd_epi16(lanes[r][t], ones);
                totals[r][t] = _mm256_add_epi32(totals[r][t], wide);
            }
        }
        if last {
            break;
        }
    }
    for r in 0..R {
        sums[r] = sums256(totals[r]);
    }
}

/// Adds one group of one row: planes 0 and 2 to `lanes[0]`, four times planes 1 and 3 to `lanes[1]`.
#[target_feature(enable = "avx2")]
#[inline]
fn row16(codes: &Codes, planes: &Planes, lanes: &mut [__m256i; 2]) {
    let masks = [_mm256_set1_epi8(0b11), _mm256_set1_epi8(0b1100)];
    for half in 0..2 {
        let v = codes256(codes, half);
        for (pair, v) in [v, _mm256_srli_epi16::<4>(v)].into_iter().enumerate() {
            for i in 0..2 {
                let a = plane256(planes, 2 * pair + i, half);
                let products = _mm256_maddubs_epi16(_mm256_and_si256(v, masks[i]), a);
                lanes[i] = _mm256_add_epi16(lanes[i], products);
            }
        }
    }
}

#[target_feature(enable = "avx2")]
fn avx2_rows(job: &Job<'_>, first: usize, token: usize, sums: &mut [i32]) {
    let (fours, ones) = (_mm256_set1_epi16(4), _mm256_set1_epi16(1));
    let planes = job.plane_row(token).as_chunks().0;
    for (r, sum) in sums.iter_mut().enumerate() {
        let row = job.weight_row(first + r);
        let codes = row.as_chunks().0;
        // Sums are kept times four, so that both kinds of planes meet in one lane: at most
        // 4 * 2 * 128 * 2^20 / 8 lanes = 2^27.
        let mut total = _mm256_setzero_si256();
        for (codes, planes) in codes.chunks(WIDEN_ROW).zip(planes.chunks(WIDEN_ROW)) {
            let mut lanes = [_mm256_setzero_si256(); 2];
            for (codes, planes) in codes.iter().zip(planes) {
                fetch_behind(codes);
                row16(codes, planes, &mut lanes);
            }
            total = _mm256_add_epi32(total, _mm256_madd_epi16(lanes[0], fours));
            total = _mm256_add_epi32(total, _mm256_madd_epi16(lanes[1], ones));
        }
        if let Some(tail) = tail_of(row) {
            let mut lanes = [_mm256_setzero_si256(); 2];
            row16(&tail, &planes[codes.len()], &mut lanes);
            total = _mm256_add_epi32(total, _mm256_madd_epi16(lanes[0], fours));
            total = _mm256_add_epi32(total, _mm256_madd_epi16(lanes[1], ones));
        }
        *sum = sum256(_mm256_srai_epi32::<2>(total));
    }
}

/// 256-bit byte dots, which two extensions offer under two names.
macro_rules! vnni256 {
    ($module:ident, $features:literal, $dot:ident) => {
        mod $module {
            use super::*;

            /// Adds one group to 32-bit lanes.
            #[target_feature(enable = $features)]
            #[inline]
            fn group<const R: usize>(
                (codes, planes): ([&Codes; R], [&Planes; TOKENS]),
                lanes: &mut [[__m256i; TOKENS]; R],
            ) {
                let three = _mm256_set1_epi8(3);
                for half in 0..2 {
                    let mut v = [_mm256_setzero_si256(); R];
                    for r in 0..R {
                        v[r] = codes256(codes[r], half);
                    }
                    for plane in 0..4 {
                        for t in 0..TOKENS {
                            let a = plane256(planes[t], plane, half);
                            for r in 0..R {
                                lanes[r][t] = $dot(lanes[r][t], _mm256_and_si256(v[r], three), a);
                            }
                        }
                        for v in &mut v {
                            *v = _mm256_srli_epi16::<2>(*v);
                        }
                    }
                }
            }

            #[target_feature(enable = $features)]
            pub(super) fn tile<const R: usize>(
                job: &Job<'_>,
                row: usize,
                token: usize,
                sums: &mut [[i32; TOKENS]; 4],
            ) {
                let operands = Operands::<R>::new(job, row, token);
                let mut lanes = [[_mm256_setzero_si256(); TOKENS]; R];
                for g in 0..operands.groups {
                    group(operands.group(g), &mut lanes);
                }
                if let Some(tail) = operands.tail() {
                    group(tail, &mut lanes);
                }
                for r in 0..R {
                    sums[r] = sums256(lanes[r]);
                }
            }

            /// Adds one group of one row: `4^i` times plane `i` to `lanes[i]`.
            #[target_feature(enable = $features)]
            #[inline]
            fn row(codes: &Codes, planes: &Planes, lanes: &mut [__m256i; 4]) {
                for half in 0..2 {
                    let v = codes256(codes, half);
                    for (i, lanes) in lanes.iter_mut().enumerate() {
                        let c = _mm256_and_si256(v, _mm256_set1_epi8((3u8 << (2 * i)) as i8));
                        *lanes = $dot(*lanes, c, plane256(planes, i, half));
                    }
                }
            }

            #[target_feature(enable = $features)]
            pub(super) fn rows(job: &Job<'_>, first: usize, token: usize, sums: &mut [i32]) {
                let planes = job.plane_row(token).as_chunks().0;
                for (r, sum) in sums.iter_mut().enumerate() {
                    let weights = job.weight_row(first + r);
                    let codes = weights.as_chunks().0;
                    // A lane takes an 8th of K/4 products of at most 2^14: 2^29.
                    let mut lanes = [_mm256_setzero_si256(); 4];
                    for (codes, planes) in codes.iter().zip(planes) {
                        fetch_behind(codes);
                        row(codes, planes, &mut lanes);
                    }
                    if let Some(tail) = tail_of(weights) {
                        row(&tail, &planes[codes.len()], &mut lanes);
                    }
                    let [a, b, c, d] = lanes;
                    let low = _mm256_add_epi32(a, _mm256_srai_epi32::<2>(b));
                    let high =
                        _mm256_add_epi32(_mm256_srai_epi32::<4>(c), _mm256_srai_epi32::<6>(d));
                    *sum = sum256(_mm256_add_epi32(low, high));
                }
            }
        }
    };
}

vnni256! { avx_vnni, "avx2,avxvnni", _mm256_dpbusd_avx_epi32 }
vnni256! { avx512_vl, "avx2,avx512vl,avx512vnni", _mm256_dpbusd_epi32 }

/// Adds one group to 32-bit lanes.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
#[inline]
fn group512<const R: usize>(
    (codes, planes): ([&Codes; R], [&Planes; TOKENS]),
    lanes: &mut [[__m512i; TOKENS]; R],
) {
    let three = _mm512_set1_epi8(3);
    let mut v = [_mm512_setzero_si512(); R];
    for r in 0..R {
        // SAFETY: the 64 bytes of a group.
        v[r] = unsafe { _mm512_loadu_si512(codes[r].as_ptr().cast()) };
    }
    for plane in 0..4 {
        for t in 0..TOKENS {
            // SAFETY: 64 bytes from 64 plane on lie inside the 256.
            let a = unsafe { _mm512_loadu_si512(planes[t].as_ptr().add(64 * plane).cast()) };
            for r in 0..R {
                let c = _mm512_and_si512(v[r], three);
                lanes[r][t] = _mm512_dpbusd_epi32(lanes[r][t], c, a);
            }
        }
        for v in &mut v {
            *v = _mm512_srli_epi16::<2>(*v);
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn avx512_vnni<const R: usize>(
    job: &Job<'_>,
    row: usize,
    token: usize,
    sums: &mut [[i32; TOKENS]; 4],
) {
    let operands = Operands::<R>::new(job, row, token);
    let mut lanes = [[_mm512_setzero_si512(); TOKENS]; R];
    for g in 0..operands.groups {
        group512(operands.group(g), &mut lanes);
    }
    if let Some(tail) = operands.tail() {
        group512(tail, &mut lanes);
    }
    for r in 0..R {
        let mut halves = [_mm256_setzero_si256(); TOKENS];
        for t in 0..TOKENS {
            let (low, high) =
                (_mm512_castsi512_si256(lanes[r][t]), _mm512_extracti64x4_epi64::<1>(lanes[r][t]));
            halves[t] = _mm256_add_epi32(low, high);
        }
        sums[r] = sums256(halves);
    }
}
