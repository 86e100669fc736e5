//! Ordered work on a device.
//!
//! Work of one stream runs in order; work of two streams is ordered only by events
//! ([`Stream::wait`]). Streams are non-blocking: they have no hidden order with the driver's
//! default stream. So no synchronous copy of the driver may be used beside them (it would race),
//! and none is: see `memory`.
//!
//! While a stream is captured, every buffer whose address is handed out for it is kept by the
//! graph ([`super::graph`]). A stream that joins the capture through an event shares this.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::api::{Handle, NOT_READY, STREAM_NON_BLOCKING};
use super::device::Device;
use super::error::DriverError;
use super::event::Event;

/// How a stream is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamOptions {
    /// Scheduling priority; clamped to [`Device::stream_priorities`], smaller is sooner.
    pub priority: i32,
    /// Start a kernel before the previous one of the stream has ended, where device and kernel
    /// allow it.
    pub pdl: bool,
}

impl StreamOptions {
    /// The same with this priority.
    pub fn priority(self, priority: i32) -> Self {
        Self { priority, ..self }
    }

    /// The same with programmatic dependent launch on or off.
    pub fn pdl(self, pdl: bool) -> Self {
        Self { pdl, ..self }
    }
}

/// A counted handle of a stream.
#[derive(Clone)]
pub struct Stream(Arc<StreamInner>);

struct StreamInner {
    raw: Handle,
    /// Whether the handle is somebody else's to destroy.
    foreign: bool,
    device: Device,
    id: u64,
    pdl: bool,
    /// How many [`Stream::in_full_order`] run.
    in_full_order: AtomicU32,
    /// How many [`Stream::close_behind`] run.
    close_behind: AtomicU32,
    /// Mirrors `capture.is_some()`, so that a launch outside a capture takes no lock.
    capturing: AtomicBool,
    capture: Mutex<Option<Arc<Capture>>>,
}

// SAFETY: a driver stream may be used from any thread; every use makes the context current first.
unsafe impl Send for StreamInner {}
// SAFETY: the driver serialises calls on one stream.
unsafe impl Sync for StreamInner {}

/// One running capture, shared by the streams that take part.
pub(super) struct Capture {
    /// What the graph will keep; `None` after the end.
    keep: Mutex<Option<Vec<Arc<dyn Any + Send + Sync>>>>,
    /// Streams that joined.
    members: Mutex<Vec<Stream>>,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream({} of device {})", self.0.id, self.0.device.ordinal())
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for Stream {}

impl Stream {
    /// A new non-blocking stream.
    ///
    /// # Errors
    /// A driver failure.
    pub fn new(device: &Device, options: StreamOptions) -> Result<Self, DriverError> {
        let api = device.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle; the context is current.
        let code = unsafe { (api.stream_create)(&mut raw, STREAM_NON_BLOCKING, options.priority) };
        api.check(code, "cuStreamCreateWithPriority")?;
        let pdl = options.pdl && device.info().supports_pdl();
        Ok(Self::with_handle(device, raw, pdl, false))
    }

    /// A stream that somebody else made, PyTorch for one: operations are queued among the owner's own work. Null is
    /// the driver's default stream. Kernels start when their predecessors have ended.
    ///
    /// A capture that the owner begins is recorded too, but nobody knows of it here: what runs inside it must find its
    /// buffers allocated, and they must live as long as the owner's graph.
    ///
    /// # Safety
    /// `raw` is a `CUstream` of the device's primary context, and lives until this handle, its clones and the buffers
    /// that were used on it are gone.
    pub unsafe fn foreign(device: &Device, raw: *mut std::ffi::c_void) -> Self {
        Self::with_handle(device, raw, false, true)
    }

    fn with_handle(device: &Device, raw: Handle, pdl: bool, foreign: bool) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        Self(Arc::new(StreamInner {
            raw,
            foreign,
            device: device.clone(),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            pdl,
            in_full_order: AtomicU32::new(0),
            close_behind: AtomicU32::new(0),
            capturing: AtomicBool::new(false),
            capture: Mutex::new(None),
        }))
    }

    /// The stream's device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// A number that no other stream of this process has.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// The driver's handle, a `CUstream`, for other users of the driver. It lives as long as this.
    pub fn handle(&self) -> *mut std::ffi::c_void {
        self.0.raw
    }

    /// Whether programmatic dependent launch is on.
    pub fn pdl(&self) -> bool {
        self.0.pdl
    }

    /// Runs `body`; kernels that are queued meanwhile start when their predecessors have ended. For one that
    /// reads what its predecessor wrote before it waits: weights, which are constants elsewhere.
    pub(crate) fn in_full_order<T>(&self, body: impl FnOnce() -> T) -> T {
        self.0.in_full_order.fetch_add(1, Ordering::Relaxed);
        let result = body();
        self.0.in_full_order.fetch_sub(1, Ordering::Relaxed);
        result
    }

    /// Runs `body`; kernels that are queued meanwhile may start before their predecessors have ended, whatever
    /// the stream's option. For a later kernel of one operation: the one in front of it is the operation's own.
    pub(crate) fn close_behind<T>(&self, body: impl FnOnce() -> T) -> T {
        self.0.close_behind.fetch_add(1, Ordering::Relaxed);
        let result = body();
        self.0.close_behind.fetch_sub(1, Ordering::Relaxed);
        result
    }

    /// Whether a kernel may start before its predecessor has ended.
    pub(super) fn overlaps(&self) -> bool {
        let behind = || self.0.close_behind.load(Ordering::Relaxed) > 0;
        let wanted = self.0.pdl || behind() && self.0.device.info().supports_pdl();
        wanted && self.0.in_full_order.load(Ordering::Relaxed) == 0
    }

    /// Waits on the host until all work of the stream is done.
    ///
    /// # Errors
    /// A driver failure, one of earlier asynchronous work, or that the stream is being captured.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        self.refuse_in_capture("cuStreamSynchronize")?;
        let api = self.0.device.bind()?;
        // SAFETY: the handle is alive.
        api.check(unsafe { (api.stream_synchronize)(self.0.raw) }, "cuStreamSynchronize")
    }

    /// Whether all work of the stream is done.
    ///
    /// # Errors
    /// As [`Stream::synchronize`].
    pub fn is_idle(&self) -> Result<bool, DriverError> {
        self.refuse_in_capture("cuStreamQuery")?;
        let api = self.0.device.bind()?;
        // SAFETY: the handle is alive.
        match unsafe { (api.stream_query)(self.0.raw) } {
            NOT_READY => Ok(false),
            code => api.check(code, "cuStreamQuery").map(|()| true),
        }
    }

    /// A new event that marks the work enqueued so far.
    ///
    /// # Errors
    /// A driver failure.
    pub fn record(&self) -> Result<Event, DriverError> {
        let event = Event::new(&self.0.device)?;
        event.record(self)?;
        Ok(event)
    }

    /// Later work of this stream waits, on the device, for the work that `event` marks.
    ///
    /// When the event was recorded in a capture, this stream joins the capture; it must be joined
    /// back, by a wait in the other direction, before the capture ends.
    ///
    /// # Errors
    /// A driver failure.
    pub fn wait_event(&self, event: &Event) -> Result<(), DriverError> {
        let api = self.0.device.bind()?;
        // SAFETY: both handles are alive; the driver keeps what the wait needs.
        let code = unsafe { (api.stream_wait_event)(self.0.raw, event.raw(), 0) };
        api.check(code, "cuStreamWaitEvent")?;
        if let Some(capture) = event.capture()
            && !self.is_capturing()
        {
            capture.admit(self);
        }
        Ok(())
    }

    /// Later work of this stream waits, on the device, for all work enqueued on `other` so far.
    ///
    /// Inside a capture this is how another stream joins it, and how it is joined back.
    ///
    /// # Errors
    /// A driver failure.
    pub fn wait(&self, other: &Stream) -> Result<(), DriverError> {
        self.wait_event(&other.record()?)
    }

    /// Whether a graph is being captured from this stream.
    pub fn is_capturing(&self) -> bool {
        self.0.capturing.load(Ordering::Acquire)
    }

    /// The driver would refuse too, but break the capture by it.
    fn refuse_in_capture(&self, call: &'static str) -> Result<(), DriverError> {
        if !self.is_capturing() {
            return Ok(());
        }
        let name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
        Err(DriverError::new(900, name, "the stream is being captured", call))
    }

    pub(crate) fn raw(&self) -> Handle {
        self.0.raw
    }

    /// While captured, lets the graph keep `thing`; tells whether it does.
    #[inline]
    pub(crate) fn keep(&self, thing: impl FnOnce() -> Arc<dyn Any + Send + Sync>) -> bool {
        let Some(capture) = self.running_capture() else { return false };
        let thing = thing();
        let mut keep = lock(&capture.keep);
        let Some(keep) = &mut *keep else { return false };
        if !keep.iter().any(|kept| Arc::ptr_eq(kept, &thing)) {
            keep.push(thing);
        }
        true
    }

    /// The capture that the stream takes part in.
    #[inline]
    pub(super) fn running_capture(&self) -> Option<Arc<Capture>> {
        if self.is_capturing() { lock(&self.0.capture).clone() } else { None }
    }

    /// Holds off the start of a capture while `f` runs; `f` learns whether one is running.
    pub(crate) fn with_capture_held<R>(&self, f: impl FnOnce(bool) -> R) -> R {
        let held = lock(&self.0.capture);
        f(held.is_some())
    }

    pub(super) fn capture_slot(&self) -> MutexGuard<'_, Option<Arc<Capture>>> {
        lock(&self.0.capture)
    }

    pub(super) fn set_capture(&self, capture: Option<Arc<Capture>>) {
        let mut slot = lock(&self.0.capture);
        self.0.capturing.store(capture.is_some(), Ordering::Release);
        *slot = capture;
    }

    pub(super) fn mark_capturing(&self) {
        self.0.capturing.store(true, Ordering::Release);
    }
}

impl Capture {
    pub(super) fn new() -> Self {
        Self { keep: Mutex::new(Some(Vec::new())), members: Mutex::default() }
    }

    /// Takes `stream` in, unless the capture has ended.
    fn admit(self: Arc<Self>, stream: &Stream) {
        // Held throughout, so that `finish` finds every member.
        let keep = lock(&self.keep);
        if keep.is_some() {
            lock(&self.members).push(stream.clone());
            stream.set_capture(Some(self.clone()));
        }
    }

    /// Takes the streams out of the capture and hands over what it kept.
    pub(super) fn finish(&self) -> Vec<Arc<dyn Any + Send + Sync>> {
        let keep = lock(&self.keep).take();
        for member in std::mem::take(&mut *lock(&self.members)) {
            member.set_capture(None);
        }
        keep.unwrap_or_default()
    }
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        if self.foreign {
            return;
        }
        if let Ok(api) = self.device.bind() {
            // SAFETY: the handle is alive and not used again. Pending work still runs; waiting for
            // it here lets nothing that it touches be freed under it. A failure is one of earlier
            // work, which a later call reports.
            unsafe {
                (api.stream_synchronize)(self.raw);
                (api.stream_destroy)(self.raw);
            }
        }
    }
}

/// A lock whose holder panicked is still consistent here: no critical section can stop half-way.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
