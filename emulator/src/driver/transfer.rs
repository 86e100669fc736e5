//! Memory, copies and fills.

use std::alloc::Layout;
use std::ffi::c_void;

use super::code::Code;
use super::device::{current, devices, working};
use super::handles::Handle;
use super::stream::stream;
use super::work::{Place, Work};
use super::{MEMORY, Out, entries};

/// Alignment of host memory, and the room behind it that belongs to nobody.
const PAGE: usize = 4096;

/// Waits for all work: none may use what is freed next.
fn wait_for_all() -> Result<(), Code> {
    devices()?.iter().for_each(|device| device.wait());
    Ok(())
}

/// What is allocated for host memory of `bytes` bytes.
fn page_layout(bytes: usize) -> Option<Layout> {
    let size = bytes.checked_next_multiple_of(PAGE)?.checked_add(PAGE)?;
    Layout::from_size_align(size, PAGE).ok().filter(|_| bytes > 0)
}

/// Whether the memory is known, so that a copy can be done later; otherwise it is pageable.
fn is_pinned(addr: usize, bytes: usize) -> bool {
    MEMORY.check(addr as u64, bytes as u64).is_ok()
}

/// Refuses a device range that is not allocated.
fn check(addr: u64, bytes: usize) -> Result<(), Code> {
    MEMORY.check(addr, bytes as u64).map_err(|text| {
        super::complain(&text);
        Code::INVALID_VALUE
    })
}

entries! {
    /// Free and all memory of the current device.
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        working()?;
        free.put(MEMORY.available() as usize)?;
        total.put(MEMORY.limit() as usize)
    }

    /// New device memory.
    fn cuMemAlloc_v2(to: Out<u64>, bytes: usize) {
        working()?;
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        to.put(MEMORY.allocate(bytes as u64).ok_or(Code::OUT_OF_MEMORY)?)
    }

    /// Frees device memory.
    fn cuMemFree_v2(addr: u64) {
        let device = current()?;
        if addr != 0 {
            wait_for_all()?;
            if !MEMORY.free(addr) {
                return Err(Code::INVALID_VALUE);
            }
        }
        device.state()
    }

    /// New host memory that kernels can use.
    fn cuMemHostAlloc(to: Out<*mut c_void>, bytes: usize, flags: u32) {
        working()?;
        let layout = page_layout(bytes).filter(|_| flags < 8).ok_or(Code::INVALID_VALUE)?;
        // SAFETY: the layout is not empty.
        let ptr = unsafe { std::alloc::alloc(layout) };
        if ptr.is_null() {
            return Err(Code::OUT_OF_MEMORY);
        }
        // SAFETY: allocated with this size just now; it is freed after it was taken back, and the host knows that
        // kernels use it.
        unsafe {
            ptr.write_bytes(0xA5, layout.size());
            MEMORY.register_host(ptr, bytes as u64);
        }
        to.put(ptr.cast())
    }

    /// Frees host memory.
    fn cuMemFreeHost(ptr: *mut c_void) {
        let device = current()?;
        wait_for_all()?;
        let bytes = MEMORY.unregister_host(ptr.cast()).ok_or(Code::INVALID_VALUE)?;
        let layout = page_layout(bytes as usize).ok_or(Code::INVALID_VALUE)?;
        // SAFETY: only `cuMemHostAlloc` registers host memory, with this layout, and it was taken back just now.
        unsafe { std::alloc::dealloc(ptr.cast(), layout) };
        device.state()
    }

    /// The device address of host memory: the same one.
    fn cuMemHostGetDevicePointer_v2(to: Out<u64>, ptr: *mut c_void, flags: u32) {
        working()?;
        let addr = ptr.addr() as u64;
        if flags != 0 || MEMORY.find(addr).is_none() {
            return Err(Code::INVALID_VALUE);
        }
        to.put(addr)
    }

    /// Copies to the device. Pageable memory is read before this returns, but for a capture.
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, on: Handle) {
        let stream = stream(on)?;
        if bytes == 0 {
            return Ok(());
        }
        check(to, bytes)?;
        let addr = from.expose_provenance();
        let size = bytes as u64;
        if is_pinned(addr, bytes) {
            return stream.submit(Work::Copy { to: Place::Known(to), from: Place::Known(addr as u64), bytes: size });
        }
        if stream.capture().is_some() {
            return stream.submit(Work::Copy { to: Place::Known(to), from: Place::Host(addr), bytes: size });
        }
        // SAFETY: the caller promises that many bytes.
        let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) }.to_vec();
        stream.submit(Work::Upload { to, bytes })
    }

    /// Copies from the device. Pageable memory is written when this returns, but for a capture.
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, on: Handle) {
        let stream = stream(on)?;
        if bytes == 0 {
            return Ok(());
        }
        check(from, bytes)?;
        let addr = to.expose_provenance();
        let pinned = is_pinned(addr, bytes);
        let to = if pinned { Place::Known(addr as u64) } else { Place::Host(addr) };
        stream.submit(Work::Copy { to, from: Place::Known(from), bytes: bytes as u64 })?;
        if !pinned && stream.capture().is_none() {
            stream.wait();
            return stream.device.state();
        }
        Ok(())
    }

    /// Copies on the device.
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, on: Handle) {
        let stream = stream(on)?;
        if bytes == 0 {
            return Ok(());
        }
        check(to, bytes)?;
        check(from, bytes)?;
        stream.submit(Work::Copy { to: Place::Known(to), from: Place::Known(from), bytes: bytes as u64 })
    }

    /// Fills with a byte.
    fn cuMemsetD8Async(to: u64, byte: u8, bytes: usize, on: Handle) {
        let stream = stream(on)?;
        if bytes == 0 {
            return Ok(());
        }
        check(to, bytes)?;
        stream.submit(Work::Fill { to, byte, bytes: bytes as u64 })
    }
}
