//! Device side of [`contract::attention`]: one block of 128 threads per query and head.
//!
//! One key block of 64, with `T` threads: two threads make the score of a key (4 of the dot's 8
//! partials each); every warp then finds maximum and sum for itself, two keys to a lane, and warp 0
//! leaves the exponentials in shared memory; last, thread `d` carries dimensions `d` and `d + 128`
//! of the weighted values through the keys in order.
//!
//! [`crate::attention_step`] spreads the key blocks of one query over the GPU.

#[cfg(level_sm_80)]
mod fast;
pub(crate) mod query;
mod rows;
#[cfg(level_sm_80)]
mod shared;
#[cfg(level_sm_80)]
mod tile;

use contract::attention::{Args, AttentionBf16, AttentionF32};
use contract::launch::Kernel;

use crate::element::Bf16;
use rows::attention;

macro_rules! entries {
    ($($symbol:ident $kernel:ident $body:ident $element:ty;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            // SAFETY: the launch contract, handed on.
            unsafe { $body::<$element>(&args) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    attention_bf16 AttentionBf16 attention Bf16;
    attention_f32 AttentionF32 attention f32;
}
