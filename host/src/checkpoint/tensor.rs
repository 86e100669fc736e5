//! A stored tensor: its name, type, shape and place in one of the files.

use std::fmt;

use serde::{Serialize, Serializer};

use super::gguf::BlockType;

/// How a tensor's elements are stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoredType {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// The upper half of a single.
    Bf16,
    /// Bytes; for a projection: ternaries as [`crate::pack::hf`].
    U8,
    /// [`crate::pack::i2_s`].
    I2S,
    /// [`crate::pack::tq::TQ1_0`].
    Tq1_0,
    /// [`crate::pack::tq::TQ2_0`].
    Tq2_0,
    /// Signed bytes; for a projection: words of [`crate::pack::int2`].
    I8,
    /// A dense matrix in quantised blocks.
    Blocks(BlockType),
    /// Anything else, by its name: it can be listed, not read.
    Other(String),
}

impl StoredType {
    pub(crate) fn from_safetensors(name: &str) -> Self {
        match name {
            "F32" => Self::F32,
            "F16" => Self::F16,
            "BF16" => Self::Bf16,
            "U8" => Self::U8,
            "I8" => Self::I8,
            other => Self::Other(other.to_owned()),
        }
    }

    /// Bits of an element where elements have a size of their own.
    pub(crate) fn bits(&self) -> Option<u64> {
        Some(match self {
            Self::F32 => 32,
            Self::F16 | Self::Bf16 => 16,
            Self::U8 | Self::I8 => 8,
            Self::I2S | Self::Tq1_0 | Self::Tq2_0 | Self::Blocks(_) => return None,
            Self::Other(name) => match name.as_str() {
                "BOOL" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" => 8,
                "I16" | "U16" => 16,
                "I32" | "U32" => 32,
                "I64" | "U64" | "F64" | "C64" => 64,
                _ => return None,
            },
        })
    }

    /// The type that a dense matrix is read as: its own, or `f32` for quantised blocks.
    pub(crate) fn dense(&self) -> Option<FloatType> {
        match self {
            Self::Blocks(_) => Some(FloatType::F32),
            _ => self.float(),
        }
    }

    /// The same type where it is a plain float.
    pub(crate) fn float(&self) -> Option<FloatType> {
        match self {
            Self::F32 => Some(FloatType::F32),
            Self::F16 => Some(FloatType::F16),
            Self::Bf16 => Some(FloatType::Bf16),
            _ => None,
        }
    }
}

impl fmt::Display for StoredType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::U8 => "U8",
            Self::I2S => "I2_S",
            Self::Tq1_0 => "TQ1_0",
            Self::Tq2_0 => "TQ2_0",
            Self::I8 => "I8",
            Self::Blocks(blocks) => blocks.name(),
            Self::Other(name) => name,
        })
    }
}

impl Serialize for StoredType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Element type of a dense matrix or vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FloatType {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// The upper half of a single.
    Bf16,
}

impl FloatType {
    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Decodes little-endian elements; both slices have the same number of elements.
    pub(crate) fn decode(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Self::F32 => {
                for (bytes, out) in bytes.as_chunks::<4>().0.iter().zip(out) {
                    *out = f32::from_le_bytes(*bytes);
                }
            }
            Self::F16 => {
                for (bytes, out) in bytes.as_chunks::<2>().0.iter().zip(out) {
                    *out = half::f16::from_le_bytes(*bytes).to_f32();
                }
            }
            Self::Bf16 => {
                for (bytes, out) in bytes.as_chunks::<2>().0.iter().zip(out) {
                    *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
                }
            }
        }
    }
}

/// One tensor of a checkpoint.
#[derive(Clone, Debug, Serialize)]
pub struct TensorEntry {
    /// Its name in the file.
    pub name: String,
    /// How its elements are stored.
    pub stored: StoredType,
    /// Its shape as stored, outermost dimension first.
    pub shape: Vec<u64>,
    /// Bytes in the file.
    pub bytes: u64,
    #[serde(skip)]
    pub(crate) file: usize,
    #[serde(skip)]
    pub(crate) offset: u64,
}
