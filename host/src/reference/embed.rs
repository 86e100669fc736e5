//! Reference for [`contract::embed`], and the dense tables that it and the head read.

use contract::num::RowType;

use super::Inputs;

/// `(m, rows, width)`: around the edges of padding and of blocks.
pub const TEST_SHAPES: &[(usize, usize, usize)] = &[
    (1, 1, 1),
    (3, 5, 7),
    (2, 9, 8),
    (4, 33, 255),
    (5, 12, 256),
    (7, 300, 257),
    (9, 64, 2560),
    (65_537, 3, 5),
];

/// `(m, rows, width)`: a prompt of the 2B-4T model.
pub const BENCH_SHAPES: &[(usize, usize, usize)] = &[(1, 128_256, 2560), (512, 128_256, 2560)];

/// Element types of a table.
pub const ELEMENTS: [RowType; 3] = [RowType::Bf16, RowType::F16, RowType::F32];

/// A table `[rows, width]` as bits of its elements, without padding.
#[derive(Clone, Debug)]
pub struct Dense {
    /// Element type.
    pub element: RowType,
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
    /// Bits `[rows, width]`; the lower 16 for the half types.
    pub bits: Vec<u32>,
}

impl Dense {
    /// Seeded numbers in `(-2, 2)`, a subnormal among them.
    pub fn new(element: RowType, rows: usize, width: usize, seed: u64) -> Self {
        let mut values = Inputs::new(seed).floats(rows * width, 2.0);
        if let Some(first) = values.first_mut() {
            *first = 3e-8;
        }
        let bits = |v: f32| match element {
            RowType::Bf16 => u32::from(half::bf16::from_f32(v).to_bits()),
            RowType::F16 => u32::from(half::f16::from_f32(v).to_bits()),
            RowType::F32 => v.to_bits(),
        };
        Self { element, rows, width, bits: values.into_iter().map(bits).collect() }
    }

    /// Element `i` of row `row`.
    pub fn at(&self, row: usize, i: usize) -> f32 {
        let bits = self.bits[row * self.width + i];
        match self.element {
            RowType::Bf16 => half::bf16::from_bits(bits as u16).to_f32(),
            RowType::F16 => half::f16::from_bits(bits as u16).to_f32(),
            RowType::F32 => f32::from_bits(bits),
        }
    }

    /// The bytes of all rows, one after the other, as a checkpoint holds them.
    pub fn bytes(&self) -> Vec<u8> {
        let bytes = self.element.bytes();
        self.bits.iter().flat_map(|b| b.to_le_bytes().into_iter().take(bytes)).collect()
    }
}

/// Seeded ids for a table of `rows`; the last of three or more is past the table.
pub fn ids(m: usize, rows: usize, seed: u64) -> Vec<u32> {
    let mut inputs = Inputs::new(seed);
    let mut ids: Vec<u32> = (0..m).map(|_| inputs.below(rows) as u32).collect();
    if m > 2 {
        ids[m - 1] = rows as u32;
    }
    ids
}

/// `out[m, i] = table[ids[m], i]`; rows of NaN for ids past the table.
pub fn embed(table: &Dense, ids: &[u32]) -> Vec<f32> {
    let mut out = Vec::new();
    for &id in ids {
        for i in 0..table.width {
            let inside = (id as usize) < table.rows;
            out.push(if inside { table.at(id as usize, i) } else { f32::NAN });
        }
    }
    out
}
