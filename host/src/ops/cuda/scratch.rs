//! Where operations take the memory from that they need beside their tensors: the pool, or a caller's workspace.
//!
//! A caller asks once how much that is ([`CudaBackend::scratch_bytes`]) and lends as much in each call after
//! ([`CudaBackend::with_scratch`]). So nothing is allocated in a call, and a capture that somebody else began finds all
//! addresses in memory of its own.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use contract::launch::DevPtr;
use contract::parts::{EXCHANGE_HEAD, EXCHANGE_SLOTS};

use super::{Buf, CudaBackend, Element, OpError};
use crate::driver::{CudaError, Stream, StreamOptions, lock};
use crate::memory::{BORROWED_ALIGN, DeviceBuffer};

/// Words of [`CudaBackend::exchange`].
const EXCHANGE_LEN: usize = (EXCHANGE_HEAD + 4 * EXCHANGE_SLOTS) as usize;

/// Where memory is said to lie while it is counted: nothing runs there.
const COUNTED_AT: u64 = 1 << 32;

/// The source of memory; the pool unless something else is set.
#[derive(Default)]
pub(super) struct Scratch {
    /// Whether launches are left out.
    counts: AtomicBool,
    lent: Mutex<Option<Lent>>,
}

/// What is left of a workspace.
#[derive(Clone, Copy)]
struct Lent {
    start: u64,
    at: u64,
    end: u64,
}

/// Sets the pool as the source again.
struct Reset<'a>(&'a Scratch);

impl Drop for Reset<'_> {
    fn drop(&mut self) {
        self.0.counts.store(false, Ordering::Relaxed);
        *lock(&self.0.lent) = None;
    }
}

impl Scratch {
    /// Whether launches are left out.
    pub(super) fn counts(&self) -> bool {
        self.counts.load(Ordering::Relaxed)
    }

    fn lend(&self, start: u64, end: u64) -> Reset<'_> {
        *lock(&self.lent) = Some(Lent { start, at: start, end });
        Reset(self)
    }

    /// The next `bytes` bytes of a workspace; `None` where the pool is the source.
    fn next(&self, bytes: usize) -> Option<Result<u64, OpError>> {
        let mut lent = lock(&self.lent);
        let lent = lent.as_mut()?;
        let at = lent.at.next_multiple_of(BORROWED_ALIGN);
        let end = at.saturating_add(bytes as u64);
        if end > lent.end {
            let (op, tensor) = ("scratch", "workspace");
            let [needed, found] = [end, lent.end].map(|end| (end - lent.start) as usize);
            return Some(Err(OpError::ShortTensor { op, tensor, needed, found }));
        }
        lent.at = end;
        Some(Ok(at))
    }
}

impl CudaBackend {
    /// What the blocks of long rows tell each other sums by: [`contract::parts::PartArgs::exchange`]. The backend's own, whose
    /// kernels follow each other on its stream, is made when it is first asked for. A graph may be replayed on another
    /// stream beside them, so what is captured has one that its graph keeps.
    ///
    /// A caller's workspace, if one is lent, has it: its calls may be on any streams, and what it captures is not ours.
    pub(super) fn exchange(&self) -> Result<DevPtr<u32>, OpError> {
        if let Some(lent) = self.scratch("exchange of long rows", EXCHANGE_LEN) {
            let mut lent = lent?;
            if !self.scratch.counts() {
                lent.fill_bytes(self.stream(), 0).map_err(CudaError::from)?;
            }
            return Ok(lent.dev_ptr(self.stream()));
        }
        if self.stream().is_capturing() {
            return Ok(self.new_exchange()?.dev_ptr(self.stream()));
        }
        let made = match self.exchange.get() {
            Some(made) => made,
            None => {
                let made = self.new_exchange()?;
                self.exchange.get_or_init(|| made)
            }
        };
        Ok(made.dev_ptr(self.stream()))
    }

    /// One that is empty, by way of a stream beside the backend's, which may be captured.
    fn new_exchange(&self) -> Result<Buf<u32>, OpError> {
        let device = self.cuda.device();
        let _allocates = device.bind().map_err(CudaError::from)?.while_captured();
        let beside = Stream::new(device, StreamOptions::default()).map_err(CudaError::from)?;
        let made = self.cuda.pool().alloc_zeroed(&beside, EXCHANGE_LEN, "exchange of long rows");
        let made = made.map_err(CudaError::from)?;
        beside.synchronize().map_err(CudaError::from)?;
        Ok(made)
    }

    /// A buffer in a caller's workspace; `None` where there is none.
    pub(super) fn scratch<T: Element>(
        &self,
        label: &'static str,
        len: usize,
    ) -> Option<Result<Buf<T>, OpError>> {
        let addr = self.scratch.next(len.saturating_mul(size_of::<T>()))?;
        Some(addr.and_then(|addr| {
            let (pool, stream) = (self.cuda.pool(), self.stream());
            // SAFETY: the caller of `with_scratch` lends this memory for all that is queued, and no two buffers
            // overlap; while it is counted nothing is queued.
            let buffer = unsafe { DeviceBuffer::borrowed(pool, stream, addr, len, label) };
            Ok(buffer.map_err(CudaError::from)?)
        }))
    }

    /// Bytes that the operations of `body` take beside their tensors. They are checked, and their kernels loaded, but
    /// nothing is launched: addresses in the tensors say no more than how they are aligned.
    ///
    /// # Errors
    /// What `body` gave.
    pub fn scratch_bytes(
        &self,
        body: impl FnOnce() -> Result<(), OpError>,
    ) -> Result<usize, OpError> {
        let _reset = self.scratch.lend(COUNTED_AT, u64::MAX / 2);
        self.scratch.counts.store(true, Ordering::Relaxed);
        body()?;
        let lent = lock(&self.scratch.lent);
        Ok(lent.as_ref().map_or(0, |lent| (lent.at - lent.start) as usize))
    }

    /// Runs `body`, whose operations take what they need beside their tensors from `bytes` bytes at `addr`, a multiple
    /// of [`BORROWED_ALIGN`], and not from the pool.
    ///
    /// # Errors
    /// What `body` gave; fewer bytes than [`CudaBackend::scratch_bytes`] says.
    ///
    /// # Safety
    /// As [`DeviceBuffer::borrowed`] for that memory, which nobody else touches until all that `body` queued has run.
    pub unsafe fn with_scratch<R>(
        &self,
        addr: u64,
        bytes: usize,
        body: impl FnOnce() -> Result<R, OpError>,
    ) -> Result<R, OpError> {
        let _reset = self.scratch.lend(addr, addr.saturating_add(bytes as u64));
        body()
    }
}
