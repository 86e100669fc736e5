//! Block-quantised dense matrices of GGUF files: Q8_0, Q4_K and Q6_K.
//!
//! Tools that write ternary GGUF files quantise the embedding and the head on the way; these are the
//! types that they choose. Values are decoded to `f32` by ggml's formulas, one rounding for each
//! operation written here, while rows are read. Numbers in the file are little-endian.

use half::f16;

/// A block-quantised type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockType {
    /// 32 signed bytes and an f16 scale.
    Q8_0,
    /// 256 4-bit values in eight groups, each with a 6-bit scale and a 6-bit minimum.
    Q4K,
    /// 256 6-bit values in sixteen groups, each with an 8-bit scale.
    Q6K,
}

impl BlockType {
    /// The field's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Q8_0 => "Q8_0",
            Self::Q4K => "Q4_K",
            Self::Q6K => "Q6_K",
        }
    }

    /// Values of a block.
    pub const fn values(self) -> usize {
        match self {
            Self::Q8_0 => 32,
            Self::Q4K | Self::Q6K => 256,
        }
    }

    /// Bytes of a block.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Q8_0 => 34,
            Self::Q4K => 144,
            Self::Q6K => 210,
        }
    }

    /// Decodes whole blocks; `out` holds [`BlockType::values`] for each.
    pub(crate) fn decode(self, blocks: &[u8], out: &mut [f32]) {
        let pairs = blocks.chunks_exact(self.bytes()).zip(out.chunks_exact_mut(self.values()));
        for (block, out) in pairs {
            match self {
                Self::Q8_0 => q8_0(block, out),
                Self::Q4K => q4_k(block, out),
                Self::Q6K => q6_k(block, out),
            }
        }
    }
}

fn scale(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// `d`, then 32 values: `d q`.
fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = scale(block);
    for (out, &q) in out.iter_mut().zip(&block[2..]) {
        *out = d * f32::from(q as i8);
    }
}

/// `d`, `dmin`, 12 bytes of scales and minima, 128 bytes of values: `(d s) q - (dmin m)`. 32 bytes
/// hold the low nibbles of one group and the high nibbles of the next.
fn q4_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin, packed, qs) = (scale(block), scale(&block[2..]), &block[4..16], &block[16..]);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        // Scales of the last four groups are split: four bits here, two on top of the first ones.
        let (s, m) = match group {
            0..4 => (packed[group] & 63, packed[group + 4] & 63),
            _ => (
                packed[group + 4] & 15 | packed[group - 4] >> 6 << 4,
                packed[group + 4] >> 4 | packed[group] >> 6 << 4,
            ),
        };
        let (step, least) = (d * f32::from(s), dmin * f32::from(m));
        let bytes = &qs[group / 2 * 32..][..32];
        for (out, &byte) in out.iter_mut().zip(bytes) {
            let q = if group % 2 == 0 { byte & 15 } else { byte >> 4 };
            *out = step * f32::from(q) - least;
        }
    }
}

/// 128 bytes of low nibbles, 64 of high pairs of bits, 16 signed scales, `d`: `(d s) (q - 32)`. Each
/// half of the block has four runs of 32 values: two in the low nibbles, two in the high ones.
fn q6_k(block: &[u8], out: &mut [f32]) {
    let (low, high, scales, d) =
        (&block[..128], &block[128..192], &block[192..208], scale(&block[208..]));
    for (half, out) in out.chunks_exact_mut(128).enumerate() {
        let (low, high) = (&low[64 * half..][..64], &high[32 * half..][..32]);
        for (i, out) in out.iter_mut().enumerate() {
            let (run, l) = (i / 32, i % 32);
            let nibble = low[run % 2 * 32 + l] >> (run / 2 * 4) & 15;
            let q = nibble | (high[l] >> (2 * run) & 3) << 4;
            let s = scales[8 * half + i / 16] as i8;
            *out = d * f32::from(s) * f32::from(q as i8 - 32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ggml's own loops, as they walk through a block, for the two types whose order is not plain.
    fn walked(kind: BlockType, block: &[u8]) -> Vec<f32> {
        let mut y = vec![0.0; 256];
        match kind {
            BlockType::Q6K => {
                let (mut ql, mut qh, mut sc) = (0, 128, 192);
                let d = scale(&block[208..]);
                for n in [0, 128] {
                    for l in 0..32 {
                        let is = l / 16;
                        let at = |i: usize| i32::from(block[i]);
                        let s = |i: usize| f32::from(block[sc + i] as i8);
                        let q = [
                            (at(ql + l) & 15 | (at(qh + l) & 3) << 4) - 32,
                            (at(ql + l + 32) & 15 | (at(qh + l) >> 2 & 3) << 4) - 32,
                            (at(ql + l) >> 4 | (at(qh + l) >> 4 & 3) << 4) - 32,
                            (at(ql + l + 32) >> 4 | (at(qh + l) >> 6 & 3) << 4) - 32,
                        ];
                        for (run, q) in q.into_iter().enumerate() {
                            y[n + 32 * run + l] = d * s(is + 2 * run) * q as f32;
                        }
                    }
                    (ql, qh, sc) = (ql + 64, qh + 32, sc + 8);
                }
            }
            _ => {
                let (d, dmin, p) = (scale(block), scale(&block[2..]), &block[4..16]);
                let pair = |j: usize| match j < 4 {
                    true => (p[j] & 63, p[j + 4] & 63),
                    false => (
                        (p[j + 4] & 0xf) | ((p[j - 4] >> 6) << 4),
                        (p[j + 4] >> 4) | ((p[j] >> 6) << 4),
                    ),
                };
                for (turn, q) in block[16..].chunks(32).enumerate() {
                    for l in 0..32 {
                        for (side, q) in [q[l] & 0xf, q[l] >> 4].into_iter().enumerate() {
                            let (s, m) = pair(2 * turn + side);
                            y[64 * turn + 32 * side + l] =
                                d * f32::from(s) * f32::from(q) - dmin * f32::from(m);
                        }
                    }
                }
            }
        }
        y
    }

    fn decoded(kind: BlockType, blocks: &[u8]) -> Vec<f32> {
        let mut out = vec![f32::NAN; blocks.len() / kind.bytes() * kind.values()];
        kind.decode(blocks, &mut out);
        out
    }

    #[test]
    fn random_blocks_decode_as_ggml_walks_them() {
        let mut state = 0x1234_5678u32;
        let mut byte = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        for kind in [BlockType::Q4K, BlockType::Q6K] {
            for _ in 0..200 {
                let mut block: Vec<u8> = (0..kind.bytes()).map(|_| byte()).collect();
                // Scales of any kind but NaN, which is equal to nothing.
                let at = if kind == BlockType::Q6K { 209 } else { 1 };
                block[at] &= 0x7b;
                if kind == BlockType::Q4K {
                    block[3] &= 0x7b;
                }
                assert_eq!(decoded(kind, &block), walked(kind, &block), "{}", kind.name());
            }
        }
    }

    #[test]
    fn values_that_can_be_read_off() {
        let two = f16::from_f32(2.0).to_le_bytes();
        let mut q8 = vec![0u8; 34];
        q8[..2].copy_from_slice(&two);
        (q8[2], q8[33]) = (0x80, 127);
        let values = decoded(BlockType::Q8_0, &q8);
        assert_eq!((values[0], values[1], values[31]), (-256.0, 0.0, 254.0));

        // Zeros are the lowest value, -32; a scale of 1.
        let mut q6 = vec![0u8; 210];
        q6[192..208].fill(1);
        q6[208..].copy_from_slice(&two);
        assert!(decoded(BlockType::Q6K, &q6).iter().all(|&v| v == -64.0));
        q6[0] = 0x1f; // value 0: 15; value 64: 1
        let values = decoded(BlockType::Q6K, &q6);
        assert_eq!((values[0], values[64], values[1]), (-34.0, -62.0, -64.0));
    }
}
