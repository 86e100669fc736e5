//! What a device allows, and the check of a launch against it. No driver call: all of it is tested
//! without a GPU.

use contract::launch::LaunchSpec;

use super::error::LaunchError;

/// Launch limits of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceLimits {
    /// Compute capability, `10 * major + minor`.
    pub sm: u32,
    /// Threads of a block.
    pub block_threads: u32,
    /// Threads of a block along each dimension.
    pub block: [u32; 3],
    /// Blocks of a grid along each dimension.
    pub grid: [u32; 3],
    /// Shared memory of a block without opting in, in bytes.
    pub smem_bytes: u32,
    /// Shared memory of a block after opting in, in bytes.
    pub smem_optin_bytes: u32,
}

impl DeviceLimits {
    /// Refuses a launch of `spec` over `grid` that cannot run here.
    ///
    /// # Errors
    /// An empty or too large grid, a block or its shared memory beyond the limits, or a device
    /// older than the kernel.
    pub fn check(&self, spec: &LaunchSpec, grid: [u32; 3]) -> Result<(), LaunchError> {
        let kernel = spec.symbol;
        let (need, found) = (spec.min_sm, self.sm);
        if found < need || spec.arch_specific && found != need {
            let only = spec.arch_specific;
            return Err(LaunchError::UnsupportedSm { kernel, need, only, found });
        }
        if grid.contains(&0) {
            return Err(LaunchError::EmptyGrid { kernel, grid });
        }
        if grid.iter().zip(self.grid).any(|(&asked, limit)| asked > limit) {
            return Err(LaunchError::GridTooLarge { kernel, grid, limit: self.grid });
        }
        let threads = spec.block.iter().try_fold(1u32, |threads, &n| threads.checked_mul(n));
        if threads.is_none_or(|threads| threads == 0 || threads > self.block_threads)
            || spec.block.iter().zip(self.block).any(|(&asked, limit)| asked > limit)
        {
            return Err(LaunchError::BlockTooLarge {
                kernel,
                block: spec.block,
                limit: self.block,
                threads: self.block_threads,
            });
        }
        let allowed = self.smem_optin_bytes.max(self.smem_bytes);
        if spec.smem_bytes > allowed {
            return Err(LaunchError::SharedMemory { kernel, asked: spec.smem_bytes, allowed });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: DeviceLimits = DeviceLimits {
        sm: 90,
        block_threads: 1024,
        block: [1024, 1024, 64],
        grid: [2147483647, 65535, 65535],
        smem_bytes: 49152,
        smem_optin_bytes: 232448,
    };

    #[test]
    fn a_fitting_launch_passes_up_to_every_limit() {
        let spec = LaunchSpec::new("k", 1024).with_smem(232448);
        assert_eq!(H200.check(&spec, [1, 1, 1]), Ok(()));
        assert_eq!(H200.check(&spec, [2147483647, 65535, 65535]), Ok(()));
    }

    #[test]
    fn each_limit_is_refused_one_past_it() {
        let spec = LaunchSpec::new("k", 32);
        for grid in [[0, 1, 1], [1, 0, 1], [1, 1, 0]] {
            assert_eq!(H200.check(&spec, grid), Err(LaunchError::EmptyGrid { kernel: "k", grid }));
        }
        for grid in [[2147483648, 1, 1], [1, 65536, 1], [1, 1, 65536]] {
            assert!(matches!(H200.check(&spec, grid), Err(LaunchError::GridTooLarge { .. })));
        }
        let smem = spec.with_smem(232449);
        assert_eq!(
            H200.check(&smem, [1; 3]),
            Err(LaunchError::SharedMemory { kernel: "k", asked: 232449, allowed: 232448 })
        );
        for block in [[1025, 1, 1], [1, 1, 65], [1024, 2, 1], [0, 1, 1], [1 << 31, 1 << 31, 4]] {
            let spec = LaunchSpec { block, ..spec };
            assert!(matches!(H200.check(&spec, [1; 3]), Err(LaunchError::BlockTooLarge { .. })));
        }
        let newer = LaunchSpec { min_sm: 100, ..spec };
        assert_eq!(
            H200.check(&newer, [1; 3]),
            Err(LaunchError::UnsupportedSm { kernel: "k", need: 100, only: false, found: 90 })
        );
        assert_eq!(H200.check(&spec.only_on(90), [1; 3]), Ok(()));
        assert_eq!(
            H200.check(&spec.only_on(80), [1; 3]),
            Err(LaunchError::UnsupportedSm { kernel: "k", need: 80, only: true, found: 90 })
        );
    }
}
