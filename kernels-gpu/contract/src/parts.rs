//! Rows that have their sums for each segment, in parts that are spread over all blocks: softmax, rmsnorm and layernorm of long rows.
//!
//! A part is up to [`PART`] neighbouring segments of a row, a warp each. What the rest of the row needs of it are two numbers, which its block
//! tells in a slot of the exchange.

use crate::launch::DevPtr;

/// The only parameter of kernels of parts, passed by value, of a family whose other kernels have the parameter `A`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PartArgs<A> {
    /// The tensors, and all rows.
    pub rows: A,
    /// [`EXCHANGE_HEAD`] words, and [`EXCHANGE_SLOTS`] slots; zeros at first.
    pub exchange: DevPtr<u32>,
    /// The first row of the launch.
    pub first: u32,
    /// Its rows.
    pub count: u32,
}

/// Elements of a segment.
pub const SEGMENT: u32 = 1024;

/// Most segments of a part of a row.
pub const PART: u32 = 8;

/// Segments of a row of `k` elements.
#[inline(always)]
pub const fn segments(k: u32) -> u32 {
    k.div_ceil(SEGMENT)
}

/// Parts of a row of `k` elements.
#[inline(always)]
pub const fn parts(k: u32) -> u32 {
    segments(k).div_ceil(PART)
}

/// The segments of a row of `k` elements over its parts, as evenly as they go: the first parts have one more.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// How many there are.
    pub count: u32,
    each: u32,
    more: u32,
}

impl Parts {
    /// Those of a row of `k` elements.
    #[inline(always)]
    pub const fn new(k: u32) -> Self {
        let count = parts(k);
        Self { count, each: segments(k) / count, more: segments(k) % count }
    }

    /// The first segment of a part, and how many it has.
    #[inline(always)]
    pub const fn segments(&self, part: u32) -> (u32, u32) {
        if part < self.more {
            (part * (self.each + 1), self.each + 1)
        } else {
            (part * self.each + self.more, self.each)
        }
    }

    /// Elements of a part of a row of `k`.
    #[inline(always)]
    pub const fn elements(&self, part: u32, k: u32) -> u32 {
        let (first, len) = self.segments(part);
        let left = k - first * SEGMENT;
        if left < len * SEGMENT { left } else { len * SEGMENT }
    }
}

/// Words in front of the slots that the blocks of a launch tell each other sums by: launches so far, and blocks that have ended.
pub const EXCHANGE_HEAD: u32 = 4;

/// Slots, of four words: parts of rows of a launch.
pub const EXCHANGE_SLOTS: u32 = 1 << 17;

/// Threads of a block of a part: a warp for each segment, one that tells other blocks, and one that hears them.
pub const PART_THREADS: u32 = 32 * (PART + 2);

/// Bytes that copies to shared memory are fast in: what waits there lies in multiples of them.
pub const LINE_BYTES: u32 = 128;

/// Bytes in front of what waits in a block: two words of each segment, two of the row, and a barrier of each, of so many parts.
pub const fn scratch_bytes(sets: u32) -> u32 {
    (8 * sets * (PART + 3) + 32).next_multiple_of(LINE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_all_segments_in_order() {
        for k in [16_385, 20_000, 65_537, 131_072, 1_000_003, 1 << 30] {
            let (parts, mut next, mut elements) = (Parts::new(k), 0, 0);
            for part in 0..parts.count {
                let (first, len) = parts.segments(part);
                assert_eq!(first, next);
                assert!((1..=PART).contains(&len), "part {part} of {k} has {len}");
                next = first + len;
                elements += parts.elements(part, k);
            }
            assert_eq!((next, elements), (segments(k), k));
            assert!(parts.count <= EXCHANGE_SLOTS);
        }
    }
}
