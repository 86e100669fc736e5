//! What a launch must satisfy, stated once for both sides.
//!
//! Every kernel takes exactly one parameter, by value: the `repr(C)` struct named by
//! [`Kernel::Args`]. The host refuses a launch that does not fit [`Kernel::SPEC`] before the driver
//! is called, and the PTX audit compares both with the built `.entry`.

use core::marker::PhantomData;

/// One device entry point: its argument block and its launch rules.
pub trait Kernel: 'static {
    /// Passed by value as the only kernel parameter.
    type Args: Copy + Send + Sync + 'static;
    /// Checked on the host before every launch.
    const SPEC: LaunchSpec;

    /// Dynamic shared memory of a block of a launch with these arguments, in bytes: at most
    /// [`LaunchSpec::smem_bytes`], or [`LaunchSpec::room_bytes`]. Less lets more blocks run beside each other.
    fn smem_bytes(_args: &Self::Args) -> u32 {
        Self::SPEC.smem_bytes
    }

    /// Blocks of a cluster of a launch with these arguments, where [`LaunchSpec::cluster`] states none: more
    /// than 1 only from sm_90, and its grid holds a whole number of them along x.
    fn cluster(_args: &Self::Args) -> u32 {
        1
    }
}

/// Launch-time assumptions compiled into a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchSpec {
    /// PTX entry name.
    pub symbol: &'static str,
    /// Exact block shape in threads; becomes `.reqntid`.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block in bytes, the most that a launch takes ([`Kernel::smem_bytes`]).
    pub smem_bytes: u32,
    /// Dynamic shared memory in bytes that a launch takes at most where its blocks are to be kept apart: fewer of them lie on a
    /// multiprocessor then. A device that has less gives less (0: not stated).
    pub room_bytes: u32,
    /// Lowest compute capability, as `10 * major + minor`.
    pub min_sm: u32,
    /// Whether it runs on capability `min_sm` exactly: its instructions have no future (wgmma).
    pub arch_specific: bool,
    /// Whether the PTX level `sm_90a` lacks it.
    pub not_in_sm_90a: bool,
    /// Blocks of a cluster, side by side along x, of which a grid holds a whole number; becomes
    /// `.reqnctapercluster` (1: no clusters).
    pub cluster: u32,
    /// Blocks that must fit on one multiprocessor; becomes `.minnctapersm` (0: not stated).
    pub min_blocks_per_sm: u32,
    /// Registers of a thread at its start; becomes `.maxnreg` in the place of `.minnctapersm` (0: not stated).
    pub max_registers: u32,
    /// PTX levels, ten times their number and one more for `sm_90a` (900, 901), and what takes the place of
    /// `min_blocks_per_sm` from there on, up to the next one (level 0: none).
    pub min_blocks_from: [[u32; 2]; 2],
    /// Whether its parameter starts with [`TensorMap`]s, which stand at multiples of 64; becomes the
    /// parameter's `.align`.
    pub tensor_maps: bool,
    /// Whether all of the memory that cache and shared memory divide is to be shared: a multiprocessor
    /// changes the division only while it is empty, so kernels that overlap have to agree.
    pub all_shared: bool,
    /// Whether its blocks wait for each other: a launch whose blocks do not all fit at once is refused.
    pub all_at_once: bool,
}

impl LaunchSpec {
    /// A kernel of `threads` threads in a row, no shared memory, on every supported GPU.
    pub const fn new(symbol: &'static str, threads: u32) -> Self {
        Self {
            symbol,
            block: [threads, 1, 1],
            smem_bytes: 0,
            room_bytes: 0,
            min_sm: 53,
            arch_specific: false,
            cluster: 1,
            min_blocks_per_sm: 0,
            min_blocks_from: [[0; 2]; 2],
            max_registers: 0,
            tensor_maps: false,
            all_shared: false,
            all_at_once: false,
            not_in_sm_90a: false,
        }
    }

    /// The same, only from compute capability `sm` (`10 * major + minor`) up.
    pub const fn with_min_sm(self, sm: u32) -> Self {
        Self { min_sm: sm, ..self }
    }

    /// The same, only on compute capability `sm` and in the PTX level `sm_{sm}a`.
    pub const fn only_on(self, sm: u32) -> Self {
        Self { min_sm: sm, arch_specific: true, ..self }
    }

    /// The same, but not in the PTX level `sm_90a`, where another kernel takes its place.
    pub const fn not_in_sm_90a(self) -> Self {
        Self { not_in_sm_90a: true, ..self }
    }

    /// The same in clusters of `blocks`, which need sm_90.
    pub const fn in_clusters(self, blocks: u32) -> Self {
        Self { cluster: blocks, ..self }
    }

    /// The same with `bytes` of dynamic shared memory.
    pub const fn with_smem(self, bytes: u32) -> Self {
        Self { smem_bytes: bytes, ..self }
    }

    /// The same with up to `bytes` of dynamic shared memory to keep blocks apart.
    pub const fn with_room(self, bytes: u32) -> Self {
        Self { room_bytes: bytes, ..self }
    }

    /// The same, asking for at least `blocks` resident blocks per multiprocessor.
    pub const fn with_min_blocks(self, blocks: u32) -> Self {
        Self { min_blocks_per_sm: blocks, ..self }
    }

    /// The same, asking for `blocks` in the PTX levels from `level` on, as `min_blocks_from` counts them; at most twice, the
    /// higher level last.
    pub const fn with_min_blocks_from(self, level: u32, blocks: u32) -> Self {
        let mut steps = self.min_blocks_from;
        let [first, second] = steps;
        assert!(level > first[0] && second[0] == 0);
        steps[if first[0] == 0 { 0 } else { 1 }] = [level, blocks];
        Self { min_blocks_from: steps, ..self }
    }

    /// Blocks that the PTX of `level` asks for (0: not stated), as `min_blocks_from` counts them.
    pub const fn min_blocks_at(&self, level: u32) -> u32 {
        match self.min_blocks_from {
            [_, [from, blocks]] if from > 0 && level >= from => blocks,
            [[from, blocks], _] if from > 0 && level >= from => blocks,
            _ => self.min_blocks_per_sm,
        }
    }

    /// The same with `registers` of a thread at its start, a multiple of 8.
    pub const fn with_max_registers(self, registers: u32) -> Self {
        Self { max_registers: registers, ..self }
    }

    /// The same with a parameter that starts with tensor maps.
    pub const fn with_tensor_maps(self) -> Self {
        Self { tensor_maps: true, ..self }
    }

    /// The same with as much shared memory, and as little cache, as there can be.
    pub const fn with_all_shared(self) -> Self {
        Self { all_shared: true, ..self }
    }

    /// The same with blocks that wait for each other (a cooperative launch).
    pub const fn all_at_once(self) -> Self {
        Self { all_at_once: true, ..self }
    }

    /// Threads of a block.
    pub const fn threads(&self) -> u32 {
        self.block[0] * self.block[1] * self.block[2]
    }
}

/// A kernel without its types, for tools that walk over all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelInfo {
    /// The family that it belongs to.
    pub family: &'static str,
    /// The launch rules.
    pub spec: LaunchSpec,
    /// `size_of::<Args>()`: the bytes of the `.param` block.
    pub args_bytes: usize,
}

impl KernelInfo {
    /// Forgets the types of `K`, a kernel of `family`.
    pub const fn of<K: Kernel>(family: &'static str) -> Self {
        Self { family, spec: K::SPEC, args_bytes: size_of::<K::Args>() }
    }
}

/// How the copy engine of a Hopper GPU finds boxes of a tensor: made by the driver, read by kernels out of
/// their parameter.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap(pub [u64; 16]);

/// A device address with its element type. Never dereferenced on the host.
#[repr(transparent)]
pub struct DevPtr<T> {
    addr: u64,
    elem: PhantomData<fn(T) -> T>,
}

impl<T> Clone for DevPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DevPtr<T> {}

impl<T> core::fmt::Debug for DevPtr<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:#x}", self.addr)
    }
}

impl<T> DevPtr<T> {
    /// No address: says "absent" where a contract allows it.
    pub const NULL: Self = Self::from_addr(0);

    /// Names the device address `addr`.
    pub const fn from_addr(addr: u64) -> Self {
        Self { addr, elem: PhantomData }
    }

    /// The device address.
    pub const fn addr(self) -> u64 {
        self.addr
    }

    /// Whether this is [`DevPtr::NULL`].
    pub const fn is_null(self) -> bool {
        self.addr == 0
    }

    /// The same address with another element type.
    pub const fn cast<U>(self) -> DevPtr<U> {
        DevPtr::from_addr(self.addr)
    }

    /// The pointer, for device code.
    pub const fn as_ptr(self) -> *mut T {
        self.addr as *mut T
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_change_from_level_to_level() {
        let at = |spec: LaunchSpec| [530, 800, 900, 901].map(|level| spec.min_blocks_at(level));
        let spec = LaunchSpec::new("any", 64);
        assert_eq!(at(spec), [0; 4]);
        assert_eq!(at(spec.with_min_blocks(4)), [4; 4]);
        let spec = spec.with_min_blocks(4).with_min_blocks_from(750, 8);
        assert_eq!(at(spec), [4, 8, 8, 8]);
        assert_eq!(at(spec.with_min_blocks_from(900, 0)), [4, 8, 0, 0]);
        let spec = LaunchSpec::new("any", 64).with_min_blocks_from(900, 6);
        assert_eq!(at(spec.with_min_blocks_from(901, 8)), [0, 0, 6, 8]);
    }
}
