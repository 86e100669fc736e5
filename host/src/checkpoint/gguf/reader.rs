//! The GGUF container: key-value metadata, tensor places, data.
//!
//! Versions 2 and 3, little-endian. Every length is held against the bytes that are left in the file
//! before anything is allocated or skipped by it; strings, keys, counts and nesting have caps far
//! below what a hostile file would need. Arrays (a tokenizer has hundreds of thousands of strings)
//! are walked once for validity and kept as a place in the file.

use std::{
    borrow::Cow,
    collections::{BTreeMap, btree_map},
};

use super::BlockType;
use crate::checkpoint::{CheckpointError, StoredType, TensorEntry, bytes::FileBytes};

/// Most metadata keys.
const MAX_KEYS: u64 = 1 << 16;
/// Longest key in bytes, as the format states.
const MAX_KEY: u64 = (1 << 16) - 1;
/// Longest string value in bytes (a whole `tokenizer.json` may be embedded).
const MAX_STRING: u64 = 64 << 20;
/// Most tensors.
const MAX_TENSORS: u64 = 1 << 20;
/// Longest tensor name in bytes.
const MAX_NAME: u64 = 1 << 12;
/// Most dimensions.
const MAX_DIMS: u32 = 4;
/// Arrays inside arrays.
const MAX_DEPTH: u32 = 4;
/// Bytes read at once from a file that is not mapped.
const WINDOW: u64 = 1 << 16;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Uint(u64),
    Int(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    Array(ArrayPlace),
}

impl Value {
    pub(crate) fn kind(&self) -> String {
        match self {
            Self::Uint(v) => v.to_string(),
            Self::Int(v) => v.to_string(),
            Self::Float(v) => v.to_string(),
            Self::Bool(v) => v.to_string(),
            Self::Text(v) => format!("{:?}", v.chars().take(100).collect::<String>()),
            Self::Array(place) => format!("an array of {}", place.count),
        }
    }
}

/// Where an array's elements stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArrayPlace {
    /// GGUF type number of the elements.
    pub(crate) element: u32,
    pub(crate) count: u64,
    pub(crate) offset: u64,
}

/// GGUF type numbers of metadata values.
pub(crate) mod kind {
    pub(crate) const I32: u32 = 5;
    pub(crate) const F32: u32 = 6;
    pub(crate) const STRING: u32 = 8;
    pub(crate) const ARRAY: u32 = 9;
}

/// Bytes of a value of fixed size.
fn fixed_size(kind: u32) -> Option<u64> {
    Some(match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        10..=12 => 8,
        _ => return None,
    })
}

/// Everything in front of the data.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) metadata: BTreeMap<String, Value>,
    pub(crate) tensors: BTreeMap<String, TensorEntry>,
}

/// Reads sequentially and never past the end.
pub(crate) struct Cursor<'a> {
    file: &'a FileBytes,
    pub(crate) pos: u64,
    window: Cow<'a, [u8]>,
    window_start: u64,
}

impl<'a> Cursor<'a> {
    pub(crate) fn at(file: &'a FileBytes, pos: u64) -> Self {
        Self { file, pos, window: Cow::Borrowed(&[]), window_start: pos }
    }

    fn left(&self) -> u64 {
        self.file.len().saturating_sub(self.pos)
    }

    fn malformed(
        &self,
        what: &str,
        found: impl ToString,
        allowed: impl ToString,
    ) -> CheckpointError {
        let what = format!("{what} (before byte {})", self.pos);
        CheckpointError::malformed(self.file.path(), what, found, allowed)
    }

    fn take(&mut self, len: u64, what: &str) -> Result<&[u8], CheckpointError> {
        if len > self.left() {
            let found = format!("{len} bytes long");
            return Err(self.malformed(what, found, format!("the {} bytes left", self.left())));
        }
        let inside = self.pos - self.window_start;
        if inside + len > self.window.len() as u64 {
            let size = len.max(WINDOW).min(self.left());
            self.window = self.file.read(self.pos, size as usize)?;
            self.window_start = self.pos;
        }
        let start = (self.pos - self.window_start) as usize;
        self.pos += len;
        Ok(&self.window[start..start + len as usize])
    }

    fn skip(&mut self, len: u64, what: &str) -> Result<(), CheckpointError> {
        if len > self.left() {
            let found = format!("{len} bytes long");
            return Err(self.malformed(what, found, format!("the {} bytes left", self.left())));
        }
        self.pos += len;
        // A window behind the position is of no use any more.
        if self.pos - self.window_start > self.window.len() as u64 {
            self.window = Cow::Borrowed(&[]);
            self.window_start = self.pos;
        }
        Ok(())
    }

    pub(crate) fn u32(&mut self, what: &str) -> Result<u32, CheckpointError> {
        Ok(u32::from_le_bytes(self.take(4, what)?.try_into().unwrap_or_default()))
    }

    pub(crate) fn u64(&mut self, what: &str) -> Result<u64, CheckpointError> {
        Ok(u64::from_le_bytes(self.take(8, what)?.try_into().unwrap_or_default()))
    }

    pub(crate) fn text(&mut self, most: u64, what: &str) -> Result<String, CheckpointError> {
        let len = self.u64(what)?;
        if len > most {
            return Err(self.malformed(
                what,
                format!("{len} bytes long"),
                format!("at most {most}"),
            ));
        }
        let bytes = self.take(len, what)?.to_vec();
        String::from_utf8(bytes).map_err(|_| self.malformed(what, "not UTF-8", "UTF-8"))
    }

    fn value(&mut self, kind: u32, what: &str) -> Result<Value, CheckpointError> {
        if let Some(size) = fixed_size(kind) {
            let mut raw = [0; 8];
            raw[..size as usize].copy_from_slice(self.take(size, what)?);
            let bits = u64::from_le_bytes(raw);
            return Ok(match kind {
                0 | 2 | 4 | 10 => Value::Uint(bits),
                1 => Value::Int(i64::from(bits as i8)),
                3 => Value::Int(i64::from(bits as i16)),
                5 => Value::Int(i64::from(bits as i32)),
                11 => Value::Int(bits as i64),
                6 => Value::Float(f64::from(f32::from_bits(bits as u32))),
                12 => Value::Float(f64::from_bits(bits)),
                _ if bits <= 1 => Value::Bool(bits == 1),
                _ => return Err(self.malformed(what, bits, "0 or 1")),
            });
        }
        match kind {
            kind::STRING => Ok(Value::Text(self.text(MAX_STRING, what)?)),
            kind::ARRAY => self.array(what, 0).map(Value::Array),
            _ => Err(self.malformed(what, format!("of type {kind}"), "one of the types 0 to 12")),
        }
    }

    fn array(&mut self, what: &str, depth: u32) -> Result<ArrayPlace, CheckpointError> {
        let element = self.u32(what)?;
        let count = self.u64(what)?;
        let place = ArrayPlace { element, count, offset: self.pos };
        let too_many = |cursor: &Self| {
            let allowed = format!("what the {} bytes left can hold", cursor.left());
            cursor.malformed(what, format!("an array of {count}"), allowed)
        };
        match (fixed_size(element), element) {
            (Some(size), _) => {
                let bytes = count.checked_mul(size).ok_or_else(|| too_many(self))?;
                self.skip(bytes, what)?;
            }
            (None, kind::STRING) => {
                if count > self.left() / 8 {
                    return Err(too_many(self));
                }
                for _ in 0..count {
                    let len = self.u64(what)?;
                    self.skip(len, what)?;
                }
            }
            (None, kind::ARRAY) if depth < MAX_DEPTH => {
                if count > self.left() / 12 {
                    return Err(too_many(self));
                }
                for _ in 0..count {
                    self.array(what, depth + 1)?;
                }
            }
            _ => return Err(self.malformed(what, format!("of type {element}"), "types 0 to 12")),
        }
        Ok(place)
    }
}

/// Reads everything in front of the data and checks every tensor's place.
pub(crate) fn read_header(file: &FileBytes) -> Result<Header, CheckpointError> {
    let mut cursor = Cursor::at(file, 0);
    let magic = cursor.u32("the magic")?;
    if magic.to_le_bytes() != *b"GGUF" {
        return Err(cursor.malformed("the magic", format!("{magic:#010x}"), "\"GGUF\""));
    }
    let version = cursor.u32("the version")?;
    if !(2..=3).contains(&version) {
        let found = match version.swap_bytes() {
            2 | 3 => format!("{} in big-endian", version.swap_bytes()),
            _ => version.to_string(),
        };
        return Err(cursor.malformed("the version", found, "2 or 3, little-endian"));
    }
    let tensor_count = cursor.u64("the number of tensors")?;
    let key_count = cursor.u64("the number of keys")?;
    for (what, count, most) in [
        ("the number of tensors", tensor_count, MAX_TENSORS),
        ("the number of keys", key_count, MAX_KEYS),
    ] {
        if count > most {
            return Err(cursor.malformed(what, count, format!("at most {most}")));
        }
    }
    let mut metadata = BTreeMap::new();
    for _ in 0..key_count {
        let key = cursor.text(MAX_KEY, "a key")?;
        let kind = cursor.u32("a value's type")?;
        let value = cursor.value(kind, &format!("the value of {key}"))?;
        match metadata.entry(key) {
            btree_map::Entry::Vacant(entry) => entry.insert(value),
            btree_map::Entry::Occupied(entry) => {
                let found = format!("{} again", entry.key());
                return Err(cursor.malformed("a key", found, "each key once"));
            }
        };
    }
    let alignment = match metadata.get("general.alignment") {
        None => 32,
        Some(&Value::Uint(a)) if a.is_power_of_two() && a <= 1 << 20 => a,
        Some(other) => {
            let allowed = "a power of two up to 2^20";
            return Err(cursor.malformed("general.alignment", other.kind(), allowed));
        }
    };
    let mut tensors = BTreeMap::new();
    for _ in 0..tensor_count {
        let tensor = tensor_info(&mut cursor, alignment)?;
        match tensors.entry(tensor.name.clone()) {
            btree_map::Entry::Vacant(entry) => entry.insert(tensor),
            btree_map::Entry::Occupied(entry) => {
                let found = format!("{} again", entry.key());
                return Err(cursor.malformed("a tensor name", found, "each name once"));
            }
        };
    }
    place_tensors(&cursor, cursor.pos.next_multiple_of(alignment), &mut tensors)?;
    Ok(Header { metadata, tensors })
}

/// One entry of the tensor table; its offset is still relative to the data.
fn tensor_info(cursor: &mut Cursor<'_>, alignment: u64) -> Result<TensorEntry, CheckpointError> {
    let name = cursor.text(MAX_NAME, "a tensor name")?;
    let what = format!("the shape of {name}");
    let dims = cursor.u32(&what)?;
    if dims == 0 || dims > MAX_DIMS {
        return Err(cursor.malformed(
            &what,
            format!("{dims} dimensions"),
            format!("1 to {MAX_DIMS}"),
        ));
    }
    let mut shape = Vec::with_capacity(dims as usize);
    for _ in 0..dims {
        shape.push(cursor.u64(&what)?);
    }
    let kind = cursor.u32(&format!("the type of {name}"))?;
    let offset = cursor.u64(&format!("the place of {name}"))?;
    if offset % alignment != 0 {
        let allowed = format!("a multiple of {alignment}");
        return Err(cursor.malformed(&format!("the place of {name}"), offset, allowed));
    }
    let Some((stored, block, block_bytes)) = tensor_type(kind) else {
        let found = match kind {
            38 => "GGML type 38 (TL1 of bitnet.cpp)".into(),
            39 => "GGML type 39 (TL2 of bitnet.cpp, MXFP4 elsewhere)".into(),
            _ => format!("GGML type {kind}"),
        };
        let allowed = "I2_S, TQ1_0, TQ2_0 for projections; F32, F16, BF16 for the rest";
        return Err(CheckpointError::StoredType { tensor: name, found, allowed });
    };
    let elements = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d)).filter(|&n| n > 0);
    // The first dimension is the contiguous one: blocks never span rows.
    let bytes = elements
        .filter(|_| shape[0] % block == 0)
        .and_then(|n| (n / block).checked_mul(block_bytes))
        .and_then(|n| n.checked_add(if stored == StoredType::I2S { 32 } else { 0 }));
    let Some(bytes) = bytes else {
        let found = format!("{shape:?}");
        let allowed = format!("rows of whole blocks of {block}, below 2^64 elements");
        return Err(cursor.malformed(&what, found, allowed));
    };
    shape.reverse();
    Ok(TensorEntry { name, stored, shape, bytes, file: 0, offset })
}

/// Type, values of a block, bytes of a block.
fn tensor_type(kind: u32) -> Option<(StoredType, u64, u64)> {
    let other = |name: &str| StoredType::Other(name.to_owned());
    Some(match kind {
        0 => (StoredType::F32, 1, 4),
        1 => (StoredType::F16, 1, 2),
        2 => (other("Q4_0"), 32, 18),
        3 => (other("Q4_1"), 32, 20),
        6 => (other("Q5_0"), 32, 22),
        7 => (other("Q5_1"), 32, 24),
        8 => (StoredType::Blocks(BlockType::Q8_0), 32, 34),
        10 => (other("Q2_K"), 256, 84),
        11 => (other("Q3_K"), 256, 110),
        12 => (StoredType::Blocks(BlockType::Q4K), 256, 144),
        13 => (other("Q5_K"), 256, 176),
        14 => (StoredType::Blocks(BlockType::Q6K), 256, 210),
        24 => (StoredType::I8, 1, 1),
        25 => (other("I16"), 1, 2),
        26 => (other("I32"), 1, 4),
        27 => (other("I64"), 1, 8),
        28 => (other("F64"), 1, 8),
        30 => (StoredType::Bf16, 1, 2),
        34 => (StoredType::Tq1_0, 256, 54),
        35 => (StoredType::Tq2_0, 256, 66),
        36 => (StoredType::I2S, 4, 1),
        _ => return None,
    })
}

/// Turns offsets into places in the file; refuses tensors outside it and tensors that overlap.
fn place_tensors(
    cursor: &Cursor<'_>,
    data_start: u64,
    tensors: &mut BTreeMap<String, TensorEntry>,
) -> Result<(), CheckpointError> {
    let file_len = cursor.file.len();
    let mut order: Vec<&mut TensorEntry> = tensors.values_mut().collect();
    order.sort_by_key(|t| t.offset);
    let mut covered = data_start;
    for tensor in order {
        let what = format!("the place of {}", tensor.name);
        let start = data_start.checked_add(tensor.offset);
        let end = start.and_then(|s| s.checked_add(tensor.bytes)).filter(|&e| e <= file_len);
        let (Some(start), Some(end)) = (start, end) else {
            let found = format!("{} bytes at {}", tensor.bytes, tensor.offset);
            let allowed =
                format!("inside the {} bytes of data", file_len.saturating_sub(data_start));
            return Err(cursor.malformed(&what, found, allowed));
        };
        if start < covered {
            let allowed = format!("{} or more (no overlaps)", covered - data_start);
            return Err(cursor.malformed(&what, tensor.offset, allowed));
        }
        covered = end;
        tensor.offset = start;
    }
    Ok(())
}
