//! Sums whose parts blocks make by themselves, anywhere on the GPU, and another kernel adds up.

use super::{Args, Fed, K_CHUNK, Matrix, Memory, SPREAD, Variant};
use crate::launch::{DevPtr, Kernel, LaunchSpec};

/// Threads of a block of the kernel that adds them up, each an output.
pub const PARTS_THREADS: u32 = 64;
/// Terms, about, of a part where their order is free.
const FREE_TERMS: u32 = 512;

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

/// Blocks of that kernel.
pub const fn parts_blocks(args: &Args) -> u64 {
    (args.batch as u64 * args.m as u64 * args.n as u64).div_ceil(PARTS_THREADS as u64)
}

impl Variant {
    /// Parts of a sum that blocks make by themselves, where this kernel does that: chunks of an exact sum.
    pub fn parts(&self, args: &Args) -> u32 {
        let parts = match self.memory {
            Memory::Fed(Fed { ways: 1, rows: 1.., .. }) => args.k.div_ceil(K_CHUNK as u32),
            Memory::Long => args.k.div_ceil(FREE_TERMS).min(128),
            _ => 1,
        };
        if parts > 1 { parts } else { 0 }
    }

    /// The product as it is launched where its sums are spread, and how their parts are added up: addresses of parts are the
    /// caller's to set.
    pub fn spread(&self, args: &Args) -> (Args, Args) {
        let parts = self.parts(args);
        let area = u64::from(args.m) * u64::from(args.n);
        let unit = if args.n & 3 == 0 { 16 } else { 4 };
        let addr = DevPtr::NULL;
        let c = Matrix { addr, stride: area, ld: args.n.into(), transposed: 0, unit };
        let (alpha, beta) = (1f32.to_bits(), 0);
        let mut product = self.turned(&Args { c, alpha, beta, ..*args });
        product.split = SPREAD + parts;
        let a = Matrix { stride: area * u64::from(args.batch), ..c };
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
