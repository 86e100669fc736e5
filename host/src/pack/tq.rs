//! TQ1_0 and TQ2_0 of GGUF files: rows of blocks of 256 values, each block with the scale as f16 behind its codes.
//!
//! Every block repeats the scale; in a b1.58 matrix they must all agree. A block of zeros may carry a scale of zero, as the
//! usual quantiser writes it. K must be a multiple of 256.
//!
//! **TQ1_0**, 52 bytes in base 3: a byte holds five ternaries (the last four bytes: four) as a fraction of 256: multiplying
//! by 3 pushes the first out at the top. Value `e < 160` is digit `e / 32` of byte `e mod 32`; the next 80 are digit
//! `(e - 160) / 16` of byte `32 + (e - 160) mod 16`; the last 16 are digit `(e - 240) / 4` of byte `48 + (e - 240) mod 4`. So
//! sixteen neighbours always take one digit of sixteen bytes, or four digits of the last four.
//!
//! **TQ2_0**, 64 bytes of codes `t + 1`: value `e` stands in byte `32 (e / 128) + e mod 32`, bit pair `(e mod 128) / 32` (the
//! first 32 values in the low bits).

use contract::w2a8::{CODES_PER_WORD, PAD_WORD, row_words};
use half::f16;

use super::{PackError, check_len, check_shape, word};

/// Values of a block.
pub const BLOCK: usize = 256;
/// Words of a block in the device layout.
const BLOCK_WORDS: usize = BLOCK / CODES_PER_WORD;

/// One of the two layouts.
#[derive(Debug)]
pub struct Blocks {
    name: &'static str,
    /// Bytes of a block's codes: the scale stands behind them.
    code_bytes: usize,
    decode: fn(&[u8], &mut [u32]),
    encode: fn(&[u32], &mut [u8]),
}

/// Base 3.
pub static TQ1_0: Blocks =
    Blocks { name: "TQ1_0", code_bytes: BASE3_BYTES, decode: from_base3, encode: to_base3 };
/// Two bits a value.
pub static TQ2_0: Blocks =
    Blocks { name: "TQ2_0", code_bytes: BLOCK / 4, decode: from_pairs, encode: to_pairs };

impl Blocks {
    /// The name of the layout.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Bytes of a block, with its scale.
    pub const fn block_bytes(&self) -> usize {
        self.code_bytes + 2
    }

    /// Bytes of one row of `k` values.
    pub const fn row_bytes(&self, k: usize) -> usize {
        k / BLOCK * self.block_bytes()
    }

    /// Refuses a K that is not a whole number of blocks.
    ///
    /// # Errors
    /// [`PackError::Multiple`].
    pub fn check_k(&self, k: usize) -> Result<(), PackError> {
        if !k.is_multiple_of(BLOCK) {
            let layout = self.name;
            return Err(PackError::Multiple { layout, dim: "K", multiple: BLOCK, found: k });
        }
        Ok(())
    }

    /// Decodes rows from `row_bytes(k)` bytes each. `scale` carries the matrix's f16 scale from call to
    /// call (`None` before the first block with one); blocks that differ from it are refused.
    pub(crate) fn decode_rows(
        &self,
        bytes: &[u8],
        k: usize,
        first_row: usize,
        scale: &mut Option<f16>,
        out: &mut [u32],
    ) -> Result<(), PackError> {
        self.check_k(k)?;
        let width = row_words(k);
        let rows = out.len() / width;
        check_len(self.name, bytes.len(), rows * self.row_bytes(k))?;
        check_len("rows", out.len(), rows * width)?;
        let lines = bytes.chunks_exact(self.row_bytes(k)).zip(out.chunks_exact_mut(width));
        for (i, (line, row)) in lines.enumerate() {
            let blocks = line.chunks_exact(self.block_bytes());
            for (b, (block, words)) in blocks.zip(row.chunks_exact_mut(BLOCK_WORDS)).enumerate() {
                let (codes, stored) = block.split_at(self.code_bytes);
                (self.decode)(codes, words);
                agree(scale, [stored[0], stored[1]], words, first_row + i, b)?;
            }
            word::turn_row(row);
            word::check_row(row, first_row + i)?;
        }
        Ok(())
    }

    /// Encodes one device row into `row_bytes(k)` bytes.
    pub(crate) fn encode_row(&self, row: &[u32], scale: f16, bytes: &mut [u8]) {
        let blocks = bytes.chunks_exact_mut(self.block_bytes());
        let row: Vec<u32> = word::neighbours(row).collect();
        for (block, words) in blocks.zip(row.chunks_exact(BLOCK_WORDS)) {
            let (codes, stored) = block.split_at_mut(self.code_bytes);
            (self.encode)(words, codes);
            stored.copy_from_slice(&scale.to_le_bytes());
        }
    }

    /// Packs `ternaries` (`[n, k]`, row-major) with their scale.
    ///
    /// # Errors
    /// A shape that the layout cannot hold, a value that is no ternary.
    pub fn pack(
        &self,
        ternaries: &[i8],
        n: usize,
        k: usize,
        scale: f16,
    ) -> Result<Vec<u8>, PackError> {
        self.check_k(k)?;
        let packed = super::PackedW2::from_ternaries(ternaries, k, &[(n, scale.to_f32())])?;
        let mut bytes = vec![0; n * self.row_bytes(k)];
        for (row, out) in bytes.chunks_exact_mut(self.row_bytes(k)).enumerate() {
            self.encode_row(packed.row(row), scale, out);
        }
        Ok(bytes)
    }

    /// Unpacks to ternaries (`[n, k]`, row-major) and the scale, `None` when every block is zeros with a
    /// scale of zero.
    ///
    /// # Errors
    /// A shape that the layout cannot hold, too few or too many bytes, a code of no ternary, scales that
    /// are none or differ.
    pub fn unpack(
        &self,
        bytes: &[u8],
        n: usize,
        k: usize,
    ) -> Result<(Vec<i8>, Option<f16>), PackError> {
        check_shape(n, k)?;
        self.check_k(k)?;
        check_len(self.name, bytes.len(), n * self.row_bytes(k))?;
        let mut words = vec![0; row_words(k)];
        let mut out = vec![0; n * k];
        let mut scale = None;
        let lines = bytes.chunks_exact(self.row_bytes(k)).zip(out.chunks_exact_mut(k));
        for (row, (line, values)) in lines.enumerate() {
            self.decode_rows(line, k, row, &mut scale, &mut words)?;
            word::ternaries_from_row(&words, values);
        }
        Ok((out, scale))
    }
}

/// Holds a block's scale against the matrix's. A scale of zero is right for a block of zeros only.
fn agree(
    scale: &mut Option<f16>,
    stored: [u8; 2],
    words: &[u32],
    row: usize,
    block: usize,
) -> Result<(), PackError> {
    let found = f16::from_le_bytes(stored);
    if found == f16::ZERO && words.iter().all(|&w| w == PAD_WORD) {
        return Ok(());
    }
    if !(found.is_finite() && found > f16::ZERO) {
        return Err(PackError::Scale { scale: found.to_f32() });
    }
    match *scale {
        None => *scale = Some(found),
        Some(expected) if expected == found => {}
        Some(expected) => {
            let (expected, found) = (expected.to_f32(), found.to_f32());
            return Err(PackError::ScalesDiffer { row, block, expected, found });
        }
    }
    Ok(())
}

const BASE3_BYTES: usize = 52;
const POW3: [u8; 5] = [1, 3, 9, 27, 81];

/// Where value `16 w + i` of a block stands in base 3: (byte, digit).
const fn place(w: usize, i: usize) -> (usize, usize) {
    match w {
        0..10 => (w % 2 * 16 + i, w / 2),
        10..15 => (32 + i, w - 10),
        _ => (48 + i % 4, i / 4),
    }
}

fn from_base3(bytes: &[u8], words: &mut [u32]) {
    for (w, out) in words.iter_mut().enumerate() {
        let mut codes = [0; CODES_PER_WORD];
        for (i, code) in codes.iter_mut().enumerate() {
            let (byte, digit) = place(w, i);
            let rest = bytes[byte].wrapping_mul(POW3[digit]);
            *code = ((u16::from(rest) * 3) >> 8) as u8;
        }
        *out = word::word_of_codes(&codes);
    }
}

fn to_base3(words: &[u32], bytes: &mut [u8]) {
    let mut sums = [0u16; BASE3_BYTES];
    for (w, &word) in words.iter().enumerate() {
        for (i, code) in word::codes_of_word(word).into_iter().enumerate() {
            let (byte, digit) = place(w, i);
            sums[byte] += u16::from(code) * u16::from(POW3[4 - digit]);
        }
    }
    for (byte, sum) in bytes.iter_mut().zip(sums) {
        *byte = (sum * 256).div_ceil(243) as u8;
    }
}

fn from_pairs(bytes: &[u8], words: &mut [u32]) {
    for (half_block, eight) in bytes.chunks_exact(32).zip(words.chunks_exact_mut(8)) {
        for (quarter, two) in eight.chunks_exact_mut(2).enumerate() {
            word::words_from_lane(half_block, 2 * quarter as u32, two);
        }
    }
}

fn to_pairs(words: &[u32], bytes: &mut [u8]) {
    bytes.fill(0);
    for (half_block, eight) in bytes.chunks_exact_mut(32).zip(words.chunks_exact(8)) {
        for (quarter, two) in eight.chunks_exact(2).enumerate() {
            word::lane_from_words(two.iter().copied(), 2 * quarter as u32, half_block);
        }
    }
}
