//! Where a tap falls and where an element stands: integers, the same on both sides.
//!
//! Offsets inside one image are `u32` and proven to fit by the host ([`Geometry::MAX_IMAGE`]); the
//! offset of an image is 64 bits wide.

/// Order of the dimensions of an activation tensor.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `[N, H, W, C]`: channels side by side ("channels last"). The fast one.
    Nhwc = 0,
    /// `[N, C, H, W]`: a plane for each channel.
    Nchw = 1,
}

/// What stands outside of the image.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PadMode {
    /// +0.
    Zeros = 0,
    /// The image mirrored at its edge pixel, which is not repeated: `-1` reads `1`.
    Reflect = 1,
    /// The nearest pixel of the image.
    Replicate = 2,
}

/// One axis of an image with its padding: where a coordinate is read, without a branch.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Pixels.
    pub len: i32,
    /// Below 0, `i` becomes `i * before`.
    before: i32,
    /// From `len` on, `i` becomes `after - i * slope`.
    after: i32,
    slope: i32,
}

impl Edge {
    /// An axis of `len` pixels.
    pub const fn new(mode: PadMode, len: i32) -> Self {
        let (before, after, slope) = match mode {
            PadMode::Zeros => (1, -1, 0),
            PadMode::Reflect => (-1, 2 * (len - 1), 1),
            PadMode::Replicate => (0, len - 1, 0),
        };
        Self { len, before, after, slope }
    }

    /// The coordinate that is read for coordinate `i`; negative: reads +0.
    ///
    /// `Reflect` needs `-len < i < 2 len - 1`, which the host checks.
    #[inline(always)]
    pub const fn source(self, i: i32) -> i32 {
        // The larger of the two: i itself where it is not below 0, or where `before` is 1.
        let folded = i.wrapping_mul(self.before);
        let i = if i > folded { i } else { folded };
        let behind = self.after.wrapping_sub(i.wrapping_mul(self.slope));
        if i < self.len { i } else { behind }
    }
}

/// Division of numbers below 2^31 by a number known to the host.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divisor {
    d: u32,
    factor: u32,
    shift: u32,
}

impl Divisor {
    /// Divides by `d`, which is at least 1 and below 2^31 (others are taken as 1).
    pub const fn new(d: u32) -> Self {
        let d = if d == 0 || d >= 1 << 31 { 1 } else { d };
        // ceil(2^shift / d) is below 2^32 and wrong by less than d / 2^shift <= 2^-31.
        let shift = 31 + (32 - (d - 1).leading_zeros());
        Self { d, factor: (1u64 << shift).div_ceil(d as u64) as u32, shift }
    }

    /// What it divides by.
    #[inline(always)]
    pub const fn divisor(self) -> u32 {
        self.d
    }

    /// Quotient and remainder of `n` below 2^31.
    #[inline(always)]
    pub const fn div_rem(self, n: u32) -> (u32, u32) {
        let q = ((n as u64 * self.factor as u64) >> self.shift) as u32;
        (q, n.wrapping_sub(q.wrapping_mul(self.d)))
    }
}

/// Shapes and strides of one convolution.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Geometry {
    /// Rows and columns of an input image.
    pub edges: [Edge; 2],
    /// Input channels of one group.
    pub c: u32,
    /// Output channels of one group.
    pub k: u32,
    /// Groups.
    pub groups: u32,
    /// Width of the window.
    pub s: u32,
    /// Taps of the window: `R * S`.
    pub taps: u32,
    /// Terms of one sum: `R * S * c`.
    pub terms: u32,
    /// Output pixels of all images: `N * P * Q`.
    pub pixels: u32,
    /// Output height and width.
    pub out: [u32; 2],
    /// Step of the window.
    pub stride: [i32; 2],
    /// Distance of taps.
    pub dilation: [i32; 2],
    /// Padding above and to the left.
    pub pad: [i32; 2],
    /// Elements between rows, columns and channels of an input image.
    pub x_step: [u32; 3],
    /// Elements between pixels and channels of an output image.
    pub y_step: [u32; 2],
    /// Elements of an input image.
    pub x_image: u64,
    /// Elements of an output image.
    pub y_image: u64,
    /// By output pixels of an image (`P * Q`).
    pub by_image: Divisor,
    /// By output width.
    pub by_width: Divisor,
    /// By `c`.
    pub by_c: Divisor,
    /// By the width of the window.
    pub by_s: Divisor,
}

impl Geometry {
    /// Most elements of an image, input or output: their offsets are 31 bits.
    pub const MAX_IMAGE: usize = (1 << 31) - 1;
    /// Most output pixels of all images.
    pub const MAX_PIXELS: usize = (1 << 31) - 1;
    /// Most terms of one sum.
    pub const MAX_TERMS: usize = 1 << 24;
    /// Bound of every coordinate: sizes, paddings, steps and what a window spans.
    pub const MAX_COORDINATE: usize = 1 << 24;

    /// Row and column of the input under tap (0, 0) of output pixel `pixel`, and its image.
    #[inline(always)]
    pub const fn corner(&self, pixel: u32) -> (u32, i32, i32) {
        let (image, at) = self.by_image.div_rem(pixel);
        let (p, q) = self.by_width.div_rem(at);
        let h = p as i32 * self.stride[0] - self.pad[0];
        (image, h, q as i32 * self.stride[1] - self.pad[1])
    }

    /// Window row, window column and channel of term `term`.
    #[inline(always)]
    pub const fn tap(&self, term: u32) -> (u32, u32, u32) {
        let (rs, c) = self.by_c.div_rem(term);
        let (r, s) = self.by_s.div_rem(rs);
        (r, s, c)
    }

    /// Offset in its image of the pixel under tap (`r`, `s`) of a window whose corner is (`h`, `w`),
    /// channel 0; `None` where +0 is read.
    #[inline(always)]
    pub const fn pixel(&self, h: i32, w: i32, r: u32, s: u32) -> Option<u32> {
        let h = self.edges[0].source(h + r as i32 * self.dilation[0]);
        let w = self.edges[1].source(w + s as i32 * self.dilation[1]);
        if h < 0 || w < 0 {
            return None;
        }
        Some((h as u32).wrapping_mul(self.x_step[0]).wrapping_add(w as u32 * self.x_step[1]))
    }

    /// Offset in `y` of output channel `channel` (of all groups) of output pixel `pixel`.
    #[inline(always)]
    pub const fn output(&self, pixel: u32, channel: u32) -> u64 {
        let (image, at) = self.by_image.div_rem(pixel);
        let inside = at * self.y_step[0] + channel * self.y_step[1];
        image as u64 * self.y_image + inside as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors_divide() {
        let ends = [0u32, 1, 2, 3, 1000, (1 << 31) - 2, (1 << 31) - 1];
        for d in (1..3000).chain([1 << 16, 65_537, (1 << 30) + 1, (1 << 31) - 1]) {
            let by = Divisor::new(d);
            let edges = [1u32, 7, 1000].map(|q| q.saturating_mul(d).min((1 << 31) - 1));
            for n in ends.into_iter().chain(edges).chain(edges.map(|n| n - 1)) {
                assert_eq!(by.div_rem(n), (n / d, n % d), "{n} / {d}");
            }
        }
    }

    #[test]
    fn padding_reads_what_the_modes_say() {
        let row = |mode: PadMode| -> [i32; 9] { core::array::from_fn(|i| Edge::new(mode, 4).source(i as i32 - 3)) };
        assert!(row(PadMode::Zeros)[..3].iter().all(|&i| i < 0));
        assert_eq!(row(PadMode::Zeros)[3..], [0, 1, 2, 3, -1, -1]);
        assert_eq!(row(PadMode::Reflect), [3, 2, 1, 0, 1, 2, 3, 2, 1]);
        assert_eq!(row(PadMode::Replicate), [0, 0, 0, 0, 1, 2, 3, 3, 3]);
    }
}
