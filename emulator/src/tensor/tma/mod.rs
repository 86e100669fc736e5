//! The copy engine: tensor maps ("Tensors"; `cuTensorMapEncodeTiled` and `cuTensorMapEncodeIm2col` of
//! the driver API) and the copies by them (`cp.async.bulk.tensor`).

mod encode;
mod load;
mod store;

pub(crate) use encode::{decode, encode};
pub(crate) use load::{load_im2col, load_tiled};
pub(crate) use store::store_tiled;

/// What a tensor map says. The first dimension is the innermost one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Map {
    /// `CUtensorMapDataType`: 0 u8, 1 u16, 2 u32, 3 i32, 4 u64, 5 i64, 6 f16, 7 f32, 8 f64, 9 bf16.
    pub(crate) element: u32,
    /// The tensor's device address.
    pub(crate) address: u64,
    /// Elements of each dimension.
    pub(crate) sizes: Vec<u64>,
    /// Bytes between neighbours of each dimension but the first.
    pub(crate) strides: Vec<u64>,
    /// Elements of each dimension of a box; empty for im2col.
    pub(crate) boxes: Vec<u32>,
    /// Every how many elements of each dimension are taken; the first is not looked at.
    pub(crate) element_strides: Vec<u32>,
    /// `CUtensorMapInterleave`; only 0.
    pub(crate) interleave: u32,
    /// `CUtensorMapSwizzle`: 0 none, 1 of 32 bytes, 2 of 64, 3 of 128.
    pub(crate) swizzle: u32,
    /// Whether what is outside of the tensor is NaN; only false.
    pub(crate) fill_nan: bool,
    /// What a map in im2col mode has beside.
    pub(crate) im2col: Option<Im2col>,
}

/// The pixels of an im2col map. Spatial dimensions are those between the channels and the images: (w, h) of
/// four dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Im2col {
    /// `pixelBoxLowerCorner`: the first pixel of the bounding box, in each spatial dimension.
    pub(crate) low: Vec<i32>,
    /// `pixelBoxUpperCorner`: the last pixel, counted from the last one of the tensor.
    pub(crate) high: Vec<i32>,
    /// Channels of a pixel.
    pub(crate) channels: u32,
    /// Pixels of a copy.
    pub(crate) pixels: u32,
}

impl Map {
    /// Bytes of an element.
    fn element_bytes(&self) -> Result<u32, String> {
        match self.element {
            0 => Ok(1),
            1 | 6 | 9 => Ok(2),
            2 | 3 | 7 => Ok(4),
            4 | 5 | 8 => Ok(8),
            other => Err(format!("a tensor map of element type {other}: not emulated")),
        }
    }

    /// Bytes of a swizzled row, where rows are swizzled.
    fn span(&self) -> Option<u32> {
        [None, Some(32), Some(64), Some(128)].get(self.swizzle as usize).copied().flatten()
    }

    /// Bytes of what a copy brings of the first dimension.
    fn row_bytes(&self) -> Result<u32, String> {
        let elements = match &self.im2col {
            Some(im2col) => im2col.channels,
            None => *self.boxes.first().ok_or("a tensor map without dimensions")?,
        };
        Ok(elements * self.element_bytes()?)
    }

    /// The rules of the driver.
    fn check(&self) -> Result<(), String> {
        let rank = self.sizes.len();
        let fail = |what: String| Err(format!("a tensor map {what}"));
        if self.interleave != 0 || self.fill_nan || self.swizzle > 3 {
            return fail(format!(
                "of interleave {}, swizzle {}, NaN {}: not emulated",
                self.interleave, self.swizzle, self.fill_nan
            ));
        }
        let ranks = if self.im2col.is_some() { 3..=5 } else { 1..=5 };
        if !ranks.contains(&rank)
            || self.strides.len() != rank - 1
            || self.element_strides.len() != rank
        {
            return fail(format!("of {rank} dimensions, or with other counts of numbers"));
        }
        if !self.address.is_multiple_of(16) {
            return fail(format!("at address {:#x}", self.address));
        }
        if let Some(size) = self.sizes.iter().find(|&&size| size == 0 || size > 1 << 32) {
            return fail(format!("of size {size}"));
        }
        let bad = |stride: &u64| !stride.is_multiple_of(16) || *stride >= 1 << 40;
        if let Some(stride) = self.strides.iter().copied().find(bad) {
            return fail(format!("of stride {stride}"));
        }
        if let Some(step) = self.element_strides.iter().find(|step| !(1..=8).contains(*step)) {
            return fail(format!("of element stride {step}"));
        }
        match &self.im2col {
            Some(im2col) => im2col.check(&self.sizes)?,
            None => {
                let bad = |side: &&u32| !(1..=256).contains(*side);
                if self.boxes.len() != rank || self.boxes.iter().any(|side| bad(&side)) {
                    return fail(format!("of boxes {:?}", self.boxes));
                }
            }
        }
        let row = self.row_bytes()?;
        if !row.is_multiple_of(16) || self.span().is_some_and(|span| row > span) {
            return fail(format!("of rows of {row} bytes, of swizzle {}", self.swizzle));
        }
        Ok(())
    }
}

impl Im2col {
    /// The rules for what im2col maps have beside.
    fn check(&self, sizes: &[u64]) -> Result<(), String> {
        let fail = |what: String| Err(format!("an im2col tensor map {what}"));
        let spatial = sizes.len() - 2;
        if self.low.len() != spatial || self.high.len() != spatial {
            return fail(format!("of corners {:?}, {:?}", self.low, self.high));
        }
        let most = [32768, 128, 16][spatial - 1];
        let mut corners = self.low.iter().chain(&self.high);
        if let Some(corner) = corners.find(|corner| !(-most..most).contains(*corner)) {
            return fail(format!("with a corner at {corner}"));
        }
        for (axis, &size) in sizes[1..=spatial].iter().enumerate() {
            if i64::from(self.low[axis]) > size as i64 - 1 + i64::from(self.high[axis]) {
                return fail(format!("whose box is empty in dimension {}", axis + 1));
            }
        }
        if !(1..=256).contains(&self.channels) || !(1..=1024).contains(&self.pixels) {
            return fail(format!("of {} channels of {} pixels", self.channels, self.pixels));
        }
        Ok(())
    }
}
