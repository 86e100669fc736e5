//! Sums whose parts blocks make by themselves, anywhere on the GPU, and another kernel adds up.

use super::{Args, Fed, INTEGERS, K_CHUNK, Matrix, Memory, SPREAD, Variant};
use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::num::RowType;

/// Threads of a block of the kernel that adds them up, each an output.
pub const PARTS_THREADS: u32 = 64;
/// Outputs from which on a thread takes several fours of them: blocks begin more slowly than memory brings what they read.
const PARTS_MANY: u64 = 1 << 20;
/// Terms, about, of a part where their order is free.
const FREE_TERMS: u32 = 512;
/// Blocks, at most, of spread sums of i8.
const MOST_BLOCKS: u32 = 264;
/// Sums that are rounded in a nanosecond, in fours or one by one: measured on one H200.
const ROUNDED_PER_NS: [u64; 2] = [450, 150];
/// What a launch of that takes.
const ROUND_NS: u64 = 1700;

/// Adds up the parts of spread sums, first to last: those of `A`, `k` of them.
pub enum BmmParts {}

impl Kernel for BmmParts {
    type Args = Args;
    const SPEC: LaunchSpec = LaunchSpec::new("bmm_parts", PARTS_THREADS).only_on(90);

    fn smem_bytes(_: &Args) -> u32 {
        0
    }

    fn cluster(_: &Args) -> u32 {
        1
    }
}

/// Whether `C` is one piece of memory.
#[inline(always)]
pub const fn parts_dense(args: &Args) -> bool {
    (args.m <= 1 || args.c.ld == args.n as u64)
        && (args.batch <= 1 || args.c.stride == args.m as u64 * args.n as u64)
}

/// Outputs of a thread of that kernel: four where there is one part and `C` is in fours, more where they are many.
#[inline(always)]
pub const fn parts_each(args: &Args) -> u32 {
    let wide = if args.element == RowType::F32 as u32 || args.element == INTEGERS { 16 } else { 8 };
    let fours = args.n & 3 == 0 && args.c.unit >= wide;
    let dense = parts_dense(args) && args.c.addr.addr() & (wide as u64 - 1) == 0;
    let many = args.batch as u64 * args.m as u64 * args.n as u64 >= PARTS_MANY;
    match args.k == 1 && (fours || dense) {
        true => if many { 16 } else { 4 },
        false => 1,
    }
}

/// Blocks of that kernel.
pub const fn parts_blocks(args: &Args) -> u64 {
    let outputs = args.batch as u64 * args.m as u64 * args.n as u64;
    outputs.div_ceil(parts_each(args) as u64).div_ceil(PARTS_THREADS as u64)
}

/// Sums of a product in scratch memory, as a result; their address is the caller's to set.
pub(super) const fn sums(args: &Args) -> Matrix {
    let unit = if args.n & 3 == 0 { 16 } else { 4 };
    let stride = args.m as u64 * args.n as u64;
    Matrix { addr: DevPtr::NULL, stride, ld: args.n as u64, transposed: 0, unit }
}

/// How sums of f32 become what `args` asks for, and nanoseconds that it takes, about.
pub fn rounded(args: &Args) -> (Args, u64) {
    let outputs = u64::from(args.batch) * u64::from(args.m) * u64::from(args.n);
    let a = Matrix { stride: sums(args).stride * u64::from(args.batch), ..sums(args) };
    let args = Args { a, k: 1, ..*args };
    let per_ns = ROUNDED_PER_NS[usize::from(parts_each(&args) == 1)];
    (args, ROUND_NS + outputs / per_ns)
}

impl Variant {
    /// Parts of a sum that blocks make by themselves, where this kernel does that: chunks of an exact sum.
    pub fn parts(&self, args: &Args) -> u32 {
        let parts = match self.memory {
            Memory::Fed(Fed { ways: 1, rows: 1.., .. }) => args.k.div_ceil(K_CHUNK as u32),
            // Of i8 a block takes twice the terms at a time, and adding up takes as long.
            Memory::Long if self.is_bytes() => {
                let blocks = u32::try_from(self.blocks(args)).unwrap_or(u32::MAX).max(1);
                args.k.div_ceil(FREE_TERMS).min(80).min(MOST_BLOCKS / blocks)
            }
            Memory::Long => args.k.div_ceil(FREE_TERMS).min(128),
            _ => 1,
        };
        if parts > 1 { parts } else { 0 }
    }

    /// The product as it is launched where its sums are spread, and how their parts are added up: addresses of parts are the
    /// caller's to set.
    pub fn spread(&self, args: &Args) -> (Args, Args) {
        let parts = self.parts(args);
        let c = sums(args);
        let (alpha, beta) = (if args.element == INTEGERS { 1 } else { 1f32.to_bits() }, 0);
        let mut product = self.turned(&Args { c, alpha, beta, ..*args });
        product.split = SPREAD + parts;
        let a = Matrix { stride: c.stride * u64::from(args.batch), ..c };
        (product, Args { a, k: parts, ..*args })
    }

    /// Whether sums are spread: where that is cheaper.
    pub fn spreads(&self, args: &Args, sms: u32, clusters: bool) -> bool {
        let spread = self.cost_spread(args, sms).filter(|_| clusters);
        spread.is_some_and(|cost| cost < self.cost_together(args, sms, clusters))
    }

    /// Blocks of that launch.
    pub fn spread_grid(&self, args: &Args) -> u64 {
        self.blocks(&self.turned(args)) * u64::from(self.parts(args))
    }
}
