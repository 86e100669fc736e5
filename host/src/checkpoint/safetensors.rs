//! The safetensors container: a JSON header with every tensor's place, then the bytes.
//!
//! Read here rather than with the `safetensors` crate for three reasons: the header can be read
//! without holding the file in memory, names that occur twice are refused, and every refusal names
//! the tensor. The rules are the format's: little-endian, row-major, offsets relative to the end of
//! the header, the tensors cover the data exactly, without holes or overlaps. Nothing is allocated by
//! a declared size; the header itself must lie inside the file.

use std::{collections::BTreeMap, fmt};

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{CheckpointError, StoredType, TensorEntry, bytes::FileBytes};

/// Longest header read.
pub(crate) const MAX_HEADER: u64 = 64 << 20;
/// Most tensors of one file.
pub(crate) const MAX_TENSORS: usize = 1 << 20;
/// Longest tensor name in bytes.
pub(crate) const MAX_NAME: usize = 1 << 12;
/// Most dimensions of a tensor.
pub(crate) const MAX_DIMS: usize = 8;

/// Reads the header of `file` and adds its tensors, which must be new names, to `tensors`.
pub(crate) fn read_header(
    file: &FileBytes,
    file_index: usize,
    tensors: &mut BTreeMap<String, TensorEntry>,
) -> Result<(), CheckpointError> {
    let path = file.path();
    let malformed = |what: &str, found: String, allowed: &str| {
        CheckpointError::malformed(path, what, found, allowed)
    };
    let head = file.read(0, 8)?;
    let header_len = u64::from_le_bytes(head.as_ref().try_into().unwrap_or([0; 8]));
    let most = MAX_HEADER.min(file.len() - 8);
    if header_len < 2 || header_len > most {
        return Err(malformed(
            "the header length",
            header_len.to_string(),
            &format!("2 to {most}"),
        ));
    }
    let header = file.read(8, header_len as usize)?;
    let header: Header = serde_json::from_slice(&header)
        .map_err(|e| malformed("the header", e.to_string(), "JSON in the safetensors form"))?;

    let data_start = 8 + header_len;
    let data_len = file.len() - data_start;
    let mut order: Vec<TensorEntry> = Vec::with_capacity(header.0.len());
    for (name, entry) in header.0 {
        let stored = StoredType::from_safetensors(&entry.dtype);
        let [begin, end] = entry.data_offsets;
        if begin > end || end > data_len {
            let found = format!("{begin}..{end}");
            let allowed = format!("a range within 0..{data_len}");
            return Err(malformed(&format!("the data range of {name}"), found, &allowed));
        }
        let elements = entry.shape.0.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
        // A type without a known size keeps its declared range: it can be listed, not read.
        let needed = match stored.bits() {
            Some(bits) => elements.and_then(|n| n.checked_mul(bits)).map(|bits| bits.div_ceil(8)),
            None => elements.map(|_| end - begin),
        };
        if needed != Some(end - begin) {
            let found = format!("{} bytes", end - begin);
            let allowed = format!("what {stored} {:?} takes", entry.shape.0);
            return Err(malformed(&format!("the size of {name}"), found, &allowed));
        }
        order.push(TensorEntry {
            name,
            stored,
            shape: entry.shape.0,
            file: file_index,
            offset: data_start + begin,
            bytes: end - begin,
        });
    }
    order.sort_by_key(|t| (t.offset, t.bytes));
    let mut covered = data_start;
    for tensor in &order {
        if tensor.offset != covered {
            let found = (tensor.offset - data_start).to_string();
            let allowed = format!("{} (no holes, no overlaps)", covered - data_start);
            return Err(malformed(&format!("the start of {}", tensor.name), found, &allowed));
        }
        covered += tensor.bytes;
    }
    if covered != file.len() {
        return Err(malformed(
            "the data behind the header",
            format!("{data_len} bytes"),
            &format!("the {} bytes that the tensors cover", covered - data_start),
        ));
    }
    for tensor in order {
        let name = tensor.name.clone();
        if tensors.insert(name.clone(), tensor).is_some() {
            return Err(malformed("a tensor name", format!("{name} again"), "each name once"));
        }
    }
    Ok(())
}

struct Header(BTreeMap<String, Entry>);

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Dims,
    data_offsets: [u64; 2],
}

/// A shape; longer ones are refused while they are read.
struct Dims(Vec<u64>);

impl<'de> Deserialize<'de> for Dims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DimsVisitor;
        impl<'de> Visitor<'de> for DimsVisitor {
            type Value = Dims;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {MAX_DIMS} dimensions")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Dims, A::Error> {
                let mut dims = Vec::new();
                while let Some(dim) = seq.next_element()? {
                    if dims.len() == MAX_DIMS {
                        return Err(A::Error::invalid_length(MAX_DIMS + 1, &self));
                    }
                    dims.push(dim);
                }
                Ok(Dims(dims))
            }
        }
        deserializer.deserialize_seq(DimsVisitor)
    }
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeaderVisitor;
        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = Header;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut tensors = BTreeMap::new();
                let mut metadata = false;
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        if std::mem::replace(&mut metadata, true) {
                            return Err(A::Error::custom("__metadata__ stands twice"));
                        }
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    if name.len() > MAX_NAME {
                        return Err(A::Error::custom(format!(
                            "a tensor name has {} bytes, at most {MAX_NAME} are read",
                            name.len()
                        )));
                    }
                    if tensors.len() == MAX_TENSORS {
                        return Err(A::Error::custom(format!("more than {MAX_TENSORS} tensors")));
                    }
                    let entry = map.next_value()?;
                    if tensors.contains_key(&name) {
                        return Err(A::Error::custom(format!("tensor {name} stands twice")));
                    }
                    tensors.insert(name, entry);
                }
                Ok(Header(tensors))
            }
        }
        deserializer.deserialize_map(HeaderVisitor)
    }
}
