//! Appends keys and values to the cache, alone or behind the rotation of q and k.
//!
//! | tensor    | element     | shape                           | layout                       |
//! |-----------|-------------|---------------------------------|------------------------------|
//! | `qkv`     | `f32`       | `[M, (heads + 2 kv_heads) * head_dim]` | q heads, k heads, v heads |
//! | caches    | bf16 or f32 | `[kv_heads, capacity, kv_stride(head_dim)]` | padded with zeros |
//! | `start`   | `u32`       | `[1]`                           | position of row 0            |
//!
//! Row `m` goes to position `start + m`, rounded to nearest even for bf16. `kv_append_*` stores k
//! as it stands; `kv_append_rope_*` first rotates q (in place) and k by [`crate::rope`]; k in
//! `qkv` is left as it was. Rows at or past `capacity` are not stored: the host refuses them.

use crate::launch::{DevPtr, Kernel, LaunchSpec};

/// Threads of a block; grid is `(M, parts of the heads to visit / THREADS)`.
pub const THREADS: u32 = 256;
/// Elements of a head, or of its place in a cache, that a thread takes.
pub const PART: u32 = 8;

/// Elements between two positions of a cache: `head_dim` rounded up to 16 bytes of bf16.
pub const fn kv_stride(head_dim: usize) -> usize {
    head_dim.div_ceil(8) * 8
}

/// The only kernel parameter, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Fused projections.
    pub qkv: DevPtr<f32>,
    /// Key cache in the kernel's element type.
    pub k_cache: DevPtr<u8>,
    /// Value cache in the kernel's element type.
    pub v_cache: DevPtr<u8>,
    /// Cosines `[capacity, head_dim / 2]`; unused by `kv_append_*`.
    pub cos: DevPtr<f32>,
    /// Sines, likewise.
    pub sin: DevPtr<f32>,
    /// Position of row 0.
    pub start: DevPtr<u32>,
    /// Rows.
    pub m: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements of a head; even for `kv_append_rope_*`.
    pub head_dim: u32,
    /// Positions of the caches.
    pub capacity: u32,
}

/// Blocks of `kv_append_*`: the k heads, then the v heads.
pub const fn grid(m: u32, kv_heads: u32, head_dim: u32) -> [u32; 3] {
    spread(m, 2 * kv_heads, head_dim)
}

/// Blocks of `kv_append_rope_*`: the q heads, the k heads, the v heads.
pub const fn rope_grid(m: u32, heads: u32, kv_heads: u32, head_dim: u32) -> [u32; 3] {
    spread(m, heads + 2 * kv_heads, head_dim)
}

const fn spread(m: u32, heads: u32, head_dim: u32) -> [u32; 3] {
    [m, (heads * head_dim.div_ceil(PART)).div_ceil(THREADS), 1]
}

macro_rules! kernels {
    ($($name:ident $symbol:literal $doc:literal;)*) => { $(
        #[doc = $doc]
        pub enum $name {}

        impl Kernel for $name {
            type Args = Args;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, THREADS);
        }
    )* };
}

kernels! {
    KvAppendBf16 "kv_append_bf16" "Appends to a bf16 cache.";
    KvAppendF32 "kv_append_f32" "Appends to an f32 cache.";
    KvAppendRopeBf16 "kv_append_rope_bf16" "Rotates q and k, appends to a bf16 cache.";
    KvAppendRopeF32 "kv_append_rope_f32" "Rotates q and k, appends to an f32 cache.";
}
