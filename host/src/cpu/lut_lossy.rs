//! CPU side of [`contract::lut_matmul::lossy`]: int8 tables, and the lookups in them.
//!
//! A task is one tile and one row of activations. It goes along the activation groups: a level of
//! [`Simd`] adds up the integers of a group for the 32 rows, then the chain of floats takes them, row
//! by row in the contract's own words.

use contract::lut_matmul::TILE;
use contract::lut_matmul::lossy::{
    Chain, ENTRIES, GROUP, Head, STEP_COLUMNS, STEP_TABLES, entry, product, quantised, reach,
    scale_of, step_bytes, steps,
};
use contract::num::{abs_bits, strided_sum};

use super::lut_matmul::Sums;
use super::simd::{Level, Simd, vectorised};
use super::threads::{RowsMut, Threads};

/// A table.
pub(super) type Table = [i8; ENTRIES];
/// Adds `sum 2^bit table[index]` of whole steps of one tile to the sums of its rows.
pub(super) type AddFn = fn(bits: usize, steps: &[u8], tables: &[Table], sums: &mut Sums);

fn add_of(simd: Simd) -> AddFn {
    match simd.level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::AvxVnni | Level::Avx512Vnni => super::lut_x86::add_lossy,
        #[cfg(target_arch = "aarch64")]
        Level::Neon => super::lut_neon::add_lossy,
        _ => scalar,
    }
}

/// Builds the tables of rows of `k` activations, as many as `x` holds.
///
/// `act_group` is a multiple of 32. `tables` takes 16 bytes for each four columns of whole steps,
/// `heads` the bits of scale and bias of each activation group. Lengths are the caller's to check.
pub fn build(
    threads: &Threads,
    simd: Simd,
    x: &[f32],
    k: usize,
    act_group: usize,
    tables: &mut [u32],
    heads: &mut [[u32; 2]],
) {
    let m = x.len() / k;
    let row_words = steps(k) * STEP_TABLES * ENTRIES / 4;
    let groups = k.div_ceil(act_group);
    let rows = (
        RowsMut::new(&mut tables[..m * row_words], row_words),
        RowsMut::new(&mut heads[..m * groups], groups),
    );
    threads.run_rows(m, rows, |row, (tables, heads)| {
        let x = &x[row * k..][..k];
        let tables: &mut [Table] = bytemuck::cast_slice_mut(tables);
        let groups = x.chunks(act_group).zip(tables.chunks_mut(act_group / GROUP));
        for ((x, tables), head) in groups.zip(heads) {
            *head = build_group(simd, x, tables);
        }
    });
}

vectorised! {
    /// The tables of one activation group, and the bits of its scale and bias.
    fn build_group(x: &[f32], tables: &mut [Table]) -> [u32; 2] {
        let of = |c: usize| match x.get(GROUP * c..GROUP * c + GROUP) {
            Some(x) => [x[0], x[1], x[2], x[3]],
            None => std::array::from_fn(|j| x.get(GROUP * c + j).copied().unwrap_or_default()),
        };
        let mut top = 0;
        for c in 0..tables.len() {
            top = top.max(abs_bits(reach(of(c))));
        }
        let scale = scale_of(f32::from_bits(top));
        let bias = strided_sum(tables.len(), |acc, c| acc + entry(0, of(c)));
        for (c, table) in tables.iter_mut().enumerate() {
            let x = of(c);
            for (i, value) in table.iter_mut().enumerate() {
                *value = quantised(entry(i, x), scale);
            }
        }
        [scale.to_bits(), bias.to_bits()]
    }
}

/// One product, borrowed from its tensors.
pub struct Product<'a> {
    /// Tiles of weights.
    pub tiles: &'a [u8],
    /// Bits of a weight.
    pub bits: usize,
    /// Rows of weights.
    pub n: usize,
    /// Columns.
    pub k: usize,
    /// Weight scales `[n, weight groups]`.
    pub scales: &'a [f32],
    /// Zero points of the same shape.
    pub zeros: Option<&'a [f32]>,
    /// Columns of an activation group.
    pub act_group: usize,
    /// Activation groups of a weight group.
    pub per_weight_group: usize,
    /// Tables of the rows of activations.
    pub tables: &'a [u32],
    /// Their scales and biases.
    pub heads: &'a [[u32; 2]],
}

/// `y[m, n]` of a product, for `m` rows. Lengths are the caller's to check.
pub fn multiply(threads: &Threads, simd: Simd, product: &Product<'_>, m: usize, y: &mut [f32]) {
    let &Product { bits, n, k, act_group, per_weight_group, .. } = product;
    let add = add_of(simd);
    let tile_bytes = steps(k) * step_bytes(bits);
    let row_tables = steps(k) * STEP_TABLES;
    let tables: &[Table] = bytemuck::cast_slice(product.tables);
    let groups = k.div_ceil(act_group);
    let weight_groups = groups.div_ceil(per_weight_group);
    let group_bytes = act_group / STEP_COLUMNS * step_bytes(bits);
    threads.run_tiles(y, [m, n], [1, TILE], |mut out| {
        let (token, rows) = (out.rows().start, out.columns());
        let tile = &product.tiles[rows.start / TILE * tile_bytes..][..tile_bytes];
        let tables = &tables[token * row_tables..][..row_tables];
        let heads = &product.heads[token * groups..][..groups];
        let (mut y, mut products, mut biases) = ([0.0; TILE], [0.0; TILE], 0.0);
        let of_groups = tile.chunks(group_bytes).zip(tables.chunks(act_group / GROUP));
        for (group, ((steps, tables), head)) in of_groups.zip(heads).enumerate() {
            let head = Head { scale: f32::from_bits(head[0]), bias: f32::from_bits(head[1]) };
            let mut sums = [0; TILE];
            add(bits, steps, tables, &mut sums);
            take(simd, &sums, head, &mut products);
            biases += head.bias;
            if (group + 1) % per_weight_group == 0 || group + 1 == groups {
                for (r, row) in rows.clone().enumerate() {
                    let at = row * weight_groups + group / per_weight_group;
                    let mut chain = Chain { y: y[r], product: products[r], bias: biases };
                    chain.end(product.scales[at], product.zeros.map(|zeros| zeros[at]));
                    y[r] = chain.y;
                }
                (products, biases) = ([0.0; TILE], 0.0);
            }
        }
        for (row, y) in rows.zip(y) {
            out.set(token, row, y);
        }
    });
}

vectorised! {
    /// An activation group's step of the chain of each row of a tile; the bias is common to them.
    fn take(sums: &Sums, head: Head, products: &mut [f32; TILE]) {
        for (sum, z) in products.iter_mut().zip(sums) {
            let mut chain = Chain { product: *sum, ..Chain::default() };
            chain.add(product(head, *z), head.bias);
            *sum = chain.product;
        }
    }
}

fn scalar(bits: usize, steps: &[u8], tables: &[Table], sums: &mut Sums) {
    let vectors = steps.as_chunks::<TILE>().0.chunks_exact(bits);
    for (vectors, [low, high]) in vectors.zip(tables.as_chunks::<2>().0) {
        for (bit, vector) in vectors.iter().enumerate() {
            for (sum, byte) in sums.iter_mut().zip(vector) {
                let (low, high) = (low[usize::from(byte & 15)], high[usize::from(byte >> 4)]);
                *sum += (i32::from(low) + i32::from(high)) << bit;
            }
        }
    }
}
