//! Which kernel of a Hopper GPU's tensor cores makes a product with a bitmap: the one that is expected to be the fastest.

use contract::launch::{Kernel, LaunchSpec};
use contract::sparse::{
    BULK16_GROUPS, HELD_WARPS, HeldArgs, LinearArgs, PAIR_WARPS, SparseBf16Bulk8 as Bulk8,
    SparseBf16Bulk8Short as Short8, SparseBf16Bulk16 as Bulk16, SparseBf16Bulk16Short as Short16,
    SparseBf16Bulk16Wide as Wide16, SparseBf16Held8 as Held8, SparseBf16Held8Pair as Pair8,
    SparseBf16Held16 as Held16, SparseBf16Held16Pair as Pair16, WAYS, groups, linear_grid, steps,
};

/// Shared memory of a multiprocessor, less what each block takes besides.
const SHARED: u32 = 227 * 1024;

/// What a kernel takes, about, in microseconds.
struct Rates {
    launch: f64,
    /// A tile, and 1,000 units of it, of the warp that has most of them.
    chain: [f64; 2],
    /// The same of all warps of the fullest multiprocessor.
    full: [f64; 2],
    /// A million bytes of the matrix.
    megabyte: f64,
    /// More units for sixteen inputs, as a part.
    inputs: f64,
    /// Of what places for blocks without one would do in turns after the first.
    turns: f64,
}

/// A kernel that reads inputs tile by tile, and how it goes through a matrix.
struct Way {
    spec: LaunchSpec,
    smem: fn(&LinearArgs) -> u32,
    /// Inputs at a time, warps of each of the four ways of a block, groups of rows of it, and blocks for which a multiprocessor has registers.
    inputs: u32,
    warps: u32,
    groups: u32,
    blocks: u32,
    rates: Rates,
}

/// What a product is made by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    /// Symbol of the kernel.
    pub symbol: &'static str,
    /// Its blocks.
    pub grid: [u32; 3],
    /// What those that hold inputs take.
    pub held: Option<HeldArgs>,
    /// Microseconds that are expected.
    pub cost: f64,
}

/// Fitted to 366 products on one H100 (N of 512 to 28,672, K of 1,024 to 28,672, 50 to 95 % zeros, 1 to 16 inputs).
const BULK: [Way; 5] = [
    Way {
        spec: Bulk8::SPEC,
        smem: Bulk8::smem_bytes,
        inputs: 8,
        warps: 1,
        groups: 1,
        blocks: 7,
        rates: rates(2.5, [0.97, 0.033], [0.0133, 0.0111], 0.264, 3.0, 0.67),
    },
    Way {
        spec: Short8::SPEC,
        smem: Short8::smem_bytes,
        inputs: 8,
        warps: 4,
        groups: 1,
        blocks: 2,
        rates: rates(3.13, [0.357, 0.117], [0.0333, 0.0142], 0.233, 2.6, 0.25),
    },
    Way {
        spec: Bulk16::SPEC,
        smem: Bulk16::smem_bytes,
        inputs: 16,
        warps: 1,
        groups: BULK16_GROUPS,
        blocks: 2,
        rates: rates(3.29, [0.617, 0.0163], [0.0492, 0.0], 0.353, 3.0, 0.28),
    },
    Way {
        spec: Wide16::SPEC,
        smem: Wide16::smem_bytes,
        inputs: 16,
        warps: 2,
        groups: BULK16_GROUPS,
        blocks: 2,
        rates: rates(2.82, [0.785, 0.0], [0.0382, 0.0248], 0.307, 0.55, 0.4),
    },
    Way {
        spec: Short16::SPEC,
        smem: Short16::smem_bytes,
        inputs: 16,
        warps: 4,
        groups: BULK16_GROUPS,
        blocks: 1,
        rates: rates(3.27, [0.0, 0.0], [0.0588, 0.0179], 0.209, 2.9, 0.32),
    },
];

/// Of those that hold at most eight inputs, by blocks and by pairs of them.
const HELD8: [Rates; 2] = [
    rates(3.29, [1.76, 0.0], [0.0031, 0.062], 0.195, 1.13, 0.0),
    rates(3.89, [1.04, 0.0], [0.0115, 0.0071], 0.342, 0.49, 0.0),
];

/// The same of at most sixteen.
const HELD16: [Rates; 2] = [
    rates(4.19, [1.56, 0.079], [0.0, 0.0554], 0.143, 0.91, 0.0),
    rates(4.88, [0.583, 0.229], [0.0244, 0.0066], 0.292, 0.3, 0.0),
];

/// The fields of [`Rates`] in their order.
const fn rates(
    launch: f64,
    chain: [f64; 2],
    full: [f64; 2],
    megabyte: f64,
    inputs: f64,
    turns: f64,
) -> Rates {
    Rates { launch, chain, full, megabyte, inputs, turns }
}

impl Rates {
    /// The time for `chain` tiles of one warp and `tiles` of a multiprocessor, of `units` units and for `m` inputs; `bytes` in all, and `idle`
    /// parts of a full multiprocessor without work in the last turn.
    fn time(&self, m: u32, units: usize, [chain, tiles, bytes, idle]: [f64; 4]) -> f64 {
        let units = units as f64 / 1e3;
        let more = 1.0 + self.inputs * f64::from(m.min(16)) / 16.0;
        let of = |tiles: f64, [tile, unit]: [f64; 2]| tiles * (tile + unit * units * more);
        let chain = of(chain, self.chain);
        let flow = (of(tiles, self.full) + bytes / 1e6 * self.megabyte) * (1.0 + self.turns * idle);
        // The longer one, or more where both are as long.
        self.launch + (chain.powi(3) + flow.powi(3)).cbrt()
    }
}

/// The kernel for the product of `args`, whose `ring` is `place_bytes` of the matrix, tiles of at most `units` units, on `sms`
/// multiprocessors. `asked` is the symbol of one that is taken where it can be; any other keeps those away that hold inputs.
pub(super) fn choose(
    args: &LinearArgs,
    units: usize,
    sms: u32,
    asked: Option<&'static str>,
) -> Choice {
    let all = groups(args.n as usize) as u32;
    let columns = (steps(args.k as usize, 2) * WAYS) as u32;
    let bytes = f64::from(all) * f64::from(columns) * (256 + 4 * units) as f64;
    let mut found = Vec::new();
    let eight = args.m <= 8;
    for way in BULK.iter().filter(|way| (way.inputs == 8) == eight) {
        let smem = (way.smem)(args);
        let [across, down, _] = linear_grid(args.n, args.m, way.inputs);
        let grid = [across.div_ceil(way.groups), down, 1];
        let blocks = u64::from(grid[0]) * u64::from(down);
        let there = way.blocks.min(SHARED / (smem + 1024)).max(1);
        let turns = blocks.div_ceil(u64::from(sms * there)) as f64;
        let idle = turns / (blocks as f64 / f64::from(sms * there)) - 1.0;
        let idle = if turns > 1.0 { idle } else { 0.0 };
        let tiles = way.groups * columns;
        let chain = f64::from((columns / WAYS as u32).div_ceil(way.warps) * way.groups);
        let full = blocks.div_ceil(u64::from(sms)) as f64 * f64::from(tiles);
        let cost = way.rates.time(args.m, units, [chain, full, bytes, idle]);
        if smem <= way.spec.smem_bytes {
            found.push(Choice { symbol: way.spec.symbol, grid, held: None, cost });
        }
    }
    let ([one, pair], [one_rates, pair_rates]) = if eight {
        ([Held8::SPEC, Pair8::SPEC], HELD8)
    } else {
        ([Held16::SPEC, Pair16::SPEC], HELD16)
    };
    if let Some(held) = HeldArgs::new(*args, sms) {
        let (symbol, grid) = (one.symbol, held.grid());
        let blocks = grid[0];
        let there = if eight { 2 } else { 1 };
        let turns = f64::from(blocks.div_ceil(sms * there));
        // With more than eight inputs warps share out single tiles, otherwise those of a column tile together.
        let chain = if eight {
            columns.div_ceil(HELD_WARPS) * held.rows
        } else {
            (columns * held.rows).div_ceil(HELD_WARPS)
        };
        let tiles = f64::from(blocks.div_ceil(sms) * held.rows * columns);
        let cost = one_rates.time(args.m, units, [f64::from(chain) * turns, tiles, bytes, 0.0]);
        found.push(Choice { symbol, grid, held: Some(held), cost });
    }
    if let Some(held) = HeldArgs::pair(*args, sms) {
        let tiles = held.rows * columns;
        let chain = f64::from(tiles.div_ceil(2 * PAIR_WARPS));
        let tiles = f64::from(tiles) / 2.0;
        let cost = pair_rates.time(args.m, units, [chain, tiles, bytes, 0.0]);
        let (symbol, grid) = (pair.symbol, held.pair_grid());
        found.push(Choice { symbol, grid, held: Some(held), cost });
    }
    let named = asked.and_then(|asked| found.iter().find(|choice| choice.symbol == asked));
    let others = found.iter().filter(|choice| asked.is_none() || choice.held.is_none());
    let fastest = others.min_by(|a, b| a.cost.total_cmp(&b.cost));
    // `Bulk8` and `Bulk16` take any matrix.
    *named.or(fastest).expect("a kernel for any matrix")
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::launch::DevPtr;
    use contract::num::RowType;
    use contract::sparse::place_bytes;

    fn chosen([n, k, m]: [u32; 3], units: usize, asked: Option<&'static str>) -> Choice {
        let (masks, starts, values) = (DevPtr::NULL, DevPtr::NULL, DevPtr::NULL);
        let (x, y, x_type) = (DevPtr::NULL, DevPtr::NULL, RowType::Bf16 as u32);
        let ring = place_bytes(units);
        let args = LinearArgs { masks, starts, values, x, y, n, k, m, x_type, ring };
        choose(&args, units, 132, asked)
    }

    /// Of what an H100 took, where one is the fastest by 7 % and more.
    #[test]
    fn the_fastest_is_chosen() {
        for (shape, units, symbol) in [
            ([5120, 5120, 1], 457, Bulk8::SPEC.symbol),
            ([14_336, 4096, 1], 1133, Short8::SPEC.symbol),
            ([2560, 2560, 8], 449, Short8::SPEC.symbol),
            ([14_336, 4096, 13], 461, Held16::SPEC.symbol),
            ([3072, 8192, 16], 1125, Pair16::SPEC.symbol),
            ([5120, 5120, 16], 457, Pair16::SPEC.symbol),
            ([1536, 11_008, 16], 1597, Pair16::SPEC.symbol),
            ([6144, 2048, 16], 441, Wide16::SPEC.symbol),
        ] {
            let choice = chosen(shape, units, None);
            assert_eq!(choice.symbol, symbol, "{shape:?} {units}: {choice:?}");
        }
    }

    #[test]
    fn any_product_has_a_kernel() {
        for n in [1, 16, 17, 5000, 1 << 24] {
            for k in [8, 1024, 5128, 1 << 24] {
                for m in [1, 8, 9, 16, 17, 1 << 24] {
                    for units in [0, 4, 896, 2048] {
                        let choice = chosen([n, k, m], units, None);
                        assert!(choice.cost.is_finite() && choice.grid[0] > 0, "{choice:?}");
                        assert!(m <= 16 || choice.held.is_none());
                    }
                }
            }
        }
    }

    #[test]
    fn who_is_asked_for_comes() {
        let shape = [5120, 5120, 16];
        for symbol in [Held16::SPEC.symbol, Short16::SPEC.symbol, Bulk16::SPEC.symbol] {
            assert_eq!(chosen(shape, 457, Some(symbol)).symbol, symbol);
        }
        // Not for so many inputs, and none that holds them in its place.
        let other = chosen(shape, 457, Some(Held8::SPEC.symbol));
        assert!(
            other.held.is_none() && other.symbol.starts_with("sparse_bf16_bulk16"),
            "{other:?}"
        );
    }
}
