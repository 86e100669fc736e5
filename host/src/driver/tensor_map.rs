//! Maps by which the copy engine of a Hopper GPU finds boxes of a tensor, made by the driver.

use contract::launch::TensorMap;

use super::api::{Api, api};

/// `CU_TENSOR_MAP_SWIZZLE_128B`.
const SWIZZLE_128: u32 = 3;
/// `CU_TENSOR_MAP_L2_PROMOTION_L2_128B`.
const L2_128: u32 = 2;

/// The element of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapElement {
    /// Bytes of any meaning.
    U8 = 0,
    /// IEEE binary16.
    F16 = 6,
    /// bfloat16.
    Bf16 = 9,
}

/// A tensor of four dimensions, the innermost first: elements of each, and bytes between neighbours in all
/// but the first.
#[derive(Clone, Copy, Debug)]
pub struct Mapped {
    /// What it holds.
    pub element: MapElement,
    /// Its device address, a multiple of 16.
    pub address: u64,
    /// Elements.
    pub sizes: [u64; 4],
    /// Bytes, multiples of 16.
    pub strides: [u64; 3],
}

/// A map is made by this machine's processor: as the driver wants it, at a multiple of 64.
#[repr(C, align(64))]
struct Aligned(TensorMap);

/// Calls `make` with a place for a map, where the driver can make any and takes this one.
fn made(make: impl FnOnce(&Api, *mut TensorMap) -> Option<i32>) -> Option<TensorMap> {
    let api = api().ok()?;
    let mut map = Aligned(TensorMap([0; 16]));
    (make(api, &mut map.0)? == 0).then_some(map.0)
}

impl Mapped {
    /// By boxes of so many elements, in rows of 128 swizzled bytes. `None`: the driver is
    /// older than CUDA 12, or a number has no place in a map.
    pub fn tiles(&self, sides: [u32; 4]) -> Option<TensorMap> {
        made(|api, map| {
            let encode = api.tensor_map_tiled?;
            let (sizes, strides) = (self.sizes.as_ptr(), self.strides.as_ptr());
            // SAFETY: writes a map; the arrays have as many numbers as four dimensions want.
            Some(unsafe {
                encode(
                    map,
                    self.element as u32,
                    4,
                    self.address,
                    sizes,
                    strides,
                    sides.as_ptr(),
                    [1; 4].as_ptr(),
                    0,
                    SWIZZLE_128,
                    L2_128,
                    0,
                )
            })
        })
    }

    /// Of images `[N, H, W, C]`, by `pixels` pixels of `channels` channels, in rows of 128 swizzled bytes:
    /// every `steps`-th column and row of a box that starts at `low` (column, row) and ends `high` past
    /// the last pixel. `None`: the driver is
    /// older than CUDA 12, or a number has no place in a map.
    pub fn pixels(
        &self,
        [channels, pixels]: [u32; 2],
        low: [i32; 2],
        high: [i32; 2],
        steps: [u32; 2],
    ) -> Option<TensorMap> {
        made(|api, map| {
            let encode = api.tensor_map_im2col?;
            let (sizes, strides) = (self.sizes.as_ptr(), self.strides.as_ptr());
            let steps = [1, steps[0], steps[1], 1];
            // SAFETY: as in `tiles`.
            Some(unsafe {
                encode(
                    map,
                    self.element as u32,
                    4,
                    self.address,
                    sizes,
                    strides,
                    low.as_ptr(),
                    high.as_ptr(),
                    channels,
                    pixels,
                    steps.as_ptr(),
                    0,
                    SWIZZLE_128,
                    L2_128,
                    0,
                )
            })
        })
    }
}
