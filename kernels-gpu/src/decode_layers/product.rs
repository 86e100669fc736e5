//! The product of four chunks of each of 16 rows with their activations, on the tensor cores: as in
//! [`crate::bit_linear::product`], with activations that stand as the instruction takes them.

use contract::w2a8::CHUNK;

use crate::arch::mem::X4;
use crate::arch::mma::mma_u8_s8;

/// Where activation `k` of 256 stands. Pieces of chunks as the instruction takes them: of a piece, which is a bit lane of the
/// codes, the words for two words of codes side by side, since they are one factor.
pub(super) const fn index(k: usize) -> usize {
    let (chunk, lane, word, byte) = (k / CHUNK, k % CHUNK / 16, k % 16 / 4, k % 4);
    let (unit, place) = (2 * (lane / 2) + word / 2, 2 * (lane % 2) + word % 2);
    UNIT_BYTES as usize * unit + 16 * chunk + 4 * place + byte
}

/// Bytes of a unit of four chunks.
pub(super) const UNIT_BYTES: u32 = 64;

/// By bit lane of the codes: 1, 4, 16 and 64 times the sums of two rows, of two columns of activations.
pub(super) struct Sums([X4<i32>; 4]);

impl Sums {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self([[0; 4]; 4])
    }

    /// Adds the products of a chunk of each of two rows with the chunk's activations.
    #[inline(always)]
    pub(super) fn take(&mut self, ([low, high], factors): ([X4<u32>; 2], [X4<u32>; 4])) {
        let mut pair = 0;
        while pair < 4 {
            let mut lane = 0;
            while lane < 4 {
                let mask = 0x0303_0303 << (2 * lane);
                let words = [low[pair], high[pair], low[pair + 1], high[pair + 1]];
                let unit = factors[lane / 2 * 2 + pair / 2];
                let factor = [unit[2 * (lane % 2)], unit[2 * (lane % 2) + 1]];
                self.0[lane] = mma_u8_s8(words.map(|word| word & mask), factor, self.0[lane]);
                lane += 1;
            }
            pair += 2;
        }
    }

    /// The same with the activations of several tiles of columns: a code is parted once for all.
    #[inline(always)]
    pub(super) fn take_all<const T: usize>(
        tiles: &mut [Self; T],
        [low, high]: [X4<u32>; 2],
        factors: &[[X4<u32>; 4]; T],
    ) {
        let mut pair = 0;
        while pair < 4 {
            let mut lane = 0;
            while lane < 4 {
                let mask = 0x0303_0303 << (2 * lane);
                let words = [low[pair], high[pair], low[pair + 1], high[pair + 1]];
                let codes = words.map(|word| word & mask);
                let mut tile = 0;
                while tile < T {
                    let unit = factors[tile][lane / 2 * 2 + pair / 2];
                    let factor = [unit[2 * (lane % 2)], unit[2 * (lane % 2) + 1]];
                    let sums = &mut tiles[tile].0[lane];
                    *sums = mma_u8_s8(codes, factor, *sums);
                    tile += 1;
                }
                lane += 1;
            }
            pair += 2;
        }
    }

    /// The sums of both rows, of the lane's first column or of its `second` one.
    #[inline(always)]
    pub(super) fn finish(&self, second: bool) -> [i32; 2] {
        let [a, b, c, d] = self.0;
        let sum = |i: usize| a[i] + (b[i] >> 2) + (c[i] >> 4) + (d[i] >> 6);
        let columns = [[sum(0), sum(2)], [sum(1), sum(3)]];
        [0, 1].map(|r| if second { columns[1][r] } else { columns[0][r] })
    }

    /// 64 times the sums of the first row and the second, of both of the lane's columns each: a multiple of 4 and 16 need not be divided.
    #[inline(always)]
    pub(super) fn shifted(&self) -> [i32; 4] {
        let [a, b, c, d] = self.0;
        let sum = |i: usize| ((a[i] * 4 + b[i]) * 4 + c[i]) * 4 + d[i];
        [sum(0), sum(1), sum(2), sum(3)]
    }
}
