//! Products of 16-bit floats whose factors the copy engine of a Hopper GPU brings.

use super::{Args, Matrix, Tiling};
use crate::launch::{LaunchSpec, TensorMap};

/// Rows of memory, and elements of each, that the copy engine brings at once: one block of a factor, 128 bytes by 64.
pub const BULK_BOX: u32 = 64;
/// Bytes of barriers in front of the ring.
pub const BULK_BARRIER_BYTES: u32 = 128;
/// Registers of a thread at its start in tiles of 128 by 256, then of those that copy, and of those that multiply.
pub const BULK_WIDE: [u32; 3] = [168, 40, 232];
/// The same in tiles of 192 by 192.
pub const BULK_SQUARE: [u32; 3] = [128, 32, 160];

/// The parameter of a kernel of the family.
pub trait Parameter {
    /// The product.
    fn product(&self) -> &Args;
}

impl Parameter for Args {
    fn product(&self) -> &Args {
        self
    }
}

/// The parameter of kernels that the copy engine serves, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BulkArgs {
    /// `A`: rows of memory by [`BULK_BOX`], the matrices of the batch one behind the other; one where all take the same.
    pub a: TensorMap,
    /// `B`.
    pub b: TensorMap,
    /// The product.
    pub base: Args,
}

impl Parameter for BulkArgs {
    fn product(&self) -> &Args {
        &self.base
    }
}

/// Whether a map takes the matrix: numbers that it has places for, and rows that are no further apart than matrices.
pub(super) fn mapped(matrix: &Matrix) -> bool {
    let most = (1 << 40) / 2;
    let apart = matrix.stride == 0 || matrix.stride >= matrix.ld;
    matrix.unit >= 16 && matrix.stride < most && matrix.ld < most && apart
}

/// Whether rows start at multiples of 32 bytes, so that a piece of one touches no more of the cache than it holds.
pub(super) fn whole_sectors(matrix: &Matrix) -> bool {
    (matrix.addr.addr() | (2 * (matrix.ld | matrix.stride))).is_multiple_of(32)
}

/// Such a kernel, with a ring of `stages` slices of 64 terms and room for a chunk of results of each warp behind it. A warp
/// copies, or, where threads have so many `registers` at their start, a warpgroup that gives most of them to the others.
pub(super) const fn bulk(symbol: &'static str, tiling: Tiling, stages: u32, registers: u32) -> LaunchSpec {
    let (consumers, hands_over) = (2 * tiling.rows, registers > 0);
    let threads = consumers + if hands_over { 128 } else { 32 };
    let ring = stages * (tiling.rows + tiling.columns) * 128;
    let bytes = BULK_BARRIER_BYTES + 1024 + ring + consumers / 32 * 16 * 32 * 4;
    let spec = LaunchSpec::new(symbol, threads).with_smem(bytes).with_min_blocks(1);
    let spec = if hands_over { spec.with_max_registers(registers) } else { spec };
    spec.with_tensor_maps().only_on(90)
}

#[cfg(test)]
mod tests {
    use super::super::{Kind, VARIANTS};
    use super::*;
    use crate::launch::DevPtr;
    use crate::num::RowType;

    fn matrix(ld: u32) -> Matrix {
        Matrix { addr: DevPtr::NULL, stride: 0, ld: ld.into(), transposed: 0, unit: 16 }
    }

    fn args([m, n, k]: [u32; 3]) -> Args {
        let (alpha, element) = (1.0f32.to_bits(), RowType::Bf16 as u32);
        let (a, b, c) = (matrix(k), matrix(n), matrix(n));
        Args { a, b, c, m, n, k, batch: 1, alpha, beta: 0, element, split: 0 }
    }

    fn chosen(args: &Args) -> &'static str {
        let kind = Kind::Float(RowType::Bf16);
        let takes = VARIANTS.iter().filter(|variant| variant.takes(kind, true, args));
        takes.min_by_key(|variant| variant.cost(args, 132, true)).unwrap().spec.symbol
    }

    /// What was the fastest on an H200.
    #[test]
    fn large_products_take_the_tiles_that_fill_the_gpu() {
        for (shape, symbol) in [
            ([2112, 2112, 2112], "bmm_bf16_bulk_square"),
            ([3000, 3000, 3000], "bmm_bf16_bulk_square"),
            ([2400, 2400, 2400], "bmm_bf16_bulk192"),
            ([2200, 2200, 2200], "bmm_bf16_bulk192"),
            ([4096, 4096, 4096], "bmm_bf16_bulk256"),
            ([2000, 2000, 2000], "bmm_bf16_bulk256"),
        ] {
            assert_eq!(chosen(&args(shape)), symbol, "{shape:?}");
        }
    }

    #[test]
    fn a_map_takes_no_rows_between_those_of_another_matrix() {
        let interleaved = Matrix { stride: 64, ..matrix(640) };
        assert!(!mapped(&interleaved) && mapped(&Matrix { stride: 640, ..interleaved }));
        let far = Matrix { ld: 1 << 39, ..matrix(64) };
        assert!(!mapped(&far) && mapped(&Matrix { ld: 1 << 38, ..far }));
        let none = args([2112, 2112, 0]);
        assert!(!chosen(&none).contains("bulk"));
    }
}
