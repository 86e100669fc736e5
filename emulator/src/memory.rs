//! The memory of the emulated devices: a table of live allocations. A device address is an address of this process, so
//! what is not in the table must not be touched.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Alignment of an allocation.
const ALIGN: u64 = 256;
/// Bytes on each side of an allocation that belong to nobody.
const GUARD: u64 = 1024;
/// What fresh memory holds.
const POISON: u8 = 0xA5;
/// Most bytes that may be allocated at once.
const LIMIT: u64 = 8 << 30;

/// Live allocations of device memory, and host memory that kernels may use.
pub(crate) struct Memory {
    limit: u64,
    table: RwLock<Table>,
}

#[derive(Default)]
struct Table {
    /// By first address.
    live: BTreeMap<u64, Range>,
    /// Bytes of device memory in `live`.
    used: u64,
}

/// An entry of the table.
struct Range {
    bytes: u64,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Allocated and freed here.
    Device,
    /// Somebody else's.
    Host,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    /// A memory of 8 GiB, with no allocations.
    pub(crate) fn new() -> Self {
        Self::with_limit(LIMIT)
    }

    /// A memory of `limit` bytes, with no allocations.
    pub(crate) fn with_limit(limit: u64) -> Self {
        Self { limit, table: RwLock::default() }
    }

    /// Bytes of device memory in all.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes of device memory that are not allocated.
    pub(crate) fn available(&self) -> u64 {
        self.limit - self.read().used
    }

    /// The address of `bytes` new bytes of device memory, a multiple of 256. `None` for no bytes, and for more than
    /// there are. They hold a pattern, and so do the bytes in front and behind, which belong to nobody.
    pub(crate) fn allocate(&self, bytes: u64) -> Option<u64> {
        let layout = layout(bytes)?;
        let mut table = self.write();
        if bytes > self.limit - table.used {
            return None;
        }
        // SAFETY: the layout is not empty: it has the guards.
        let block = unsafe { std::alloc::alloc(layout) };
        if block.is_null() {
            return None;
        }
        // SAFETY: the block was allocated with this size just now.
        unsafe { block.write_bytes(POISON, layout.size()) };
        let addr = block.expose_provenance() as u64 + GUARD;
        table.used += bytes;
        table.live.insert(addr, Range { bytes, kind: Kind::Device });
        Some(addr)
    }

    /// Frees the device memory at `addr`, the exact result of [`Memory::allocate`]. False, and nothing happens, for any
    /// other address. The caller knows that no kernel or copy uses it.
    pub(crate) fn free(&self, addr: u64) -> bool {
        let mut table = self.write();
        let Some(range) = table.live.get(&addr).filter(|range| range.kind == Kind::Device) else {
            return false;
        };
        let bytes = range.bytes;
        table.live.remove(&addr);
        table.used -= bytes;
        release(addr, bytes);
        true
    }

    /// Lets kernels use `bytes` bytes of host memory at `ptr`, until [`Memory::unregister_host`]. False, and nothing
    /// happens, where a part of them is known already.
    ///
    /// # Safety
    /// They may be read and written from any thread as long as they are registered.
    pub(crate) unsafe fn register_host(&self, ptr: *mut u8, bytes: u64) -> bool {
        let addr = ptr.expose_provenance() as u64;
        let Some(end) = addr.checked_add(bytes).filter(|_| bytes > 0) else { return false };
        let mut table = self.write();
        let last = table.live.range(..end).next_back();
        if last.is_some_and(|(base, range)| base + range.bytes > addr) {
            return false;
        }
        table.live.insert(addr, Range { bytes, kind: Kind::Host });
        true
    }

    /// Takes back [`Memory::register_host`] of this address, and says how many bytes it was.
    pub(crate) fn unregister_host(&self, ptr: *mut u8) -> Option<u64> {
        let addr = ptr.addr() as u64;
        let mut table = self.write();
        let bytes = table.live.get(&addr).filter(|range| range.kind == Kind::Host)?.bytes;
        table.live.remove(&addr);
        Some(bytes)
    }

    /// Whether all of `bytes` bytes at `addr` are inside of one live allocation.
    ///
    /// # Errors
    /// They are not: says which allocation is nearest.
    pub(crate) fn check(&self, addr: u64, bytes: u64) -> Result<(), String> {
        let table = self.read();
        let below = table.live.range(..=addr).next_back();
        let past = match below {
            Some((base, range)) => match addr.checked_add(bytes) {
                Some(end) if end <= base + range.bytes => return Ok(()),
                _ => Some((addr.saturating_sub(base + range.bytes), base, range)),
            },
            None => None,
        };
        let above = table.live.range(addr..).next().map(|(base, range)| (base - addr, base, range));
        let what = format!("{bytes} bytes at {addr:#x}");
        let allocation = |base: &u64, range: &Range| {
            format!("an allocation of {} bytes at {base:#x}", range.bytes)
        };
        Err(match (past, above) {
            (Some((0, base, range)), _) if addr < base + range.bytes => {
                let inside = base + range.bytes - addr;
                format!("{what}: only {inside} are before the end of {}", allocation(base, range))
            }
            (Some((past, base, range)), above) if above.is_none_or(|(gap, ..)| past <= gap) => {
                format!("{what}: {past} bytes past the end of {}", allocation(base, range))
            }
            (_, Some((gap, base, range))) => {
                format!("{what}: {gap} bytes before {}", allocation(base, range))
            }
            _ => format!("{what}: nothing is allocated"),
        })
    }

    /// First address of the live allocation that holds `addr`, and the first address behind it.
    pub(crate) fn find(&self, addr: u64) -> Option<(u64, u64)> {
        let table = self.read();
        let (&base, range) = table.live.range(..=addr).next_back()?;
        (addr < base + range.bytes).then_some((base, base + range.bytes))
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for (&addr, range) in &self.write().live {
            if range.kind == Kind::Device {
                release(addr, range.bytes);
            }
        }
    }
}

/// What is really allocated for `bytes` bytes.
fn layout(bytes: u64) -> Option<Layout> {
    let size = bytes.checked_next_multiple_of(ALIGN)?.checked_add(2 * GUARD)?;
    let layout = Layout::from_size_align(usize::try_from(size).ok()?, ALIGN as usize).ok();
    layout.filter(|_| bytes > 0)
}

/// Gives the block of an entry back that has just left the table.
fn release(addr: u64, bytes: u64) {
    let block = std::ptr::with_exposed_provenance_mut((addr - GUARD) as usize);
    if let Some(layout) = layout(bytes) {
        // SAFETY: `allocate` made the block with this layout and put it into the table, which it was taken out of, so
        // this happens once.
        unsafe { std::alloc::dealloc(block, layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_is_aligned_and_poisoned_and_ends_where_it_ends() {
        let memory = Memory::new();
        let addr = memory.allocate(1000).expect("room");
        assert_eq!(addr % 256, 0);
        assert_eq!(memory.find(addr), Some((addr, addr + 1000)));
        assert_eq!(memory.find(addr + 999), Some((addr, addr + 1000)));
        assert_eq!((memory.find(addr - 1), memory.find(addr + 1000)), (None, None));
        assert_eq!(memory.check(addr, 1000), Ok(()));
        assert_eq!(memory.check(addr + 996, 4), Ok(()));
        let found = std::ptr::with_exposed_provenance::<u8>(addr as usize);
        // SAFETY: a live allocation of 1000 bytes.
        let found = unsafe { std::slice::from_raw_parts(found, 1000) };
        assert!(found.iter().all(|&byte| byte == 0xA5));
    }

    #[test]
    fn a_refusal_names_the_nearest_allocation() {
        let memory = Memory::new();
        let empty = memory.check(0x100, 4).expect_err("nothing there");
        assert_eq!(empty, "4 bytes at 0x100: nothing is allocated");
        let base = memory.allocate(1024).expect("room");
        let says = |addr, text: &str| {
            let error = memory.check(addr, 4).expect_err("outside");
            let whole =
                format!("4 bytes at {addr:#x}: {text} an allocation of 1024 bytes at {base:#x}");
            assert_eq!(error, whole);
        };
        says(base + 1024 + 12, "12 bytes past the end of");
        says(base + 1024, "0 bytes past the end of");
        says(base + 1022, "only 2 are before the end of");
        says(base - 8, "8 bytes before");
        says(u64::MAX - 1, &format!("{} bytes past the end of", u64::MAX - 1 - base - 1024));
        assert!(memory.check(base, u64::MAX).is_err());
    }

    #[test]
    fn only_a_base_is_freed_and_only_once() {
        let memory = Memory::with_limit(4096);
        let addr = memory.allocate(4000).expect("room");
        assert_eq!((memory.available(), memory.allocate(97)), (96, None));
        assert!(!memory.free(addr + 256));
        assert!(memory.free(addr));
        assert!(!memory.free(addr) && memory.find(addr).is_none());
        assert_eq!((memory.available(), memory.allocate(0)), (4096, None));
        assert_eq!(memory.allocate(u64::MAX), None);
    }

    #[test]
    fn neighbours_keep_their_distance() {
        let memory = Memory::new();
        let mut all: Vec<u64> = (0..100).filter_map(|_| memory.allocate(256)).collect();
        all.sort_unstable();
        assert_eq!(all.len(), 100);
        assert!(all.windows(2).all(|pair| pair[1] - pair[0] >= 256 + 2 * GUARD));
    }

    #[test]
    fn host_memory_comes_and_goes() {
        let memory = Memory::new();
        let mut host = vec![0u8; 64];
        let ptr = host.as_mut_ptr();
        let addr = ptr.addr() as u64;
        // SAFETY: `host` lives to the end and nobody touches it.
        unsafe {
            assert!(memory.register_host(ptr, 64));
            assert!(!memory.register_host(ptr.add(63), 1) && !memory.register_host(ptr, 0));
        }
        assert_eq!(memory.check(addr + 32, 32), Ok(()));
        assert!(!memory.free(addr) && memory.available() == memory.limit());
        assert_eq!((memory.unregister_host(ptr), memory.unregister_host(ptr)), (Some(64), None));
        assert!(memory.check(addr, 1).is_err());
    }
}
