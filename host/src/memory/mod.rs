//! Device memory and the host memory that talks to it.
//!
//! | file      | holds                                                                   |
//! |-----------|-------------------------------------------------------------------------|
//! | `ledger`  | which ranges are free and whose; pure bookkeeping, tested without a GPU |
//! | `pool`    | [`Pool`]: the ledger over driver pages, in stream order                 |
//! | `buffer`  | [`DeviceBuffer`], [`DeviceSlice`], [`DeviceSliceMut`]                   |
//! | `pinned`  | [`PinnedBuffer`], [`MappedBuffer`]: host memory that the device reaches |
//! | `staging` | the ring of pinned chunks behind `upload` and `download`                |
//!
//! Copies are asynchronous on the stream that they are given, always from or to pinned memory:
//! the driver's synchronous copies are not ordered with non-blocking streams. A buffer belongs to
//! the stream it was allocated for and is freed in that stream's order; use on another stream is
//! noticed when its address is taken ([`DeviceBuffer::dev_ptr`]) and ordered before the reuse.
//! *Data* passed between two streams still needs [`Stream::wait`](crate::driver::Stream::wait).

use std::collections::BTreeMap;

use thiserror::Error;

use crate::driver::DriverError;

#[cfg(feature = "cuda")]
mod buffer;
#[cfg(any(feature = "cuda", test))]
mod ledger;
#[cfg(feature = "cuda")]
mod pinned;
#[cfg(feature = "cuda")]
mod pool;
#[cfg(feature = "cuda")]
mod staging;

#[cfg(feature = "cuda")]
pub use {
    buffer::{BORROWED_ALIGN, DeviceBuffer, DeviceSlice, DeviceSliceMut},
    pinned::{MappedBuffer, MappedWord, PinnedBuffer},
    pool::{Pool, PoolOptions},
};

/// Types that buffers hold: plain data, the same on host and device.
pub trait Element: bytemuck::Pod + Send + Sync {}
impl<T: bytemuck::Pod + Send + Sync> Element for T {}

/// What a pool holds, in bytes. Sizes are those granted: rounded up to their size class.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct MemoryUsage {
    /// Held by living buffers.
    pub in_use_bytes: usize,
    /// Taken from the driver; the difference to `in_use_bytes` is kept for reuse.
    pub reserved_bytes: usize,
    /// The largest `in_use_bytes` so far.
    pub peak_bytes: usize,
    /// `in_use_bytes` by the label that buffers were allocated under.
    pub per_label: BTreeMap<&'static str, usize>,
}

impl MemoryUsage {
    /// The labels that hold most, largest first.
    pub fn largest(&self, count: usize) -> Vec<(&'static str, usize)> {
        let mut labels: Vec<_> = self.per_label.iter().map(|(&l, &b)| (l, b)).collect();
        labels.sort_by_key(|&(label, bytes)| (std::cmp::Reverse(bytes), label));
        labels.truncate(count);
        labels
    }
}

/// A failure of memory on a device or of a copy.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryError {
    /// The device, or the pool's cap, cannot hold one more buffer.
    #[error(
        "out of device memory: {asked} bytes asked for {label:?}; {in_use} in use, {reserved} \
         reserved, {free} free on the device, {}largest: {}; \
         try: a shorter context, a smaller batch, or a higher cap",
        cap.map_or(String::new(), |cap| format!("cap {cap}, ")),
        largest.iter().map(|(l, b)| format!("{l} {b}")).collect::<Vec<_>>().join(", ")
    )]
    OutOfMemory {
        /// Bytes of the request.
        asked: usize,
        /// Label of the request.
        label: &'static str,
        /// Bytes that the driver reports as free.
        free: usize,
        /// The pool's cap in bytes.
        cap: Option<usize>,
        /// Bytes held by living buffers of the pool.
        in_use: usize,
        /// Bytes that the pool has from the driver.
        reserved: usize,
        /// The labels that hold most, with their bytes.
        largest: Vec<(&'static str, usize)>,
    },
    /// The size in bytes does not fit an address.
    #[error("a buffer of {len} elements of {elem_bytes} bytes is larger than any memory")]
    TooLarge {
        /// Elements asked for.
        len: usize,
        /// Bytes of one.
        elem_bytes: usize,
    },
    /// Memory of somebody else that does not start where a buffer can.
    #[error(
        "{label:?} starts at {addr:#x}; a borrowed buffer starts at a multiple of {allowed} bytes; \
         try: a copy of the tensor"
    )]
    Misaligned {
        /// The buffer's label.
        label: &'static str,
        /// Its address.
        addr: u64,
        /// What the address must be a multiple of.
        allowed: u64,
    },
    /// Source and destination differ in length.
    #[error("{what}: the destination has {need} elements, the source {have}; they must agree")]
    Length {
        /// The operation.
        what: &'static str,
        /// Elements of the destination.
        need: usize,
        /// Elements of the source.
        have: usize,
    },
    /// A range reaches beyond its buffer.
    #[error("range {start}..{end} is not within the {len} elements of buffer {label:?}")]
    OutOfRange {
        /// First element.
        start: usize,
        /// One past the last element.
        end: usize,
        /// Elements of the buffer.
        len: usize,
        /// The buffer's label.
        label: &'static str,
    },
    /// Something that a graph cannot hold was called inside a capture.
    #[error("{what} is not possible while a graph is captured; try: it before the capture")]
    Capturing {
        /// The operation.
        what: &'static str,
    },
    /// Memory and stream belong to different devices.
    #[error("memory of CUDA device {memory_device} used with a stream of device {stream_device}")]
    WrongDevice {
        /// Ordinal of the memory's device.
        memory_device: u32,
        /// Ordinal of the stream's device.
        stream_device: u32,
    },
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_memory_names_the_numbers_and_the_largest_holders() {
        let usage = MemoryUsage {
            per_label: [("kv", 5), ("weights", 9), ("scratch", 5)].into(),
            ..MemoryUsage::default()
        };
        let error = MemoryError::OutOfMemory {
            asked: 1024,
            label: "kv",
            free: 77,
            cap: Some(2048),
            in_use: 19,
            reserved: 2000,
            largest: usage.largest(2),
        };
        let text = error.to_string();
        for part in ["1024", "\"kv\"", "77", "cap 2048", "19", "2000", "weights 9, kv 5", "try:"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
