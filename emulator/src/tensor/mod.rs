//! Tensor cores and the copy engine: what their instructions compute, as pure functions.
//!
//! Titles in quotes are those of sections of the PTX ISA.

mod descriptor;
mod fragment;
pub(crate) mod ldmatrix;
pub(crate) mod mma;
mod product;
pub(crate) mod tma;
pub(crate) mod wgmma;

/// Where a byte stands that lies at `address` of a matrix that is not swizzled: 16-byte pieces of rows of
/// `span` bytes (128, 64 or 32) change places by bits 7 to 9 of their address ("Swizzling
/// Modes"). `phase`: how many 128 bytes after a multiple of 1,024 the pattern starts.
fn swizzled(address: u32, span: u32, phase: u32) -> u32 {
    let pieces = span / 16;
    address ^ ((address >> 7).wrapping_sub(phase) & (pieces - 1)) << 4
}

#[cfg(test)]
mod tests {
    /// Numbers of no meaning (splitmix64).
    pub(super) struct Random(pub(super) u64);

    impl Random {
        pub(super) fn next(&mut self) -> u32 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            (x ^ x >> 31) as u32
        }
    }
}
