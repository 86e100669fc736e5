//! Points in a stream's work.
//!
//! An event marks the work enqueued on a stream before [`Event::record`]; another stream can wait
//! for it on the device, and the host can wait for it or ask. `cust`'s events record only on
//! `cust`'s own streams, which are never non-blocking, so these are the driver's.

use std::sync::{Arc, Mutex, Weak};

use super::api::{EVENT_DISABLE_TIMING, Handle, NOT_READY};
use super::device::Device;
use super::error::DriverError;
use super::stream::{Capture, Stream, lock};

/// A point in a stream's work.
pub struct Event {
    raw: Handle,
    device: Device,
    timing: bool,
    /// The capture in which it was last recorded: a stream that waits for it joins that.
    capture: Mutex<Weak<Capture>>,
}

// SAFETY: a driver event may be used from any thread; every use makes the context current first.
unsafe impl Send for Event {}
// SAFETY: the driver serialises calls on one event.
unsafe impl Sync for Event {}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Event").field("timing", &self.timing).finish_non_exhaustive()
    }
}

impl Event {
    /// An event for ordering; cheaper than one that keeps time.
    ///
    /// # Errors
    /// A driver failure.
    pub fn new(device: &Device) -> Result<Self, DriverError> {
        Self::create(device, false)
    }

    /// An event that keeps the time at which it was reached.
    ///
    /// # Errors
    /// A driver failure.
    pub fn with_timing(device: &Device) -> Result<Self, DriverError> {
        Self::create(device, true)
    }

    fn create(device: &Device, timing: bool) -> Result<Self, DriverError> {
        let api = device.bind()?;
        let mut raw = std::ptr::null_mut();
        let flags = if timing { 0 } else { EVENT_DISABLE_TIMING };
        // SAFETY: writes one handle; the context is current.
        api.check(unsafe { (api.event_create)(&mut raw, flags) }, "cuEventCreate")?;
        Ok(Self { raw, device: device.clone(), timing, capture: Mutex::default() })
    }

    /// Marks the work enqueued on `stream` so far. A later record replaces an earlier one.
    ///
    /// # Errors
    /// A driver failure; one is also that the stream is of another device.
    pub fn record(&self, stream: &Stream) -> Result<(), DriverError> {
        let api = self.device.bind()?;
        // SAFETY: both handles are alive while `self` and `stream` are borrowed.
        api.check(unsafe { (api.event_record)(self.raw, stream.raw()) }, "cuEventRecord")?;
        *lock(&self.capture) =
            stream.running_capture().as_ref().map_or_else(Weak::new, Arc::downgrade);
        Ok(())
    }

    /// Whether the marked work is done; true for an event that was never recorded.
    ///
    /// # Errors
    /// A driver failure, or one of earlier asynchronous work.
    pub fn is_done(&self) -> Result<bool, DriverError> {
        let api = self.device.bind()?;
        // SAFETY: the handle is alive.
        match unsafe { (api.event_query)(self.raw) } {
            NOT_READY => Ok(false),
            code => api.check(code, "cuEventQuery").map(|()| true),
        }
    }

    /// Waits on the host until the marked work is done.
    ///
    /// # Errors
    /// A driver failure, or one of earlier asynchronous work.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        let api = self.device.bind()?;
        // SAFETY: the handle is alive.
        api.check(unsafe { (api.event_synchronize)(self.raw) }, "cuEventSynchronize")
    }

    /// Microseconds on the device from `start` to `self`; waits for both.
    ///
    /// # Errors
    /// A driver failure; one is also that either was not made by [`Event::with_timing`] or not
    /// recorded.
    pub fn elapsed_us(&self, start: &Event) -> Result<f64, DriverError> {
        start.synchronize()?;
        self.synchronize()?;
        let api = self.device.bind()?;
        let mut ms = 0.0;
        // SAFETY: writes one f32; both handles are alive.
        let code = unsafe { (api.event_elapsed)(&mut ms, start.raw, self.raw) };
        api.check(code, "cuEventElapsedTime")?;
        Ok(f64::from(ms) * 1e3)
    }

    pub(super) fn capture(&self) -> Option<Arc<Capture>> {
        lock(&self.capture).upgrade()
    }

    pub(super) fn raw(&self) -> Handle {
        self.raw
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(api) = self.device.bind() {
            // SAFETY: the handle is alive and not used again. The driver keeps what pending waits
            // need. A failure here is one of earlier work, which a later call reports.
            unsafe { (api.event_destroy)(self.raw) };
        }
    }
}
